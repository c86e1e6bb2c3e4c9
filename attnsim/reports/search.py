"""Hardware for people: what changes of a GPU bring to each case, what a search finds, the die, and a picture."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attnsim import wording
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.comparing.splitting import Split
from attnsim.api.playing import REPLAYED_CANDIDATES
from attnsim.errors import InputError
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.area import beyond_reticle, die_of, table, typical_shares, without_area
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.hardware.units import RESULTS, bound_text, column
from attnsim.plots.pareto import pareto
from attnsim.plots.sheet import Picture
from attnsim.reports.predictions import split_table
from attnsim.studies.hardware_machines import Design
from attnsim.studies.hardware_search import HardwareSearch, MixAnswer, rows_of
from attnsim.studies.hardware_space import with_figures
from attnsim.studies.search import MeasuredTiles, TileSearch
from attnsim.studies.whatif import Cell, Column, Row, WhatIf
from attnsim.tables import Block, Remarks, Table, Unfolded
from attnsim.wording import ratio_text


def _least_die(found: HardwareSearch, shown: Sequence[Design], rivals: Sequence[Design]) -> str:
    """The machine of least die among those whose time the model cannot tell from machine 1's, or nothing."""
    best, base = shown[0], found.unchanged
    every = [*rivals, *([base] if not base.broken and found.alike(best, base) else [])]
    areas = [(one.answer.area.typical, one) for one in every if one.answer and one.answer.area]
    if len(areas) < 2:
        return ""
    area_mm2, least = min(areas, key=lambda pair: pair[0])
    figures = ", ".join(f"{key} {_short(FIELDS[key].show(value), key, value)}" for key, value in least.figures.items())
    where = [f"machine {at}" for at, one in enumerate(shown, 1) if one is least]
    name = "the unchanged machine" if least is base else where[0] if where else figures
    return f"least die among the machines as fast as machine 1 within the model's error: {name}, {area_mm2:.0f} mm2"


def cost_line(prices: str) -> str:
    """The meaning of a cost."""
    if prices:
        return f"cost: {prices}"
    return (
        "cost: dies of wafers by yield, memory and package, by published prices of 2020 to 2025, in US dollars; "
        "without tests, board, design and margin"
    )


SHOWN = 10
"""Machines printed at most."""


def search_blocks(
    found: HardwareSearch, rows: list[dict[str, Any]], questions: Sequence[str], prices: str
) -> Iterator[Block]:
    """The best machines or the front, and how far to believe them."""
    space = found.space
    yield Unfolded("".join(f"{one}\n" for one in questions))
    how = "all" if found.exhaustive else f"{len(found.machines)} of"
    ranges = ", ".join(one.key for one in space.ranges)
    yield Unfolded(
        f"{space.gpu.described}: {how} {space.size} machines over {ranges}"
        f"{'; ' if space.limits else ''}{'; '.join(one.text for one in space.limits)}\n"
    )
    if not found.feasible:
        nearest = min(found.machines, key=lambda one: sum(one.excess))
        yield f"no machine keeps the limits; the nearest breaks {'; '.join(nearest.broken)}"
        return
    two = len(found.objectives) == 2
    chosen = found.front if two else found.feasible
    shown = chosen[:SHOWN]
    # Rows of the table are numbered as they are printed; the unchanged machine stands above them.
    asked = {*found.objectives, *(limit.name for limit in space.limits), *(["cost"] if prices else [])}
    numbered = [rows[0], *(rows[1 + found.machines.index(one)] for one in shown)]
    lines = [{"": str(at or "unchanged"), **_line(found, row, asked)} for at, row in enumerate(numbered)]
    tiles = {row.pop("tile") for row in lines} if len({row["tile"] for row in lines}) == 1 else set()
    right = tuple(name for name in lines[0] if name not in ("busiest", "tile"))
    title = f"Pareto front, {' against '.join(found.objectives)}" if two else f"least {found.objectives[0]} first"
    yield Table(title, lines, right=right, whole=("", "vs base", "tile"))
    layers = any(case.layer for case in found.mix.cases)
    yield from (f"{'tile of the attention of all' if layers else 'tile of all'}: {tile}" for tile in tiles)
    if found.unchanged.broken:
        yield f"the unchanged machine breaks {'; '.join(found.unchanged.broken)}"
    if len(chosen) > SHOWN and two:
        yield f"{len(chosen) - SHOWN} more on the front: --out FILE has all"
    yield from _uncertainty(found, shown, cost_line(prices) if "cost" in asked else "")


def _line(found: HardwareSearch, row: Mapping[str, Any], asked: Collection[str]) -> dict[str, object]:
    results = [name for name in ("power", "area", "energy", "cost") if name in asked or name in ("power", "area")]
    cases = found.mix.cases if len(found.mix.cases) > 1 else ()
    times: dict[str, object] = {case.name: wording.time_text(row[f"time_s of {case.name}"]) for case in cases}
    if not cases:
        times = {
            "time": wording.time_text(row["time_s"]),
            "90 %": wording.interval_text(row["time_low_s"], row["time_high_s"], row["time_s"]),
        }
    return {
        **{one.key: _short(FIELDS[one.key].show(row[one.key]), one.key, row[one.key]) for one in found.space.ranges},
        **times,
        "vs base": ratio_text(row["speedup"], row["speedup_low"], row["speedup_high"]),
        **{_HEADS[name]: _result(name, row) for name in results},
        "busiest": "; ".join(bound_text(one) for one in (row["busiest"] or "").split("; ")),
        "tile": row["tile"],
    }


