"""What measuring needs of a GPU, in one place: made of the GPU that is here, or of stand-ins in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.device import Device
from attnsim.kernels.gpu import probe_kernels
from attnsim.kernels.gpu.inputs import Random, RepeatedNormals
from attnsim.kernels.gpu.machine_record import machine_record
from attnsim.kernels.gpu.timing import Watch
from attnsim.kernels.limits import check_architecture
from attnsim.models.hardware.gpu import Gpu

WARM_UP_SPINS = 100
"""Launches of 2 ms of tensor work: an idle GPU takes some tenths of a second to raise its clocks."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A GPU ready to be measured on.

    Parameters
    ----------
    device : Device
        Where kernels are timed.
    checked : Device
        The same one with fresh memory poisoned and every launch waited for: where kernels are checked.
    watch : Watch
    random : callable
        Makes inputs on it.
    describe : callable
        (operations, date) to the machine record.
    seed : int
        Of the inputs.
    """

    device: Device
    checked: Device
    watch: Watch
    random: Random
    describe: Callable[[Sequence[Operation], str], dict[str, Any]]
    seed: int


def attached_bench(seed: int) -> Bench:
    """The current CUDA device, its clocks raised.

    Raises
    ------
    InputError
        Where there is no CuPy, driver or GPU, in one line.
    """
    from attnsim.kernels.gpu.cuda_device import CudaDevice
    from attnsim.kernels.gpu.timing import Stopwatch

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
    """Operations of these names, the most valuable first; those that nobody has ranked come last."""
    return [one for name, one in OPERATIONS.items() if name in names]


def runs_on(one: Operation, gpu: Gpu) -> str:
    """Why the operation's kernels do not run on a GPU, in words; empty when they do."""
    try:
        for variant in one.variants():
            check_architecture(variant, gpu)
    except InputError as error:
        return str(error)
    return ""
