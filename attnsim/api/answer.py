"""The answer to one question: time, bytes, the unit that bounds it, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Generic, cast

from attnsim.api.approximation import ApproximationError, approximation_errors
from attnsim.api.asking import KernelQuestion, Q, Question
from attnsim.api.bounds import Bound, bounds_of, fastest, floor_s
from attnsim.api.cells import cells
from attnsim.api.comparing.ratios import Ratio, Timed, speedup
from attnsim.api.playing import DoesNotFit, Played, shipped, with_alternatives
from attnsim.api.trust import Reason, Trust, assess
from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.choose import Chosen
from attnsim.models.hardware.clock_law import ClockBy, clock_law
from attnsim.models.hardware.gpu import Change, Gpu, changes_text
from attnsim.models.hardware.units import UNITS, bound_text
from attnsim.models.question.headings import frame_of
from attnsim.models.question.lengths import lengths_text
from attnsim.models.question.words import KERNEL_OPTIONS
from attnsim.models.question.workload import Workload
from attnsim.tables import Table
from attnsim.wording import interval_text, time_text, times_text

if TYPE_CHECKING:
    import pandas as pd


class Reply(Generic[Q]):
    """Everything that is known of an answer from its question alone, and how an answer is written."""

    __slots__ = ()
    asked: Q

    @property
    def question(self) -> Q:
        """The question, with everything that decides its answer."""
        return self.asked

    @property
    def workload(self: Reply[Question]) -> Workload:
        """The attention call, with the mask that this algorithm was given."""
        return self.question.w

    @property
    def algorithm(self: Reply[Question]) -> str:
        """The algorithm that was asked for."""
        return self.question.mechanism.name

    @property
    def implementation(self: Reply[Question] | Reply[KernelQuestion]) -> str:
        """The code that is imitated; of a lifted call, its kernels by name."""
        return self.question.implementation

    @property
    def gpu(self) -> str:
        """Id of the GPU."""
        return self.question.gpu.id

    @property
    def machine(self) -> str:
        """The GPU and its changes in a line: "h100-sxm5-80gb; hbm.bandwidth = 6.7 TB/s"."""
        return "; ".join((self.gpu, *(change.setting for change in self.changes)))

    @property
    def architecture(self) -> str:
        """Architecture of the GPU."""
        return self.question.gpu.architecture

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that make the GPU hypothetical."""
        return self.question.gpu.changes

    @property
    def mode(self) -> str:
        """Mode of the replay: "fast" or "exact"."""
        return self.question.conditions.mode

    @property
    def budget(self) -> int | None:
        """Segment executions that the call might play, shared by its kernels; None in exact mode."""
        return self.question.conditions.limit

    @property
    def cache(self) -> str:
        """State of the L2 before the call: "warm" or "cold"."""
        return self.question.conditions.cache

    @property
    def launch(self) -> str:
        """How kernels are launched."""
        return self.question.conditions.launch

    @property
    def flops_useful(self: Reply[Question]) -> int:
        """``2 B H pairs (d + dv)`` forward and 2.5 times that backward, over the visible pairs."""
        return self.question.useful.flops

    @property
    def flops_dense(self: Reply[Question]) -> int:
        """Useful FLOPs if every pair were visible."""
        return self.question.useful.dense

    @property
    def approximation(self: Reply[Question]) -> tuple[ApproximationError, ...]:
        """Distance from softmax attention on stated inputs; empty for an algorithm that is softmax attention."""
        return approximation_errors(self.algorithm, self.workload)

    def to_dict(self) -> dict[str, object]:
        """The names of the question as JSON holds them: plain types, null for what is unknown, no NaN or infinity."""
        return {key: plain(attrgetter(name)(self)) for key, name in self.question.names.items()}

    def row(self) -> dict[str, object]:
        """Question and answer as one row of plain values; of a call, units that are busy as ``busy_tensor_s``.

        The question of a call stands in the columns of a case table; ``decodes`` is how many sequences have a single
        query, which ``pass`` does not say of a batch whose `lengths` differ.
        """
        one, question = cast("Outcome", self), self.question
        plain = {name: value for name, value in self.to_dict().items() if not isinstance(value, (dict, list))}
        more = {"changes": changes_text(one.changes), "trust": one.trust.level, "trust_reason": one.trust.reason}
        if not isinstance(question, Question):
            return plain | more
        w = question.w
        asked = {"pass" if name == "passes" else name: getattr(w, name) for name in ASKED}
        busy = {f"busy_{unit}_s": one.units_s.get(unit) for unit in UNITS}
        asked |= {"lengths": lengths_text(w.lengths), "mask": str(w.mask)}
        asked |= {name: "" if (value := getattr(w, name)) is None else str(value) for name in TEXTS}
        asked |= {name: getattr(w, name) for name in ("dropout", "page_size", "prefix", *KERNEL_OPTIONS)}
        asked["decodes"] = sum(one.times for one in w.parts if one.queries == 1)
        return asked | plain | more | busy

    def to_frame(self) -> pd.DataFrame:
        """The one row of :meth:`row` as a frame; :func:`attnsim.compare` gives several."""
        return frame_of([self.row()])

    def shown(self) -> dict[str, object]:
        """The cells of a table for people."""
        one = cast("Outcome", self)
        if not isinstance(self.question, Question):
            return {"gpu": self.machine, **cells(one, "time", "90 % range"), **cells(one, "busiest", "trust")}
        return {
            "algorithm": one.algorithm,
            "implementation": one.implementation,
            "gpu": self.machine,
            **cells(one, "time", "90 % range"),
            "vs naive": times_text(one.speedup_vs_naive),
            **cells(one, "busiest", "trust"),
        }

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Reply)
            and (type(self), self.question) == (type(other), other.question)
            and self.to_dict() == other.to_dict()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        one = cast("Outcome", self)
        ranged = interval_text(one.time_low_s, one.time_high_s, one.time_s)
        return (
            f"<{type(self).__name__} {self.question.title} on {self.machine}: "
            f"{time_text(one.time_s) if one.fits else 'too large'} ({ranged}), busiest {bound_text(one.busiest)}, "
            f"{one.trust.level}>"
        )

    def _repr_html_(self) -> str:
        trust, question = cast("Outcome", self).trust, self.question
        title = str(question.w) if isinstance(question, Question) else question.title
        return Table(title, [self.shown()]).html + f"<p>trust: {escape(trust.summary)}</p>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer(Reply[Q]):
    """How a call, or a lifted kernel, runs on a GPU: its question, the replay, and how far to trust the time.

    Parameters
    ----------
    run : Played
        The question, its schedule and the replay.
    trust : Trust
    tiles : {"shipped", "retuned", "given"}
        "shipped" also where a retuning found no better one.
    correction : float
        Factor on the model's times by timings of one's own; 1 without any.
    vs_naive : Ratio or None
        Speedup over the unfused default implementation without the window, under the same conditions (always in fast
        mode); None where that does not fit or was not asked for.
    """

    run: Played[Q]
    trust: Trust
    tiles: str
    correction: float = 1.0
    vs_naive: Ratio | None = None

    fits: ClassVar[bool] = True

    @property
    def question(self) -> Q:
        """The question, with everything that decides its answer."""
        return self.run.question

    @property
    def time_s(self) -> float:
        """Seconds of the call with its launches."""
        return self.run.replay.time_s * self.correction

    @property
    def time_low_s(self) -> float:
        """The lower end of the range in which the time is expected nine times in ten; never below the floor."""
        return self.time_s * self.trust.low

    @property
    def time_high_s(self) -> float:
        """The upper end of that range."""
        return self.time_s * self.trust.high

    @property
    def floor_s(self: Answer[Question]) -> float:
        """Seconds that no schedule of the call undercuts (`attnsim.api.bounds`)."""
        return _floor_s(self.run)

    @property
    def best_share(self: Answer[Question]) -> float | None:
        """The largest share of its floor that a measured call of the pass has reached on the chip.

        None where too few were measured (`attnsim.api.bounds`).
        """
        nearest = fastest(self.question.gpu, self.workload.passes)
        return nearest.share if nearest else None

    @property
    def spread(self) -> float:
        """Relative half-width of the time by its sensitivity to timing; 0 unless it is the mean of jittered plays."""
        return self.run.replay.spread

    @property
    def hbm_read_bytes(self) -> int:
        """Bytes that the call reads from HBM."""
        return round(self.run.replay.hbm_read_bytes)

    @property
    def hbm_write_bytes(self) -> int:
        """Bytes that the call writes to HBM."""
        return round(self.run.replay.hbm_write_bytes)

    @property
    def hbm_bytes(self) -> int:
        """HBM traffic both ways."""
        return self.hbm_read_bytes + self.hbm_write_bytes

    @property
    def l2_bytes(self) -> int:
        """Bytes that the call asks of the L2."""
        return round(self.run.replay.l2_bytes)

    @property
    def smem_bytes(self) -> int:
        """Bytes that the call moves in shared memory."""
        return self.run.replay.smem_bytes

    @property
    def flops_executed(self) -> int:
        """FLOPs of the tensor cores, whole tiles and recomputation included."""
        return self.run.schedule.total("flops")

    @property
    def exponentials(self) -> int:
        """Exponentials of the call."""
        return self.run.schedule.total("exps")

    @property
    def peak_memory_bytes(self) -> int:
        """Bytes of inputs, outputs and scratch that are alive together."""
        return self.run.schedule.peak_memory_bytes

    @property
    def busiest(self) -> str:
        """Busiest unit of the longest kernel, or "launch" or "latency"; `bound` says what bounds the call."""
        return self.run.replay.busiest

    @property
    def blocks_per_sm(self) -> int:
        """Blocks of the longest kernel on an SM: as many as fit, or fewer where it has no more."""
        return self.run.replay.main.blocks_per_sm

    @property
    def waves(self) -> float:
        """Blocks of the longest kernel over as many as fit the GPU."""
        return self.run.replay.main.waves

    @property
    def speedup_vs_naive(self) -> float | None:
        """How many times faster than naive attention the call is (`vs_naive`)."""
        return self.vs_naive.value if self.vs_naive else None

    @property
    def speedup_vs_naive_low(self) -> float | None:
        """The lower end of that speedup's 90 % range."""
        return self.vs_naive.low if self.vs_naive else None

    @property
    def speedup_vs_naive_high(self) -> float | None:
        """The upper end of that speedup's 90 % range."""
        return self.vs_naive.high if self.vs_naive else None

    @property
    def units_s(self) -> dict[str, float]:
        """Busy seconds of each unit, and "idle"."""
        return {unit: busy_s * self.correction for unit, busy_s in self.run.replay.units_s().items()}

    @property
    def clock_hz(self) -> float:
        """SM clock of the call."""
        return self.run.replay.clock_hz

    @property
    def clock_by(self) -> ClockBy:
        """The limit that set the clock: "given", "boost", "power", or "least", the lowest clock.

        "boost" is no limit: GeForce cards run above their datasheet's boost.
        """
        return self.run.replay.clock_by

    @property
    def exposed_s(self) -> float:
        """Seconds that warpgroups waited for data."""
        return self.run.replay.exposed_s * self.correction

    @property
    def launch_s(self) -> float:
        """Seconds of launches and of the call's own overhead."""
        return self.run.replay.launch_s * self.correction

    @property
    def kernels(self) -> tuple[tuple[str, float], ...]:
        """Kernels in launch order and their times without the launch, seconds."""
        return tuple((one.name, one.time_s * self.correction) for one in self.run.replay.kernels)

    @property
    def tile(self) -> str:
        """The tile in words."""
        return self.run.schedule.tile_text

    @property
    def notes(self: Answer[Question]) -> tuple[str, ...]:
        """Assumptions of the schedule, and remarks on this question."""
        return (*self.run.schedule.notes, *self.findings)

    @property
    def findings(self: Answer[Question]) -> tuple[str, ...]:
        """The `notes` that are about this question, and not about how the kernel works."""
        found = (note for note in _findings(self.run) if note not in self.run.schedule.notes)
        return tuple(found)

    @property
    def like(self) -> str:
        """Whose fitted numbers are taken: "flash-attn.2, ampere", or "priors"."""
        return self.run.chosen.whose

    @property
    def calibration(self) -> Calibration | None:
        """The calibration whose numbers were played; None where none is fitted."""
        return self.run.chosen.calibration

    @property
    def alternatives_s(self) -> tuple[float, ...]:
        """Seconds by those numbers, and by each of their alternatives: played when this is asked for."""
        return with_alternatives(self.run)

    @property
    def bounds(self) -> tuple[Bound, tuple[Bound, ...]]:
        """The bound of the call, and of each of `kernels`: figures twice as good are played when this is asked for."""
        return bounds_of(self.run)

    @property
    def bound(self) -> Bound:
        """The figure of the GPU whose doubling gains most, with that gain: "L2, 1.10x if doubled"."""
        return self.bounds[0]

    @property
    def useful_flops_per_s(self: Answer[Question]) -> float:
        """Useful FLOPs over the time."""
        return self.flops_useful / self.time_s

    def speedup_over(self: Timed, other: Outcome | Answer[KernelQuestion]) -> Ratio | None:
        """How many times faster this call is than the other one, with its 90 % range.

        Parameters
        ----------
        other : Answer or TooLarge
            Of the same question on another GPU, or by another kernel.

        Returns
        -------
        Ratio or None
            None where one of them does not fit its GPU's memory.
        """
        return speedup(other, self) if isinstance(other, Answer) else None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TooLarge(Reply[Question]):
    """A call that does not fit the GPU's memory: the names of an answer, None where only a replay would tell.

    Parameters
    ----------
    asked : Question
    peak_memory_bytes : int
        Inputs, outputs and scratch alive together, as far as they are known without a schedule.
    too_large : str
        The sentence that says so.
    trust : Trust
    tiles : {"shipped", "retuned", "given"}
    """

    asked: Question
    peak_memory_bytes: int
    too_large: str
    trust: Trust
    tiles: str

    fits: ClassVar[bool] = False
    tile: ClassVar[str] = ""
    kernels: ClassVar[tuple[tuple[str, float], ...]] = ()
    units_s: ClassVar[Mapping[str, float]] = {}
    alternatives_s: ClassVar[tuple[float, ...]] = ()
    correction: ClassVar[float] = 1.0

    @property
    def notes(self) -> tuple[str, ...]:
        """Why the call was not played, and remarks on the question."""
        return (self.too_large, *self.question.w.unusual)

    @property
    def findings(self) -> tuple[str, ...]:
        """All of the `notes`."""
        return self.notes

    def speedup_over(self, other: Outcome) -> Ratio | None:
        """None: the call has no time."""
        return None

    def __getattr__(self, name: str) -> None:
        if name not in _UNKNOWN:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


