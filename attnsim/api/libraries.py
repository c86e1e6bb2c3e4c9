"""Which kernel is mine: what each library runs by default, by GPU and pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnsim.api.asking import read_gpu
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import Match, match, runs_on
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

OURS = "attnsim"
"""Library of the implementations that are kernels of this package."""
LIBRARIES = {
    "PyTorch SDPA": "sdpa",
    "PyTorch FlexAttention": "flexattention",
    "FlashAttention-2": "fa2",
    "FlashAttention-3": "fa3",
    "xFormers": "xformers",
    "cuDNN": "cudnn",
    "Transformer Engine": "transformer-engine.attention",
    "vLLM": "vllm",
    "SGLang": "sglang",
    "TensorRT-LLM": "tensorrt-llm",
    "FlashInfer": "flashinfer",
}
"""Libraries as people call them, and the name that each means."""

_LLAMA = Workload(heads_q=32, heads_kv=8, seq_q=8192, head_dim=128, mask=Mask.causal())
TYPICAL = {
    "fwd": _LLAMA,
    "fwd+bwd": _LLAMA.with_passes("fwd+bwd"),
    "decode": Workload(batch=32, heads_q=32, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode"),
}
"""A call of each pass, of the shape of Llama-3-8B: a library may choose by it."""


@dataclass(frozen=True, slots=True)
class Default:
    """The kernel that a library runs on a GPU.

    Parameters
    ----------
    library, passes, gpu : str
    implementation : str
        Empty where it runs nothing there, or nothing that is modelled.
    calibrated : bool
        Whether the implementation has numbers of its own on the GPU's architecture.
    why : str
        What was taken for the library, or why there is nothing.
    """

    library: str
    passes: str
    gpu: str
    implementation: str
    calibrated: bool
    why: str


def never_run(implementation: str) -> bool:
    """Whether an implementation is our own, none of which has run on a GPU."""
    return match(implementation).record.library == OURS


def library_defaults(gpus: Sequence[Gpu | str], passes: Sequence[str] = tuple(TYPICAL)) -> list[Default]:
    """The kernel of each library by default, for a typical call of each pass on each GPU.

    Raises
    ------
    InputError
        For a GPU that is not known.
    """
    machines = [read_gpu(gpu) for gpu in gpus]
    return [
        _default(library, name, machine, TYPICAL[one])
        for library, name in LIBRARIES.items()
        for one in passes
        for machine in machines
    ]


def _default(library: str, name: str, gpu: Gpu, w: Workload) -> Default:
    try:
        found: Match | None = match(name, gpu=gpu, w=w)
        why = found.taken if found else ""
    except InputError as error:
        found, why = None, str(error)
    if found is None or not (runs_on(found.record, gpu) and w.passes in found.record.passes):
        return Default(library, w.passes, gpu.id, "", False, why)
    record = found.record
    return Default(library, w.passes, gpu.id, record.name, choose(record, gpu).own, why)
