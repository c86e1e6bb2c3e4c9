"""Evidence: predictions of measured rows that were not used for them; the components of trust are measured on these.

There are four kinds:

- *Off home*: rows of sources that no fit has seen, predicted as a user's question would be. Some are on GPUs on which
  nothing is fitted.
- *Own numbers hidden*: published rows, predicted with their kernel's numbers from another architecture, with those of
  the kernel that it is `like`, and with the priors.
- *Nothing fitted*: off-home rows with borrowed numbers, predicted again with the priors.
- *Home*: held-out rows of the calibrations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnsim.api.trust import same_version, spread_of, unmeasured
from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import Calibration, calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.validation.checking.components import Group
from attnsim.validation.fitting.held_out import NEVER, HeldOut, held_out_predictions
from attnsim.validation.fitting.records import domain_of
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row, grouped, predict_all, published_cases, published_rows, row_of
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.sources import KNOWN, ROLES, laboratory_of, role_of, software_of, source_of, sources

SERVING_SAMPLE = 24
"""Sample size of the large tables, for each GPU, kernel and pass."""


@dataclass(frozen=True, eq=False)
class Predicted:
    """A measured row, predicted with numbers that were fitted without it.

    Parameters
    ----------
    calibration : Calibration or None
        Calibration of the numbers, None for priors.
    components : tuple of str
        Components that separate row and calibration.
    """

    row: Row
    calibration: Calibration | None
    components: tuple[str, ...]
    predicted_s: float

    @property
    def log_error(self) -> float:
        """``log(measured / predicted)``."""
        return float(np.log(self.row.measured_s / self.predicted_s))


@dataclass(frozen=True, slots=True)
class Refused:
    """A measured row without a prediction, and the reason."""

    source: str
    gpu: str
    implementation: str
    why: str


def separation(row: Row, calibration: Calibration | None) -> tuple[str, ...]:
    """Return the components that separate a measured row from a calibration; the row's laboratory is known."""
    known, library = calibration.sources if calibration else (), row.record.library
    same = laboratory_of(row.case.source) in {laboratory_of(source) for source in known}
    version = row.case.version or software_of(row.case.source, library)
    measured = {software_of(source, library) for source in known}
    alike = same_version(version, measured) if version else same and "" in measured
    return unmeasured(
        row.workload,
        row.gpu,
        row.record,
        calibration,
        laboratory=not same,
        version=not alike,
        operations="operations" in row.case.options,
    )


def serving_rows(sample: int, seed: int = 0) -> list[Row]:
    """Return rows of the large tables, evenly from each GPU, kernel and pass; none without their package."""
    return [
        row
        for gpu, name, passes in aiconfigurator.cells()
        for row in aiconfigurator.rows(gpu=gpu, implementation=name, passes=passes, sample=sample, seed=seed)
        if usable(row)
    ]


def off_home(sample: int = SERVING_SAMPLE) -> tuple[list[Predicted], list[Refused]]:
    """Return rows of sources that their calibration has not seen, predicted as a user's question, and the refused rows.

    Parameters
    ----------
    sample : int
        Rows of the large tables for each GPU, kernel and pass.
    """
    rows: list[Row] = []
    refused: list[Refused] = []
    for case in published_cases(*ROLES):
        try:
            row = row_of(case)
            row.schedule  # noqa: B018 built now, where its refusal can be told
            rows.append(row)
        except InputError as error:
            refused.append(Refused(case.source, case.gpu, case.implementation or "", str(error)))
    rows = [row for row in [*rows, *serving_rows(sample)] if not _at_home(row)]
    chosen = [choose(row.record, row.gpu) for row in rows]
    times = predict_all([(row, found.numbers) for row, found in zip(rows, chosen, strict=True)])
    return [
        Predicted(row, found.calibration, separation(row, found.calibration), time)
        for row, found, time in zip(rows, chosen, times, strict=True)
    ], refused