Outcome = Answer[Question] | TooLarge
"""An answer, or that the call does not fit the memory."""

_UNKNOWN = {*Question.names.values(), "hbm_bytes", "useful_flops_per_s", "vs_naive", "calibration", "bounds", "bound"}
"""Names of an answer that are None where the call does not fit, unless the question tells them."""

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


def answered(run: Played[Question]) -> Answer[Question]:
    """The answer that a played question gives."""
    asked, time_s = run.question, run.replay.time_s
    tiles = "shipped" if not asked.record.tunable or _as_shipped(run) else asked.conditions.tiles
    trust = _assessed(asked, run.chosen, tiles, run.replay.spread, run.replay.host_wait_s > 0)
    least, own, factor = _floor_s(run), asked.conditions.own, 1.0
    if own is not None:
        found = own.corrected(asked.w, asked.gpu, asked.record, run.chosen.calibration, trust, time_s)
        factor, trust = max(found.factor, min(1.0, least / time_s)), found.trust
    trust = replace(trust, low=max(trust.low, min(1.0, least / time_s / factor)))
    return Answer(run, trust, tiles, factor)


def played(found: Outcome, advice: str = "") -> Answer[Question]:
    """The answer, where the call fits the memory.

    Raises
    ------
    InputError
        When it does not: whose call, why, and the `advice`.
    """
    if isinstance(found, TooLarge):
        raise InputError(f"{found.algorithm} {found.too_large}{advice and f'; {advice}'}")
    return found


