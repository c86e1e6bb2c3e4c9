"""The short answer of a report, as sentences with their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from attnsim.api.answer import Outcome
from attnsim.models.hardware.gpu import Gpu
from attnsim.reports.answers import Answer, Answered, base_of, fastest
from attnsim.reports.explanations import SAME, timed_text
from attnsim.wording import time_text


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
