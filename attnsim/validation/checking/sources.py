"""Errors away from home: every source that no fit has seen, and the components of trust."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from attnsim.api.trust import Trust, assess
from attnsim.models.calibrations.choose import choose
from attnsim.validation.checking.components import components_table
from attnsim.validation.checking.evidence import Predicted, Refused, evidence
from attnsim.validation.checking.ratio_steps import kernels_table, pairs_table, ratios_table, steps
from attnsim.validation.measured.datasets import Row, tabled
from attnsim.validation.measured.sources import KNOWN, ROLES, laboratory_of, role_of, source_of

ALL = "all"


def sources_report() -> dict[str, list[dict[str, Any]]]:
    """Return errors away from home; rows of the large tables are included if their package is installed.

    Returns
    -------
    dict of str to list of dict
        "total" over all rows and by role; "group", `stated_table`; "source", `sources_table`; "component",
        `components_table`; "ratio", "pair" and "kernels", for ratios of two times; "refused", rows without a
        prediction by reason.
    """
    found = evidence()
    groups, stepped = found.groups, steps()
    return {
        "total": totals(found.away),
        "group": stated_table(found.away),
        "source": sources_table(found.away),
        "component": components_table(groups),
        "ratio": ratios_table(stepped),
        "pair": pairs_table(stepped),
        "kernels": kernels_table([*found.home, *found.away], groups),
        "refused": refused_table(found.refused),
    }


def totals(away: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return ``use, rows, mean, median, bias, held`` over all rows off home, and by role."""
    table = [{"use": ALL} | _summary(away)]
    for role in ROLES:
        if part := [one for one in away if role_of(one.row.case.source) == role]:
            table.append({"use": role} | _summary(part))
    return table


def stated_table(away: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return the same columns by ``use, level, pass, architecture``, for strangers and for all others."""

    def cell(one: Predicted) -> tuple[str, ...]:
        role, case = role_of(one.row.case.source), one.row.case
        use = "others" if role in KNOWN else role
        return use, stated(one.row).level, case.passes, one.row.gpu.architecture

    return tabled(away, ("use", "level", "pass", "architecture"), cell, _summary)


def sources_table(away: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return the errors of each source off home on each GPU.

    Returns
    -------
    list of dict
        ``laboratory, source, use, gpu, rows, mean, median, bias, held``: `mean` and `median` of ``|predicted / measured
        - 1|``; `bias`, the mean logarithm of predicted over measured; `held`, the share of rows inside the 90 % range.
    """

    def cell(one: Predicted) -> tuple[str, ...]:
        source = one.row.case.source
        return laboratory_of(source), source_of(source), role_of(source), one.row.gpu.base_id

    return tabled(away, ("laboratory", "source", "use", "gpu"), cell, _summary)


def _summary(some: Sequence[Predicted]) -> dict[str, Any]:
    logs = np.array([one.log_error for one in some])
    errors = np.abs(np.expm1(-logs))
    half = np.log([stated(one.row).high for one in some])
    return {
        "rows": len(some),
        "mean": round(float(errors.mean()), 4),
        "median": round(float(np.median(errors)), 4),
        "bias": round(float(-logs.mean()), 4),
        "held": round(float((np.abs(logs) <= half).mean()), 4),
    }


def stated(row: Row) -> Trust:
    """Return the trust that a user gets for a row."""
    found = choose(row.record, row.gpu)
    operations = "operations" in row.case.options
    return assess(row.workload, row.gpu, found, row.record, version=row.case.version or "", operations=operations)


def refused_table(refused: Iterable[Refused]) -> list[dict[str, Any]]:
    """Return the rows without a prediction as ``source, gpu, implementation, rows, why``."""
    counts = Counter(refused)
    return [
        {"source": one.source, "gpu": one.gpu, "implementation": one.implementation, "rows": rows, "why": one.why}
        for one, rows in counts.items()
    ]