def without_alternatives(found: Outcome) -> Outcome:
    """The answer without its calibration, whose alternatives are then not played for the range of a ratio."""
    if isinstance(found, TooLarge):
        return found
    chosen = replace(found.run.chosen, calibration=None)
    return replace(found, run=replace(found.run, chosen=chosen))


def refused(asked: Question, why: DoesNotFit) -> TooLarge:
    """The answer to a question whose call does not fit the memory."""
    tiles = asked.conditions.tiles if asked.record.tunable else "shipped"
    trust = _assessed(asked, why.chosen, tiles)
    trust = replace(trust, reasons=(Reason("memory", str(why)), *trust.reasons))
    return TooLarge(asked, why.peak_bytes, str(why), trust, tiles)


def _assessed(asked: Question, chosen: Chosen, tiles: str, spread: float = 0.0, host_bound: bool = False) -> Trust:
    return assess(
        asked.w, asked.gpu, chosen, asked.record, tiles=tiles, assumed=asked.assumed, spread=spread,
        host_bound=host_bound, version=asked.record.version, operations=asked.w.operations is not None,
    )  # fmt: skip


def _floor_s(run: Played[Question]) -> float:
    asked = run.question
    return floor_s(run.schedule, asked.useful, asked.gpu, asked.conditions)


