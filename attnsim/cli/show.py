"""What people read: tables as wide as the terminal, 100 columns and plain text in a pipe, sentences below."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING

from attnsim.models.hardware.units import bound_text
from attnsim.models.wording import NOTHING, clock_text, interval_text, number, time_text, times_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from attnsim.api import Prediction

__all__ = [
    "NOTHING",
    "WIDTH",
    "bound_text",
    "console",
    "interval_text",
    "number",
    "print_groups",
    "print_json",
    "print_predictions",
    "print_remarks",
    "print_rows",
    "time_text",
    "times_text",
]

WIDTH = 100

_SHORT = 26
"""Longest cell that is never folded."""


def console() -> Console:
    """A console on stdout: colours and its own width on a terminal, `WIDTH` columns elsewhere."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    return found if found.is_terminal else Console(highlight=False, markup=False, emoji=False, width=WIDTH)


def print_json(items: Iterable[object]) -> None:
    """A list of objects on stdout and nothing else."""
    json.dump(list(items), sys.stdout, indent=2, allow_nan=False, ensure_ascii=False)
    sys.stdout.write("\n")


def print_predictions(
    out: Console, title: str, predictions: Sequence[Prediction], unchanged: Sequence[Prediction] = ()
) -> None:
    """A table of predictions, one a line; with `unchanged`, also the speedup over those."""
    before = {(item.algorithm, item.implementation): item.time_s for item in unchanged}
    rows: list[dict[str, object]] = []
    for item, name in zip(predictions, _names(predictions), strict=True):
        old = before.get((item.algorithm, item.implementation))
        flops = item.useful_flops_per_s
        rows.append(
            {
                "algorithm": name,
                "time": time_text(item.time_s) if item.fits else "too large",
                "90 % range": interval_text(item.time_low_s, item.time_high_s, item.time_s),
                "vs\nnaive": times_text(item.speedup_vs_naive),
                **({"vs\nbase": times_text(old / item.time_s if old and item.time_s else None)} if unchanged else {}),
                "HBM\nGB": number(None if item.hbm_bytes is None else item.hbm_bytes / 1e9),
                "TFLOP/s": number(None if flops is None else flops / 1e12),
                "bound": bound_text(item.bound),
                "blocks\n/SM": item.blocks_per_sm,
                "waves": number(item.waves),
                "trust": item.trust.level,
            }
        )
    columns = rows[0] if rows else {}
    print_rows(out, title, rows, right=columns.keys() - {"algorithm", "bound", "trust"}, whole=columns)


def print_remarks(out: Console, predictions: Sequence[Prediction]) -> None:
    """What the tables cannot hold: implementations, tiles, notes, and why to trust a time so far."""
    lines: list[str] = []
    names = _names(predictions)
    for item in predictions:
        tiles = "" if item.tiles == "shipped" else f" ({item.tiles})"
        if item.tile:
            lines.append(f"{item.algorithm}: {item.implementation}, tile {item.tile}{tiles}")
    about: dict[str, list[str]] = {}
    clocks = [clock_text(item.clock_hz, item.clock_by) for item in predictions if item.clock_hz and item.clock_by]
    if len(set(clocks)) > 1:  # in the order of the tables
        timed = [name for item, name in zip(predictions, names, strict=True) if item.clock_hz]
        clocks = [f"{name} {text}" for name, text in zip(timed, clocks, strict=True)]
    lines += [f"SM clock: {', '.join(dict.fromkeys(clocks))}"] if clocks else []
    for item, name in zip(predictions, names, strict=True):
        for note in item.notes:
            about.setdefault(note, []).append(name)
    for item, name in zip(predictions, names, strict=True):
        for reason in item.trust.reasons:
            if name not in about.get(reason.text, ()):  # an assumption may be a note already
                about.setdefault(f"trust: {reason}", []).append(name)
    everyone = set(names)
    for text, named in about.items():
        whose = list(dict.fromkeys(named))
        lines.append(text if set(whose) == everyone else f"{text} ({', '.join(whose)})")
    lines += _approximations(predictions, names)
    for line in dict.fromkeys(lines):
        out.print(line)


def _approximations(predictions: Sequence[Prediction], names: Sequence[str]) -> list[str]:
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


def _names(predictions: Sequence[Prediction]) -> list[str]:
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


def print_groups(
    out: Console, title: str, rows: Sequence[Mapping[str, object]], by: Sequence[str], join: str = ", "
) -> None:
    """A table for each run of rows that agree in the columns `by`, whose values are its heading.

    Columns that are empty in all rows of a table are left out of it.
    """
    if title:
        out.print(f"{title}\n")
    for values, some in itertools.groupby(rows, key=lambda row: [row[name] for name in by]):
        mine = list(some)
        empty = {name for name in mine[0] if all(row[name] in (None, "") for row in mine)}
        heading = join.join(str(value) for value in values if value)
        print_rows(out, heading, [{k: v for k, v in row.items() if k not in empty and k not in by} for row in mine])


def _least_width(name: str, cells: Sequence[str], whole: bool) -> int:
    """The width that a column takes at least: its longest cell if that is short, or else its longest word."""
    longest = max(map(len, cells), default=0)
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
    """Print a table within `width` columns, without trailing blanks where nobody sees colours."""
    from rich.console import Console

    wide = Console(highlight=False, markup=False, emoji=False, width=width)
    if wide.is_terminal:
        wide.print(table)
    else:
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
