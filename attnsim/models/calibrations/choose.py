"""Which calibration a prediction uses, where the implementation or the GPU has none of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from attnsim.models.calibrations.calibration import Calibration, calibrations, numbers_of
from attnsim.models.calibrations.numbers import GpuNumbers, ImplementationNumbers, Numbers
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.builds import build_speed
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import Workload


@dataclass(frozen=True, slots=True)
class Chosen:
    """The numbers used for a prediction and how near the calibration is to the question.

    Parameters
    ----------
    numbers : Numbers
    calibration : Calibration or None
        The implementation's, or the nearest one's; None when everything is at its prior.
    own : bool
        Whether the calibration is the implementation's own on this architecture.
    gpu_source : str
        Id of the GPU whose fitted numbers are used; "" where none fits and the GPU file's figures are used.
    reason : str
        Why the calibration is not the implementation's own, in words; empty when `own`.
    """

    numbers: Numbers
    calibration: Calibration | None
    own: bool
    gpu_source: str
    reason: str

    @property
    def whose(self) -> str:
        """Whose numbers they are: "fa3, hopper", or "priors"."""
        return f"{self.calibration.implementation}, {self.calibration.architecture}" if self.calibration else "priors"


def choose(record: Implementation, gpu: Gpu, known: Collection[str] | None = None) -> Chosen:
    """The numbers to predict an implementation on a GPU with.

    The implementation's own calibration on the architecture; failing that its own on another architecture; failing
    that the one it is `like`; failing that the priors. GPU numbers come from the same GPU, or the unmodified one behind
    a hypothetical one, or another of the architecture, or the GPU file.

    Parameters
    ----------
    record : Implementation
        ``NAME@N`` has the numbers of ``NAME``.
    gpu : Gpu
    known : collection of str, optional
        Ids of the GPUs that are taken to exist: whatever was fitted on another one is not looked at.
    """
    gpu_numbers, gpu_source = numbers_of(gpu, known)
    everything = calibrations()
    own = record.name.partition("@")[0]
    for name in _chain(own):
        for architecture in (gpu.architecture, *architecture_of(gpu.compute_capability_number).borrows):
            found = everything.get((name, architecture))
            if found is not None and (known is None or {*found.domain.gpus, found.gpu} <= {*known}):
                is_own = name in record.calibrated_as and architecture == gpu.architecture
                where = f"{name} on {architecture}"
                reason = "" if is_own else f"no calibration of {own} on {gpu.architecture}; nearest: {where}"
                return Chosen(carried_to(found, record, gpu, gpu_numbers), found, is_own, gpu_source, reason)
    reason = f"no calibration of {own} or anything like it; priors used"
    return Chosen(Numbers(priors_of(record), gpu_numbers), None, False, gpu_source, reason)


def carried_to(found: Calibration, record: Implementation, gpu: Gpu, gpu_numbers: GpuNumbers) -> Numbers:
    """A calibration's numbers for an implementation on a GPU, beside the GPU's own.

    A fitted share of the tensor rate is carried as clocks: what a product takes beside its FLOPs (issue, operands,
    waits) is the kernel's on every SM, and a smaller share where the tensor cores are slower. By the FLOP that an SM's
    products have in a clock, ``1 / share - 1`` is in proportion to them. That is so for the same kernel, where
    `mma.sync` is the one way to the tensor cores of both GPUs; else the share stays as it is. Changes of a GPU change
    no fitted number.

    Parameters
    ----------
    found : Calibration
    record : Implementation
    gpu : Gpu
    gpu_numbers : GpuNumbers
    """
    numbers, there = found.beside(gpu_numbers), load_gpu(found.gpu)
    own = found.implementation in record.calibrated_as and "tensor_efficiency" in found.fitted
    if not own or not _only_mma_sync(there) or not _only_mma_sync(here := gpu.unchanged):
        return numbers
    lost = (1 / found.numbers.tensor_efficiency - 1) * _mma_sync_rate(here) / _mma_sync_rate(there)
    return replace(numbers, implementation=replace(found.numbers, tensor_efficiency=1 / (1 + lost)))


def _only_mma_sync(gpu: Gpu) -> bool:
    return not gpu.features.wgmma and not gpu.features.tcgen05


def _mma_sync_rate(gpu: Gpu) -> float:
    """FLOP a clock of an SM in 16 bits."""
    return gpu.mma_sync_flops_per_clk("fp16")


def checked(record: Implementation, gpu: Gpu, passes: str) -> bool:
    """Whether a calibration of the implementation's own on the architecture was checked on a pass.

    Forward and backward together are covered where each was measured alone.
    """
    known = calibrations()
    domains = [
        known[name, gpu.architecture].domain for name in record.calibrated_as if (name, gpu.architecture) in known
    ]
    return any(passes in domain.passes or {*passes.split("+")} <= {*domain.passes} for domain in domains)


def priors_of(record: Implementation) -> ImplementationNumbers:
    """An implementation's numbers before any fit."""
    return ImplementationNumbers(extra=record.extra.prior)


def built(chosen: Chosen, record: Implementation, w: Workload, gpu: Gpu) -> Chosen:
    """The same with the numbers at the speed of the build that the record is asked about."""
    return replace(chosen, numbers=replace(chosen.numbers, speed=build_speed(record, w, gpu)))


def _chain(name: str) -> Iterator[str]:
    """An implementation, the one whose calibration stands in for it, the one that stands in for that, and so on."""
    seen = set[str]()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = IMPLEMENTATIONS[name].like
