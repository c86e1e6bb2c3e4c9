"""Measured steps, the ratio of one kernel's times on two GPUs, their predictions, and the widths of ratios' ranges.

Both times of a step are of one laboratory with one version.

- If the GPUs have one architecture, or the newer one's borrows from the older one's, the newer GPU is predicted as its
  datasheet describes it, with the older GPU's numbers ("carried"): as a hypothetical GPU.
- If the architectures differ, each GPU is also predicted with its "own" numbers, which may be borrowed.
- For some steps only the measured speedup is known.

The components of widths are measured on steps as in `components.py`, and checked with a pair of GPUs left out. Every
step is its own group; each kernel's pass on a pair of GPUs has one vote for each set of components. Nothing is
estimated for two kernels on one GPU: the components of their times are summed as in
`attnsim.api.comparing.ratios`, and checked with the laboratory left out.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnsim.api.comparing.ratios import moved, of_two_kernels
from attnsim.api.trust import spread_of
from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.components import RATIOS, Widths, ratio_widths
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay
from attnsim.validation.checking.components import Group, left_out, measured
from attnsim.validation.checking.evidence import SERVING_SAMPLE, Predicted
from attnsim.validation.checking.hypothetical import VIEWS, View, as_announced, question, twins
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row, Task, Time, grouped, play_all, published_cases, row_of
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.sources import KNOWN, laboratory_of

NumbersOf = Literal["carried", "own"]


@dataclass(frozen=True, eq=False)
class Step:
    """A measured ratio of two times of one kernel on two GPUs, and the predicted one.

    Parameters
    ----------
    numbers : {"carried", "own"}
        "carried": the newer GPU is predicted with the older one's numbers.
    ratio : float
        Predicted time on the older GPU over that on the newer.
    borrowed : bool
        True if any of the numbers are from another architecture or kernel.
    moved : float
        As in `attnsim.api.comparing.ratios.moved`.
    alternatives : tuple of float
        Logs of the ratio with each alternative calibration over the predicted ratio, for "carried".
    """

    older: Row
    newer: Row
    numbers: NumbersOf
    ratio: float
    borrowed: bool
    moved: float
    alternatives: tuple[float, ...] = ()

    @property
    def known(self) -> float:
        """Log distance of the farthest alternative, on the side of the measured ratio."""
        side = math.copysign(1.0, self.log_error)
        return max(0.0, *(side * log for log in self.alternatives), 0.0)

    @property
    def log_error(self) -> float:
        """Log of the measured over the predicted ratio."""
        return math.log(self.older.measured_s / self.newer.measured_s / self.ratio)

    @property
    def pair(self) -> str:
        """Both GPUs, the older first."""
        return f"{self.older.gpu.base_id} > {self.newer.gpu.base_id}"

    @property
    def components(self) -> tuple[str, ...]:
        """Components between the two times, from `attnsim.models.calibrations.components.RATIOS`."""
        apart = self.older.gpu.architecture != self.newer.gpu.architecture
        found = {"machines": True, "change": self.numbers == "carried", "architectures": apart}
        found["borrowed"] = apart and self.borrowed
        return tuple(name for name in RATIOS if found[name])


def steps(sample: int = SERVING_SAMPLE) -> list[Step]:
    """Return every known measured step.

    Parameters
    ----------
    sample : int
        Rows of the large tables for each pair of GPUs, kernel and pass; without that package, only the papers' rows.
    """
    asked: list[tuple[Row, Row, NumbersOf, bool]] = []
    tasks: list[Task] = []
    shared: list[Shared] = []
    for older, newer in [*_published(), *serving_pairs(sample)]:
        here, there = choose(older.record, older.gpu), choose(newer.record, newer.gpu)
        if _transfers(older.gpu, newer.gpu):
            then = replace(newer, gpu=as_announced(newer.gpu, older.gpu))
            asked.append((older, newer, "carried", True))
            tasks += [(older, here.numbers), (then, here.numbers)]
            group = (older.gpu.base_id, newer.gpu.base_id, newer.record.name, newer.case.passes)
            shared.append((group, here.calibration, tasks[-2], tasks[-1]))
        if older.gpu.architecture != newer.gpu.architecture:
            asked.append((older, newer, "own", not (here.own and there.own)))
            tasks += [(older, here.numbers), (newer, there.numbers)]
            shared.append(((), None, tasks[-2], tasks[-1]))
    times = play_all(tasks)
    return [
        Step(older, newer, numbers, one.time_s / two.time_s, borrowed, moved(one, two), logs)
        for (older, newer, numbers, borrowed), one, two, logs in zip(
            asked, times[::2], times[1::2], alternative_logs(shared), strict=True
        )
    ]


Shared = tuple[Hashable, Calibration | None, Task, Task]
"""A step's group, the calibration that both of its rows share, and both rows with its numbers."""


