"""Grounds of a report's numbers: the calibrations used, how wrong they are, and the known gaps that apply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from attnsim.api.answer import Outcome
from attnsim.files import read_written
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.choose import Chosen, choose
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation
from attnsim.reports.answers import Answered
from attnsim.studies.folder import calibration_digests
from attnsim.validation.checking.accuracy import kind_of
from attnsim.validation.checking.claims import CLAIMING
from attnsim.validation.checking.deviations import Deviation, deviations
from attnsim.validation.measured.datasets import published_rows


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
