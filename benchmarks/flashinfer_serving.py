"""FlashInfer's FlashAttention-2 kernels, as SGLang calls them on GPUs before and beside data-centre Blackwell.

    python benchmarks/flashinfer_serving.py

Prints the table of docs/batches.md: errors of the rows of aiconfigurator-core (extra ``datasets``) that ran them, with
nothing fitted, and with two numbers a GPU and a kind of call, a scale and a fixed time, for each fifth of the rows
those of the others. Sequences are of one length there. Left out are rows of an fp8 cache, rows with a window, which
SGLang ignored here (a prefill of 16,384 tokens takes seven times as long as one that sees 1,024 keys may), and decode
steps of groups of 1 to 3 heads, for which ``flashinfer_backend.py``, `should_use_tensor_core`, takes another kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.validation.measured.aiconfigurator_files import (
    TableFile,
    cases_of,
    installed_folder,
    read_shapes,
    table_files,
)
from attnsim.validation.measured.datasets import Row, row_of
from attnsim.validation.measured.groups import even_sample, strata
from attnsim.validation.measured.implausible import Measured, rejected_by

if TYPE_CHECKING:
    from attnsim.arrays import Floats

GPUS = ("l40s", "rtx-pro-6000-server")
NAME, KERNEL = "sglang.flashinfer", "flashinfer"
TENSOR_CORES_FROM = 4
"""Query heads of a group from which SGLang decodes by the kernel of prefill."""
ROWS = 240
"""Rows of a GPU and a kind of call, evenly from bands of lengths, of heads and of head_dim."""
FOLDS = 5


def rows_of(file: TableFile) -> list[Row]:
    """An even sample of the rows of a file that ran the kernel."""
    frame = read_shapes(file)
    same = frame["dtype"].astype(str) == frame["kv_dtype"].astype(str)
    ran = (frame["kernel"] == KERNEL) & (frame["window"] == 0) & same
    if file.passes == "decode":
        ran &= frame["heads_q"] // frame["heads_kv"] >= TENSOR_CORES_FROM
    sound = rejected_by(Measured(frame, load_gpu(file.gpu), file.framework, file.version, file.kind)) == ""
    frame = frame[ran & sound]
    chosen = frame[even_sample(strata(frame), ROWS, 0)]
    return [row_of(replace(case, implementation=NAME)) for case in cases_of(file, chosen)]


def calibrated(predicted: Floats, measured: Floats) -> Floats:
    """Predictions times a scale and plus a fixed time, for each fifth of the rows those of the others."""
    scales, fixed = np.linspace(0.6, 1.4, 41), np.arange(-8e-6, 8.1e-6, 0.5e-6)
    found = np.empty_like(predicted)
    for fold in range(FOLDS):
        rest = np.arange(len(measured)) % FOLDS != fold
        tried = [
            (np.abs((one * predicted[rest] + more) / measured[rest] - 1).mean(), one, more)
            for one in scales
            for more in fixed
        ]
        _, one, more = min(tried)
        found[~rest] = one * predicted[~rest] + more
    return found


def main() -> None:
    """Print the table."""
    folder = installed_folder()
    assert folder is not None, 'pip install "attnsim[datasets]"'
    print("| GPU | call | rows | nothing fitted | predicted/measured | two numbers |")
    print("|---|---|---:|---:|---:|---:|")
    for file in table_files(folder):
        if file.gpu not in GPUS or file.framework != "sglang" or file.kind not in ("context", "generation"):
            continue
        rows = rows_of(file)
        numbers = choose(rows[0].record, rows[0].gpu).numbers
        predicted = np.array([row.predict_s(numbers) for row in rows])
        measured = np.array([row.measured_s for row in rows])
        plain, fitted = (np.abs(one / measured - 1).mean() for one in (predicted, calibrated(predicted, measured)))
        ratio = np.exp(np.log(predicted / measured).mean())
        what = "decode" if file.passes == "decode" else "prefill"
        print(f"| {file.gpu} | {what} | {len(rows)} | {plain:.1%} | {ratio:.2f} | {fitted:.1%} |")


if __name__ == "__main__":
    main()