def alternative_logs(asked: Sequence[Shared]) -> list[tuple[float, ...]]:
    """Return, for each step, the logs of its ratio by each alternative of the shared calibration over its own ratio.

    Only the first step of each group is replayed; the others in it get the same values.
    """
    first: dict[Hashable, Shared] = {}
    for one in asked:
        first.setdefault(one[0], one)
    every = {group: one[1].alternatives if one[1] else () for group, one in first.items()}
    played = [(first[group], (None, *alternatives)) for group, alternatives in every.items() if alternatives]
    tasks = [
        (row, one.of(numbers) if one else numbers)
        for (_, _, *both), alternatives in played
        for one in alternatives
        for row, numbers in both
    ]
    times = iter(play_all(tasks))
    found: dict[Hashable, tuple[float, ...]] = dict.fromkeys(every, ())
    for (group, *_), alternatives in played:
        own, *logs = [math.log(next(times).time_s / next(times).time_s) for _ in alternatives]
        found[group] = tuple(log - own for log in logs)
    return [found[one[0]] for one in asked]


def groups_of_steps(found: list[Step]) -> list[Group]:
    """Return every step as its own group: the source is a kernel's pass on a pair of GPUs, the laboratory the pair."""
    return [
        Group(
            source=f"{one.pair}, {one.newer.record.name}, {one.newer.case.passes}",
            laboratory=one.pair,
            gpu=one.newer.gpu.base_id,
            kernel=one.newer.record.name,
            passes=one.newer.case.passes,
            components=one.components,
            logs=np.array([one.log_error]),
            spread=0.0,
            sizes={"change": one.moved},
            known=one.known,
        )
        for one in found
    ]


def _transfers(older: Gpu, newer: Gpu) -> bool:
    """True if the newer GPU's architecture may use the older one's numbers."""
    same = older.architecture == newer.architecture
    return same or older.architecture in architecture_of(newer.compute_capability_number).borrows


def _in_order(one: Gpu, other: Gpu) -> tuple[Gpu, Gpu]:
    """Order two GPUs by compute capability, the older first."""
    older, newer = sorted((one, other), key=lambda gpu: (gpu.compute_capability_number, gpu.base_id))
    return older, newer


def _published() -> Iterator[tuple[Row, Row]]:
    """Yield pairs of published rows."""
    rows = []
    for case in published_cases(*KNOWN):
        with suppress(InputError):
            row = row_of(case)
            if row.schedule and usable(row):  # built now, where it may be refused
                rows.append(row)
    yield from pairs_of_gpus(rows)


def pairs_of_gpus(rows: Iterable[Row]) -> Iterator[tuple[Row, Row]]:
    """Yield pairs of rows of one question, laboratory and version on two GPUs, the older GPU first."""
    for part in grouped(rows, lambda row: (laboratory_of(row.case.source), row.case.version, *question(row))).values():
        for one, other in combinations(part, 2):
            if one.gpu.base_id != other.gpu.base_id:
                yield (one, other) if _in_order(one.gpu, other.gpu)[0] is one.gpu else (other, one)


def serving_pairs(sample: int) -> Iterator[tuple[Row, Row]]:
    """Yield pairs of rows of the large tables; none without their package."""
    alike = grouped(aiconfigurator.cells(), lambda cell: (cell[1], cell[2] == "decode"))
    for _, cells in sorted(alike.items()):
        for (one, name, passes), (other, _, _) in combinations(cells, 2):
            older, newer = _in_order(load_gpu(one), load_gpu(other))
            there = twins(older.id, name, passes)
            for row in aiconfigurator.rows(gpu=newer.id, implementation=name, passes=passes, sample=sample):
                twin = there.get(question(row))
                if twin is not None and usable(row) and twin.case.version == row.case.version:
                    yield twin, row


LENGTHS = (2048, 4096, 8192)
BATCH, HEADS = 4, 32
"""Shapes for steps that are stated without a shape: long enough that launches do not matter."""


@dataclass(frozen=True, slots=True)
class StatedStep:
    """A measured speedup of the newer GPU over the older one, between `low` and `high`.

    `length` is the stated sequence length; None stands for `LENGTHS`.
    """

    older: str
    newer: str
    implementation: str
    head_dim: int
    causal: bool
    low: float
    high: float
    length: int | None = None


