"""Which implementation stands behind each kernel of ``aiconfigurator-core``, and which rows have a schedule here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.mechanisms import MECHANISMS
from attnsim.validation.measured.aiconfigurator_files import FACTS, TableFile

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


def implementation_of(file: TableFile, kernel: str) -> str:
    """Name of the implementation behind a kernel of a file, "" where there is none."""
    latent = file.kind.startswith("mla")
    if latent and kernel == "default" and file.gpu:
        kernel = f"default {load_gpu(file.gpu).compute_capability_number // 10}.x"
    group = "latent" if latent else "encoder" if file.kind == "encoder" else "serving"
    return FACTS.kernels[group].get(file.framework, {}).get(kernel, "")


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
    chunked = (frame["window"] == FACTS.chunk).to_numpy() & (file.framework == "sglang")
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
