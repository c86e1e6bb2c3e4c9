"""Contents of a calibration file: the numbers, on which rows and with which code they were fitted, and how well."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attnsim.models.calibrations.calibration import Domain, Fold
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS, ImplementationNumbers
from attnsim.models.digest import code_digest
from attnsim.validation.fitting.held_out import HeldOut, unseen_folds
from attnsim.validation.fitting.jobs import Job
from attnsim.validation.fitting.problem import Problem
from attnsim.validation.fitting.solver import Solution
from attnsim.validation.measured.datasets import Row, error_summary, grouped
from attnsim.validation.measured.groups import groups
from attnsim.validation.measured.sources import software_of
from attnsim.writing import write_whole

PREDICTING = ("models", "simulator")
"""Files that a prediction depends on. Their digest is only a record: a calibration whose errors are still the committed
ones is still good when it has changed."""
HEAD = "# Written by `attnsim fit`; do not edit. See attnsim/validation/fitting/fit.py.\n"


def implementation_file(
    job: Job, owner: str, best: Solution, folds: Mapping[Fold, Solution], problem: Problem
) -> dict[str, Any]:
    """The file of one implementation: its numbers, their errors on rows that were left out, and the folds."""
    rows = [row for row in problem.rows if row.record.name == owner]
    without = {fold: found.numbers[owner] for fold, found in folds.items()}
    held = [HeldOut(row, *fold, row.predict_s(numbers)) for row in rows for fold, numbers in unseen_folds(row, without)]
    if not held:  # one group only: nothing was left out, and `folds` stays empty
        numbers = best.numbers[owner]
        held = [HeldOut(row, "fitted", "", row.predict_s(numbers)) for row in rows]
    kept: dict[str, dict[str, Any]] = {}
    for (split, group), numbers in without.items():
        if any(groups(row)[split] == group for row in rows):
            kept.setdefault(split, {})[group] = _values(numbers.implementation)
    open_ = [name for name in job.free[owner] if (owner, name) not in best.keys]
    return {
        "implementation": owner,
        "architecture": rows[0].gpu.architecture,
        "gpu": job.gpu,
        **origins(rows),
        **provenance(rows),
        "numbers": _numbers(owner, best.numbers[owner].implementation, best, open_),
        "alternatives": list(map(asdict, best.alternatives[owner])),
        **evaluation(held),
        "domain": asdict(domain_of(rows)),
        "folds": kept,
    }


def _values(numbers: ImplementationNumbers) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in asdict(numbers).items() if value is not None}


def _numbers(owner: str, numbers: ImplementationNumbers, best: Solution, open_: Sequence[str]) -> dict[str, Any]:
    """Each number with whether it was fitted: if so its confidence interval, else it is the prior's.

    Those in `open_` were free: the rows left them open, or ask for no such wait.
    """

    def number(name: str, value: float) -> dict[str, Any]:
        if name in open_:
            idle = value == IMPLEMENTATION_NUMBERS[name].low
            return {"value": value, "fitted": False} | ({"of": "no wait"} if idle else {"of": "prior", "open": True})
        if (owner, name) not in best.ranges:
            return {"value": value, "fitted": False, "of": "prior"}
        low, high = (float(f"{end:.4g}") for end in best.ranges[owner, name])
        return {"value": value, "fitted": True, "low": low, "high": high}

    return {name: number(name, value) for name, value in _values(numbers).items()}


def origins(rows: Sequence[Row]) -> dict[str, Any]:
    """Sources of the rows, and what ran there as far as they say."""
    versions = {row.case.version or software_of(row.case.source, row.record.library) for row in rows} - {""}
    return {"sources": sorted({row.case.source for row in rows}), "versions": sorted(versions)}


def provenance(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows and the code that something in a file was computed with."""
    return {"rows": len(rows), "rows_sha256": rows_digest(rows), "code_sha256": code_digest(*PREDICTING)}


def rows_digest(rows: Sequence[Row]) -> str:
    """SHA-256 of the rows: their sources, questions, cache states and times."""
    text = "\n".join(repr((row.case.source, str(row.workload), row.case.cache, row.measured_s)) for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()


def evaluation(held: Sequence[HeldOut]) -> dict[str, Any]:
    """Held-out errors and residuals of a calibration, as its file has them.

    Returns
    -------
    dict
        ``held_out`` (errors ``|predicted / measured - 1|``) and ``residuals`` by split: rows, `bias` and quantiles of
        log(measured / predicted) and their mean size, `spread`, of all and by pass.
    """
    errors = [one.error for one in held]
    return {
        "held_out": {"rows": len(held), **error_summary(errors, 5), "worst": round(max(errors), 5)},
        "residuals": {split: _residuals(mine) for split, mine in sorted(grouped(held, lambda one: one.split).items())},
    }


def _residuals(held: Sequence[HeldOut]) -> dict[str, Any]:
    logs = np.log([one.row.measured_s / one.predicted_s for one in held])
    by_pass = grouped(held, lambda one: one.row.case.passes)
    return {
        "rows": len(logs),
        "spread": round(float(np.abs(logs).mean()), 5),
        "bias": round(float(logs.mean()), 5),
        "passes": {passes: _spread(mine) for passes, mine in sorted(by_pass.items())},
        "quantiles": {f"{q:g}": round(float(np.quantile(logs, q)), 5) for q in (0.05, 0.25, 0.5, 0.75, 0.95)},
    }


def _spread(held: Sequence[HeldOut]) -> float:
    return round(float(np.mean([abs(np.log(one.row.measured_s / one.predicted_s)) for one in held])), 5)


def domain_of(rows: Sequence[Row]) -> Domain:
    """The shapes of the rows."""

    def span(values: Iterable[int]) -> tuple[int, int]:
        found = list(values)
        return min(found), max(found)

    return Domain(
        gpus=tuple(sorted({row.gpu.base_id for row in rows})),
        passes=tuple(sorted({row.case.passes for row in rows})),
        head_dims=tuple(sorted({row.case.head_dim for row in rows})),
        seq_q=span(row.case.seq_q for row in rows),
        seq_kv=span(row.case.seq_kv for row in rows),
        rows=span(row.case.batch * row.case.heads_q * row.case.seq_q for row in rows),
        causal=tuple(sorted({row.workload.mask.is_causal for row in rows})),
        windowed=any(row.workload.mask.is_windowed for row in rows),
        dropout=any(row.workload.dropout for row in rows),
    )


def write_yaml(path: Path, data: Mapping[str, Any]) -> Path:
    """Write a calibration file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, HEAD + yaml.safe_dump(dict(data), sort_keys=False, width=110))
    return path
