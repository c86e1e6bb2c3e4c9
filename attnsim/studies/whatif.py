"""What-if tables: the effect of each of several GPU changes on each of several cases.

A row is a changed GPU; a column is a call, a whole layer, or a mix of them. A changed GPU and the unchanged GPU choose
their tiles in the same way: retuned is compared with retuned (`attnsim.api.comparing.ratios`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Unpack

from attnsim.api.answer import Outcome
from attnsim.api.asking import Conditions, Given, read_conditions, read_gpu
from attnsim.api.comparing.baselines import why_slower
from attnsim.api.comparing.ratios import LikeForLike
from attnsim.api.layer_answer import LayerAnswer
from attnsim.errors import InputError, shown
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.area import area_mm2, beyond_reticle, cost_usd
from attnsim.models.hardware.gpu import Gpu, changes_text
from attnsim.models.hardware.sections import FIELDS, Interval, changeable, changeable_alone
from attnsim.models.hardware.units import RESULTS, bound_text
from attnsim.models.mechanisms import playing
from attnsim.models.question.headings import frame_of
from attnsim.models.question.workload import Workload
from attnsim.studies.hardware_case import NOT_OF_CASES, Answered, Case
from attnsim.studies.hardware_machines import MachineAnswer, Mix, answered, known
from attnsim.studies.hardware_search import MixAnswer, ends
from attnsim.studies.hardware_space import Limit
from attnsim.wording import number

if TYPE_CHECKING:
    import pandas as pd

Change = Mapping[str, str | float]
UNCHANGED, TOGETHER = "unchanged", "all together"
OF_CALLS = ("time", "energy", "power")
"""Results that differ between cases; the others belong to the machine."""


@dataclass(frozen=True, slots=True)
class Column:
    """A case, or a weighted mix of several."""

    name: str
    cases: tuple[Case, ...]

    @property
    def of(self) -> str:
        """Scope of the column: "attention", "layer" or "model"."""
        return self.cases[0].of

    @property
    def called(self) -> str:
        """Name in sentences: "layer, seq=8k"."""
        return ", ".join(filter(None, (self.of, self.name)))


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of a column on one machine.

    Parameters
    ----------
    answer : MachineAnswer or None
        Times, watts, and the speedup over the unchanged GPU on tiles chosen in the same way; None without an answer.
    alike : LikeForLike or None
        With retuned tiles: the parts of the gain that are due to the tile and to the change.
    bound : str
        The bound of a call, or the busiest unit of a layer; "" for a mix.
    refused : str
        Reason why there is no answer.
    """

    answer: MachineAnswer | None
    alike: LikeForLike[MixAnswer] | None = None
    bound: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A machine and its cells.

    Parameters
    ----------
    name : str
        Its settings as given, or "unchanged" or "all together".
    change : mapping
        The settings; empty for "unchanged" and "all together".
    cells : tuple of Cell
        One for each column.
    broken : tuple of (str, str)
        Name of each limit that it breaks, and the limit with the machine's value.
    """

    name: str
    change: Change
    gpu: Gpu
    cells: tuple[Cell, ...]
    broken: tuple[tuple[str, str], ...] = ()

    @property
    def area(self) -> Interval | None:
        """The die area in mm2, None if it is not known."""
        return known(area_mm2, self.gpu)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A what-if table.

    Parameters
    ----------
    rows : tuple of Row
        One for each change, in the order given; then all changes together, if each changes a different figure.
    tiles : {"shipped", "retuned"}
    """

    columns: tuple[Column, ...]
    unchanged: Row
    rows: tuple[Row, ...]
    tiles: str

    @property
    def remarks(self) -> list[str]:
        """Remarks: changes without effect on time, changes that slow a call, broken limits, cases without an answer."""
        found: dict[str, dict[str, None]] = {}
        for row in (self.unchanged, *self.rows):
            pairs = list(zip(self.columns, self.unchanged.cells, row.cells, strict=True))
            still = row is not self.unchanged and all(_time(base) == _time(one) for _, base, one in pairs)
            texts = [*["moves no time"][: int(still)], *(f"breaks {text}" for _, text in row.broken)]
            for column, base, one in pairs:
                calls = zip(_calls(base), _calls(one), strict=False)
                texts += [one.refused and f"{column.called}: {one.refused}", *(why_slower(*pair) for pair in calls)]
            for text in filter(None, texts):
                found.setdefault(text, {})[row.name] = None
        return [f"{'; '.join(names)}: {text}" for text, names in found.items()]

    def records(self) -> list[dict[str, Any]]:
        """Return one plain record per row and column, SI units."""
        return [
            _record(row, column, cell)
            for row in (self.unchanged, *self.rows)
            for column, cell in zip(self.columns, row.cells, strict=True)
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return the records as a frame."""
        return frame_of(self.records())


def _time(cell: Cell) -> float | None:
    return cell.answer.time_s.typical if cell.answer else None


def _calls(cell: Cell) -> list[Outcome]:
    """Return the attention calls of a cell."""
    answers = cell.answer.predictions if cell.answer else ()
    return [call for one in answers for call in (one.attention if isinstance(one, LayerAnswer) else (one,))]


def _clocks(gpu: Gpu, cell: Cell) -> list[str]:
    """Return the origins of the clocks of a cell's calls, and "power" if that slows another part of a long layer."""
    from_s = architecture_of(gpu.compute_capability_number).slowed_from_s
    layers = [one for one in (cell.answer.predictions if cell.answer else ()) if isinstance(one, LayerAnswer)]
    long = [part.clock_hz for one in layers if (one.time_s or 0.0) > from_s for part in one.parts if part.clock_hz]
    lowered = ["power"] if long and min(long) < 0.999 * gpu.clock.full_hz else []
    return [*(call.clock_by or "" for call in _calls(cell)), *lowered]


def whatif(
    cases: Workload | Sequence[Case], gpu: Gpu | str, changes: Sequence[Change], *, algorithm: str | None = None,
    implementation: str | None = None, limits: Sequence[str] = (), mixed: bool = False,
    done: Callable[[], None] = lambda: None, **given: Unpack[Given],
) -> WhatIf:  # fmt: skip
    """Compute the effect of each GPU change on each case, with range, bound, watts and die area.

    Parameters
    ----------
    cases : Workload or sequence of Case
        Calls, whole layers or steps of whole models (`attnsim.studies.hardware_case`).
    changes : sequence of mapping
        One row each: figures and their values, as `Gpu.replace` takes them.
    algorithm, implementation
        As in :func:`attnsim.predict`.
    limits : sequence of str
        Such as "area<=1.1x" or "power<=700 W"; each row lists the limits that it breaks.
    mixed : bool
        Add a column for the weighted mix of all calls, of all layers, and of all models.
    done : callable
        Called after each machine.
    given
        Conditions as for :func:`attnsim.predict`: tiles, cache, launch and calibration; a case may have its own cache
        state. With tiles "retuned", the unchanged GPU is retuned too, so that a change is never credited with the gain
        of a tile.

    Raises
    ------
    InputError
        For a change that changes nothing or is given twice, or if no case can be answered.

    Examples
    --------
    >>> question = Workload(batch=16, heads_q=64, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode")
    >>> found = whatif(question, "h100-sxm5-80gb", [{"hbm.bandwidth": "6 TB/s"}, {"sm.exp_rate": "2x"}], cache="cold")
    >>> [row.name for row in found.rows]
    ['hbm.bandwidth=6 TB/s', 'sm.exp_rate=2x', 'all together']
    >>> hbm, exp, both = (row.cells[0].answer.speedup.value for row in found.rows)
    >>> hbm > 1.4 > 1.1 > exp
    True
    """
    base = read_gpu(gpu)
    every = [Case(cases)] if isinstance(cases, Workload) else cases if isinstance(cases, (list, tuple)) else []
    if not every or not all(isinstance(one, Case) for one in every):
        raise InputError(f"cases are {shown(cases)}; give an attnsim.Workload, or a list of hardware_case.Case")
    machines = _machines(base, changes, every)
    asked = read_conditions(of="cases", without={*NOT_OF_CASES} - {"tiles"}, **given)
    if asked.tiles != "shipped" and any(one.of == "model" for one in every):
        raise InputError(
            f"tiles are {shown(asked.tiles)} of a whole model; leave them out, or ask of attention or layers"
        )
    columns = [Column(one.name, (one,)) for one in every]
    if mixed:
        kinds = [tuple(one for one in every if one.of == of) for of in dict.fromkeys(one.of for one in every)]
        columns += [Column("mix", kind) for kind in kinds if len(kind) > 1]
    wanted = [Limit.parse(text) for text in limits]
    for name, figure in (("area", area_mm2), ("cost", cost_usd)):
        if any(one.name == name for one in wanted):
            figure(base)

    def answers(machine: Gpu, conditions: Conditions = asked) -> Answers:
        found = [_answer(one, machine, algorithm, implementation, conditions) for one in every]
        return dict(zip(map(id, every), found, strict=True))

    before = answers(base)
    shipped = answers(base, replace(asked, tiles="shipped")) if asked.tiles != "shipped" else None
    rows: list[Row] = []
    each = iter(changes)
    for name, machine in ((UNCHANGED, base), *machines.items()):
        now = before if machine is base else answers(machine)
        change = {} if name in (UNCHANGED, TOGETHER) else next(each)
        rows.append(Row(name, change, machine, tuple(_cell(machine, one, shipped, before, now) for one in columns)))
        done()
    if all(cell.answer is None for row in rows for cell in row.cells):
        raise InputError(rows[0].cells[0].refused)
    unchanged, *others = [_judged(row, rows[0], columns, wanted) for row in rows]
    return WhatIf(tuple(columns), unchanged, tuple(others), asked.tiles)


Answers = Mapping[int, Answered | InputError]
"""The answer to every case by its identity, or the reason why there is none."""


def _answer(
    case: Case, gpu: Gpu, algorithm: str | None, implementation: str | None, conditions: Conditions
) -> Answered | InputError:
    """Return a machine's answer to a case, or the InputError that prevents it."""
    try:
        named = algorithm or playing(case.workload).name
        found = case.answered(gpu, named, implementation, conditions, whole=True)
    except InputError as error:
        return error
    return found if found.time_s else InputError(found.notes[0])


def _known(column: Column, answers: Answers) -> tuple[Answered, ...] | InputError:
    """Return the answers to a column's cases, or the first error."""
    found: list[Answered] = []
    for case in column.cases:
        one = answers[id(case)]
        if isinstance(one, InputError):
            return one
        found.append(one)
    return tuple(found)


def _cell(gpu: Gpu, column: Column, shipped: Answers | None, before: Answers, now: Answers) -> Cell:
    """Build the cell of a column on a machine, compared with the unchanged machine."""
    mine, base, first = _known(column, now), _known(column, before), _known(column, shipped or before)
    if isinstance(mine, InputError):
        return Cell(None, refused=str(mine))
    if isinstance(base, InputError):
        if len(column.cases) > 1:
            return Cell(None, refused=str(base))
        alone = answered(gpu, Mix.of(column.cases, mine), mine, None)
        return Cell(replace(alone, speedup=None), bound=_bound(mine))
    mix = Mix.of(column.cases, base)
    alike = None
    if shipped is not None and not isinstance(first, InputError):
        alike = LikeForLike(*(MixAnswer(mix, one) for one in (first, base, mine)))
    return Cell(answered(gpu, mix, mine, None), alike, _bound(mine))


def _bound(answers: Sequence[Answered]) -> str:
    """Return the bound of a call, or the busiest unit of a layer; "" for a mix."""
    one, *others = answers
    if others:
        return ""
    return bound_text(one.busiest if isinstance(one, LayerAnswer) or not one.bound else one.bound.unit)


def _machines(base: Gpu, changes: Sequence[Change], cases: Sequence[Case]) -> dict[str, Gpu]:
    """Return the changed GPUs by name; figures of links may change only if every case is of a model on several GPUs."""
    alone = [one for one in cases if one.of != "model" or one.tp == 1]
    scopes = dict.fromkeys(one.of for one in alone if one.of != "model")
    if not changes:
        raise InputError("nothing is changed; give changes, such as hbm.bandwidth=6TB/s, each of which is a row")
    if isinstance(changes, (str, Mapping)) or not all(isinstance(one, Mapping) and one for one in changes):
        raise InputError(f"changes are {shown(changes)}; give a list of rows, such as [{{'hbm.bandwidth': '6TB/s'}}]")
    found: dict[str, Gpu] = {}
    for change in changes:
        name, machine = ", ".join(f"{key}={value}" for key, value in change.items()), base
        for key, value in change.items():
            if 0 < len(alone) < len(cases) and changeable(key).read == "links":
                drop = f"drop {' and '.join(scopes)} from --of" if scopes else "leave out the cases of one GPU"
                raise InputError(f"{key} is read by a whole model on several GPUs alone; {drop}")
            if alone:
                changeable_alone(key)
            before, machine = machine, machine.replace(key, value)
            if machine is before:
                has = FIELDS[key].show(base.get(key))
                raise InputError(f"{key}={value} changes nothing: {base.id} has {has}; give another value")
        same = next((other for other, one in found.items() if one.changes == machine.changes), None)
        if same is not None:
            raise InputError(f"{name} is given twice{'' if same == name else f', as {same}'}; keep one")
        found[name] = machine
    keys = [key for change in changes for key in change]
    if 1 < len(changes) == len(keys) == len(set(keys)):  # rows of one figure each, all of them different ones
        found[TOGETHER] = base.replace({key: value for change in changes for key, value in change.items()})
    return found


def _judged(row: Row, unchanged: Row, columns: Sequence[Column], limits: Sequence[Limit]) -> Row:
    """Return the row with the limits that it breaks; time, energy and power are judged in each column.

    Raises
    ------
    InputError
        If a limit is a multiple of a result that the unchanged GPU does not have.
    """
    broken: dict[tuple[str, str], None] = {}
    for limit, (column, cell, base) in product(limits, zip(columns, row.cells, unchanged.cells, strict=True)):
        was, value = _value(limit, unchanged.gpu, base), _value(limit, row.gpu, cell)
        if value is not None and was is None and limit.times:
            raise InputError(f"the unchanged machine cannot answer: {base.refused}; give limits as values")
        exact = limit.over(was or 0.0)
        if value is not None and exact.excess(value):
            unit = RESULTS.get(limit.name)
            text = f"{number(value)} {unit}" if unit else FIELDS[limit.name].show(value)
            where = f" ({column.called})" if limit.name in OF_CALLS else ""
            broken[limit.name, f"{exact.text}: {text}{where}"] = None
    return replace(row, broken=tuple(broken))


def _value(limit: Limit, gpu: Gpu, cell: Cell) -> float | None:
    """Return a machine's value of a limited quantity, None without an answer."""
    if limit.name in FIELDS:
        return gpu.get(limit.name)
    return cell.answer.values()[limit.name] if cell.answer else None


def _record(row: Row, column: Column, cell: Cell) -> dict[str, Any]:
    """Return a record of the tidy table."""
    answer, alike = cell.answer, cell.alike
    predictions = answer.predictions if answer else ()
    ratios = {
        "speedup": answer and answer.speedup,
        "tile_speedup": alike and alike.tile,
        "both_speedup": alike and alike.both,
    }
    time, power = (answer.time_s, answer.watts) if answer else (None, None)
    large = row.area and row.gpu.changes and beyond_reticle(row.gpu)
    return {
        "gpu": row.gpu.id,
        "change": row.name,
        "changes": changes_text(row.gpu.changes),
        "of": column.of,
        "case": column.name,
        "model": column.cases[0].model,
        "tp": column.cases[0].tp,
        "question": "; ".join(str(one.workload) for one in column.cases),
        **{
            name: value
            for one, result in (("time", time), ("power", power), ("area", row.area))
            for name, value in ends(one, result).items()
        },
        **{
            f"{name}{f'_{end}' if end != 'value' else ''}": ratio and getattr(ratio, end)
            for name, ratio in ratios.items()
            for end in ("value", "low", "high")
        },
        "power_limit_w": row.gpu.power.limit_w,
        "clock_by": "; ".join(dict.fromkeys(_clocks(row.gpu, cell))),
        "beyond_reticle": bool(large) if row.area else None,
        "bound": cell.bound,
        "tile": "; ".join(dict.fromkeys(one.tile for one in predictions)),
        "trust": "; ".join(dict.fromkeys(one.trust.level for one in predictions)),
        "breaks": "; ".join(text for _, text in row.broken),
        "refused": cell.refused,
    }
