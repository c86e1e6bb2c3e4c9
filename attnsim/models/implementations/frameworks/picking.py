"""Calls that choose among implementations by themselves: which one runs for a workload, a GPU and a version.

PyTorch: ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` (`priority_order`, `select_sdp_backend`, commit
21c3369e). Transformer Engine: ``transformer_engine/pytorch/attention/dot_product_attention/utils.py``
(`get_attention_backend`).
"""

from __future__ import annotations

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Picks
from attnsim.models.implementations.names import version_parts
from attnsim.models.question.workload import Workload

CUDNN_FIRST = (2, 11)
"""PyTorch from which SDPA prefers cuDNN on sm_90 and sm_100: it asks for more than 9.15.0, 2.11 is the first wheel that
brings it (huggingface/transformers pull request 48163)."""
LARGEST_FUSED = 256
"""Largest head_dim of the flash and cuDNN back ends (`check_head_dim_size_flash`, `check_cudnn_tensor_shapes`)."""


def sdpa(w: Workload, gpu: Gpu, version: str) -> str:
    """The back end that PyTorch's SDPA takes by itself; a version left open is the newest."""
    capability = gpu.compute_capability_number
    fused = w.dtype in ("fp16", "bf16") and capability >= 80 and w.head_dim % 8 == 0
    fused = fused and w.head_dim == w.head_dim_v <= LARGEST_FUSED
    newest = not version or version_parts(version) >= CUDNN_FIRST
    if fused and capability in (90, 100) and newest:
        return "torch.sdpa-cudnn"
    if fused:
        return "torch.sdpa-flash"
    aligned = all(width % (16 // w.element_bytes) == 0 for width in (w.head_dim, w.head_dim_v))
    able = capability >= 80 or w.dtype != "bf16"
    return "torch.sdpa-efficient" if aligned and able else "torch.sdpa-math"


def transformer_engine(w: Workload, gpu: Gpu, version: str) -> str:
    """Transformer Engine: FlashAttention-2 before Hopper, cuDNN from there on."""
    return "transformer-engine.cudnn" if gpu.compute_capability_number >= 90 else "transformer-engine.flash"


CALLS: dict[str, Picks] = {
    "torch.sdpa": sdpa,
    "transformers.sdpa": lambda w, gpu, version: sdpa(w, gpu, ""),
    "transformer-engine.attention": transformer_engine,
}
"""Their names and how they choose."""