def _at_home(row: Row) -> bool:
    """True if a row's own calibration was fitted on its source, or on a sample of its table."""
    found = choose(row.record, row.gpu)
    if found.calibration is None or not found.own:
        return False
    if row.case.source in sources():
        return row.case.source in found.calibration.sources
    return role_of(row.case.source) == "fit" and row.gpu.base_id in found.calibration.domain.gpus


def hidden(away: Sequence[Predicted]) -> list[Predicted]:
    """Return published rows with their own calibration hidden, and off-home rows of borrowed numbers with priors."""
    tasks = [task for row in published_rows() if usable(row) for task in _without_own(row)]
    for one in away:
        if one.calibration is not None and {"kernel", "architecture"} & {*one.components} and usable(one.row):
            tasks.append((one.row, None, Numbers(counts=one.row.record.counts)))
    times = predict_all([(row, numbers) for row, _, numbers in tasks])
    return [
        Predicted(row, calibration, separation(row, calibration), time)
        for (row, calibration, _), time in zip(tasks, times, strict=True)
    ]


def _without_own(row: Row) -> Iterable[tuple[Row, Calibration | None, Numbers]]:
    everything = calibrations()
    name, architecture = row.record.name, row.gpu.architecture
    if (name, architecture) not in everything:
        return
    for (other, there), found in everything.items():
        if other == name and there != architecture:
            yield row, found, found.counted
    borrowed = everything.get((row.record.like, architecture))
    if borrowed is not None:
        yield row, borrowed, borrowed.counted
    yield row, None, Numbers(counts=row.record.counts)


def home(found: Sequence[HeldOut] | None = None) -> list[Predicted]:
    """Return held-out rows of the calibrations, with the components to their calibration without the row's group."""
    held = [one for one in (held_out_predictions() if found is None else found) if one.split != NEVER]
    by_split = grouped((one for one in held if usable(one.row)), lambda one: (one.calibration, one.split))
    points = []
    for (name, _), inside in by_split.items():
        for group, members in sorted(grouped(inside, lambda one: one.group).items()):
            rest = [one.row for one in inside if one.group != group]
            if rest:
                seen = replace(calibrations()[name], domain=domain_of(rest))
                points += [Predicted(one.row, seen, separation(one.row, seen), one.predicted_s) for one in members]
    return points


def groups_of(points: Iterable[Predicted]) -> list[Group]:
    """Group the usable points by source, GPU, kernel, pass and components."""

    def cell(one: Predicted) -> tuple[object, ...]:
        case, whose = one.row.case, one.calibration.implementation if one.calibration else "priors"
        return source_of(case.source), case.gpu, one.row.record.name, case.passes, whose, one.components

    return [_group(found) for found in grouped((one for one in points if usable(one.row)), cell).values()]


def _group(found: Sequence[Predicted]) -> Group:
    case = found[0].row.case
    return Group(
        source=source_of(case.source),
        laboratory=laboratory_of(case.source),
        gpu=found[0].row.gpu.base_id,
        kernel=found[0].row.record.name,
        passes=case.passes,
        components=found[0].components,
        logs=np.array([one.log_error for one in found]),
        spread=float(np.mean([spread_of(one.row.workload, one.calibration) for one in found])),
    )


@dataclass(frozen=True, eq=False)
class Evidence:
    """The rows of all four kinds.

    Parameters
    ----------
    away, hidden, home : list of Predicted
        Rows off home; rows with their own numbers hidden or nothing fitted; held-out rows.
    """

    away: list[Predicted]
    hidden: list[Predicted]
    home: list[Predicted]
    refused: list[Refused]

    @property
    def groups(self) -> list[Group]:
        """Groups of all rows, without the role "strangers"."""
        every = (*self.away, *self.hidden, *self.home)
        return groups_of(one for one in every if role_of(one.row.case.source) in KNOWN)


def evidence(sample: int = SERVING_SAMPLE, found: Sequence[HeldOut] | None = None) -> Evidence:
    """Return all evidence, with a sample of the large tables for each GPU, kernel and pass."""
    away, refused = off_home(sample)
    return Evidence(away, hidden(away), home(found), refused)
