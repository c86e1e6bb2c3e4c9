"""Widths of the ranges of ratios: components measured on steps, and checked with a pair of GPUs left out.

The components are measured as in `components.py`. Every step is its own group; each kernel's pass on a pair of GPUs has
one vote for each set of components. Nothing is estimated for two kernels on one GPU: the components of their times are
summed as in `attnsim.api.comparing.ratios`, and checked with the laboratory left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from attnsim.api.comparing.ratios import of_two_kernels
from attnsim.api.trust import spread_of
from attnsim.models.calibrations.components import RATIOS, Widths
from attnsim.validation.checking.components import Group, left_out, measured
from attnsim.validation.checking.evidence import Predicted
from attnsim.validation.checking.ratio_steps import Step, groups_of_steps
from attnsim.validation.measured.datasets import grouped
from attnsim.validation.measured.sources import laboratory_of


def ratio_widths(found: list[Step]) -> Widths:
    """Fit the widths to steps."""
    return measured(groups_of_steps(found), RATIOS)


def pairs_table(found: list[Step]) -> list[dict[str, Any]]:
    """Return the coverage of the ranges for each pair of GPUs, with widths from all other pairs.

    Returns
    -------
    list of dict
        ``older, newer, numbers, steps, ratio, error, half_width, held``: `numbers` is "carried" or "own", `ratio` the
        median predicted speedup, `error` the median size of the log of measured over predicted ratio, `half_width` the
        median stated half-width, `held` the share of steps inside.
    """
    groups = groups_of_steps(found)
    check = left_out(groups, lambda group: group.laboratory, RATIOS)
    cells = grouped(zip(found, groups, strict=True), lambda both: (both[0].pair, both[0].numbers))
    return [_pair(members, check.inside, check.half) for _, members in sorted(cells.items())]


def _pair(members: Sequence[tuple[Step, Group]], inside: Any, half: Any) -> dict[str, Any]:
    first = members[0][0]
    return {
        "older": first.older.gpu.base_id,
        "newer": first.newer.gpu.base_id,
        "numbers": first.numbers,
        "steps": len(members),
        "ratio": round(float(np.median([one.ratio for one, _ in members])), 4),
        "error": round(float(np.median([abs(one.log_error) for one, _ in members])), 4),
        "half_width": round(float(np.median([half[group] for _, group in members])), 4),
        "held": round(float(np.mean([inside[group] for _, group in members])), 4),
    }


def kernels_table(points: Sequence[Predicted], groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the coverage of the ranges for two kernels on one GPU, with widths from other laboratories.

    Parameters
    ----------
    points : sequence of Predicted
        Predicted rows, at home and off home.
    groups : sequence of Group
        Groups that the widths of times are measured on.

    Returns
    -------
    list of dict
        ``laboratory, gpu, kernels, steps, error, half_width, held``; `kernels` is the number of pairs of kernels.
    """
    widths: dict[str, Widths] = {}
    cells: dict[tuple[str, str], list[tuple[tuple[str, str], float, float]]] = {}
    for one, other in two_kernels(points):
        whose = laboratory_of(one.row.case.source)
        if whose not in widths:
            widths[whose] = measured([group for group in groups if group.laboratory != whose])
        known = widths[whose]
        made = [known.parts(spread_of(it.row.workload, it.calibration), it.components) for it in (one, other)]
        names = (one.row.record.name, other.row.record.name)
        cells.setdefault((whose, one.row.gpu.base_id), []).append(
            (names, abs(one.log_error - other.log_error), known.half_width(of_two_kernels(*made)))
        )
    return [
        {
            "laboratory": whose,
            "gpu": gpu,
            "kernels": len({names for names, _, _ in members}),
            "steps": len(members),
            "error": round(float(np.median([error for _, error, _ in members])), 4),
            "half_width": round(float(np.median([half for _, _, half in members])), 4),
            "held": round(float(np.mean([error <= half for _, error, half in members])), 4),
        }
        for (whose, gpu), members in sorted(cells.items())
    ]


def two_kernels(points: Sequence[Predicted]) -> Iterator[tuple[Predicted, Predicted]]:
    """Yield pairs of rows of one question, GPU, clock and laboratory by two kernels, each row's first prediction."""
    alike: dict[tuple[object, ...], dict[tuple[object, ...], Predicted]] = {}
    for one in points:
        row, case = one.row, one.row.case
        w = replace(row.workload, operations=None, dropout=False)
        asked = replace(w, dtype="bf16") if w.element_bytes == 2 else w
        key = (laboratory_of(case.source), row.gpu, case.cache, asked)
        alike.setdefault(key, {}).setdefault((row.record.name, case.source, case.version, case.time_s), one)
    for rows in alike.values():
        for one, other in combinations(rows.values(), 2):
            if one.row.record.name != other.row.record.name:
                yield one, other


def ratios_table(found: list[Step]) -> list[dict[str, Any]]:
    """Return the components of ratios with their check: ``component, sd, steps, pairs, error, half_width, held``.

    A step counts for the farthest of its components. `error`, `half_width` and `held` are as in `pairs_table`, with the
    step's pair of GPUs left out.
    """
    groups = groups_of_steps(found)
    check = left_out(groups, lambda group: group.laboratory, RATIOS)
    table = []
    for name, sd in ratio_widths(found).sd.items():
        members = [group for group in groups if group.category == name]
        line: dict[str, Any] = {
            "component": name,
            "sd": round(sd, 4),
            "steps": len(members),
            "pairs": len({group.laboratory for group in members}),
            "error": None,
            "half_width": None,
            "held": None,
        }
        if members:
            line["error"] = round(float(np.median([abs(group.bias) for group in members])), 4)
            line["half_width"] = round(float(np.median([check.half[group] for group in members])), 4)
            line["held"] = round(float(np.mean([check.inside[group] for group in members])), 4)
        table.append(line)
    return table


def ratios_record(found: list[Step], points: Sequence[Predicted], groups: Sequence[Group]) -> dict[str, Any]:
    """Return the section ``ratios`` of ``trust.yaml``: factor and components, and their coverage by pair."""
    table = {row.pop("component"): row for row in ratios_table(found)}
    kernels = kernels_table(points, groups)
    return {
        "factor": round(ratio_widths(found).factor, 4),
        "components": table,
        "pairs": pairs_table(found),
        "two_kernels": {
            "steps": sum(row["steps"] for row in kernels),
            "held": round(
                float(np.average([row["held"] for row in kernels], weights=[row["steps"] for row in kernels])), 4
            ),
        },
    }
