"""Changes of a GPU for people: what each brings to each case, and what is known of the die."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnsim import wording
from attnsim.api.comparing.ratios import Ratio
from attnsim.errors import InputError
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.area import beyond_reticle, die_of, table, typical_shares, without_area
from attnsim.models.hardware.gpu import Gpu
from attnsim.studies.whatif import Cell, Column, Row, WhatIf
from attnsim.tables import Block, Table

_PARTS = {"sms": "SMs", "memory": "memory interface", "l2": "L2 cells", "crossbar": "crossbar", "links": "links"}


def area_lines(base: Gpu, machines: Sequence[Gpu], names: Sequence[str] = ()) -> list[str]:
    """Lines on the die of the unchanged machine, and on those of others, by their names or else their numbers."""
    try:
        name, die = die_of(base)
    except InputError as error:
        return [f"area: {error}"]
    shares = typical_shares(die)
    made = ", ".join(f"{word} {100 * shares[part]:.0f} %" for part, word in _PARTS.items())
    rest = table().parts["rest"]
    lines = [
        f"area: {name} has {die.area.typical:g} mm2 ({die.area.kind}): {made}; {100 * shares['rest']:.0f} % "
        f"({100 * rest.low:.0f}-{100 * rest.high:.0f}) is not modelled and stays. Shares by published constants, "
        "within an SM assumed"
    ]
    free = dict.fromkeys(key for machine in machines for key in without_area(machine))
    if free:
        lines.append(f"no area is known of {', '.join(free)}, whose change looks free here")
    called = names or list(map(str, range(len(machines))))
    large = [
        name for name, machine in zip(called, machines, strict=True) if machine != base and beyond_reticle(machine)
    ]
    if large:
        reticle = f"{table().reticle_mm2.typical:g} mm2"
        lines.append(
            f"larger than the reticle, {reticle}, so not made in one piece: {('; ' if names else ', ').join(large)}"
        )
    return lines


def whatif(found: WhatIf, title: str, launch: str, verbose: bool) -> Iterator[Block]:
    """The table of changes by cases, and a line for what does not fit into it."""
    base = found.unchanged.gpu
    asked: dict[str, str] = {}
    for one in found.columns:
        if len(one.cases) == 1:
            (case,) = one.cases
            cold = ", cold L2" if one.name and case.cache == "cold" and "cold L2" not in title else ""
            asked.setdefault(one.name, f"{case.workload}{cold}")
    yield f"{title}{base.id}, {found.tiles} tiles, {wording.launched_text(launch)}"
    yield from (f"{name}: {question}" if name else question for name, question in asked.items())
    if shared := _all_reduces(found):
        yield shared
    rows: list[dict[str, object]] = [
        {
            "change": _name(row),
            "die mm2": _die(row),
            **{_head(column): _cell(row, cell, found) for column, cell in zip(found.columns, row.cells, strict=True)},
        }
        for row in (found.unchanged, *found.rows)
    ]
    rows[-1] = {head: str(cell).rstrip("\n") for head, cell in rows[-1].items()}
    yield Table("", rows, whole=rows[0], remarks=found.remarks)
    limit = base.power.limit_w
    cells = [cell.answer for row in (found.unchanged, *found.rows) for cell in row.cells if cell.answer]
    if any(one.watts.typical > limit for one in cells):
        law = architecture_of(base.compute_capability_number)
        some, full = (f"{1e3 * one:g} ms" for one in (law.slowed_from_s, law.slowed_to_s))
        yield (
            f"W above {limit:g}, the power limit: what the call would draw, run again and again at its clock. The "
            f"limit lowers the clock of calls, layers and steps from {some} on, and wholly from {full} on; shorter "
            "ones, run again and again, would be slower than said here."
        )
    retuned = " Retuned tiles are the unchanged GPU's too; tile: what they bring there." * (found.tiles == "retuned")
    yield (
        "A cell: speedup over the unchanged GPU (of that its time), 90 % range, what bounds the call (of a layer: what "
        f"is busiest) and watts.{retuned}"
    )
    dies = area_lines(base, [row.gpu for row in found.rows], [row.name for row in found.rows])
    yield from dies if verbose or found.unchanged.area is None else dies[1:]  # the first says how it is counted
    answers = [cell.answer for cell in found.rows[0].cells if cell.answer and verbose]
    for reason in dict.fromkeys(call.trust.reason for one in answers for call in one.predictions):
        yield f"trust: {reason}"


def _all_reduces(found: WhatIf) -> str:
    """Which columns have the all-reduces of several GPUs, and which leave them out."""
    scopes = dict.fromkeys(column.of for column in found.columns if any(case.tp > 1 for case in column.cases))
    without = " and ".join(of for of in scopes if of != "model")
    told = [f"left out of {without}"] * bool(without) + ["part of the model's time"] * ("model" in scopes)
    return f"All-reduces: {', '.join(told)}" if told else ""


def _name(row: Row) -> str:
    """The settings of a row, a line each; of one alone its value below it."""
    settings = [f"{key}={value}" for key, value in row.change.items()] or [row.name]
    lines = map(str, *row.change.items()) if len(row.change) == 1 else settings
    return "\n".join((*lines, *dict.fromkeys(f"breaks {name}" for name, _ in row.broken), ""))


def _die(row: Row) -> str:
    if (area := row.area) is None:
        return wording.NOTHING
    ends = [wording.number(one) for one in (area.low, area.high)]
    return "\n".join((wording.number(area.typical), *(["-".join(ends)] if area.low < area.high else [])))


def _head(column: Column) -> str:
    """The scope of a column, and its case in lines."""
    return "\n".join((column.of, *filter(None, (word.strip() for word in column.name.split(",")))))


def _cell(row: Row, cell: Cell, found: WhatIf) -> str:
    if cell.answer is None:
        return wording.NOTHING
    lines = _ratio(cell.answer.speedup)
    if row is found.unchanged or not lines:
        lines = [wording.time_text(cell.answer.time_s.typical) if cell.bound else wording.NOTHING]
        tile = _ratio(cell.alike.tile) if cell.alike else []
        lines += [f"tile {tile[0]}", *tile[1:]] if tile else []
    return "\n".join((*lines, f"{cell.bound} {wording.number(cell.answer.watts.typical)} W".strip(), ""))


def _ratio(one: Ratio | None) -> list[str]:
    """A ratio, and its range below it."""
    return [wording.times_text(one.value), "-".join(wording.ends_text(one.value, one.low, one.high))] if one else []