def best_block(found: Split[MixAnswer] | None) -> Block:
    """The gain of each figure of the best machine."""
    if found is None:
        return "\n--split: the best machine within the limits changes no two figures, so there is nothing to share out"
    mixed = ", times of calls that take the unchanged machine one second in all" * (len(found.changed.mix.cases) > 1)
    return split_table(found, f"\nmachine 1 on shipped tiles{mixed}")


_HEADS = {"power": "power W", "area": "area mm2", "energy": "energy J", "cost": "cost"}


def _result(name: str, row: Mapping[str, Any]) -> str:
    """A result with its range: "882 (813-906)"."""
    typical, low, high = (row[column(name, end)] for end in ("", "low", "high"))
    if typical is None:
        return wording.NOTHING
    text = wording.number(typical)
    return text if low == high else f"{text} ({wording.number(low)}-{wording.number(high)})"


def _short(text: str, key: str, value: float) -> str:
    """A figure in four digits where its exact text is longer."""
    exact = len(text) <= 10 or FIELDS[key].integer
    return text if exact else FIELDS[key].show(float(f"{value:.4g}"))


def _uncertainty(found: HardwareSearch, shown: Sequence[Design], cost: str) -> Iterator[Block]:
    best = shown[0]
    rivals = [one for one in found.feasible if found.alike(best, one)]
    answer = best.answer
    assert answer is not None
    machines = [found.space.gpu, *(with_figures(found.space.gpu, one.figures) for one in shown)]
    counted, *dies = area_lines(found.space.gpu, machines)
    yield from dies
    left = [one for one in found.machines if one.broken]
    if left:
        nearest = min(left, key=lambda one: sum(one.excess))
        figures = ", ".join(f"{key} {FIELDS[key].show(value)}" for key, value in nearest.figures.items())
        yield f"left out: {len(left)} that break a limit; the nearest, {figures}, breaks {'; '.join(nearest.broken)}"
    spans = []
    for one in found.space.ranges:
        ends = sorted({machine.figures[one.key] for machine in rivals})
        words = [_short(FIELDS[one.key].show(end), one.key, end) for end in dict.fromkeys((ends[0], ends[-1]))]
        spans.append(f"{one.key} {' to '.join(words)}")
    others = f"{len(rivals)} machines, {', '.join(spans)}" if len(rivals) > 1 else "no other machine that was answered"
    lines = [f"of all within the limits the model cannot tell apart from machine 1: {others}"]
    groups = [", ".join(str(at + 1) for at in run) for run in found.alike_runs(shown) if len(run) > 1]
    lines += [f"within the model's error of each other in time: {'; '.join(groups)}"] if groups else []
    near = [str(number) for number, one in enumerate(shown, 1) if found.alike(found.unchanged, one)]
    lines += [f"within the model's error of the unchanged machine in time: {', '.join(near)}"] if near else []
    lines += [note for one in shown if one.answer for item in one.answer.predictions for note in item.notes]
    for limit in found.space.limits:
        interval = answer.results.get(limit.name) if limit.name != "time" else None
        if interval is not None and interval.low < interval.high:
            lines.append(
                f"{limit.text} holds for the typical constants; machine 1 may take {wording.number(interval.low)} to "
                f"{wording.number(interval.high)}"
            )
    lines += [
        f"power and energy: published constants scaled to the process node, assumed for {', '.join(answer.assumed)}. "
        "Power is of the call run again and again at its clock, and may lie above power.limit",
        counted,
        *([cost] if cost else []),
    ]
    if answer.predictions[0].cache == "warm" and any(one.key == "l2.capacity" for one in found.space.ranges):
        yield (
            "L2 warm: it holds what the same call left there, and a larger one holds more; between two runs of a layer "
            "the model's other layers run: --cache cold"
        )
    for case, prediction in zip(found.mix.cases, answer.predictions, strict=True):
        lines.append(f"trust{f' of {case.name}' if case.name else ''}: {prediction.trust.reason}")
    if len(found.mix.cases) > 1:
        lines.append("weights are shares of the unchanged machine's time; vs base, energy and power are of that mix")
    levels = ", ".join(dict.fromkeys(one.trust.level for one in answer.predictions))
    alike = f"{len(rivals) - 1} other{'s' * (len(rivals) > 2)}" if len(rivals) > 1 else "no other"
    verb = "are" if len(rivals) > 2 else "is"
    if len(found.objectives) == 1 and (text := _least_die(found, shown, rivals)):
        yield text
    short = f"{levels}: within the model's error {alike} of those within the limits {verb} as fast as machine 1."
    yield Remarks(f"{short} -v says why, and what is assumed.", lines)


