"""The sections on what a report rests on: its GPUs, calibrations and their errors, known gaps, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import attnsim
from attnsim.api.answer import Outcome
from attnsim.files import read_written
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.choose import Chosen, choose
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS
from attnsim.models.digest import code_digest
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation
from attnsim.plots.document import Block, Code, Details, Paragraph
from attnsim.reports.answers import Answered, labels
from attnsim.reports.asking import ReportStudy
from attnsim.studies.folder import PACKAGES, calibration_digests
from attnsim.studies.points import RATES
from attnsim.tables import Table, cell_text
from attnsim.validation.checking.accuracy import kind_of
from attnsim.validation.checking.claims import CLAIMING
from attnsim.validation.checking.deviations import Deviation, deviations
from attnsim.validation.measured.datasets import published_rows
from attnsim.wording import number, share_text

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
        errors = {name: share_text(getattr(held, name)) for name in ("mean", "median", "p90", "worst")}
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
            sizes = {"rows": str(about["rows"]), "mean size": share_text(about["spread"])}
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
        return f"{number(value)}x" if one.check["table"] == "trust" else share_text(value)

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


@dataclass(frozen=True, slots=True)
class FigureLine:
    """A figure as some of the GPUs have it.

    Parameters
    ----------
    figure : str
        Its key.
    gpus : tuple of str
    value, kind, source : str
    """

    figure: str
    gpus: tuple[str, ...]
    value: str
    kind: str
    source: str


def figure_lines(gpus: Sequence[Gpu]) -> tuple[list[FigureLine], list[FigureLine]]:
    """The figures worth a look, and the others.

    Those that differ between the GPUs; of one GPU alone those that its times are computed from.

    Parameters
    ----------
    gpus : sequence of Gpu
        Unchanged ones and those made of them.
    """
    first: list[FigureLine] = []
    rest: list[FigureLine] = []
    names = labels(gpus)
    for key in FIELDS:
        values = {gpu.get(key) for gpu in gpus}
        differs = len(values) > 1 if len(gpus) > 1 else key in RATES
        (first if differs else rest).extend(_lines(key, names))
    return first, rest


def _lines(key: str, names: Mapping[Gpu, str]) -> list[FigureLine]:
    """One line for all GPUs that agree in value, kind and source; a changed one goes with the unchanged one."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for gpu, name in names.items():
        figure = gpu.provenance.get(key)
        kind, source = (figure.kind, figure.source) if figure else ("assumed", "not given")
        value = FIELDS[key].show(gpu.get(key))
        owners = found.setdefault((value, kind, source), [])
        if not (gpu.changes and gpu.id in owners):
            owners.append(name)
    return [FigureLine(key, tuple(owners), *about) for about, owners in found.items()]


@dataclass(frozen=True, slots=True)
class Use:
    """The fitted numbers behind some predictions.

    Parameters
    ----------
    prediction : Answer or TooLarge
    gpu : Gpu
    chosen : Chosen
    """

    prediction: Outcome
    gpu: Gpu
    chosen: Chosen


def uses(cases: Iterable[Answered]) -> list[Use]:
    """The numbers of every prediction."""
    return [
        Use(one.prediction, one.gpu, choose(find_implementation(one.prediction.implementation), one.gpu))
        for case in cases
        for one in case.answers
        if one.prediction is not None and one.gpu is not None
    ]


def calibrations_used(found: Sequence[Use]) -> list[Calibration]:
    """Each calibration once, in the order of its first use."""
    every = [one.chosen.calibration for one in found if one.chosen.calibration is not None]
    return list({(one.implementation, one.architecture): one for one in every}.values())


def files_used(found: Sequence[Use]) -> dict[str, str]:
    """SHA-256 of the calibration files behind the predictions and their intervals, by name."""
    names = [f"implementations/{one.implementation}.{one.architecture}.yaml" for one in calibrations_used(found)]
    digests = calibration_digests()
    return {name: digests[name] for name in dict.fromkeys([*sorted(names), "trust.yaml"])}


def residuals(calibration: Calibration) -> dict[str, dict[str, Any]]:
    """For each split ("band", "head_dim"): `rows`, and `spread`, `bias`, `quantiles` of log(measured / predicted)."""
    name = f"{calibration.implementation}.{calibration.architecture}.yaml"
    where = resources.files("attnsim.models").joinpath("calibrations", "implementations", name)
    found: dict[str, dict[str, Any]] = read_written(where)["residuals"]
    return found


def applying(found: Sequence[Use]) -> list[Deviation]:
    """The known gaps that these predictions may share, in the order of the list."""
    used = calibrations_used(found)
    pairs = {(one.implementation, one.architecture) for one in used}
    kinds = {
        kind_of(row)
        for row in published_rows()
        if (row.record.name, row.gpu.architecture) in pairs
        and any(row.case.source in one.sources for one in used if one.implementation == row.record.name)
    }
    return [one for one in deviations() if _applies(one, found, kinds)]


def _applies(one: Deviation, found: Sequence[Use], kinds: set[str]) -> bool:
    check = one.check
    runs = {use.prediction.implementation for use in found}
    match check["table"]:
        case "error":
            return check["what"] in kinds
        case "hypothetical":
            far = [use for use in found if "architecture" in use.prediction.trust.components]
            return check["implementation"] in {use.prediction.implementation for use in far}
        case "source" | "bound" | "family":
            return check["implementation"] in runs
        case "serving":
            here = {(IMPLEMENTATIONS[use.prediction.implementation].name, use.gpu.base_id) for use in found}
            return (check["implementation"], check["gpu"]) in here
        case "claim" | "batches" as table:
            return CLAIMING in runs if table == "claim" else any(use.prediction.workload.lengths for use in found)
        case _:
            return any(check["component"] in use.prediction.trust.components for use in found)
