"""Builds a GPU file from microbenchmarks, and checks their figures against the vendor's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.kernels.gpu.probe import Rate
from attnsim.kernels.gpu.records import attached_of
from attnsim.models.hardware.architectures import modelled
from attnsim.models.hardware.attached import gpu_of_attached
from attnsim.models.hardware.files import known_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu, inconsistency
from attnsim.models.hardware.sections import FIELDS, Figure
from attnsim.units import format_quantity

LEAST_POINTS = 5
"""Fewest working sets for the fit, which has four parameters."""

VISIBLE = by_hand(0.08, "rise of the time of a byte, as a share, below which no end of the L2 is told from noise")


@dataclass(frozen=True, slots=True)
class Knee:
    """The L2's bandwidth and capacity from a sweep over working sets.

    Parameters
    ----------
    bandwidth_bytes_per_s : float
        For working sets that fit the L2.
    capacity_bytes : float or None
        Working set of which half still hits; None if the sweep shows no fall of the bandwidth.
    begins_bytes : float or None
        Working set at which the first reads miss; None likewise.
    """

    bandwidth_bytes_per_s: float
    capacity_bytes: float | None
    begins_bytes: float | None


def fit_knee(sizes_bytes: Sequence[float], rates_bytes_per_s: Sequence[float]) -> Knee:
    """Fit the time per byte by a plateau, a linear rise and a second plateau.

    A least-recently-used cache of `c` bytes would miss everything once the working set exceeds `c`. Hashing, two
    partitions and random replacement blur this step into a ramp from ``c - w/2`` to ``c + w/2``. The fit is least
    squares on relative differences over a grid of `c` and `w`; the plateaus follow linearly.

    Parameters
    ----------
    sizes_bytes, rates_bytes_per_s : sequence of float
        Working sets and their re-read bandwidths.

    Raises
    ------
    InputError
        If there are fewer than `LEAST_POINTS` points.
    """
    if len(sizes_bytes) < LEAST_POINTS:
        raise InputError(f"the sweep over the L2 has {len(sizes_bytes)} sizes; {LEAST_POINTS} at least are needed")
    size = np.asarray(sizes_bytes, np.float64)
    per_byte = 1 / np.asarray(rates_bytes_per_s, np.float64)
    candidates, widths = np.geomspace(size.min(), size.max(), 120), np.linspace(0.02, 1.5, 60)
    begins = np.repeat(candidates, len(widths))
    ends = np.outer(candidates, 1 + widths).ravel()
    # [grid, points]: share of the working set that is missed
    missed = np.clip((size - begins[:, None]) / (ends - begins)[:, None], 0, 1)
    one, ramp = np.broadcast_to(1 / per_byte, missed.shape), missed / per_byte
    # Normal equations of one * a + ramp * b = 1 for each grid point; a ramp that no point is on leaves b at 0.
    aa, ab, bb = (one**2).sum(1), (one * ramp).sum(1), (ramp**2).sum(1)
    ya, yb = one.sum(1), ramp.sum(1)
    determinant = aa * bb - ab**2
    solvable = determinant > 1e-9 * aa * np.maximum(bb, 1e-300)
    safe = np.where(solvable, determinant, 1.0)
    a = np.where(solvable, (ya * bb - yb * ab) / safe, ya / aa)
    b = np.where(solvable, (aa * yb - ab * ya) / safe, 0.0)
    residual = ((one * a[:, None] + ramp * b[:, None] - 1) ** 2).sum(1)
    residual[(a <= 0) | (b < 0)] = np.inf
    best = int(np.argmin(residual))
    if not np.isfinite(residual[best]) or b[best] < VISIBLE * a[best]:
        return Knee(float(np.median(1 / per_byte)), None, None)
    return Knee(float(1 / a[best]), float((begins[best] + ends[best]) / 2), float(begins[best]))


MARGIN = 0.02
"""Relative excess over the vendor's figure that is allowed: the accuracy of clocks and timers."""

STATED = ("datasheet", "derived")
"""Kinds of figures that a measurement cannot exceed: the vendor's statements, and arithmetic on them."""

FROM_DRIVER = "CUDA device attribute"
"""Source of the driver's figures, which limit measurements like a datasheet."""

SHARED_BANKS_BYTES = 128.0
"""32 banks of 4 bytes a clock (CUDA C++ Programming Guide, "Shared Memory")."""

FITTED_WITH = ("l2.bandwidth", "launch.stream", "launch.graph")
"""Figures that calibrations were fitted with; a prediction changes with the measured figure."""

NOTEWORTHY = by_hand(0.1, "difference of a probed figure from the fits' from which on it is said")

