"""attnsim predicts how attention runs on a GPU: time, bytes, what bounds it, and how far to trust the answer.

The names below are imported on first use (PEP 562), so that ``import attnsim`` loads neither NumPy nor
anything else of size.

Examples
--------
>>> import attnsim
>>> question = attnsim.Workload(batch=8, heads_q=16, seq_q=1024, head_dim=64, mask=attnsim.Mask.causal())
>>> attnsim.predict(question, "a100-sxm4-80gb").algorithm
'flash'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnsim.api import Answer, Answers, TooLarge, compare, predict, predict_table
    from attnsim.api.adapting.adapt import Adapted, adapt, suggest
    from attnsim.api.adapting.own import OwnTimings, read_own
    from attnsim.api.checking import Check, check
    from attnsim.api.comparing.breakeven import breakeven, crossover
    from attnsim.api.comparing.densities import densities
    from attnsim.api.comparing.ratios import Ratio
    from attnsim.api.comparing.splitting import Split, split
    from attnsim.api.energy import energy
    from attnsim.api.explaining import Explanation, explain
    from attnsim.api.layer import attention_share, layer, split_layer
    from attnsim.api.lifted import explain_kernel, predict_kernel, trace_kernel
    from attnsim.api.roofline import Roofline
    from attnsim.api.tracing import trace
    from attnsim.api.trust import Trust
    from attnsim.errors import InputError
    from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
    from attnsim.models.hardware.gpu import Gpu
    from attnsim.models.llm.files import builtin_model_ids, load_model
    from attnsim.models.llm.model import Model
    from attnsim.models.mask.mask import Mask
    from attnsim.models.question.operations import Operations
    from attnsim.models.question.workload import Workload
    from attnsim.plots import pictures as plot
    from attnsim.studies.hardware_search import search_hardware
    from attnsim.studies.hardware_space import Space
    from attnsim.studies.search import search_tiles
    from attnsim.studies.sensitivity import sensitivity
    from attnsim.studies.whatif import WhatIf, whatif
    from attnsim.validation.checking import frames as evidence

    __version__: str

# fmt: off
__all__ = [
    "Adapted", "Answer", "Answers", "Check", "Explanation", "Gpu", "InputError", "Mask", "Model", "Operations",
    "OwnTimings", "Ratio", "Roofline", "Space", "Split", "TooLarge", "Trust", "WhatIf", "Workload", "__version__",
    "adapt", "attention_share", "breakeven", "builtin_gpu_ids", "builtin_model_ids", "check", "compare", "crossover",
    "densities", "energy", "evidence", "explain", "explain_kernel", "layer", "load_gpu", "load_model", "plot",
    "predict", "predict_kernel", "predict_table", "read_own", "search_hardware", "search_tiles", "sensitivity", "split",
    "split_layer", "suggest", "trace", "trace_kernel", "whatif",
]
# fmt: on

_HOMES = {
    "api": "Answer Answers TooLarge compare predict predict_table",
    "api.adapting.adapt": "Adapted adapt suggest",
    "api.adapting.own": "OwnTimings read_own",
    "api.comparing.breakeven": "breakeven crossover",
    "api.checking": "Check check",
    "api.comparing.densities": "densities",
    "api.energy": "energy",
    "api.explaining": "Explanation explain",
    "api.layer": "attention_share layer split_layer",
    "api.lifted": "explain_kernel predict_kernel trace_kernel",
    "api.comparing.ratios": "Ratio",
    "api.roofline": "Roofline",
    "api.comparing.splitting": "Split split",
    "api.tracing": "trace",
    "api.trust": "Trust",
    "errors": "InputError",
    "models.hardware.files": "builtin_gpu_ids load_gpu",
    "models.hardware.gpu": "Gpu",
    "models.llm.files": "builtin_model_ids load_model",
    "models.llm.model": "Model",
    "models.mask.mask": "Mask",
    "models.question.operations": "Operations",
    "models.question.workload": "Workload",
    "studies.hardware_search": "search_hardware",
    "studies.hardware_space": "Space",
    "studies.search": "search_tiles",
    "studies.sensitivity": "sensitivity",
    "studies.whatif": "WhatIf whatif",
}
_MODULES = {"evidence": "attnsim.validation.checking.frames", "plot": "attnsim.plots.pictures"}
_HOME_OF = {name: f"attnsim.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    value: object
    if name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name == "__version__":
        value = importlib.import_module("attnsim.models.digest").version()
    else:
        raise AttributeError(f"module 'attnsim' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
