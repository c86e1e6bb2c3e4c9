"""The fitted numbers, their bounds, and the committed files that hold them.

At most eight numbers describe an implementation on an architecture and at most five a GPU (``docs/design.md``).
Each is physical and bounded; the files in ``calibrations/`` are written by :mod:`attnsim.validation.fitting.fit` and
never by hand.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from attnsim.models.hardware.gpu import Gpu


@dataclass(frozen=True, slots=True)
class Number:
    """Meaning, prior and bounds of one fitted number."""

    unit: str
    prior: float
    low: float
    high: float
    meaning: str


IMPLEMENTATION_NUMBERS: dict[str, Number] = {
    "tensor_efficiency": Number("1", 0.85, 0.3, 1.0, "share of the instruction path's tensor rate that is issued"),
    "smem_exposed": Number("1", 0.4, 0.0, 1.0, "share of operand reads from shared memory not hidden behind the MMA"),
    "softmax_instructions": Number("1/score", 5.0, 1.0, 16.0, "FP32-lane instructions per score besides the exp"),
    "interference": Number("1", 0.4, 0.0, 1.0, "share of an MMA or softmax during which the other unit stalls"),
    "step_clks": Number("clk", 150.0, 0.0, 2000.0, "latency of one inner step: barriers and dependent issue"),
    "block_clks": Number("clk", 2000.0, 0.0, 20000.0, "latency of a block's prologue and epilogue together"),
    "call_s": Number("s", 3e-6, 0.0, 3e-4, "fixed time of a call beside the launches of its kernels"),
    "extra": Number("1", 1.0, 0.125, 8.0, "implementation's own number, named by the implementation"),
}

GPU_NUMBERS: dict[str, Number] = {
    "hbm_fraction": Number("1", 0.0, 0.5, 1.0, "share of the HBM bandwidth reached; prior: the GPU file's"),
    "l2_fraction": Number("1", 0.7, 0.2, 1.0, "share of the L2 bandwidth reached"),
    "l2_capacity_fraction": Number(
        "1", 0.6, 0.2, 1.0, "share of a two-partition L2 that keeps data; of one partition all"
    ),
    "launch_scale": Number("1", 1.0, 0.25, 4.0, "kernel launch cost over the GPU file's"),
    "clock_fraction": Number("1", 1.0, 0.6, 1.15, "SM clock under load over the GPU file's sustained clock"),
}

LOGARITHMIC = ("extra", "launch_scale")
"""Ratios: their unit coordinate is the logarithm."""

QUADRATIC = ("step_clks", "block_clks", "call_s")
"""Latencies span decades down to zero: their unit coordinate is the square root."""

OPEN = 0.5
"""Share of a number's bounds, in unit coordinates, from which on a confidence interval determines nothing. Chosen by
hand."""


@dataclass(frozen=True, slots=True)
class ImplementationNumbers:
    """What the source of a kernel does not tell; see :data:`IMPLEMENTATION_NUMBERS` for meaning and bounds."""

    tensor_efficiency: float = IMPLEMENTATION_NUMBERS["tensor_efficiency"].prior
    smem_exposed: float = IMPLEMENTATION_NUMBERS["smem_exposed"].prior
    softmax_instructions: float = IMPLEMENTATION_NUMBERS["softmax_instructions"].prior
    interference: float = IMPLEMENTATION_NUMBERS["interference"].prior
    step_clks: float = IMPLEMENTATION_NUMBERS["step_clks"].prior
    block_clks: float = IMPLEMENTATION_NUMBERS["block_clks"].prior
    call_s: float = IMPLEMENTATION_NUMBERS["call_s"].prior
    extra: float = IMPLEMENTATION_NUMBERS["extra"].prior


@dataclass(frozen=True, slots=True)
class GpuNumbers:
    """What the datasheet does not tell; see :data:`GPU_NUMBERS`. None leaves the GPU file's figure."""

    hbm_fraction: float | None = None
    l2_fraction: float = GPU_NUMBERS["l2_fraction"].prior
    l2_capacity_fraction: float = GPU_NUMBERS["l2_capacity_fraction"].prior
    launch_scale: float = GPU_NUMBERS["launch_scale"].prior
    clock_fraction: float = GPU_NUMBERS["clock_fraction"].prior


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything fitted that a replay uses: the implementation's numbers and the GPU's."""

    implementation: ImplementationNumbers = field(default_factory=ImplementationNumbers)
    gpu: GpuNumbers = field(default_factory=GpuNumbers)


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors ``|predicted / measured - 1|`` over rows that the numbers were not fitted on."""

    rows: int
    mean: float
    median: float
    p90: float
    worst: float


