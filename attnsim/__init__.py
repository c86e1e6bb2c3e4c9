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
    from attnsim.api import Prediction, compare, predict, predict_table
    from attnsim.api.breakeven import breakeven
    from attnsim.api.crossover import crossover
    from attnsim.api.explaining import Explanation, explain
    from attnsim.api.layer import attention_share, layer
    from attnsim.api.trust import Trust
    from attnsim.models.errors import InputError
    from attnsim.models.hardware.energy import energy
    from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
    from attnsim.models.hardware.gpu import Gpu
    from attnsim.models.llm.files import builtin_model_ids, load_model
    from attnsim.models.llm.model import Model
    from attnsim.models.mask.mask import Mask
    from attnsim.models.question.workload import Workload
    from attnsim.plots import pictures as plot

    __version__: str

__all__ = [
    "Explanation",
    "Gpu",
    "InputError",
    "Mask",
    "Model",
    "Prediction",
    "Trust",
    "Workload",
    "__version__",
    "attention_share",
    "breakeven",
    "builtin_gpu_ids",
    "builtin_model_ids",
    "compare",
    "crossover",
    "energy",
    "explain",
    "layer",
    "load_gpu",
    "load_model",
    "plot",
    "predict",
    "predict_table",
]

_HOMES = {
    "Explanation": "attnsim.api.explaining",
    "Gpu": "attnsim.models.hardware.gpu",
    "InputError": "attnsim.models.errors",
    "Mask": "attnsim.models.mask.mask",
    "Model": "attnsim.models.llm.model",
    "Prediction": "attnsim.api",
    "Trust": "attnsim.api.trust",
    "Workload": "attnsim.models.question.workload",
    "attention_share": "attnsim.api.layer",
    "breakeven": "attnsim.api.breakeven",
    "builtin_gpu_ids": "attnsim.models.hardware.files",
    "builtin_model_ids": "attnsim.models.llm.files",
    "compare": "attnsim.api",
    "crossover": "attnsim.api.crossover",
    "energy": "attnsim.models.hardware.energy",
    "explain": "attnsim.api.explaining",
    "layer": "attnsim.api.layer",
    "load_gpu": "attnsim.models.hardware.files",
    "load_model": "attnsim.models.llm.files",
    "predict": "attnsim.api",
    "predict_table": "attnsim.api",
}


def __getattr__(name: str) -> object:
    value: object
    if name == "plot":
        value = importlib.import_module("attnsim.plots.pictures")
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name == "__version__":
        from importlib import metadata

        try:
            value = metadata.version("attnsim")
        except metadata.PackageNotFoundError:
            value = "0+unknown"  # run from a source tree that is not installed
    else:
        raise AttributeError(f"module 'attnsim' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
