"""What people read: tables as wide as the terminal, 80 columns and plain text in a pipe, sentences below."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any

from attnsim.models.hardware.units import bound_text
from attnsim.wording import (
    NOTHING,
    clock_text,
    interval_text,
    number,
    spread_text,
    time_text,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attnsim.api.answer import Outcome
    from attnsim.api.comparing.baselines import Ratios
    from attnsim.models.hardware.changes import Change

WIDTH = 80
"""Columns of a table in a pipe, and of sentences anywhere."""

REMARKS = 2
"""Lines below a table at most, without `-v`."""

_SHORT = 26
"""Longest cell that is never folded."""


def console() -> Console:
    """A console on stdout: colours and its own width on a terminal, `WIDTH` columns elsewhere.

    Text is folded at `WIDTH` columns, without blanks at the ends of lines, unless it is printed with `soft_wrap`.
    """
    from rich.console import Console

    class Paper(Console):
        def print(self, *objects: Any, **more: Any) -> None:
            if "soft_wrap" not in more and all(isinstance(one, str) for one in objects):
                objects = tuple(folded(one, self.width) for one in objects)
                more["soft_wrap"] = True
            super().print(*objects, **more)

    found = Paper(highlight=False, markup=False, emoji=False)
    return found if found.is_terminal else Paper(highlight=False, markup=False, emoji=False, width=WIDTH)


def folded(text: str, width: int = WIDTH) -> str:
    """A text in lines of at most `WIDTH` columns, or fewer; words are never cut, its own line ends stay."""
    lines = (
        textwrap.wrap(line, min(width, WIDTH), break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(itertools.chain.from_iterable(lines))


def print_json(items: Iterable[object]) -> None:
    """A list of objects on stdout and nothing else."""
    json.dump(list(items), sys.stdout, indent=2, allow_nan=False, ensure_ascii=False)
    sys.stdout.write("\n")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of predictions: its head, what it says of one, and whether only `-v` shows it."""

    head: str
    cell: Callable[[Outcome], object]
    right: bool = True
    detail: bool = False


