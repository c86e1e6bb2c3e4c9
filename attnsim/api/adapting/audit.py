"""An audit of a table of timings: rows that are plausible, suspicious or impossible, and the likeliest reason.

Rows of a kernel and pass are read and answered as they stand, and under each cause why times
may not be those of the calls that the table states (`causes`): a cause is other cells of a row, and mended by writing
them.
The error of a right answer is a Student-t process over shapes (`Near`), so that a smooth model error is no surprise;
the cause under which what was measured is likeliest is named, if it is both far likelier than the table as it stands
and explains most of the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attnsim.api.adapting.own import SCALES, Near, Points, Scales, coordinates, likelihood
from attnsim.api.answering import answer
from attnsim.api.asking import Question
from attnsim.api.tables import AnsweredRow, far_text, question_of
from attnsim.by_hand import by_hand
from attnsim.models.calibrations.components import NORMAL_90
from attnsim.models.hardware.files import builtin_gpu_ids
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.case_file import records
from attnsim.models.question.case_row import NUMBER, Case, parse_row
from attnsim.models.question.columns import Columns
from attnsim.wording import number

if TYPE_CHECKING:
    import pandas as pd


Array = NDArray[np.float64]
Outcome = tuple[float, float, bool, float]
"""Fields of `Tried` for one row, in its order."""

AUDITED = Scales(
    noise=0.05, factor=0.11, near=0.12, octaves=SCALES.octaves, constant_s=1.5e-6, freedom=6.0, widen=SCALES.widen
)
"""The process of a right answer in an audit: of the scales that were tried on 130 published tables with planted faults,
those that name most of them while fewest tables as they stand raise an alarm (`benchmarks/audit.py`)."""

RIGHT = by_hand(0.85, "probability, before it is looked at, that a table states what was run; causes share the rest")
SUSPECTED = by_hand(0.1, "probability that a table is right below which a cause is named")
SLIP = by_hand(0.05, "probability that a row lies below the floor of its call although it states what was run")
LEFT = by_hand(0.6, "share of the root mean square error that a named cause may leave")
SECOND = by_hand(0.003, "probability of a second kind of cause from which it is named too")
FEWEST = by_hand(5, "rows of a kernel and pass from which causes are tried")
MOST = by_hand(24, "rows of a kernel and pass on which causes are tried; of more, some evenly over the times")
MOST_SPARSE = by_hand(8, "the same of kernels with a pattern or a selection, whose replays take longer")
TOGETHER = by_hand(300, "rows of a kernel and pass that are held against each other; of more, every n-th ones")
QUIET = by_hand(0.1, "root mean square error of log time below which there is nothing to explain")
NOTHING = by_hand(0.02, "root mean square change of log time below which a cause cannot be told from none")
ALONE = by_hand(4.0, "standard deviations from what the other rows foretell beyond which a row stands alone")
ALONE_TIMES = by_hand(1.5, "times what the others foretell beyond which a row stands alone")


@dataclass(frozen=True, eq=False)
class Tried:
    """Rows as they are stated, or under a cause.

    Parameters
    ----------
    kind, name : str
        Of the cause; "" of rows as they are stated.
    off : ndarray
        ``[rows]``, log of the measured over the predicted time.
    predicted_s : ndarray
        ``[rows]``.
    inside : ndarray of bool
        ``[rows]``, whether the time lies in the range.
    above : ndarray
        ``[rows]``, log of the measured time over the floor of the call: below 0 no GPU can have taken it.
    """

    kind: str
    name: str
    off: Array
    predicted_s: Array
    inside: NDArray[np.bool_]
    above: Array

    def error(self) -> float:
        """Root mean square of log time."""
        return float(np.sqrt(np.mean(self.off**2)))


@dataclass(frozen=True, slots=True)
class Reason:
    """A cause that is named: what it is, how likely, and what it does to the rows it was tried on."""

    kind: str
    name: str
    probability: float
    before: float
    after: float
    inside: int
    rows: int

    def __str__(self) -> str:
        change = f"mean error {100 * self.before:.0f} -> {100 * self.after:.0f} %"
        return f"{self.name}: {change}, {self.inside} of {self.rows} rows inside their ranges"


@dataclass(frozen=True, eq=False)
class Finding:
    """Remarks on the rows of a kernel and pass on a GPU.

    Parameters
    ----------
    kernel : str
    rows : tuple of int
        Places of its rows.
    reasons : tuple of Reason
        At most two, the likeliest first; empty where the rows are plausible.
    alone : mapping of int to float
        Places of rows that stand alone, and measured over what the others foretell.
    right : float
        Probability that the table states what was run.
    """

    kernel: str
    rows: tuple[int, ...]
    reasons: tuple[Reason, ...] = ()
    alone: Mapping[int, float] = field(default_factory=dict)
    right: float = 1.0

    @property
    def text(self) -> str:
        """In a line; "" where all is plausible."""
        if not self.reasons:
            return ""
        told = "; or ".join(map(str, self.reasons))
        asked = " ".join(KINDS[one.kind] for one in self.reasons)
        return f"{self.kernel} is suspicious: {told}; or none of these. What decides: {asked}"


@dataclass(frozen=True, eq=False)
class Audit:
    """Findings of an audit in a table.

    Parameters
    ----------
    frame : pandas.DataFrame
    columns : Columns
    answered : tuple of AnsweredRow
        As `attnsim.api.checking.Check` has them.
    findings : tuple of Finding
    """

    frame: pd.DataFrame
    columns: Columns
    answered: tuple[AnsweredRow, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def rows(self) -> list[str]:
        """Verdicts on rows: "plausible", "suspicious" or "impossible", with the likeliest reason; "" if unanswered."""
        said = ["" if row.ratio is None else "plausible" for row in self.answered]
        for place, row in enumerate(self.answered):
            said[place] = f"suspicious: {far_text([row.far])}" if row.far else said[place]
        for one in self.findings:
            for place in one.rows if one.reasons else ():
                said[place] = f"suspicious: {one.reasons[0].name}"
            for place, factor in one.alone.items():
                said[place] = f"suspicious: measured is {number(factor, 2)}x what the other rows foretell"
        for place, row in enumerate(self.answered):
            said[place] = f"impossible: {row.impossible}" if row.impossible else said[place]
        return said

    @property
    def lines(self) -> list[str]:
        """Suspicious findings, a line each."""
        found = [one.text for one in self.findings if one.text]
        index = self.frame.index
        for one in self.findings:
            for place, factor in one.alone.items():
                told = f"measured is {number(factor, 2)}x what the other rows of {one.kernel} foretell"
                found.append(f"{index.name or 'row'} {index[place]} stands alone: {told}")
        return found

    @property
    def reasons(self) -> list[dict[str, object]]:
        """The reasons that are named, ready for JSON."""
        return [
            {"kernel": one.kernel, "decides": KINDS[reason.kind], **asdict(reason)}
            for one in self.findings
            for reason in one.reasons
        ]

    def mended(self) -> pd.DataFrame:
        """A copy of the table with the columns set that the likeliest reason of each kernel and pass changes."""
        frame, columns, table = self.frame.copy(), self.columns, list(records(self.frame))
        for one in self.findings:
            for place in one.rows if one.reasons else ():
                for cause in _causes(table[place], columns, self.answered[place]):
                    for ours, text in cause.cells if cause.name == one.reasons[0].name else ():
                        name = columns.name_of(ours)
                        if name in frame.columns or text:
                            cells = list(frame[name]) if name in frame.columns else [""] * len(frame)
                            cells[place] = _as(text, frame[name].dtype.kind if name in frame.columns else "O")
                            frame[name] = cells
        return frame


def _as(text: str, kind: str) -> object:
    """A cell as its column holds it; pandas calls numbers by the kinds i, u and f, and b is true or false."""
    if kind == "b":
        return text == "1"
    return float(text) if kind in "iuf" and text else text


def audit(frame: pd.DataFrame, columns: Columns, rows: tuple[AnsweredRow, ...], most: int = MOST) -> Audit:
    """Audit a table; rows of a kernel and pass on a GPU are looked at together, and causes tried on so many of them."""
    groups: dict[str, list[int]] = {}
    several = len({row.gpu for row in rows if row.ratio}) > 1
    for place, row in enumerate(rows):
        if row.ratio and row.case:
            name = f"{row.answer['used_implementation']}, {row.case.passes}{f' on {row.gpu}' if several else ''}"
            groups.setdefault(name, []).append(place)
    table = list(records(frame))
    findings = (
        _found(name, places, [table[place] for place in places], columns, [rows[place] for place in places], most)
        for name, places in groups.items()
    )
    return Audit(frame, columns, rows, tuple(findings))


def _found(
    kernel: str, places: Sequence[int], table: Sequence[Row], columns: Columns, rows: Sequence[AnsweredRow], most: int
) -> Finding:
    plain = Finding(kernel, tuple(places))
    near = [at for at, row in enumerate(rows) if row.far is None]
    if len(rows) / 2 <= len(near) < len(rows):  # the others are named by themselves
        places, table, rows = [places[at] for at in near], [table[at] for at in near], [rows[at] for at in near]
        return _found(kernel, places, table, columns, rows, most)
    if len(rows) < FEWEST:
        return plain
    points = points_of(rows)
    off = -np.log([row.ratio or 1.0 for row in rows])

    def tried(chosen: NDArray[np.int_]) -> Finding | None:
        """Verdict of the causes on chosen rows; None where none is named."""
        if len(chosen) < FEWEST or np.sqrt(np.mean(off[chosen] ** 2)) < QUIET:
            return None
        stated, others = trials([table[row] for row in chosen], columns, [rows[row] for row in chosen])
        right, reasons = named(points[chosen], stated, others)
        if not reasons:
            return None
        best = next(one for one in others if one.name == reasons[0].name)
        single = standing_alone(replace(points[chosen], predicted_s=best.predicted_s), best.off)
        return Finding(kernel, plain.rows, reasons, {places[chosen[at]]: far for at, far in single.items()}, right)

    order = np.argsort(points.predicted_s, kind="stable")
    calls = [question_of(row.case).w for row in rows if row.case]
    dense = all(w.selection is None and (w.mask in (Mask(), Mask.causal()) or w.mask.is_windowed) for w in calls)
    count = most if dense else min(most, MOST_SPARSE)
    chosen = order[np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))]
    if found := tried(chosen):
        return found
    single = _alone(points, off)  # a few rows that are far off may hide what the others have in common
    found = tried(chosen[~np.isin(chosen, list(single))]) if single else None
    return replace(found or plain, alone={places[row]: factor for row, factor in single.items()})


def _alone(points: Points, off: Array) -> dict[int, float]:
    """Rows that stand alone among all of a kernel and pass, however many."""
    parts, found = -(-len(off) // TOGETHER), dict[int, float]()
    for part in range(parts):
        mine = np.arange(part, len(off), parts)
        found |= {int(mine[row]): factor for row, factor in standing_alone(points[mine], off[mine]).items()}
    return found


def points_of(rows: Sequence[AnsweredRow]) -> Points:
    """Answered rows as the process sees them."""
    made = []
    for row in rows:
        assert row.case and row.low_s and row.high_s and row.predicted_s
        sd = max(np.log(row.high_s / row.low_s) / 2 / NORMAL_90, 0.01)
        made.append((coordinates(question_of(row.case).w), float(sd), row.predicted_s))
    return Points.of(made)


def standing_alone(points: Points, off: Array) -> dict[int, float]:
    """Rows that the others contradict, and measured over what they foretell; the worst first, then without it."""
    found: dict[int, float] = {}
    left = list(range(len(off)))
    while len(left) > FEWEST:
        near = Near(points[left], off[left], replace(AUDITED, freedom=SCALES.freedom))
        strange, apart = near.strangeness, np.exp(off[left] - near.left_out)
        clear = (np.abs(strange) > ALONE) & (np.abs(np.log(apart)) > np.log(ALONE_TIMES))
        if not clear.any():
            break
        worst = int(np.argmax(np.where(clear, np.abs(strange), 0.0)))
        found[left.pop(worst)] = float(apart[worst])
    return found if len(found) <= len(off) / 3 else {}


def _causes(row: Row, columns: Columns, one: AnsweredRow) -> list[Cause]:
    assert one.case is not None
    asked = question_of(one.case)
    clock_hz = answer(asked).clock_hz
    return list(causes(row, columns, one.case, asked, clock_hz or asked.gpu.clock.boost_hz))


def trials(table: Sequence[Row], columns: Columns, rows: Sequence[AnsweredRow]) -> tuple[Tried, list[Tried]]:
    """Rows as stated and under each cause; one that does not concern a row leaves it; of few rows it is left out."""
    stated = [_answered(Cause("", "", ()), row, columns) for row in table]
    found: dict[tuple[str, str], dict[int, Outcome]] = {}
    for at, (row, one) in enumerate(zip(table, rows, strict=True)):
        for cause in _causes(row, columns, one):
            if (outcome := _answered(cause, row, columns)) is not None:
                found.setdefault((cause.kind, cause.name), {})[at] = outcome

    def made(kind: str, name: str, met: Mapping[int, Outcome]) -> Tried:
        every = [met.get(at, one) for at, one in enumerate(stated) if one]
        return Tried(kind, name, *map(np.array, zip(*every, strict=True)))

    return made("", "", {}), [made(*key, met) for key, met in found.items() if len(met) > len(rows) / 2]


def _answered(cause: Cause, row: Row, columns: Columns) -> Outcome | None:
    """A row under a cause; None where it cannot be asked."""
    cells, read = cause.on(row, columns)
    try:
        case = parse_row(cells, read)
        found = answer(question_of(case))
    except Exception:  # what cannot be asked is no cause
        return None
    if not (case.time_s and found.time_s and found.time_low_s and found.time_high_s):
        return None
    inside = found.time_low_s <= case.time_s <= found.time_high_s
    above = float(np.log(case.time_s / found.floor_s)) if found.floor_s else np.inf
    return float(np.log(case.time_s / found.time_s)), found.time_s, inside, above


def probabilities(points: Points, stated: Tried, tried: Sequence[Tried]) -> tuple[float, Array]:
    """Trials of the table as it stands, and of each cause."""
    apart = [np.sqrt(np.mean((one.off - stated.off) ** 2)) > NOTHING for one in tried]
    share = np.log((1 - RIGHT) / max(1, sum(apart)))
    logs = [np.log(RIGHT) + _likelihood(points, stated)]
    logs += [share + _likelihood(points, one) if told else -np.inf for one, told in zip(tried, apart, strict=True)]
    weights = np.exp(np.array(logs) - max(logs))
    weights /= weights.sum()
    return float(weights[0]), weights[1:]


def _likelihood(points: Points, one: Tried) -> float:
    slips = float(np.log(SLIP) * np.sum(one.above < 0))
    return slips + likelihood(replace(points, predicted_s=one.predicted_s), one.off, AUDITED)


def named(points: Points, stated: Tried, tried: Sequence[Tried]) -> tuple[float, tuple[Reason, ...]]:
    """The probability that the table is right, and at most two reasons why it may not be, each of another kind."""
    right, each = probabilities(points, stated, tried)
    likeliest = kinds_of(tried, each)[:2]
    explains = [tried[best].error() < LEFT * stated.error() for _, best in likeliest]
    if right >= SUSPECTED or not any(explains[:1]):
        return right, ()
    said = [
        _reason(stated, tried[best], probability)
        for (probability, best), told in zip(likeliest, explains, strict=True)
        if told and probability >= SECOND
    ]
    return right, tuple(said)


def kinds_of(tried: Sequence[Tried], each: Iterable[float]) -> list[tuple[float, int]]:
    """Probability of each kind and its likeliest cause, the likeliest kind first."""
    shares = list(each)
    places = {one.kind: [at for at, other in enumerate(tried) if other.kind == one.kind] for one in tried}
    found = [(sum(shares[at] for at in mine), max(mine, key=lambda at: shares[at])) for mine in places.values()]
    return sorted(found, key=lambda pair: -pair[0])


def _reason(stated: Tried, one: Tried, probability: float) -> Reason:
    before, after = (float(np.abs(np.expm1(-x.off)).mean()) for x in (stated, one))
    return Reason(one.kind, one.name, float(probability), before, after, int(one.inside.sum()), len(one.off))


Row = Mapping[str, object]

KINDS = {
    "mask": "is the mask passed to the call, and does the rate count the pairs that it hides?",
    "pass": "does what is timed hold the forward pass, the backward pass, or both?",
    "size": "are batch, heads and head_dim those of one call on one GPU?",
    "unit": "in which unit does the timer count?",
    "launch": "are calls timed one by one from Python, queued, or in a profiler, and is the L2 flushed between them?",
    "machine": "which card is it, and at which clock does it run under load (nvidia-smi -q -d CLOCK,POWER)?",
    "build": "which version ran, on which path, and with dropout or not?",
}
"""Kinds of causes, which measurements of one kind tell apart, and the question that decides for or against each."""

SHARES = by_hand((2, 4, 8), "GPUs of a server among which heads may be split, or heads of which a call is said to hold")
SLOWER = by_hand((0.8, 0.65), "shares of the predicted clock at which cards are tried that power or heat holds back")
THOUSANDS = (1e-6, 1e-3, 1e3, 1e6)
"""By which times in another unit are off."""
LATENCY = ("stream", "host", "graph", "kernel")
OTHER_PASS = {"fwd": ("fwd+bwd", "bwd"), "bwd": ("fwd+bwd", "fwd"), "fwd+bwd": ("fwd", "bwd"), "decode": ()}
"""A cause: something else that may have been timed."""
OTHER_BUILD = {
    "flash-attn.1": ("flash-attn.2",),
    "flash-attn.2": ("flash-attn.1", "flash-attn.2-unsplit", "torch.sdpa-math"),
    "flash-attn.3": ("flash-attn.2", "triton.tutorial"),
    "flash-attn.4": ("nvidia.cudnn", "flash-attn.2"),
    "nvidia.cudnn": ("flash-attn.2",),
    "torch.sdpa-flash": ("torch.sdpa-efficient", "torch.sdpa-math", "flash-attn.1"),
    "torch.sdpa-cudnn": ("torch.sdpa-flash", "torch.sdpa-math"),
    "torch.sdpa-efficient": ("torch.sdpa-math",),
    "vllm.flash-attn-3": ("vllm.flash-attn-2", "vllm.triton"),
    "vllm.flash-attn-2": ("vllm.triton",),
    "sglang.fa3": ("flashinfer.fa2",),
    "flashinfer.fa3": ("flashinfer.fa2",),
}
"""Kernels that a library runs where a version, build or flag is another: the kernel before, or its fallback."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause.

    Parameters
    ----------
    kind : str
        Of `KINDS`.
    name : str
        What is otherwise than stated, the same for all rows that it is tried on: "launch=host".
    cells : tuple of (str, str)
        What the row then says, by our column.
    """

    kind: str
    name: str
    cells: tuple[tuple[str, str], ...]

    def on(self, row: Row, columns: Columns) -> tuple[dict[str, object], Columns]:
        """A row with these cells, and how it is read."""
        set_here = {columns.name_of(ours): text for ours, text in self.cells}
        given = {ours: cell for ours, cell in columns.given.items() if ours not in dict(self.cells)}
        return {**row, **set_here}, replace(columns, given=given)


def causes(row: Row, columns: Columns, case: Case, asked: Question, clock_hz: float) -> Iterator[Cause]:
    """A cause tried on a row.

    Parameters
    ----------
    row, columns
        As the table has them.
    case, asked
        As they were read.
    clock_hz : float
        At which the row is predicted.
    """
    w, time = asked.w, columns.time
    measured = str(columns.cell(row, time.ours)).strip() if time else ""
    factors = dict.fromkeys(THOUSANDS, "unit")
    if time and time.ours != "time_s":
        factors |= {0.5: "mask", 2.0: "mask"}
    if time and NUMBER.fullmatch(measured):
        for factor, kind in factors.items():
            name = f"{time.theirs} x {factor:g}" if kind == "unit" else f"FLOPs x {factor:g}"
            yield Cause(kind, name, ((time.ours, repr(float(measured) * factor)),))
    if w.mask.is_band and not w.mask.is_windowed and w.seq_q > 1 and not w.lengths:
        yield Cause("mask", "causal inverted", (("causal", "0" if case.causal else "1"),))
    yield from (Cause("pass", f"pass={one}", (("pass", one),)) for one in OTHER_PASS[case.passes])
    if not (w.lengths or w.latent):
        yield from _sizes(case)
    for launch in LATENCY:
        if launch != case.launch:
            yield Cause("launch", f"launch={launch}", (("launch", launch),))
    cache = "warm" if case.cache == "cold" else "cold"
    yield Cause("launch", f"cache={cache}", (("cache", cache),))
    for share in SLOWER:
        yield Cause("machine", f"clock x {share:g}", (("clock_mhz", f"{share * clock_hz / 1e6:.0f}"),))
    yield from (Cause("machine", f"gpu={one}", (("gpu", one),)) for one in _alike(asked.gpu.base_id))
    yield from _builds(case, asked)


def _sizes(case: Case) -> Iterator[Cause]:
    heads, keys = case.heads_q, case.heads_kv
    for share in SHARES:
        if heads % share == 0 and (keys % share == 0 or keys < share):
            cells = (("heads_q", str(heads // share)), ("heads_kv", str(max(1, keys // share))))
            yield Cause("size", f"heads / {share}", cells)
        yield Cause("size", f"batch x {share}", (("batch", str(case.batch * share)),))
    if keys < heads:
        yield Cause("size", "heads_kv=heads_q", (("heads_kv", str(heads)),))
    else:
        for group in SHARES[1:]:
            if heads % group == 0:
                yield Cause("size", f"heads_kv=heads_q / {group}", (("heads_kv", str(heads // group)),))
    for factor, name in ((2, "head_dim x 2"), (0.5, "head_dim / 2")):
        widths = {"head_dim": case.head_dim * factor, "head_dim_v": case.head_dim_v * factor}
        yield Cause("size", name, tuple((ours, f"{width:g}") for ours, width in widths.items()))


def _alike(gpu: str) -> Iterator[str]:
    """GPUs that a name may have meant as well: "h100" is two."""
    name = gpu.partition("-")[0]
    if name != "rtx":
        yield from (one for one in builtin_gpu_ids() if one != gpu and one.partition("-")[0] == name)


def _builds(case: Case, asked: Question) -> Iterator[Cause]:
    """Other versions and paths; of unfused attention other operations between its GEMMs."""
    record = asked.record
    others = OTHER_BUILD.get(record.name, ())
    if record.unfused:
        others = tuple(one.name for one in IMPLEMENTATIONS.values() if one.unfused and one.name != record.name)
    for name in others:
        cells = (("implementation", name), ("version", ""), ("algorithm", ""), ("framework", ""))
        yield Cause("build", f"implementation={name}", cells)
    if case.passes != "decode" and not asked.w.operations:
        off = float(case.options.get("dropout") or 0) > 0
        yield Cause("build", f"dropout={'0' if off else '0.1'}", (("dropout", "0" if off else "0.1"),))
