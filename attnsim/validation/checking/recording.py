"""Write what is known about the committed calibrations anew, and check that it is still true.

`record` keeps every number and recomputes what is said about them: held-out errors, residuals, rows and code they were
computed with, and the widths of trust. `differences` compares the committed errors with those of the present code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnsim.api.trust import LEVELS
from attnsim.models.calibrations.calibration import calibrations, gpu_ranges
from attnsim.models.calibrations.numbers import is_determined
from attnsim.models.errors import InputError
from attnsim.validation.checking.coverage import (
    EXTRAPOLATED_ALL,
    SERVING_SAMPLE,
    coverage,
    elsewhere_points,
    own_points,
)
from attnsim.validation.fitting.held_out import NEVER, HeldOut, held_out_predictions
from attnsim.validation.fitting.jobs import jobs
from attnsim.validation.fitting.records import code_digest, evaluation, provenance, rows_digest, write_yaml
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, VERSION
from attnsim.validation.measured.datasets import published_rows
from attnsim.validation.measured.groups import usable

TOLERANCE = 5e-4
"""Difference of a recomputed error, as a share of the time, that rounding on another machine may make."""


def differences(found: Sequence[HeldOut] | None = None) -> list[dict[str, Any]]:
    """Every committed error beside the recomputed one.

    Returns
    -------
    list of dict
        ``calibration, rows, committed, now, same``: mean errors as fractions; `same` also covers the number of rows,
        the median, the 90th percentile and the worst.
    """
    held = _by_calibration(held_out_predictions() if found is None else found)
    table = []
    for name, calibration in sorted(calibrations().items()):
        if not calibration.folds:
            continue
        now, then = evaluation(held[name])["held_out"], calibration.held_out
        same = now["rows"] == then.rows and all(
            abs(now[key] - getattr(then, key)) <= TOLERANCE for key in ("mean", "median", "p90", "worst")
        )
        row = {"calibration": ", ".join(name), "rows": now["rows"], "committed": then.mean, "now": now["mean"]}
        table.append(row | {"same": same})
    return table


def _by_calibration(found: Sequence[HeldOut]) -> dict[tuple[str, str], list[HeldOut]]:
    out: dict[tuple[str, str], list[HeldOut]] = {}
    for one in found:
        if one.split != NEVER and usable(one.row):
            out.setdefault(one.calibration, []).append(one)
    return out


def record(folder: Path, progress: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Write the record of every committed calibration and the widths of trust anew; no number changes.

    Parameters
    ----------
    folder : Path
        ``models/calibrations`` of the source tree.
    progress : callable
        Told one line per step.

    Raises
    ------
    InputError
        Without the package that has the serving rows: the widths rest on them too.
    """
    if not aiconfigurator.available():
        raise InputError(aiconfigurator.missing())
    progress("predicting held-out rows")
    found = held_out_predictions()
    written = []
    for (name, architecture), held in sorted(_by_calibration(found).items()):
        fresh = {"code_sha256": code_digest()} | evaluation(held)
        written.append(_renewed(folder / "implementations" / f"{name}.{architecture}.yaml", fresh))
    for job in jobs():
        if job.gpu_free:
            written.append(_renewed(folder / "gpus" / f"{job.gpu}.yaml", provenance(job.rows)))
    progress("predicting rows with numbers from elsewhere")
    written.append(_widths(folder, found))
    return written


def _renewed(path: Path, fresh: dict[str, Any]) -> Path:
    """Write a calibration file with fresh values under their keys, and what its intervals say of each number."""
    import yaml

    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    for number, found in data["numbers"].items():
        if "low" in found:
            found["determined"] = is_determined(number, found["low"], found["high"])
    return write_yaml(path, data | fresh)


def _widths(folder: Path, found: Sequence[HeldOut]) -> Path:
    table = coverage([*own_points(found), *elsewhere_points()])
    parts: dict[str, dict[str, Any]] = {"times_spread": {}, "at_least": {}}
    for row in table:
        if row["kind"] == EXTRAPOLATED_ALL:
            continue
        part = "times_spread" if row["kind"] in LEVELS else "at_least"
        parts[part][row["kind"]] = {key: value for key, value in row.items() if key != "kind"}
    return write_yaml(
        folder / "trust.yaml",
        {
            "sources": [*sorted({row.case.source for row in published_rows()}), f"{PACKAGE}-{VERSION}"],
            "sample": SERVING_SAMPLE,
            "rows_sha256": rows_digest(published_rows()),
            "code_sha256": code_digest(),
            **parts,
        },
    )


def undetermined() -> list[dict[str, Any]]:
    """Fitted numbers that the rows leave open: ``calibration, open, fitted, numbers``.

    Each is open by itself: with some of them held, the others may be determined.
    """
    table = []
    for gpu, ranges in gpu_ranges().items():
        loose = [name for name, (low, high) in ranges.items() if not is_determined(name, low, high)]
        table.append(_open(gpu, loose, len(ranges)))
    for name, found in sorted(calibrations().items()):
        table.append(_open(", ".join(name), found.undetermined, len(found.ranges)))
    return [row for row in table if row["open"]]


def _open(owner: str, loose: Sequence[str], fitted: int) -> dict[str, Any]:
    return {"calibration": owner, "open": len(loose), "fitted": fitted, "numbers": ", ".join(loose)}