def _findings(run: Played[Question]) -> Iterator[str]:
    """Remarks on a question that was played."""
    asked, time_s, least = run.question, run.replay.time_s, _floor_s(run)
    if asked.mechanism.splits and not run.schedule.splits.partial:
        yield f"{asked.record.name} does not split the keys of this question"
    yield from asked.w.unusual
    if (own := asked.conditions.own) is not None and own.gpu != asked.gpu.base_id:
        yield f"not corrected: the timings of {own.table} are of {own.gpu}, and this is {asked.gpu.base_id}"
    yield from _power_felt(asked.gpu, time_s)
    nearest = fastest(asked.gpu, asked.w.passes)
    if time_s < least:
        yield f"below its floor of {time_text(least)}: a fault of the model or of the GPU's figures"
    elif nearest and (remark := nearest.remark(least / time_s)):
        yield remark


def _as_shipped(run: Played[Question]) -> bool:
    """Whether a retuning has found the tile that is shipped."""
    asked = run.question
    if asked.conditions.tiles != "retuned":
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


class Answers(list[Outcome]):
    """A list of answers, as :func:`attnsim.compare` gives it.

    Examples
    --------
    >>> import attnsim
    >>> found = attnsim.compare(attnsim.Workload(heads=8, seq="1k", head_dim=64), "l4")
    >>> list(found.to_frame()["algorithm"])
    ['naive', 'flash']
    """

    def to_frame(self) -> pd.DataFrame:
        """A row an answer, the columns of :meth:`Answer.row`."""
        return frame_of([one.row() for one in self])

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"

    def _repr_html_(self) -> str:
        questions = dict.fromkeys(str(one.workload.without_window()) for one in self)
        return Table("; ".join(questions), [one.shown() for one in self]).html
