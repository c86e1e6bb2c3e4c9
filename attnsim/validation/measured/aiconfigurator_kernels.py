"""Which implementation stands behind each kernel of ``aiconfigurator-core``, and which rows have a schedule here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.mechanisms import MECHANISMS
from attnsim.validation.measured.aiconfigurator_files import CHUNK, TableFile

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_SERVING = {
    ("vllm", "vllm_flash_attn"): "vllm.flash-attn-2",
    ("vllm", "vllm_flash_attn_fa2"): "vllm.flash-attn-2",
    ("vllm", "vllm_flash_attn_fa3"): "vllm.flash-attn-3",
    ("vllm", "vllm_flashinfer_trtllmprefill"): "vllm.trtllm-gen",
    ("vllm", "vllm_flashinfer_trtllmdecode"): "vllm.trtllm-gen",
    ("sglang", "flash_attention"): "sglang.fa3-sm80",
    ("sglang", "fa3"): "sglang.fa3",
    ("sglang", "trtllm_mha"): "sglang.trtllm-gen",
    ("trtllm", "torch_flow"): "tensorrt-llm.attention",
}
_ENCODERS = {
    ("vllm", "vllm_vit_flash_attn_fa2"): "flash-attn.2",
    ("vllm", "vllm_vit_flash_attn_fa3"): "vllm.vit-flash-attn-3",
    ("vllm", "vllm_vit_flash_attn_fa4"): "vllm.vit-flash-attn-4",
    ("sglang", "flash_attention_v3"): "sglang.vit-fa3",
    ("sglang", "flash_attention_v4"): "flash-attn.4",
    ("trtllm", "torch_flow"): "tensorrt-llm.attention",
}
"""Kernels by (framework, column ``kernel_source``). FlashInfer's own, SGLang's and vLLM's Triton kernels are nobody's
here. The kernels that vLLM and SGLang take on Blackwell through FlashInfer are TensorRT-LLM's."""
_LATENT = {
    ("sglang", "flash_attention"): "sglang.fa3-mla",
    ("sglang", "triton"): "sglang.triton-mla",
    ("sglang", "trtllm_mla"): "tensorrt-llm.mla-trtllm-gen",
}
_TRTLLM_LATENT = {9: "tensorrt-llm.mla-hopper", 10: "tensorrt-llm.mla-trtllm-gen"}
"""TensorRT-LLM's kernels by the major compute capability; FMHA v2 elsewhere. Its column ``kernel_source`` says only
``default``."""


def implementation_of(file: TableFile, kernel: str) -> str:
    """Name of the implementation behind a kernel of a file, "" where there is none."""
    if file.kind.startswith("mla") and (file.framework, kernel) == ("trtllm", "default"):
        major = int(load_gpu(file.gpu).compute_capability_number) // 10 if file.gpu else 0
        return _TRTLLM_LATENT.get(major, "tensorrt-llm.mla-fmha-v2")
    tables = {"context": _SERVING, "generation": _SERVING, "encoder": _ENCODERS}
    known = tables.get(file.kind, _LATENT if file.kind in ("mla context", "mla generation") else {})
    return known.get((file.framework, kernel), "")


def uncovered(file: TableFile, frame: pd.DataFrame, gpu: Gpu) -> NDArray[np.object_]:
    """Why a row has no schedule here, by row; "" where it has one.

    Parameters
    ----------
    file : TableFile
    frame : pandas.DataFrame
        From `read_shapes`.
    gpu : Gpu
    """
    reason = np.full(len(frame), "", dtype=object)
    dtype, kernels = frame["dtype"].astype(str).to_numpy(), frame["kernel"].astype(str).to_numpy()
    mixed = dtype != frame["kv_dtype"].astype(str).to_numpy()
    chunked = (frame["window"] == CHUNK).to_numpy() & (file.framework == "sglang")
    for kernel in frame["kernel"].cat.categories:
        rows, name = kernels == kernel, implementation_of(file, kernel)
        if not name:
            reason[rows] = "kernel without a schedule"
            continue
        record = IMPLEMENTATIONS[name]
        if not runs_on(record, gpu):
            reason[rows] = f"{name} has no schedule on {gpu.sm_arch}"
            continue
        if not MECHANISMS["mla"].run_by(record):  # whose widths here are those of the absorbed form
            reason[rows & (frame["head_dim"] > record.largest_head_dim).to_numpy()] = "head_dim above the largest"
        reason[rows & ~np.isin(dtype, record.dtypes)] = f"{name} has no fp8 schedule"
        reason[rows & mixed] = "16-bit queries on an fp8 cache"
        reason[rows & chunked] = "chunked attention"
    return reason
