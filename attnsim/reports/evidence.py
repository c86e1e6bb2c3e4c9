"""The sections on what a report rests on: errors of its calibrations, known gaps, and how to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import attnsim
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS
from attnsim.models.digest import code_digest
from attnsim.plots.document import Block, Code, Details, Paragraph
from attnsim.reports.asking import ReportStudy
from attnsim.reports.trusting import Use, applying, calibrations_used, files_used, residuals
from attnsim.studies.folder import PACKAGES
from attnsim.tables import Table, cell_text
from attnsim.validation.checking.deviations import Deviation
from attnsim.wording import number

LEFT_OUT = {"band": "lengths and heads", "head_dim": "a head_dim"}


def error_blocks(found: Sequence[Use]) -> list[Block]:
    """Errors on held-out measurements, the fitted numbers, and the known gaps that apply."""
    used = calibrations_used(found)
    blocks: list[Block] = []
    if used:
        blocks += [_errors(used), _splits(used), Details("The fitted numbers", (_numbers(found),))]
    without = sorted({one.prediction.implementation for one in found if one.chosen.calibration is None})
    if without:
        blocks.append(Paragraph(f"Without a calibration, on priors alone: {', '.join(without)}."))
    gaps = applying(found)
    blocks.append(_gaps(gaps) if gaps else Paragraph("No known gap is about these calibrations."))
    return blocks


def _errors(used: Sequence[Calibration]) -> Table:
    rows = []
    for one in used:
        held = one.held_out
        errors = {name: _percent(getattr(held, name)) for name in ("mean", "median", "p90", "worst")}
        named = {"calibration": _name(one), "measurements": ", ".join(one.sources)}
        rows.append({**named, "rows": str(held.rows), **errors})
    caption = "Errors |predicted / measured - 1| of the calibrations used, on measurements that the fit did not see"
    return Table(caption, rows, right=("rows", "mean", "median", "p90", "worst"))


def _splits(used: Sequence[Calibration]) -> Table:
    rows = []
    for one in used:
        for split, about in residuals(one).items():
            quantiles = {float(part): value for part, value in about["quantiles"].items()}
            parts = {"median": 0.5, "5 %": 0.05, "95 %": 0.95}
            named = {"calibration": _name(one), "left out of the fit": LEFT_OUT.get(split, split)}
            sizes = {"rows": str(about["rows"]), "mean size": _percent(about["spread"])}
            rows.append(named | sizes | {name: f"{100 * quantiles[part]:+.1f} %" for name, part in parts.items()})
    caption = "The same by what was left out: log(measured / predicted), its mean size and its quantiles"
    return Table(caption, rows, right=("rows", "mean size", "median", "5 %", "95 %"), heads=2)


def _numbers(found: Sequence[Use]) -> Table:
    """Every number that was fitted, with its 95 % confidence interval."""
    rows = []
    for one in calibrations_used(found):
        for name in (*one.fitted, *one.undetermined):
            known = "open" if name in one.undetermined else "yes"
            value = getattr(one.numbers, name)
            named = {"owner": _name(one), "number": name, **_value(value, one.ranges.get(name))}
            rows.append(named | {"determined": known, "meaning": IMPLEMENTATION_NUMBERS[name].meaning})
    caption = "Fitted numbers with 95 % confidence intervals; open: at its prior, the rows do not determine it"
    return Table(caption, rows, right=("value", "low", "high"), heads=2)


def _value(value: float, interval: tuple[float, float] | None) -> dict[str, str]:
    low, high = interval or (None, None)
    return {"value": cell_text(value), "low": cell_text(low), "high": cell_text(high)}


def _gaps(gaps: Sequence[Deviation]) -> Table:
    def size(one: Deviation, value: float) -> str:
        return f"{number(value)}x" if one.check["table"] == "trust" else _percent(value)

    rows = [
        {
            "id": one.id,
            "gap": one.name,
            "size": size(one, one.size),
            "wanted": size(one, one.wanted),
            "cause": one.cause,
        }
        for one in gaps
    ]
    caption = "Known gaps that these predictions may share: mean errors, those wanted, causes as far as known"
    return Table(caption, rows, right=("size", "wanted"))


def _name(one: Calibration) -> str:
    return f"{one.implementation}, {one.architecture}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def repeat_blocks(asked: ReportStudy, found: Sequence[Use], out: str) -> list[Block]:
    """The command, the versions of code and calibrations, and the study file."""
    hashes = [("attnsim", attnsim.__version__), ("code and tables", code_digest(*PACKAGES)), (asked.name, asked.digest)]
    rows = [{"what": what, "version or SHA-256": text} for what, text in (*hashes, *files_used(found).items())]
    return [
        Paragraph("The same version, calibrations and study file give the same bytes."),
        Code(f"attnsim report {shlex.quote(asked.name)} --out {shlex.quote(out)}", "console"),
        Table("Version and SHA-256 of everything the numbers depend on", rows),
        Paragraph(f"The study file, {asked.name}:"),
        Code(asked.text, "yaml"),
    ]