def step_errors() -> list[dict[str, Any]]:
    """Return the errors of the steps of ``steps.yaml``, in both views of the newer GPU, without numbers fitted on it.

    Returns
    -------
    list of dict
        ``older, newer, implementation, head_dim, view, measured_low, measured_high, predicted, low, high, error``:
        `predicted` is the geometric mean over its lengths; `low` to `high` is the range that a ratio states, which
        rests on none of these steps; `error` is the relative distance of the prediction from the measured range.
    """
    return [_error(step, view) for step in stated_steps() for view in VIEWS]


def stated_steps() -> tuple[StatedStep, ...]:
    """Return the steps of ``steps.yaml``."""
    return read_typed(Path(__file__).with_name("steps.yaml"), "step", tuple[StatedStep, ...])


def _error(step: StatedStep, view: View) -> dict[str, Any]:
    older, newer = load_gpu(step.older), load_gpu(step.newer)
    then = as_announced(newer, older) if view == "datasheet" else newer
    pairs = [(_time(step, older, n), _time(step, then, n)) for n in ([step.length] if step.length else LENGTHS)]
    found = math.exp(float(np.mean([math.log(one.time_s / two.time_s) for one, two in pairs])))
    sizes = {"machines": 1.0, "change": float(np.mean([moved(one, two) for one, two in pairs]))}
    half = ratio_widths().half_width(ratio_widths().sd[name] * size for name, size in sizes.items())
    return {
        **{name: getattr(step, name) for name in ("older", "newer", "implementation", "head_dim")},
        "view": view,
        "measured_low": step.low,
        "measured_high": step.high,
        "predicted": round(found, 4),
        "low": round(found * math.exp(-half), 4),
        "high": round(found * math.exp(half), 4),
        "error": round(max(step.low / found, found / step.high, 1.0) - 1, 4),
    }


def _time(step: StatedStep, gpu: Gpu, seq: int) -> Time:
    """Replay a call with the numbers that were fitted on the older GPU."""
    mask = Mask.causal() if step.causal else Mask.full()
    w = Workload(batch=BATCH, heads_q=HEADS, seq_q=seq, head_dim=step.head_dim, mask=mask)
    record = IMPLEMENTATIONS[step.implementation]
    numbers = choose(record, load_gpu(step.older)).numbers
    played = replay(record.build(w, gpu, None), gpu, numbers)
    return Time(played.time_s, played.units_s())


def fitted_widths(found: list[Step]) -> Widths:
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
    return [
        {
            "older": members[0][0].older.gpu.base_id,
            "newer": members[0][0].newer.gpu.base_id,
            "numbers": members[0][0].numbers,
            "steps": len(members),
            "ratio": round(float(np.median([one.ratio for one, _ in members])), 4),
            **_coverage([(abs(one.log_error), check.half[group], check.inside[group]) for one, group in members]),
        }
        for _, members in sorted(cells.items())
    ]


def _coverage(steps: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """Return the median error and half-width of steps, and the share that is held."""
    error, half, held = np.array(steps, dtype=np.float64).T
    found = {"error": np.median(error), "half_width": np.median(half), "held": held.mean()}
    return {name: round(float(value), 4) for name, value in found.items()}


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
            **_coverage([(error, half, error <= half) for _, error, half in members]),
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
    for name, sd in fitted_widths(found).sd.items():
        members = [group for group in groups if group.category == name]
        line: dict[str, Any] = {
            "component": name,
            "sd": round(sd, 4),
            "steps": len(members),
            "pairs": len({group.laboratory for group in members}),
            **dict.fromkeys(("error", "half_width", "held")),
        }
        known = [(abs(group.bias), check.half[group], check.inside[group]) for group in members]
        table.append(line | (_coverage(known) if known else {}))
    return table


def ratios_record(found: list[Step], points: Sequence[Predicted], groups: Sequence[Group]) -> dict[str, Any]:
    """Return the section ``ratios`` of ``trust.yaml``: factor and components, and their coverage by pair."""
    table = {row.pop("component"): row for row in ratios_table(found)}
    kernels = kernels_table(points, groups)
    return {
        "factor": round(fitted_widths(found).factor, 4),
        "components": table,
        "pairs": pairs_table(found),
        "two_kernels": {
            "steps": sum(row["steps"] for row in kernels),
            "held": round(
                float(np.average([row["held"] for row in kernels], weights=[row["steps"] for row in kernels])), 4
            ),
        },
    }
