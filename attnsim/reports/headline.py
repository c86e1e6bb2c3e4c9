"""The first lines of a report: how many times as fast each GPU is, a table, and the short answer in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnsim.api.answer import Outcome
from attnsim.api.cells import cells
from attnsim.models.hardware.gpu import Gpu, changes_text
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.reports.answers import Answer, Answered, Gain, Report, base_of, compared_with, fastest
from attnsim.reports.explanations import SAME, timed_text
from attnsim.tables import Table
from attnsim.wording import NOTHING, interval_text, time_text

MOST = 4
"""GPUs that the headline names; of more, those that gain most."""


def headline(report: Report) -> list[str]:
    """A sentence for each GPU that another one is compared with: its speedup in each case, and what it comes from.

    Of one GPU alone: the fastest algorithm in each case, and how much faster than the first of the study.
    """
    pairs = list(dict.fromkeys((gain.before.gpu, gain.after.gpu) for case in report.cases for gain in case.gains))
    if not pairs:
        return [line for case in report.cases if (line := _alone(case))]
    found = {
        pair: [
            (case, gain) for case in report.cases for gain in case.gains if (gain.before.gpu, gain.after.gpu) == pair
        ]
        for pair in pairs
    }
    best = sorted(found, key=lambda pair: -max(gain.ratio.value for _, gain in found[pair]))[:MOST]
    lines = [_speedups(found[pair]) for pair in pairs if pair in best]
    return [*lines, f"Of {len(pairs)} GPUs these gain most; the table has all."] if len(pairs) > MOST else lines


def changes(report: Report) -> list[str]:
    """The changes, listed once for all tables and pictures."""
    return [f"{name}: {changes_text(gpu.changes)}" for gpu, name in report.names.items() if gpu.changes]


def _speedups(found: Sequence[tuple[Answered, Gain]]) -> str:
    case, gain = found[0]
    names = {one.after.question.algorithm for _, one in found}
    several = len(names) > 1
    parts: list[str] = []
    for one, made in found:
        call = _case(one.case.name, made.after.question.algorithm if several else "")
        gain_text = str(made.ratio) if parts else str(made.ratio).replace("(", "(90 % range ")
        parts.append(" ".join(filter(None, (call, gain_text, _source(made)))))
    who = "Speedup" if several else f"Speedup of {names.pop()}"
    return f"{who} on {_name(gain.after, case.names)} over {_name(gain.before, case.names)}: {', '.join(parts)}."


def _name(one: Answer, names: Mapping[Gpu, str]) -> str:
    return names[one.gpu] if one.gpu and one.gpu in names else one.machine


def _case(name: str, algorithm: str) -> str:
    """A call in words: its case and its algorithm, each where there is something to say."""
    return ", ".join(filter(None, (name, algorithm)))


def _what(one: Answer) -> str:
    """Algorithm, implementation and tile, as far as the study names them."""
    asked = one.question
    name = f"{asked.algorithm}/{asked.implementation}" if asked.implementation else asked.algorithm
    return name if asked.tile == "shipped" else f"{name}, {asked.tile}"


def _source(gain: Gain) -> str:
    """The unit whose busy time fell most, or rose most where the call became slower; "" for what stays as it is."""
    before, after = gain.before.prediction, gain.after.prediction
    if before is None or after is None or 1 / SAME < gain.ratio.value < SAME:
        return ""
    sign = 1 if gain.ratio.value > 1 else -1
    moved = {unit: sign * (before.units_s.get(unit, 0.0) - after.units_s.get(unit, 0.0)) for unit in UNITS}
    unit = max(moved, key=lambda one: moved[one])
    return f"from {unit_text(unit)}" if moved[unit] > 0 else ""


def _alone(case: Answered) -> str:
    best = fastest(case.answers)
    if best is None or best.prediction is None:
        return ""
    found = best.prediction
    span = interval_text(found.time_low_s, found.time_high_s, found.time_s)
    call = f"{_case(case.case.name, best.question.algorithm)} on {_name(best, case.names)}"
    text = f"{call}: {time_text(found.time_s)} ({span})"
    first = _first(best, case)
    if first is None or (gain := found.speedup_over(first.prediction) if first.prediction else None) is None:
        return f"{text}."
    return f"{text}, {gain} as fast as {first.question.algorithm}."


def _first(one: Answer, case: Answered) -> Answer | None:
    """The study's first algorithm on the same GPU, where that is another one."""
    first = next((other for other in case.answers if other.gpu == one.gpu and other.prediction is not None), None)
    return first if first and first.question.algorithm != one.question.algorithm else None


