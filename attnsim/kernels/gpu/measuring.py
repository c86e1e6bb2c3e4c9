"""A GPU ready for measurements, and the points of a run: correctness, launches, microbenchmarks and kernel times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.device import Device, check_architecture
from attnsim.kernels.gpu import probe, probe_kernels
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.kernels.gpu.grid import CONDITIONS, GridPoint, check, ordered, useful_flops
from attnsim.kernels.gpu.prepared import Random, RepeatedNormals, prepare
from attnsim.kernels.gpu.records import Point, machine_record, version_of
from attnsim.kernels.gpu.timing import Mode, Stopwatch, Watch
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

WARM_UP_SPINS = 100
"""Warm-up launches of 2 ms of tensor work each: an idle GPU takes some tenths of a second to raise its clocks."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A GPU ready for measurements.

    Parameters
    ----------
    device : Device
        Device for timing.
    checked : Device
        The same GPU for correctness checks: fresh memory is poisoned, and every launch is waited for.
    watch : Watch
        Times calls.
    random : callable
        Makes random inputs on the GPU.
    describe : callable
        (operations, date) to the machine record.
    seed : int
        Seed of the inputs.
    """

    device: Device
    checked: Device
    watch: Watch
    random: Random
    describe: Callable[[Sequence[Operation], str], dict[str, Any]]
    seed: int


def attached_bench(seed: int) -> Bench:
    """Return the current CUDA device, with its clocks raised.

    Raises
    ------
    InputError
        If there is no CuPy, driver or GPU.
    """
    try:
        device = CudaDevice()
    except InputError as error:  # measuring is the one thing that the CPU cannot stand in for
        raise InputError(str(error).partition(", or run on the CPU")[0]) from None
    watch = Stopwatch(device)
    for _ in range(WARM_UP_SPINS):
        probe_kernels.spin(device, "probe_mma")
    device.synchronize()

    def describe(operations: Sequence[Operation], date: str) -> dict[str, Any]:
        return machine_record(device, watch, operations, seed=seed, date=date)

    checked = CudaDevice(poison=True, synchronous=True)
    return Bench(device, checked, watch, RepeatedNormals(device, seed), describe, seed)


def by_value(names: Sequence[str]) -> list[Operation]:
    """Return the operations of these names in catalog order, the most valuable first."""
    return [one for name, one in OPERATIONS.items() if name in names]


def runs_on(one: Operation, gpu: Gpu) -> str:
    """Return the reason why an operation's kernels do not run on a GPU; "" if they do."""
    try:
        for variant in one.variants():
            check_architecture(variant, gpu)
    except InputError as error:
        return str(error)
    return ""


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
