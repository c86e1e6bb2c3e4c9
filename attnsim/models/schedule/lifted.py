"""Kernels lifted from their instructions, and their origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnsim.models.schedule.schedule import Kernel, Schedule


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a lifted kernel.

    Parameters
    ----------
    entry : str
        Name of the kernel.
    source : str
        File, function or operation.
    ptx_sha256 : str
        SHA-256 of the PTX.
    arch : str
        Architecture of the PTX, such as "80".
    arguments : mapping of str to str
        Shapes and numbers.
    inputs : str
        Content of the arrays, on which data-dependent control flow depends.
    resources : str
        Source of the number of registers per thread.
    attnsim : str
        Version that wrote the file.
    """

    entry: str
    source: str
    ptx_sha256: str
    arch: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: Mapping[str, str]
    inputs: str
    resources: str
    attnsim: str


@dataclass(frozen=True, eq=False, slots=True)
class Lifted:
    """A lifted kernel with information that its schedule does not hold.

    Parameters
    ----------
    instructions : tuple of mapping of str to int
        Warp instructions of the PTX by pipe, for each segment.
    fp32_per_score : float
        FP32 instructions per score, which the schedule leaves to the fitted number.
    """

    kernel: Kernel
    origin: Origin
    instructions: tuple[Mapping[str, int], ...] = ()
    fp32_per_score: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class LiftedCall:
    """The kernels of one call.

    Parameters
    ----------
    kernels : tuple of Lifted
        In launch order.
    like : str
        The implementation whose fitted numbers are borrowed; empty for the priors.
    memory_bytes : int
        Bytes of all arguments.
    """

    kernels: tuple[Lifted, ...]
    like: str
    memory_bytes: int

    @property
    def name(self) -> str:
        """Names of the distinct kernels, joined by " + "."""
        return " + ".join(dict.fromkeys(one.kernel.name for one in self.kernels))

    @property
    def schedule(self) -> Schedule:
        """The call as the simulator plays it."""
        kernels = tuple(one.kernel for one in self.kernels)
        return Schedule("lifted kernel", self.name, kernels, "as compiled", self.memory_bytes)