DIGITS = 4
"""Significant digits of a measured figure."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured quantity and its upper limit.

    Parameters
    ----------
    name : str
        Name in the microbenchmarks.
    key : str
        Figure of a GPU file that it determines; "" for none.
    limit : float or None
        The vendor's figure; None if there is none.
    spread : float
        Interquartile range divided by the median.
    note : str
        A remark.
    """

    name: str
    value: float
    unit: str
    key: str = ""
    limit: float | None = None
    limit_source: str = ""
    spread: float = 0.0
    samples: int = 0
    throttled: int = 0
    sm_mhz: float | None = None
    note: str = ""

    @property
    def excess(self) -> float:
        """Relative excess over its limit; negative below the limit, -1 without one."""
        return -1.0 if self.limit is None else self.value / self.limit - 1

    def shown(self, value: float) -> str:
        """Format a value with this unit; cache sizes are in MiB."""
        if self.unit == "B":
            return f"{value / 2**20:.1f} MiB"
        return format_quantity(float(f"{value:.{DIGITS}g}"), self.unit)


@dataclass(frozen=True, slots=True)
class Probed:
    """Recorded microbenchmarks, and the GPU that they ran on.

    Parameters
    ----------
    base : Gpu
        The matching built-in GPU, or one made from the driver's attributes.
    l2_bytes : int
        Capacity of the L2 from the driver, which may exceed the datasheet's; 0 if unknown.
    """

    base: Gpu
    rates: tuple[Rate, ...]
    date: str
    driver: str
    l2_bytes: int = 0


def probed_of(records: Iterable[Mapping[str, Any]]) -> Probed:
    """Return the last microbenchmarks in the records of a run.

    Parameters
    ----------
    records : iterable of mapping
        Of ``attnsim probe --records`` or ``benchmarks/gpu_run.py``.

    Raises
    ------
    InputError
        If there are none, or they have no machine record.
    """
    everything = list(records)
    found = next((one for one in reversed(everything) if one.get("kind") == "probe" and "error" not in one), None)
    if found is None:
        raise InputError("the records hold no microbenchmarks; give those of attnsim probe --records")
    machines = [one for one in everything if one.get("kind") == "machine" and one.get("session") == found["session"]]
    if not machines:
        raise InputError(f"the microbenchmarks of {found['session']} have no machine record beside them")
    try:
        rates = tuple(Rate(**rate) for rate in found["rates"])
    except TypeError as error:
        raise InputError(f"the microbenchmarks are of another version ({error}); probe again") from None
    attached, machine = attached_of(machines[-1]), machines[-1]
    base = gpu_of_attached(attached, [load_gpu(name) for name in known_gpu_ids()])
    return Probed(base, rates, machine["date"], machine["driver"], attached.attributes.get("L2CacheSize", 0))


def quantities(probed: Probed) -> list[Measured]:
    """Return all measured quantities, per clock and SM as in GPU files."""
    base = probed.base
    found = [_quantity(rate, base) for rate in probed.rates if rate.name != "l2.reread"]
    sweep = [rate for rate in probed.rates if rate.name == "l2.reread" and rate.working_set_bytes]
    return [_with_fit_note(one, base) for one in (*found, *(_l2(sweep, probed) if sweep else ()))]


def refuse_implausible(measured: Iterable[Measured]) -> None:
    """Raise InputError for measurements that exceed the vendor's figure by more than `MARGIN`."""
    faults = [
        f"{one.name} {one.shown(one.value)} is {one.excess:.1%} above {one.shown(one.limit or 0)} ({one.limit_source})"
        + (f", at {one.sm_mhz:.0f} MHz as NVML told it" if one.sm_mhz and "/clk" in one.unit else "")
        for one in measured
        if one.excess > MARGIN
    ]
    if faults:
        raise InputError(
            f"measured above what is possible by more than {MARGIN:.0%}: {'; '.join(faults)}; nothing is written, look "
            "for another process on the GPU, or for the wrong limit, and probe again"
        )


def probed_gpu(probed: Probed, measured: Sequence[Measured], gpu_id: str, command: str) -> Gpu:
    """Return the GPU with measured figures in place of its own.

    It counts as a real GPU, not as a changed one: predictions for it are not called hypothetical, and its measured
    share of the memory bandwidth replaces another card's fitted share.

    Parameters
    ----------
    measured : sequence of Measured
        From :func:`quantities`.
    command : str
        The measuring command, for the figures' source.

    Raises
    ------
    InputError
        If figures contradict each other.
    """
    base = probed.base
    figures = dict(_figures(measured, base, f"{command}, {probed.date}, driver {probed.driver or 'unknown'}"))
    gpu = base.with_values({key: figure.value for key, figure in figures.items()})
    older = modelled(base.compute_capability_number) or base.compute_capability_number
    gpu = dataclasses.replace(
        gpu,
        id=gpu_id,
        name=f"{base.name}, measured",
        compute_capability=f"{older // 10}.{older % 10}",  # files know no newer chip than the rules do
        base_id=gpu_id,
        changes=(),
        provenance=MappingProxyType({**base.provenance, **figures}),
    )
    if problem := inconsistency(gpu):
        raise InputError(problem)
    return gpu


