"""Points of a measuring run: correctness, launch overhead, microbenchmarks and kernel times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from attnsim.kernels.catalog import Operation
from attnsim.kernels.gpu import probe, probe_kernels
from attnsim.kernels.gpu.bench import Bench
from attnsim.kernels.gpu.correctness import check
from attnsim.kernels.gpu.grid import CONDITIONS, GridPoint, ordered, useful_flops
from attnsim.kernels.gpu.machine_record import version_of
from attnsim.kernels.gpu.prepared import prepare
from attnsim.kernels.gpu.records import Point
from attnsim.kernels.gpu.timing import Mode
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

SAMPLES = 30
NULL_SAMPLES = 100
LIMIT_S = 0.4
"""GPU time of a point after which no further burst begins, in seconds; five samples at least."""


def machine_points(bench: Bench, operations: Iterable[Operation], session: str) -> Iterator[Point]:
    """Yield the machine record, one per session, since the driver may change between sessions."""
    about = {"kind": "machine", "session": session}
    yield Point(f"machine {session}", lambda: bench.describe(list(operations), session), about)


def correctness_points(
    bench: Bench, operations: Iterable[Operation], cases: Callable[[Operation], Iterable[Workload]]
) -> Iterator[Point]:
    """Yield correctness checks against float64, on the device whose fresh memory is poisoned.

    Parameters
    ----------
    cases : callable
        Returns the workloads of an operation.
    """
    for one in operations:
        version = version_of(one)
        for w in cases(one):
            about = {"kind": "correct", "operation": one.name, "version": version, "workload": str(w)}
            measure = partial(check, one, bench.checked, w, bench.seed)
            yield Point(f"correct {one.name} {version} {w}", measure, about)


def null_points(bench: Bench, session: str) -> Iterator[Point]:
    """Yield timings of an empty kernel in every mode: the overhead of launch and stopwatch."""

    def measure(mode: Mode) -> dict[str, Any]:
        call = partial(probe_kernels.null, bench.device)
        return bench.watch.time(call, mode, samples=NULL_SAMPLES, limit_s=LIMIT_S).to_dict()

    for mode, (cache, launch) in CONDITIONS.items():
        about = {"kind": "null", "session": session, "cache": cache, "launch": launch}
        yield Point(f"null {mode} {session}", partial(measure, mode), about)


def probe_points(bench: Bench, session: str) -> Iterator[Point]:
    """Yield the microbenchmarks as one point; together they take seconds."""

    def measure() -> dict[str, Any]:
        return {"rates": [asdict(rate) for rate in probe.measure(bench.device, bench.watch)]}

    yield Point("probe", measure, {"kind": "probe", "session": session})


def time_points(bench: Bench, operations: Iterable[Operation], session: str) -> Iterator[Point]:
    """Yield the grid's points, the most informative first; records hold every sample and the GPU's state per burst."""

    def measure(point: GridPoint) -> dict[str, Any]:
        call = prepare(point.operation, bench.device, point.workload, bench.random)
        return bench.watch.time(call, point.mode, samples=SAMPLES, limit_s=LIMIT_S).to_dict()

    for point in ordered(operations, bench.device.gpu):
        one, w = point.operation, point.workload
        version, (cache, launch) = version_of(one), CONDITIONS[point.mode]
        about = {
            "kind": "time",
            "session": session,
            "operation": one.name,
            "implementation": one.implementation,
            "version": version,
            "workload": as_dict(w),
            "useful_flops": useful_flops(w),
            "cache": cache,
            "launch": launch,
        }
        yield Point(f"time {one.name} {version} {point.mode} {w}", partial(measure, point), about)


SHAPE = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v")
"""Columns of a case table that are integers of a workload."""


def as_dict(w: Workload) -> dict[str, Any]:
    """Return a workload in the columns of a case table; `band` is true if these describe its mask completely."""
    causal, window = w.mask.is_causal, None if w.mask.left is None else w.mask.left + 1
    band = Mask.causal() if causal else Mask()
    if window is not None:
        band = band & Mask.sliding_window(window, causal)
    return {
        **{name: getattr(w, name) for name in SHAPE},
        "dtype": w.dtype,
        "pass": w.passes,
        "causal": causal,
        "window": window,
        "mask": str(w.mask),
        "band": band == w.mask,
    }
