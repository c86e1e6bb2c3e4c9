"""The answer to one question: time, bytes, what bounds it, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from html import escape
from typing import TYPE_CHECKING

from attnsim.api.approximation import ApproximationError, approximation_errors
from attnsim.api.bounds import Bound, bounds_of
from attnsim.api.building import shipped
from attnsim.api.fastest import fastest
from attnsim.api.floor import floor_s
from attnsim.api.playing import Played, figures, with_alternatives
from attnsim.api.ratios import Ratio, speedup
from attnsim.api.trust import Reason, Trust, assess
from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.hardware.changes import Change, told
from attnsim.models.hardware.clock_law import ClockBy, clock_law
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import UNITS, bound_text
from attnsim.models.question.lengths import lengths_text
from attnsim.models.question.words import KERNEL_OPTIONS
from attnsim.models.question.workload import Workload
from attnsim.wording import html_table, interval_text, time_text, times_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How one algorithm runs a workload on a GPU.

    Every figure of the replay is None when the call does not fit the GPU's memory.

    Parameters
    ----------
    workload : Workload
        The question, with the mask that this algorithm was given.
    algorithm, implementation : str
        What was asked for, and the code that is imitated.
    gpu, architecture : str
        Id of the GPU, and its architecture.
    changes : tuple of Change
        What makes the GPU hypothetical, one line per change.
    tiles : {"shipped", "retuned", "given"}
        "shipped" also where a retuning found no better one.
    mode, cache, launch : str
        Conditions of the replay.
    budget : int or None
        Segment executions that the call might play, shared by its kernels; None in exact mode, which has no limit.
    time_s, time_low_s, time_high_s : float or None
        Time of the call with its launches, and the interval in which it is expected nine times in ten, which does not
        reach below the floor.
    floor_s : float or None
        Time that no schedule of the call undercuts (`attnsim.api.floor`).
    best_share : float or None
        The largest share of its floor that a measured call of the pass has reached on the chip; None where too few were
        measured (`attnsim.api.fastest`).
    spread : float or None
        Relative half-width of the time, in that interval, by its sensitivity to timing: 0 but where it is the mean of
        jittered plays.
    hbm_read_bytes, hbm_write_bytes, l2_bytes, smem_bytes : int or None
        Traffic of the whole call at each level.
    flops_useful, flops_dense : int
        ``2 B H pairs (d + dv)`` forward and 2.5 times that backward, over visible pairs and over all pairs.
    flops_executed : int or None
        Of the tensor cores, whole tiles and recomputation included.
    exponentials : int or None
    peak_memory_bytes : int
        Inputs, outputs and scratch that are alive together.
    fits : bool
        Whether that is within the GPU's memory.
    busiest : str or None
        Busiest unit of the longest kernel, or "launch" or "latency" where those take most of the time. What bounds the
        call is `bound`.
    blocks_per_sm : int or None
        Of the longest kernel: as many as fit an SM, or fewer where it has no more.
    waves : float or None
        Of the longest kernel: its blocks over as many as fit the GPU.
    speedup_vs_naive : float or None
        Over the unfused default implementation without the window, under the same conditions (always in fast
        mode); None when either does not fit or it was not asked for.
    speedup_vs_naive_low, speedup_vs_naive_high : float or None
        Between which that speedup is expected nine times in ten.
    trust : Trust
    units_s : mapping of str to float
        Busy seconds of each unit, and "idle".
    clock_hz : float or None
        SM clock of the call.
    clock_by : {"given", "boost", "power", "least"} or None
        What set it: who asked, no limit (GeForce cards run above their datasheet's boost), the power limit, or the
        lowest clock, where the limit asks for less.
    exposed_s, launch_s : float or None
        Seconds that warpgroups waited for data, and of launches and the call's own overhead.
    kernels : tuple of (str, float)
        Kernels in launch order and their times without the launch, seconds.
    tile : str
        The tile in words.
    notes : tuple of str
        Assumptions of the schedule, or why it does not fit.
    approximation : tuple of ApproximationError
        Of an algorithm that is not softmax attention, how far from it it is on stated inputs; else empty.
    run : Played or None
        What was played; no part of the answer.
    """

    workload: Workload
    algorithm: str
    implementation: str
    gpu: str
    architecture: str
    changes: tuple[Change, ...]
    tiles: str
    mode: str
    budget: int | None
    cache: str
    launch: str
    time_s: float | None = None
    time_low_s: float | None = None
    time_high_s: float | None = None
    floor_s: float | None = None
    best_share: float | None = None
    spread: float | None = None
    hbm_read_bytes: int | None = None
    hbm_write_bytes: int | None = None
    l2_bytes: int | None = None
    smem_bytes: int | None = None
    flops_useful: int
    flops_executed: int | None
    flops_dense: int
    exponentials: int | None
    peak_memory_bytes: int
    fits: bool
    busiest: str | None = None
    blocks_per_sm: int | None = None
    waves: float | None = None
    speedup_vs_naive: float | None = None
    speedup_vs_naive_low: float | None = None
    speedup_vs_naive_high: float | None = None
    trust: Trust
    units_s: Mapping[str, float] = field(default_factory=dict)
    clock_hz: float | None = None
    clock_by: ClockBy | None = None
    exposed_s: float | None = None
    launch_s: float | None = None
    kernels: tuple[tuple[str, float], ...] = ()
    tile: str
    notes: tuple[str, ...]
    approximation: tuple[ApproximationError, ...] = ()
    run: Played | None = field(default=None, repr=False, compare=False)

    @property
    def calibration(self) -> Calibration | None:
        """Whose numbers were played; None where none is fitted, or nothing was played."""
        return self.run.chosen.calibration if self.run else None

    @property
    def findings(self) -> tuple[str, ...]:
        """Those of the `notes` that are about this question, and not about how the kernel works."""
        of_kernel = self.run.schedule.notes if self.run and self.run.schedule else ()
        return tuple(note for note in self.notes if note not in of_kernel)

    @property
    def alternatives_s(self) -> tuple[float, ...]:
        """Seconds by those numbers, and by each of their alternatives: played when this is asked for."""
        return with_alternatives(self.run) if self.run else ()

    @property
    def bounds(self) -> tuple[Bound, tuple[Bound, ...]] | None:
        """What bounds the call, and each of `kernels`: each figure twice as good is played when this is asked for."""
        return bounds_of(self.run) if self.run and self.run.replay else None

    @property
    def bound(self) -> Bound | None:
        """The figure of the GPU whose doubling gains most, with that gain: "L2, 1.10x if doubled"."""
        return self.bounds[0] if self.bounds else None

    @property
    def correction(self) -> float:
        """The time over the model's own; 1 where no timings of one's own correct it."""
        played = self.run.replay if self.run else None
        return self.time_s / played.time_s if self.time_s and played else 1.0

    @property
    def hbm_bytes(self) -> int | None:
        """HBM traffic both ways."""
        if self.hbm_read_bytes is None or self.hbm_write_bytes is None:
            return None
        return self.hbm_read_bytes + self.hbm_write_bytes

    @property
    def useful_flops_per_s(self) -> float | None:
        """Useful FLOPs over the time."""
        return None if not self.time_s else self.flops_useful / self.time_s

    def speedup_over(self, other: Prediction) -> Ratio | None:
        """How many times faster this call is than the other one, with its 90 % range.

        Parameters
        ----------
        other : Prediction
            Of the same question on another GPU, or by another kernel.

        Returns
        -------
        Ratio or None
            None where one of them does not fit its GPU's memory.
        """
        return speedup(other, self)

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON holds them: plain types, null for what is unknown, no NaN or infinity."""
        told = (item.name for item in fields(self) if item.name not in ("workload", "run"))
        return {name: plain(getattr(self, name)) for name in told}

    def row(self) -> dict[str, object]:
        """Question and answer as one row of plain values; units that are busy as ``busy_tensor_s``.

        The question stands in the columns of a case table; ``decodes`` is how many sequences have a single query,
        which ``pass`` does not say of a batch whose `lengths` differ.
        """
        w = self.workload
        asked = {"pass" if name == "passes" else name: getattr(w, name) for name in ASKED}
        plain = {name: value for name, value in self.to_dict().items() if not isinstance(value, (dict, list))}
        more = {"changes": told(self.changes), "trust": self.trust.level, "trust_reason": self.trust.reason}
        busy = {f"busy_{unit}_s": self.units_s.get(unit) for unit in UNITS}
        asked |= {"lengths": lengths_text(w.lengths), "mask": str(w.mask)}
        asked |= {name: "" if (value := getattr(w, name)) is None else str(value) for name in TEXTS}
        asked |= {name: getattr(w, name) for name in ("dropout", "page_size", "prefix", *KERNEL_OPTIONS)}
        asked["decodes"] = sum(one.times for one in w.parts if one.queries == 1)
        return asked | plain | more | busy

    def to_frame(self) -> pd.DataFrame:
        """The one row of :meth:`row` as a frame; :func:`attnsim.compare` gives several."""
        import pandas as pd

        return pd.DataFrame([self.row()])

    def shown(self) -> dict[str, str]:
        """What a table for people says of it."""
        return {
            "algorithm": self.algorithm,
            "implementation": self.implementation,
            "gpu": "; ".join((self.gpu, *(change.setting for change in self.changes))),
            "time": time_text(self.time_s) if self.fits else "too large",
            "90 % range": interval_text(self.time_low_s, self.time_high_s, self.time_s),
            "vs naive": times_text(self.speedup_vs_naive),
            "busiest": bound_text(self.busiest),
            "trust": self.trust.level,
        }

    def __repr__(self) -> str:
        one = self.shown()
        return (
            f"<Prediction {self.algorithm} ({self.implementation}) on {one['gpu']}: {one['time']} "
            f"({one['90 % range']}), busiest {one['busiest']}, {self.trust.level}>"
        )

    def _repr_html_(self) -> str:
        return html_table(str(self.workload), [self.shown()]) + f"<p>trust: {escape(self.trust.summary)}</p>"


ASKED = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v", "dtype", "passes")
"""Fields of the question in a row."""


TEXTS = ("selection", "latent", "operations", "tree")
"""Further fields, as a case table writes them; empty where a question has none."""


def plain(value: object) -> object:
    """A value as JSON holds it: plain types, a change as text, records by their fields, no NaN or infinity."""
    if isinstance(value, Change):
        return str(value)
    if is_dataclass(value):
        to_dict = getattr(value, "to_dict", None)
        return plain(to_dict() if to_dict else {one.name: getattr(value, one.name) for one in fields(value)})
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _as_shipped(run: Played) -> bool:
    """Whether a retuning has found the tile that is shipped."""
    asked = run.question
    if asked.conditions.tiles != "retuned" or run.schedule is None:
        return False
    try:
        return shipped(asked.record, asked.w, asked.gpu).tile_text == run.schedule.tile_text
    except InputError:
        return False  # what is shipped does not fit this GPU


def _power_felt(gpu: Gpu, time_s: float) -> Iterator[str]:
    """That a power limit which was changed does not hold a call, or not wholly, because it is short."""
    law = clock_law(gpu)
    if time_s < law.to_s and not gpu.clock.held_hz and any(one.key == "power.limit" for one in gpu.changes):
        yield f"power.limit is felt by calls of more than {1e3 * law.from_s:g} ms, wholly from {1e3 * law.to_s:g} ms on"


def prediction(run: Played) -> Prediction:
    """The answer that a played question gives."""
    asked, schedule, played = run.question, run.schedule, run.replay
    w, gpu, mechanism, record, conditions = asked.w, asked.gpu, asked.mechanism, asked.record, asked.conditions
    tiles = "shipped" if not record.tunable or _as_shipped(run) else conditions.tiles
    spread = played.spread if played else 0.0
    host_bound = played is not None and played.host_wait_s > 0
    trust = assess(
        w, gpu, run.chosen, record, tiles=tiles, assumed=asked.assumed, spread=spread, host_bound=host_bound,
        version=record.version, operations=w.operations is not None,
    )  # fmt: skip
    notes = schedule.notes if schedule else (run.too_large,)
    if schedule is None:
        trust = replace(trust, reasons=(Reason("memory", run.too_large), *trust.reasons))
    if mechanism.splits and schedule is not None and not schedule.splits.partial:
        notes = (*notes, f"{record.name} does not split the keys of this question")
    notes = (*notes, *w.unusual, *(_power_felt(gpu, played.time_s) if played else ()))
    useful, least, factor, nearest = mechanism.useful(w), None, 1.0, fastest(gpu, w.passes)
    if schedule is not None and played is not None:
        least = floor_s(schedule, useful, gpu, conditions.cache, conditions.launch)
        if conditions.own is not None:
            own = conditions.own.corrected(w, gpu, record, run.chosen.calibration, trust, played.time_s)
            factor, trust = max(own.factor, min(1.0, least / played.time_s)), own.trust
        trust = replace(trust, low=max(trust.low, min(1.0, least / played.time_s / factor)))
        if played.time_s < least:
            notes = (*notes, f"below its floor of {time_text(least)}: a fault of the model or of the GPU's figures")
        elif nearest and (remark := nearest.remark(least / played.time_s)):
            notes = (*notes, remark)
    return Prediction(
        workload=w,
        algorithm=mechanism.name,
        implementation=record.name,
        gpu=gpu.id,
        architecture=gpu.architecture,
        changes=gpu.changes,
        tiles=tiles,
        mode=conditions.mode,
        budget=conditions.limit,
        cache=conditions.cache,
        launch=conditions.launch,
        flops_useful=useful.flops,
        flops_executed=schedule.total("flops") if schedule else None,
        flops_dense=useful.dense,
        exponentials=schedule.total("exps") if schedule else None,
        peak_memory_bytes=run.peak_bytes,
        fits=played is not None,
        floor_s=least,
        best_share=nearest.share if nearest and played else None,
        trust=trust,
        tile=schedule.tile_text if schedule else "",
        notes=notes,
        approximation=() if mechanism.exact else approximation_errors(mechanism.name, w),
        run=run,
        **(figures(played, trust.low, trust.high, factor) | {"clock_by": played.clock_by} if played else {}),
    )


class Predictions(list[Prediction]):
    """A list of predictions, as :func:`attnsim.compare` gives it.

    Examples
    --------
    >>> import attnsim
    >>> found = attnsim.compare(attnsim.Workload(heads=8, seq="1k", head_dim=64), "l4")
    >>> list(found.to_frame()["algorithm"])
    ['naive', 'flash']
    """

    def __init__(self, found: Iterable[Prediction] = ()) -> None:
        super().__init__(found)

    def to_frame(self) -> pd.DataFrame:
        """A row a prediction, the columns of :meth:`Prediction.row`."""
        import pandas as pd

        return pd.DataFrame([one.row() for one in self])

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"

    def _repr_html_(self) -> str:
        questions = dict.fromkeys(str(one.workload.without_window()) for one in self)
        return html_table("; ".join(questions), [one.shown() for one in self])
