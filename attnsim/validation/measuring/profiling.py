"""Runs Nsight Compute on our kernels, shape by shape: counted bytes to compare with the replay."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.gpu.measuring import runs_on
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.case_row import Case, parse_row
from attnsim.validation.measuring.counters import METRICS, Counted, parse_counters

LENGTHS = (1024, 4096)
"""Tokens of the profiled shapes: inputs fit every L2, scores fit none at the larger one."""
HEADS = 16
SECONDS = 300
"""Time limit for one shape in seconds; the profiler runs every kernel several times."""


def shapes(gpu: Gpu) -> Iterator[tuple[Operation, Case]]:
    """Yield the profiled cases: each operation that runs on the GPU, at every length, causal if possible."""
    for one in OPERATIONS.values():
        if one.experimental or runs_on(one, gpu):
            continue
        for length in LENGTHS:
            decode = one.passes == "decode"
            yield one, parse_row({
                "gpu": gpu.id, "implementation": one.implementation, "pass": one.passes, "dtype": "bf16",
                "batch": 1, "heads_q": HEADS, "seq_q": 1 if decode else length, "seq_kv": length, "head_dim": 64,
                "causal": int(one.causal and not decode), "cache": "cold",
            })  # fmt: skip


def profiler() -> str:
    """Return the path of ncu.

    Raises
    ------
    InputError
        If it is not installed.
    """
    path = shutil.which("ncu")
    if path is None:
        raise InputError("ncu is not on PATH; give counters of another machine: --counters ncu.csv --cases table.csv")
    return path


def count(
    one: Operation, case: Case, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
) -> list[Counted]:
    """Profile one operation on one shape; returns its launches.

    Raises
    ------
    InputError
        If the profiler may not read counters, or the operation fails.
    """
    command = [
        profiler(), "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--metrics", ",".join(METRICS.values()), sys.executable, "-m", "attnsim", "kernels", "run", one.name,
        "--batch", str(case.batch), "--heads", str(case.heads_q), "--seq", str(max(case.seq_q, case.seq_kv)),
        "--head-dim", str(case.head_dim), "--dtype", case.dtype, *["--causal"] * case.causal,
    ]  # fmt: skip
    try:
        done = run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"ncu took longer than {SECONDS} s for {one.name}; profile it by hand, see docs/cli/probe.md"
        ) from None
    return parse_counters(done.stdout + done.stderr, f"ncu on {one.name}")
