"""The machines of a hardware search as plain records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnsim.models.hardware.interval import Interval
from attnsim.models.hardware.merits import RESULTS, column
from attnsim.studies.hardware_case import speedup_of
from attnsim.studies.hardware_machines import Design
from attnsim.studies.hardware_search import HardwareSearch


def rows_of(found: HardwareSearch) -> list[dict[str, Any]]:
    """The unchanged machine and every other as a plain record, SI units."""
    front = {id(one) for one in found.front}
    machines = (found.unchanged, *found.machines)
    return [_row(number, one, found, id(one) in front) for number, one in enumerate(machines)]


def _row(number: int, one: Design, found: HardwareSearch, front: bool) -> dict[str, Any]:
    answer = one.answer
    results = answer.results if answer else dict.fromkeys(RESULTS)
    ratio = answer.speedup if answer else None
    cases = found.mix.cases if len(found.mix.cases) > 1 else ()
    parts = answer.predictions if answer else [None] * len(cases)
    return {
        "machine": number,
        "unchanged": number == 0,
        **one.figures,
        **{column: value for name, ends in results.items() for column, value in _ends(name, ends).items()},
        **{f"time_s of {case.name}": part and part.time_s for case, part in zip(cases, parts, strict=False)},
        **{
            f"speedup of {case.name}": (own := part and speedup_of(base, part)) and own.value
            for case, base, part in zip(cases, found.mix.base, parts, strict=False)
        },
        "speedup": ratio and ratio.value,
        "speedup_low": ratio and ratio.low,
        "speedup_high": ratio and ratio.high,
        "bound": _joined([part.bound or "" for part in answer.predictions]) if answer else None,
        "tile": _joined([part.tile for part in answer.predictions]) if answer else "",
        "trust": _joined([part.trust.level for part in answer.predictions]) if answer else None,
        "feasible": not one.broken,
        "front": front,
        "breaks": "; ".join(one.broken),
    }


def _ends(name: str, ends: Interval | None) -> dict[str, float | None]:
    typical, low, high = (ends.typical, ends.low, ends.high) if ends else (None, None, None)
    return {column(name): typical, column(name, "low"): low, column(name, "high"): high}


def _joined(words: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(words))