def print_predictions(
    out: Console,
    title: str,
    predictions: Sequence[Outcome],
    over: Sequence[Ratios] = (),
    verbose: bool = False,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """A table of predictions, one a line, with a column for each kind of ratios that any of them has.

    Names that are `refused` have a line without figures, and their reason below.
    """
    names = dict(zip(map(id, predictions), _names(predictions), strict=True))

    def ratios(one: Ratios) -> Column:
        of = dict(zip(map(id, predictions), one.ratios, strict=True))
        return Column(f"vs {one.over}", lambda item: str(of[id(item)] or NOTHING))

    columns = [
        Column("algorithm", lambda item: names[id(item)], right=False),
        Column("time", lambda item: time_text(item.time_s) if item.fits else "too large"),
        Column("90 % range", lambda item: interval_text(item.time_low_s, item.time_high_s, item.time_s)),
        *(ratios(one) for one in over if any(one.ratios)),
        Column("HBM\nGB", lambda item: number(None if item.hbm_bytes is None else item.hbm_bytes / 1e9)),
        Column("TFLOP/s", lambda item: number(item.useful_flops_per_s and item.useful_flops_per_s / 1e12)),
        Column("busiest", lambda item: bound_text(item.busiest), right=False),
        Column("blocks\n/SM", lambda item: item.blocks_per_sm, detail=True),
        Column("waves", lambda item: number(item.waves), detail=True),
        Column("floor", lambda item: time_text(item.floor_s), detail=True),
        Column("trust", lambda item: item.trust.level, right=False, detail=True),
    ]
    shown = [one for one in columns if verbose or not one.detail]
    rows: list[dict[str, object]] = [{one.head: one.cell(item) for one in shown} for item in predictions]
    nothing: dict[str, object] = {one.head: NOTHING for one in shown}
    rows += [nothing | {shown[0].head: name} for name in refused]
    print_rows(out, title, rows, right=[one.head for one in shown if one.right], whole=[one.head for one in shown])
    for name, reason in refused.items():
        out.print(f"{reason if reason.startswith(name) else f'{name}: {reason}'}\n")


def print_why(out: Console, predictions: Sequence[Outcome]) -> None:
    """What bounds the fastest of a table, and what would turn it."""
    from attnsim.api.comparing.levers import why

    timed = [one for one in predictions if one.time_s is not None]
    if timed:
        out.print(f"{why(min(timed, key=lambda one: one.time_s or 0.0))}\n")


def print_remarks(out: Console, short: str, details: Iterable[str], verbose: bool = False) -> None:
    """What stands below tables: level and range in at most two lines, or with `verbose` all there is to say."""
    lines = dict.fromkeys(details) if verbose else folded(short, out.width).splitlines()[:REMARKS]
    for line in lines:
        out.print(line)


def print_trust(
    out: Console, predictions: Sequence[Outcome], verbose: bool = False, details: Iterable[str] = ()
) -> None:
    """How far to trust a table of predictions; `details` follow where `verbose` asks for them.

    What was found about the question itself, such as queries that see no key, is said always, and how far those that
    compute another function than softmax attention are from it.
    """
    names = _names(predictions)
    found = () if verbose else _said([one.findings if one.fits else () for one in predictions], names)
    for line in (*found, *_approximations(predictions, names)):
        out.print(line)
    print_remarks(out, _levels(predictions, names), (*_details(predictions, names), *details), verbose)


def _levels(predictions: Sequence[Outcome], names: Sequence[str]) -> str:
    """Level and range of each, or where that is too long for two lines, of all that share a level."""
    by_level: dict[str, dict[str, Outcome]] = {}
    runs: set[str] = set()
    for item, name in zip(
        predictions, _placed(predictions, names, [one.trust.level for one in predictions]), strict=True
    ):
        if item.time_s is not None:
            whose = name if item.implementation in runs or "/" in name else f"{name} ({item.implementation})"
            runs.add(item.implementation)
            tiles = "" if item.tiles == "shipped" else f" ({item.tiles})"
            by_level.setdefault(item.trust.level, {}).setdefault(f"{whose}{tiles}", item)
    hint = "-v says why"
    hint += ", and what is assumed." if any(_assumed(one) for one in predictions) else "."
    each = [
        f"{level}: {', '.join(f'{name} {spread_text(one.trust.low, one.trust.high)}' for name, one in mine.items())}"
        for level, mine in by_level.items()
    ]
    text = f"{'; '.join(each)}. {hint}"
    if len(folded(text).splitlines()) <= REMARKS:
        return text
    every = [
        f"{level}: {len(mine)} answers within {spread_text(min(low), max(high))}"
        for level, mine in by_level.items()
        for low, high in [zip(*((one.trust.low, one.trust.high) for one in mine.values()), strict=True)]
    ]
    return f"{'; '.join(every)}. {hint}"


def _assumed(item: Outcome) -> bool:
    return any(reason.kind == "assumed" for reason in item.trust.reasons)


def _details(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """Whose kernels and tiles, clocks, notes, and every reason to trust a time so far."""
    lines: list[str] = []
    kernels = [f"{item.implementation}, tile {item.tile}" for item in predictions]
    placed = _placed(predictions, [item.algorithm for item in predictions], kernels)
    for item, kernel, name in zip(predictions, kernels, placed, strict=True):
        if item.tile:
            lines.append(f"{name}: {kernel}{'' if item.tiles == 'shipped' else f' ({item.tiles})'}")
    lines += _clocks(predictions, names)
    texts = [
        (*item.notes, *(f"trust: {one}" for one in item.trust.reasons if one.text not in item.notes))
        for item in predictions
    ]
    return [*lines, *_said(texts, names), *_reached(predictions, names)]


def _said(texts: Sequence[Sequence[str]], names: Sequence[str]) -> list[str]:
    """Each text once, with whom it is of where it is not of all."""
    about: dict[str, list[str]] = {}
    for mine, name in zip(texts, names, strict=True):
        for text in mine:
            about.setdefault(text, []).append(name)
    whose = {text: list(dict.fromkeys(named)) for text, named in about.items()}
    return [text if set(named) == set(names) else f"{text} ({', '.join(named)})" for text, named in whose.items()]


def _reached(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """How near each comes to its floor, and how near a measured call of its pass has come on that chip."""
    best = [(item, name) for item, name in zip(predictions, names, strict=True) if item.floor_s and item.best_share]
    shares = [f"{item.floor_s / item.time_s:.2f}" for item, _ in best if item.floor_s and item.time_s]
    placed = _placed([item for item, _ in best], [name for _, name in best], shares)
    said: dict[tuple[str, float | None], list[str]] = {}
    for (item, _), name, share in zip(best, placed, shares, strict=True):
        said.setdefault((f"{item.workload.passes} on {item.gpu}", item.best_share), []).append(f"{name} {share}")
    return [
        f"of its floor: {', '.join(each)}; measured calls of {where}: at most {share:.2f}"
        for (where, share), each in said.items()
    ]


def _approximations(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """One line on how far those that are not softmax attention are from it."""
    rough = {name: item.approximation for item, name in zip(predictions, names, strict=True) if item.approximation}
    if not rough:
        return []
    stated = next(iter(rough.values()))
    deviations = " / ".join(f"{one.score_deviation:g}" for one in stated)
    sizes = [f"{name} {' / '.join(number(100 * one.relative, 2) for one in found)} %" for name, found in rough.items()]
    return [
        f"error of O against softmax attention, untrained, on Gaussian inputs (N {stated[0].seq}, head_dim "
        f"{stated[0].head_dim}, scores of deviation {deviations}): {', '.join(sizes)}"
    ]


def _placed(predictions: Sequence[Outcome], names: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Names with their GPU, where what is said of a name differs by GPU."""
    said: dict[str, set[str]] = {}
    for name, text in zip(names, texts, strict=True):
        said.setdefault(name, set()).add(text)
    if len({item.gpu for item in predictions}) == 1:
        return list(names)
    return [
        f"{name} on {item.gpu}" if len(said[name]) > 1 else name for item, name in zip(predictions, names, strict=True)
    ]


def _clocks(predictions: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    """The line on SM clocks, in the order of the tables; of whom each is, where they differ."""
    known = [(item, name) for item, name in zip(predictions, names, strict=True) if item.clock_hz and item.clock_by]
    clocks = [clock_text(item.clock_hz or 0.0, item.clock_by or "") for item, _ in known]
    if len(set(clocks)) > 1:
        timed = _placed([item for item, _ in known], [name for _, name in known], clocks)
        gpus = [item.gpu for item, _ in known]
        if len(set(zip(gpus, clocks, strict=True))) == len(set(gpus)):  # each GPU has one
            timed = gpus
        elif len({item.changes for item, _ in known}) > 1:
            own = {item.gpu: item.changes for item, _ in reversed(known)}  # as its file or name has it: its first table
            timed = [f"{name} {_machine(item, own[item.gpu])}" for (item, _), name in zip(known, timed, strict=True)]
        clocks = [f"{name} {text}" for name, text in zip(timed, clocks, strict=True)]
    return [f"SM clock: {', '.join(dict.fromkeys(clocks))}"] if clocks else []


def _machine(item: Outcome, own: Sequence[Change]) -> str:
    """Which of the tables of a changed GPU a prediction stands in; `own` is what its file changes."""
    if item.changes == own:
        return "unchanged"
    return "changed" if item.tiles == "shipped" else item.tiles


def _names(predictions: Sequence[Outcome]) -> list[str]:
    """What to call each prediction: its algorithm, and its implementation where a GPU shows several of that."""
    runs: dict[tuple[object, ...], set[str]] = {}
    keys = [(item.algorithm, item.gpu, item.changes) for item in predictions]
    for key, item in zip(keys, predictions, strict=True):
        runs.setdefault(key, set()).add(item.implementation)
    return [
        f"{item.algorithm}/{item.implementation}" if len(runs[key]) > 1 else item.algorithm
        for key, item in zip(keys, predictions, strict=True)
    ]


def print_rows(
    out: Console,
    title: str,
    rows: Sequence[Mapping[str, object]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """A table of plain records; numbers and the columns of `right` to the right, long texts but `whole` folded.

    A table that is wider than the console is cut between columns, and each part begins with the columns that tell the
    rows apart: no cell is ever cut.
    """
    from rich import box
    from rich.table import Table

    names = dict.fromkeys(key for row in rows for key in row)
    columns = {name: [_cell(row.get(name)) for row in rows] for name in names}
    widths = {name: _least_width(name, cells, name in whole) for name, cells in columns.items()}
    if title:
        out.print(title)
    for part in _parts(columns, widths, out.width):
        wide = sum(widths[name] + 2 for name in part) <= out.width + 2
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(wide), 0, 0), show_edge=False)
        for name in part:
            numeric = all(isinstance(row.get(name), (int, float, NoneType)) for row in rows)
            table.add_column(
                name,
                justify="right" if numeric or name in right else "left",
                overflow="fold",
                min_width=widths[name],
                no_wrap=name in whole,
            )
        for cells in zip(*(columns[name] for name in part), strict=True):
            table.add_row(*cells)
        _print_table(out, table, max(out.width, sum(widths[name] + 1 for name in part)))


def fits(out: Console, rows: Sequence[Mapping[str, object]]) -> bool:
    """Whether a table with whole cells need not be cut between columns."""
    names = dict.fromkeys(key for row in rows for key in row)
    return sum(_least_width(name, [_cell(row.get(name)) for row in rows], True) + 1 for name in names) <= out.width


def print_groups(out: Console, title: str, rows: Sequence[Mapping[str, object]], by: Sequence[str]) -> None:
    """A table for each run of rows that agree in the columns `by`, whose values are its heading.

    Columns that are empty in all rows of a table are left out of it.
    """
    if title:
        out.print(f"{title}\n")
    for values, some in itertools.groupby(rows, key=lambda row: [row[name] for name in by]):
        mine = list(some)
        empty = {name for name in mine[0] if all(row[name] in (None, "") for row in mine)}
        heading = ", ".join(str(value) for value in values if value)
        print_rows(out, heading, [{k: v for k, v in row.items() if k not in empty and k not in by} for row in mine])


def _least_width(name: str, cells: Sequence[str], whole: bool) -> int:
    """The width that a column takes at least: its longest cell if that is short, or else its longest word."""
    longest = max((len(line) for cell in cells for line in cell.split("\n")), default=0)
    if not whole and longest > _SHORT:
        longest = max(_SHORT, *(len(word) for cell in cells for word in cell.split()))
    return max(longest, *map(len, name.split("\n")))


def _parts(columns: Mapping[str, Sequence[str]], widths: Mapping[str, int], width: int) -> list[list[str]]:
    """The columns of each table that is printed: all in one, or as many as fit beside those that tell rows apart."""
    names = list(columns)
    if sum(widths[name] + 1 for name in names) <= width:
        return [names]
    rows = len(columns[names[0]])
    keys = next((n for n in range(1, 4) if len({*zip(*(columns[name] for name in names[:n]), strict=True)}) == rows), 1)
    parts = [names[:keys]]
    for name in names[keys:]:
        if len(parts[-1]) > keys and sum(widths[one] + 1 for one in (*parts[-1], name)) > width:
            parts.append(names[:keys])
        parts[-1].append(name)
    return parts


def _print_table(out: Console, table: Table, width: int) -> None:
    """Print a table within `width` columns, without trailing blanks."""
    from rich.console import Console

    wide = Console(highlight=False, markup=False, emoji=False, width=width)
    with wide.capture() as captured:
        wide.print(table)
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    out.print("")


def _cell(value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)