def answer_table(report: Report) -> Table:
    """Every call on every GPU, on the tile that was asked for: times, ratios and trust."""
    rows: list[dict[str, object]] = []
    based = several = False
    for case in report.cases:
        shown = [one for one in case.answers if one.question.tile != "retuned"] or list(case.answers)
        order = list(dict.fromkeys(map(_call, shown)))
        for one in sorted(shown, key=lambda one: order.index(_call(one))):
            base, first = compared_with(one, case.answers), _first(one, case)
            based, several = based or base is not None, several or first is not None
            rows.append({"call": _case(case.case.name, _what(one)), **_cells(one, base, first, case.names)})
    left_out = {name for name, has in (("speedup", based), ("over the first", several)) if not has}
    rows = [{name: cell for name, cell in row.items() if name not in left_out} for row in rows]
    caption = "Predicted times, with the range in which nine of ten are expected, for ratios in brackets"
    caption += "; speedup: over the same call on the unchanged or first GPU" if based else ""
    caption += "; over the first: over the study's first algorithm on the same GPU" if several else ""
    return Table(caption, rows, right=("time", "90 % range", "speedup", "over the first"), heads=2)


def _call(one: Answer) -> tuple[object, ...]:
    """The part of a question that two GPUs share."""
    return one.question.algorithm, one.question.implementation, one.question.tile


def _cells(one: Answer, base: Answer | None, first: Answer | None, names: Mapping[Gpu, str]) -> dict[str, object]:
    found = one.prediction
    if found is None:
        nothing = dict.fromkeys(("90 % range", "speedup", "over the first", "trust"), NOTHING)
        return {"GPU": _name(one, names), "time": "not answered", **nothing}
    ratios = [found.speedup_over(other.prediction) if other and other.prediction else None for other in (base, first)]
    return {
        "GPU": _name(one, names),
        **cells(found, "time", "90 % range"),
        "speedup": str(ratios[0] or NOTHING),
        "over the first": str(ratios[1] or NOTHING),
        **cells(found, "trust"),
    }


def short_answer(case: Answered) -> list[str]:
    """A sentence or two for each GPU: what is fastest, by how much, how sure."""
    found = []
    for gpu in case.machines:
        here = [one for one in case.answers if one.gpu == gpu and one.prediction is not None]
        best = fastest(here)
        if best is None or best.prediction is None:
            found.append(f"On {case.names[gpu]} nothing fits the memory.")
        elif gpu.changes:
            found.append(_changed(case, gpu, here))
        else:
            found.append(_fastest(best, best.prediction, here))
    return found


def _fastest(best: Answer, found: Outcome, here: Sequence[Answer]) -> str:
    others = [one for one in here if one.question.algorithm != best.question.algorithm]
    name = f"{best.question.algorithm} ({found.implementation})"
    text = f"On {best.machine} {name} takes {timed_text(found)}"
    timed = sorted((one for one in others if one.time_s and one.exact), key=lambda one: one.time_s or 0.0)
    compared = [_compared(found, one) for one in timed]
    text += f": {', '.join(compared)}." if compared else "."
    large = dict.fromkeys(one.question.algorithm for one in others if one.prediction and not one.prediction.fits)
    if large:
        text += f" {', '.join(large)}: too large for the memory."
    if not best.exact:
        text += f" {best.question.algorithm} computes something else than softmax attention."
    for one in others:
        if best.exact and not one.exact and one.time_s and one.time_s < (found.time_s or 0.0):
            text += (
                f" {one.question.algorithm} takes {time_text(one.time_s)}, but computes something else than softmax "
                "attention."
            )
    return f"{text} Trust: {found.trust.level}, {found.trust.reasons[0]}."


def _compared(found: Outcome, one: Answer) -> str:
    ratio = found.speedup_over(one.prediction) if one.prediction else None
    times = "" if ratio is None or ratio.value < SAME else f"{ratio} "
    return f"{times}as fast as {one.question.algorithm} ({time_text(one.time_s)})"


def _changed(case: Answered, gpu: Gpu, here: Sequence[Answer]) -> str:
    """The gain of a change for the algorithm that is fastest without it, on both tiles."""
    name = case.names[gpu]
    before = fastest([one for one in case.answers if one.gpu and one.gpu.id == gpu.id and not one.gpu.changes])
    if before is None or before.prediction is None:
        best = fastest(here)
        assert best is not None and best.prediction is not None
        return _fastest(best, best.prediction, here)
    mine = [one for one in here if base_of(one, case.answers) and one.question.algorithm == before.question.algorithm]
    parts = [text for one in mine if (text := _gain(one, base_of(one, case.answers)))]
    if not parts:
        return f"On {name} {before.question.algorithm} does not fit."
    trust = next(one.prediction.trust for one in mine if one.prediction is not None)
    others = [one for one in trust.reasons if one.kind != "hypothetical"]
    reason = f", {others[0]}" if others else ", nobody has measured this GPU"
    return f"On {name} {before.question.algorithm} takes {'; '.join(parts)}. Trust: {trust.level}{reason}."


def _gain(one: Answer, base: Answer | None) -> str:
    """Time of a call on a changed GPU over the same on the unchanged one; "" where either does not fit."""
    now, old = one.prediction, base.prediction if base else None
    if now is None or old is None or not now.time_s or not old.time_s:
        return ""
    tile = {"retuned": f"with the best tile that fits ({now.tile}) ", "shipped": ""}.get(now.tiles, f"on {now.tile} ")
    whose = "" if now.implementation == old.implementation else f" by {now.implementation}"
    return f"{tile}{timed_text(now)}{whose}, {now.speedup_over(old)} as fast as the unchanged GPU"