def _figures(measured: Sequence[Measured], base: Gpu, source: str) -> Iterator[tuple[str, Figure]]:
    by_name = {one.name: one for one in measured}

    def figure(key: str, value: float, one: Measured, more: str = "") -> tuple[str, Figure]:
        how = f"median of {one.samples}, quartiles {one.spread:.1%} apart" if one.samples else ""
        text = "; ".join(part for part in (source, how, more, one.note) if part)
        return key, Figure(float(f"{value:.{DIGITS}g}"), FIELDS[key].unit, "measured", text)

    read, copy, mma = (by_name.get(name) for name in ("hbm.read", "hbm.copy", "tensor.mma_sync"))
    if copy is not None:
        whole, more = base.hbm.bandwidth_bytes_per_s, f"copy {copy.shown(copy.value)}"
        if read is not None:
            more += f", read {read.shown(read.value)}"
            if copy.limit is None and max(read.value, copy.value) > whole:  # nobody states a bandwidth
                whole = max(read.value, copy.value)
                yield figure("hbm.bandwidth", whole, read)
        yield figure("hbm.achievable_fraction", min(1.0, copy.value / whole), copy, f"{more} of {copy.shown(whole)}")
    if mma is not None and mma.key and base.tensor.bf16_flops_per_clk:
        wgmma = by_name.get("tensor.wgmma")
        more = "" if wgmma is None else f", wgmma {wgmma.shown(wgmma.value)}"
        more_text = f"mma.sync {mma.shown(mma.value)}{more} of {mma.shown(base.tensor.bf16_flops_per_clk)}"
        yield figure("tensor.mma_sync_fraction", min(1.0, mma.value / base.tensor.bf16_flops_per_clk), mma, more_text)
    for one in measured:
        if one.key and one not in (copy, mma):
            yield figure(one.key, one.value, one)


@dataclass(frozen=True, slots=True)
class _Known:
    key: str = ""
    most: str = ""
    per_clock: bool = False


_KNOWN = read_typed(Path(__file__).with_name("probe_quantities.yaml"), "quantity", dict[str, _Known])


def _quantity(rate: Rate, base: Gpu) -> Measured:
    known = _KNOWN.get(rate.name, _Known())
    if known.per_clock and rate.sm_mhz is None:
        note = "no figure per clock: the SM clock could not be read, pip install nvidia-ml-py"
        return _measured(rate, rate.value, rate.unit, note=note)
    limit, source = _limit(base, known.most)
    if not known.per_clock or rate.sm_mhz is None:
        return _measured(rate, rate.value, rate.unit, known.key, limit, source)
    per_clock = rate.value / (base.sm.count * rate.sm_mhz * 1e6)
    return _measured(rate, per_clock, FIELDS[known.most].unit, known.key, limit, source, f"at {rate.sm_mhz:.0f} MHz")


def _l2(sweep: Sequence[Rate], probed: Probed) -> Iterator[Measured]:
    """Yield the L2's bandwidth and its effective capacity.

    The GPU file keeps the vendor's capacity: the fraction that retains re-read data is a fitted number of the GPU
    (``l2_capacity_fraction``), and would otherwise be counted twice.
    """
    base = probed.base
    knee = fit_knee([float(rate.working_set_bytes or 0) for rate in sweep], [rate.value for rate in sweep])
    inside = [rate for rate in sweep if not knee.begins_bytes or (rate.working_set_bytes or 0) <= knee.begins_bytes]
    steadiest = min(inside or sweep, key=lambda rate: rate.spread)
    note = "no end of the L2 was seen"
    limit, source = _limit(base, "l2.capacity")
    if limit is not None and probed.l2_bytes > limit:
        limit, source = float(probed.l2_bytes), FROM_DRIVER
    if knee.capacity_bytes is not None:
        share = knee.capacity_bytes / base.l2.capacity_bytes
        note = f"half of {knee.capacity_bytes / 2**20:.1f} MiB, {share:.2f} of the capacity, is still found in it"
        yield Measured("l2.knee", knee.capacity_bytes, "B", "", limit, source)
    read = _measured(steadiest, knee.bandwidth_bytes_per_s, "B/s", "l2.bandwidth", note=note)
    yield dataclasses.replace(read, name="l2.read")


def _with_fit_note(one: Measured, base: Gpu) -> Measured:
    """Return the quantity, with a note if it differs from the figure that calibrations were fitted with."""
    if one.key not in FITTED_WITH or abs(one.value / base.get(one.key) - 1) <= NOTEWORTHY:
        return one
    text = f"latencies were fitted with {one.shown(base.get(one.key))}, times move with this until fitted anew"
    return dataclasses.replace(one, note="; ".join(part for part in (one.note, text) if part))


def _measured(
    rate: Rate, value: float, unit: str, key: str = "", limit: float | None = None, source: str = "", note: str = ""
) -> Measured:
    about = rate.spread, rate.samples, rate.throttled, rate.sm_mhz
    return Measured(rate.name, value, unit, key, limit, source, *about, note)


def _limit(base: Gpu, key: str) -> tuple[float | None, str]:
    """Return the upper limit of a figure and its source; None if there is none."""
    if key == "sm.shared_memory_bandwidth":
        return SHARED_BANKS_BYTES, "32 banks of 4 bytes, CUDA C++ Programming Guide"
    figure = base.provenance.get(key)
    if figure is None or not (figure.kind in STATED or figure.source.startswith(FROM_DRIVER)):
        return None, ""
    return base.get(key), figure.source
