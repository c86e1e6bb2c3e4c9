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
from attnsim.validation.checking.coverage import (
    EXTRAPOLATED_ALL,
    SERVING_SAMPLE,
    coverage,
    elsewhere_points,
    own_points,
)
from attnsim.validation.fitting.fit import JOBS, rows_of, separate, usable
from attnsim.validation.fitting.held_out import NEVER, HeldOut, held_out_predictions
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, VERSION
from attnsim.validation.measured.datasets import Row, published_rows
from attnsim.validation.measuring.records import code_digest, evaluation, rows_digest, write_yaml

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
        table.append(
            {
                "calibration": ", ".join(name),
                "rows": now["rows"],
                "committed": then.mean,
                "now": now["mean"],
                "same": same,
            }
        )
    return table


def _by_calibration(found: Sequence[HeldOut]) -> dict[tuple[str, str], dict[str, list[tuple[Row, float]]]]:
    out: dict[tuple[str, str], dict[str, list[tuple[Row, float]]]] = {}
    for one in found:
        if one.split != NEVER and usable(one.row):
            splits = out.setdefault(one.calibration, {})
            splits.setdefault(one.split, []).append((one.row, one.predicted_s))
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
        from attnsim.models.errors import InputError

        raise InputError(aiconfigurator.missing())
    progress("predicting held-out rows")
    found = held_out_predictions()
    written = [*_implementations(folder, _by_calibration(found)), *_gpus(folder)]
    progress("predicting rows with numbers from elsewhere")
    written.append(_widths(folder, found))
    return written


def _read(path: Path) -> dict[str, Any]:
    import yaml

    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def _implementations(folder: Path, held: dict[tuple[str, str], dict[str, list[tuple[Row, float]]]]) -> list[Path]:
    written = []
    for (name, architecture), splits in sorted(held.items()):
        path = folder / "implementations" / f"{name}.{architecture}.yaml"
        data = _read(path)
        for number, found in data["numbers"].items():
            if "low" in found:
                found["determined"] = is_determined(number, found["low"], found["high"])
        fresh = {"code_sha256": code_digest(), **evaluation(splits)}
        order = (
            "implementation", "architecture", "gpu", "sources", "rows", "rows_sha256", "code_sha256", "numbers",
            "held_out", "interval", "residuals", "domain", "folds",
        )  # fmt: skip
        merged = data | fresh
        written.append(write_yaml(path, {key: merged[key] for key in order}))
    return written


def _gpus(folder: Path) -> list[Path]:
    written = []
    for job in separate(JOBS):
        if not job.gpu_free:
            continue
        path, rows = folder / "gpus" / f"{job.gpu}.yaml", rows_of(job)
        data = _read(path)
        for number, found in data["numbers"].items():
            if "low" in found:
                found["determined"] = is_determined(number, found["low"], found["high"])
        merged = data | {"rows": len(rows), "rows_sha256": rows_digest(rows), "code_sha256": code_digest()}
        order = (
            "gpu", "architecture", "fitted_with", "sources", "rows", "rows_sha256", "code_sha256", "numbers",
        )  # fmt: skip
        written.append(write_yaml(path, {key: merged[key] for key in order}))
    return written


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