@dataclass(frozen=True, slots=True)
class Domain:
    """The shapes a calibration was checked on: closed ranges, and sets of what is not a range."""

    gpus: tuple[str, ...]
    passes: tuple[str, ...]
    head_dims: tuple[int, ...]
    seq_q: tuple[int, int]
    seq_kv: tuple[int, int]
    rows: tuple[int, int]
    causal: tuple[bool, ...]
    windowed: bool
    dropout: bool


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted numbers of an implementation on an architecture, with what they were fitted on and how well they did.

    Parameters
    ----------
    implementation, architecture : str
    gpu : str
        GPU whose numbers the folds hold; rows of other GPUs take theirs from that GPU's own file.
    numbers : ImplementationNumbers
    fitted : tuple of str
        Which of the numbers the data determined; the others are at their prior.
    held_out : ErrorSummary
    interval : (float, float)
        Factors on the predicted time between which 90 % of the held-out measurements lie.
    domain : Domain
    folds : mapping of str to Numbers
        Numbers fitted without one group of rows, by the group's name: they make the held-out errors.
    ranges : mapping of str to (float, float)
        95 % confidence interval of each fitted number.
    sources : tuple of str
        Keys of the measurements.
    spread : mapping of str to float
        Mean size of log(measured / predicted) by what was left out: "band", "head_dim".
    undetermined : tuple of str
        Fitted numbers that the data leaves open: their confidence interval spans most of their bounds.
    """

    implementation: str
    architecture: str
    gpu: str
    numbers: ImplementationNumbers
    fitted: tuple[str, ...]
    held_out: ErrorSummary
    interval: tuple[float, float]
    domain: Domain
    folds: Mapping[str, Numbers]
    ranges: Mapping[str, tuple[float, float]]
    sources: tuple[str, ...]
    spread: Mapping[str, float] = field(default_factory=dict)
    undetermined: tuple[str, ...] = ()


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
        Id of the GPU whose fitted numbers are used, "" for the GPU file's own figures.
    reason : str
        In words, for the person reading the trust; empty when `own`.
    """

    numbers: Numbers
    calibration: Calibration | None
    own: bool
    gpu_source: str
    reason: str


def choose(implementation: str, like: Mapping[str, str], gpu: Gpu, known: Collection[str] | None = None) -> Chosen:
    """The numbers to predict `implementation` on `gpu` with.

    The implementation's own calibration on the architecture; failing that its own on another architecture; failing
    that the one it is `like`; failing that the priors. GPU numbers come from the same GPU, or the unmodified one behind
    a hypothetical one, or another of the architecture, or the GPU file.

    Parameters
    ----------
    implementation : str
        ``NAME@N`` has the numbers of ``NAME``.
    like : mapping of str to str
        Implementation to the one whose calibration stands in for it ("" at the end of the chain).
    gpu : Gpu
    known : collection of str, optional
        Ids of the GPUs that are taken to exist: whatever was fitted on another one is not looked at.
    """
    gpu_numbers, gpu_source = numbers_of(gpu, known)
    everything = {
        key: found
        for key, found in calibrations().items()
        if known is None or {*found.domain.gpus, found.gpu} <= {*known}
    }
    implementation = implementation.partition("@")[0]
    name, seen = implementation, set[str]()
    while name and name not in seen:
        seen.add(name)
        for architecture in (gpu.architecture, *_nearest_architectures(gpu)):
            found = everything.get((name, architecture))
            if found is None:
                continue
            own = name == implementation and architecture == gpu.architecture
            where = f"{name} on {architecture}"
            reason = "" if own else f"no calibration of {implementation} on {gpu.architecture}; nearest: {where}"
            return Chosen(Numbers(found.numbers, gpu_numbers), found, own, gpu_source, reason)
        name = like.get(name, "")
    reason = f"no calibration of {implementation} or anything like it; priors used"
    return Chosen(Numbers(ImplementationNumbers(), gpu_numbers), None, False, gpu_source, reason)


_NEAREST_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "volta": ("ampere",),
    "turing": ("ampere",),
    "ampere": ("hopper",),
    "ada": ("ampere", "hopper"),
    "hopper": ("ampere",),
    "blackwell": ("hopper", "ampere"),
}


def _nearest_architectures(gpu: Gpu) -> tuple[str, ...]:
    """Architectures to borrow from, the most alike first; Blackwell without tcgen05 (sm_120) is of Ada's kind."""
    if gpu.architecture == "blackwell" and not gpu.features.tcgen05:
        return ("ada", "ampere", "hopper")
    return _NEAREST_ARCHITECTURES.get(gpu.architecture, ())


def numbers_of(gpu: Gpu, among: Collection[str] | None = None) -> tuple[GpuNumbers, str]:
    """Fitted numbers of a GPU, and whose they are: its own, the nearest card's of its architecture, or none ("").

    With `among`, only numbers of those GPUs are looked at.
    """
    known = {name: found for name, found in gpu_calibrations().items() if among is None or name in among}
    if gpu.base_id in known:
        return known[gpu.base_id][1], gpu.base_id
    same = [name for name, (architecture, _) in known.items() if architecture == gpu.architecture]
    if not same:
        return GpuNumbers(), ""
    # Another card of the architecture, the one named most alike: what the L2 and launches reach carries over, and how
    # far HBM stays below what its file says a copy reaches; the clock under load belongs to the card.
    nearest = max(same, key=lambda name: _common(name, gpu.base_id))
    found = known[nearest][1]
    return replace(found, hbm_fraction=_carried_hbm(found, nearest, gpu), clock_fraction=1.0), nearest


