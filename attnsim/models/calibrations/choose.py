"""Choice of the calibration for a prediction if the implementation or the GPU has none of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from attnsim.models.calibrations.calibration import Calibration, calibrations
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.names import build_speed
from attnsim.models.question.workload import Workload


@dataclass(frozen=True, slots=True)
class Chosen:
    """Numbers chosen for a prediction, and how close their calibration is to the question.

    Parameters
    ----------
    calibration : Calibration or None
        The implementation's own or the nearest one; None if all numbers are at their priors.
    own : bool
        Whether the calibration is the implementation's own on this architecture.
    reason : str
        Why the calibration is not the implementation's own, in words; empty if `own`.
    """

    numbers: Numbers
    calibration: Calibration | None
    own: bool
    reason: str

    @property
    def whose(self) -> str:
        """Origin of the numbers: "fa3, hopper", or "priors"."""
        return f"{self.calibration.implementation}, {self.calibration.architecture}" if self.calibration else "priors"


def choose(record: Implementation, gpu: Gpu, known: Collection[str] | None = None) -> Chosen:
    """Choose the numbers to predict an implementation on a GPU with.

    In this order: the implementation's own calibration on the architecture; its own on another architecture; the
    calibration of the implementation it is `like`; the priors. Latencies are extrapolated unchanged, in clocks and
    seconds: they belong to the kernel on every GPU, and changes of a GPU change no fitted number.

    Parameters
    ----------
    record : Implementation
        ``NAME@N`` has the numbers of ``NAME``.
    known : collection of str, optional
        Ids of the GPUs that are taken to exist; calibrations fitted on other GPUs are ignored.
    """
    everything = calibrations()
    own = record.name.partition("@")[0]
    for name in _chain(own):
        for architecture in (gpu.architecture, *architecture_of(gpu.compute_capability_number).borrows):
            found = everything.get((name, architecture))
            if found is not None and (known is None or {*found.domain.gpus, found.gpu} <= {*known}):
                is_own = name in record.calibrated_as and architecture == gpu.architecture
                where = f"{name} on {architecture}"
                reason = "" if is_own else f"no calibration of {own} on {gpu.architecture}; nearest: {where}"
                return Chosen(found.counted, found, is_own, reason)
    reason = f"no calibration of {own} or anything like it; priors used"
    return Chosen(Numbers(counts=record.counts), None, False, reason)


def checked(record: Implementation, gpu: Gpu, passes: str) -> bool:
    """Return whether the implementation's own calibration on the architecture was checked on a pass.

    Forward and backward together are covered if each was measured alone.
    """
    known = calibrations()
    domains = [
        known[name, gpu.architecture].domain for name in record.calibrated_as if (name, gpu.architecture) in known
    ]
    return any(passes in domain.passes or {*passes.split("+")} <= {*domain.passes} for domain in domains)


def built(chosen: Chosen, record: Implementation, w: Workload, gpu: Gpu) -> Chosen:
    """Set the numbers' speed to that of the build that the question asks about."""
    return replace(chosen, numbers=replace(chosen.numbers, speed=build_speed(record, w, gpu)))


def _chain(name: str) -> Iterator[str]:
    """An implementation, the one whose calibration it borrows, the one which that one borrows from, and so on."""
    seen = set[str]()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = IMPLEMENTATIONS[name].like
