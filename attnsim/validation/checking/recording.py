"""Records the errors of the committed calibrations, and checks that the record is still true.

`record` keeps every fitted number, and recomputes the statements about them: held-out errors, residuals, hashes of rows
and code, and the widths of trust. `differences` compares the committed errors with those of the present code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.digest import code_digest
from attnsim.validation.checking.components import HOME, components_table, measured
from attnsim.validation.checking.evidence import SERVING_SAMPLE, evidence
from attnsim.validation.checking.ratio_steps import steps
from attnsim.validation.checking.ratio_widths import ratios_record
from attnsim.validation.fitting.held_out import NEVER, HeldOut, held_out_predictions
from attnsim.validation.fitting.records import PREDICTING, evaluation, origins, rows_digest, write_yaml
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, VERSION
from attnsim.validation.measured.datasets import grouped, published_rows
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.sources import KNOWN, sources

TOLERANCE = 5e-4
"""Allowed difference of a recomputed error, as a share of the time: rounding on another machine."""


def differences(found: Sequence[HeldOut] | None = None) -> list[dict[str, Any]]:
    """Return every committed error and its recomputed value.

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
    return grouped((one for one in found if one.split != NEVER and usable(one.row)), lambda one: one.calibration)


def record(folder: Path, progress: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Rewrite the record of every committed calibration and the widths of trust; no fitted number changes.

    Parameters
    ----------
    folder : Path
        ``models/calibrations`` of the source tree.
    progress : callable
        Called with one line per step.

    Raises
    ------
    InputError
        Without the package of the serving rows, on which the widths rest too.
    """
    if not aiconfigurator.available():
        raise InputError(aiconfigurator.missing())
    progress("predicting held-out rows")
    found = held_out_predictions()
    written = []
    for (name, architecture), held in sorted(_by_calibration(found).items()):
        fresh = {"code_sha256": code_digest(*PREDICTING)} | origins([one.row for one in held]) | evaluation(held)
        written.append(_renewed(folder / "implementations" / f"{name}.{architecture}.yaml", fresh))
    progress("predicting rows of other sources, with numbers from elsewhere, and on pairs of GPUs")
    written.append(_widths(folder, found))
    return written


def _renewed(path: Path, fresh: dict[str, Any]) -> Path:
    """Rewrite a calibration file with new values under their keys."""
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return write_yaml(path, data | fresh)


def _widths(folder: Path, found: Sequence[HeldOut]) -> Path:
    known_rows = evidence(found=found)
    groups = known_rows.groups
    widths = measured(groups)
    table = {row.pop("component"): row for row in components_table(groups)}
    checks = {name: table[name] for name in widths.sd}
    return write_yaml(
        folder / "trust.yaml",
        {
            "sources": [*(name for name, one in sources().items() if one.role in KNOWN), f"{PACKAGE}-{VERSION}"],
            "sample": SERVING_SAMPLE,
            "rows_sha256": rows_digest(published_rows()),
            "code_sha256": code_digest(*PREDICTING),
            "factor": round(widths.factor, 4),
            "within": round(widths.within, 4),
            "home": table[HOME],
            "components": checks,
            "ratios": ratios_record(steps(), [*known_rows.home, *known_rows.away], groups),
        },
    )


def undetermined() -> list[dict[str, Any]]:
    """Return numbers that their fit does not determine, at their priors: ``calibration, open, fitted, numbers``."""
    return [
        {
            "calibration": ", ".join(name),
            "open": len(found.undetermined),
            "fitted": len(found.ranges),
            "numbers": ", ".join(found.undetermined),
        }
        for name, found in sorted(calibrations().items())
        if found.undetermined
    ]
