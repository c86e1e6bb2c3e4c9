"""The parts that a measurement needs of a GPU: made from the attached GPU, or from stand-ins in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.device import Device
from attnsim.kernels.gpu import probe_kernels
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.kernels.gpu.inputs import Random, RepeatedNormals
from attnsim.kernels.gpu.machine_record import machine_record
from attnsim.kernels.gpu.timing import Stopwatch, Watch
from attnsim.kernels.limits import check_architecture
from attnsim.models.hardware.gpu import Gpu

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