def _carried_hbm(found: GpuNumbers, of: str, gpu: Gpu) -> float | None:
    """The HBM share of another card of the architecture; None where that has none, or is a chip of another class."""
    from attnsim.models.hardware.files import load_gpu

    other = load_gpu(of)
    if found.hbm_fraction is None or other.l2.partitions != gpu.l2.partitions:
        return None
    share = found.hbm_fraction / other.hbm.achievable_fraction * gpu.hbm.achievable_fraction
    return min(share, GPU_NUMBERS["hbm_fraction"].high)


def _common(one: str, other: str) -> int:
    """Length of the beginning that two names share."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@lru_cache(maxsize=1)
def calibrations() -> dict[tuple[str, str], Calibration]:
    """The committed calibrations by (implementation, architecture)."""
    found = (_read_calibration(data) for data in _files("implementations"))
    return {(c.implementation, c.architecture): c for c in found}


@lru_cache(maxsize=1)
def gpu_calibrations() -> dict[str, tuple[str, GpuNumbers]]:
    """The committed GPU numbers by GPU id, with the architecture."""
    return {
        data["gpu"]: (data["architecture"], GpuNumbers(**{k: v["value"] for k, v in data["numbers"].items()}))
        for data in _files("gpus")
    }


@lru_cache(maxsize=1)
def gpu_ranges() -> dict[str, dict[str, tuple[float, float]]]:
    """The 95 % confidence intervals of the fitted GPU numbers, by GPU id and number."""
    return {
        data["gpu"]: {k: (v["low"], v["high"]) for k, v in data["numbers"].items() if "low" in v}
        for data in _files("gpus")
    }


@dataclass(frozen=True, slots=True)
class Widths:
    """Half-widths of 90 % intervals, as measured on predictions whose answer was known and not used.

    Parameters
    ----------
    times_spread : mapping of str to float
        By level of trust: half-width of log time over the calibration's own spread.
    at_least : mapping of str to float
        By where the numbers come from ("own on another architecture", "borrowed", "priors"): half-width of log time.
    """

    times_spread: Mapping[str, float]
    at_least: Mapping[str, float]


@lru_cache(maxsize=1)
def widths() -> Widths:
    """The committed widths; written by `attnsim fit --record`, see `attnsim.validation.checking.coverage`."""
    import yaml

    where = resources.files("attnsim.models").joinpath("calibrations", "trust.yaml")
    data = yaml.safe_load(where.read_text("utf-8"))
    return Widths(
        {name: found["half_width"] for name, found in data["times_spread"].items()},
        {name: found["half_width"] for name, found in data["at_least"].items()},
    )


def unit_of(number: Number, name: str, value: float) -> float:
    """The point of a number's unit interval, in which it is fitted, where it has a value.

    Ratios are fitted by their logarithm; latencies, which span decades down to zero, by their square root.
    """
    if name in LOGARITHMIC:
        return math.log(value / number.low) / math.log(number.high / number.low)
    part = min(1.0, max(0.0, (value - number.low) / (number.high - number.low)))
    return math.sqrt(part) if name in QUADRATIC else part


def is_determined(name: str, low: float, high: float) -> bool:
    """Whether a 95 % confidence interval says anything: whether it spans less than `OPEN` of the number's bounds."""
    number = GPU_NUMBERS.get(name) or IMPLEMENTATION_NUMBERS[name]
    return unit_of(number, name, high) - unit_of(number, name, low) < OPEN


def _files(folder: str) -> list[dict[str, Any]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    where = resources.files("attnsim.models").joinpath("calibrations", folder)
    if not where.is_dir():
        return []
    names = sorted(entry.name for entry in where.iterdir() if entry.name.endswith(".yaml"))
    return [yaml.load(where.joinpath(name).read_text("utf-8"), Loader=loader) for name in names]


def _read_calibration(data: dict[str, Any]) -> Calibration:
    domain = dict(data["domain"])
    for key, value in domain.items():
        if isinstance(value, list):
            domain[key] = tuple(value)
    return Calibration(
        implementation=data["implementation"],
        architecture=data["architecture"],
        gpu=data["gpu"],
        numbers=ImplementationNumbers(**{k: v["value"] for k, v in data["numbers"].items()}),
        fitted=tuple(k for k, v in data["numbers"].items() if v["fitted"]),
        held_out=ErrorSummary(**data["held_out"]),
        interval=(data["interval"][0], data["interval"][1]),
        domain=Domain(**domain),
        folds={
            name: Numbers(ImplementationNumbers(**fold["implementation"]), GpuNumbers(**fold["gpu"]))
            for name, fold in data["folds"].items()
        },
        ranges={k: (v["low"], v["high"]) for k, v in data["numbers"].items() if "low" in v},
        sources=tuple(data["sources"]),
        spread={split: found["spread"] for split, found in data["residuals"].items()},
        undetermined=tuple(k for k, v in data["numbers"].items() if not v.get("determined", True)),
    )