def front(found: HardwareSearch, question: str) -> Picture:
    """Two objectives, or one against the first result that is limited (power where none is)."""
    first = found.objectives[0]
    limited = [limit.name for limit in found.space.limits if limit.name in RESULTS and limit.name != first]
    usual = "power" if first != "power" else "time"
    second = found.objectives[1] if len(found.objectives) == 2 else (*limited, usual)[0]
    caption = (
        f"Every machine that was answered, and {found.space.gpu.id} unchanged; what varies: "
        f"{', '.join(one.key for one in found.space.ranges)}"
        f"{'. Limits: ' if found.space.limits else ''}{'; '.join(one.text for one in found.space.limits)}. "
        "Power, energy, area and cost by published constants, off by a tenth to a third; the table has every range."
    )
    title = f"Hardware from {found.space.gpu.id}: {first} against {second}"
    limits = {limit.name: limit.value for limit in found.space.limits}
    rows = rows_of(found)
    keys = [one.key for one in found.space.ranges]
    mixed = len(found.mix.cases) > 1
    return pareto(rows, (first, second), title, question, caption, keys=keys, limits=limits, mixed=mixed)


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
    parts = [f"left out of {without}"] * bool(without) + ["part of the model's time"] * ("model" in scopes)
    return f"All-reduces: {', '.join(parts)}" if parts else ""


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
    lines = _ratio_lines(cell.answer.speedup)
    if row is found.unchanged or not lines:
        lines = [wording.time_text(cell.answer.time_s.typical) if cell.bound else wording.NOTHING]
        tile = _ratio_lines(cell.alike.tile) if cell.alike else []
        lines += [f"tile {tile[0]}", *tile[1:]] if tile else []
    return "\n".join((*lines, f"{cell.bound} {wording.number(cell.answer.watts.typical)} W".strip(), ""))


def _ratio_lines(one: Ratio | None) -> list[str]:
    """A ratio, and its range below it."""
    return [wording.times_text(one.value), "-".join(wording.ends_text(one.value, one.low, one.high))] if one else []


def tiles_record(found: TileSearch, measured: MeasuredTiles | None, reason: str) -> dict[str, object]:
    """A search of tiles as plain types."""
    return {
        "implementation": found.implementation,
        "tiles": [asdict(one) for one in found.tiles],
        "speedup_over_shipped": found.gain and found.gain.to_dict(),
        "short_list_regret": found.regret,
        "short_list_regret_with_stages": found.regret_with_stages,
        "measured": None if measured is None else asdict(measured) | {"regret": measured.regret},
        "not_measured": reason or None,
        "own": found.own or None,
    }


def tiles_table(found: TileSearch, top: int, verbose: bool) -> Iterator[Block]:
    """The fastest tiles, and what a short list loses."""
    shown = list(found.tiles[:top])
    if found.shipped is not None and found.shipped not in shown:
        shown.append(found.shipped)
    rows: list[dict[str, object]] = [
        {
            "rank": found.tiles.index(one) + 1,
            "tile": one.tile,
            "time": wording.time_text(one.time_s),
            "over best": f"{100 * (one.time_s / found.best.time_s - 1):.1f} %",
            **({"blocks/SM": one.blocks_per_sm, "limited by": one.limited_by} if verbose else {}),
            "waves": wording.number(one.waves),
            "busiest": bound_text(one.busiest),
            "": "shipped" if one.shipped else "" if one.own_stages else "other stages",
        }
        for one in shown
    ]
    yield Table("", rows, ("time", "over best", "waves"), ("tile",))

    own = sum(one.own_stages for one in found.tiles)
    played = min(REPLAYED_CANDIDATES, own)
    doubt = ", too near to tell" if found.gain and found.gain.low <= 1 else ""
    best = f"The best is {found.gain} as fast as the shipped tile{doubt}; nobody has timed it." if found.gain else ""
    details = (
        f"{len(found.tiles)} tiles fit, {own} of them with the implementation's own stages. The {played} that "
        f"--tiles retuned replays lose {100 * found.regret:.2f} % to the best of those {own} and "
        f"{100 * found.regret_with_stages:.2f} % to the best of all.",
        *([best] if best else []),
        "other stages: a number of K and V buffers that the implementation does not have; no such kernel was measured.",
    )
    yield Remarks(f"{best} -v says what --tiles retuned loses.".strip(), details)


def measured_tiles(measured: MeasuredTiles | None, reason: str) -> Iterator[Block]:
    """Tiles of our own kernel that were timed, or the reason why none were."""
    if measured is None:
        if reason:
            yield f"not measured: {reason}"
        return
    rows: list[dict[str, object]] = [
        {"tile": one.tile, "measured": wording.time_text(one.measured_s), "model": wording.time_text(one.predicted_s)}
        for one in measured.tiles
    ]
    regret = f"the model takes {measured.choice.tile}: regret {100 * measured.regret:.1f} % against the fastest"
    title = f"\nown flash kernel measured on {measured.gpu}"
    yield Table(title, rows, right=("measured", "model"), remarks=[regret])
