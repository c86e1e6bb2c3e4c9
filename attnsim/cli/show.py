"""Printing for people: tables as wide as the terminal, whole in a pipe, and sentences of 80 columns below them."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import rich.table
from rich import box
from rich.console import Console

from attnsim.tables import REMARKS, WIDTH, Block, Remarks, Table, Unfolded, folded

_SHORT = 26
"""Longest cell that is never folded."""


class Paper(Console):
    """A console on stdout: colours and its own width on a terminal, plain text of `WIDTH` columns elsewhere.

    Text is folded at `WIDTH` columns, without blanks at the ends of lines, unless it is printed with `soft_wrap`.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        self.is_piped = not self.is_terminal
        if self.is_piped:
            self.width = WIDTH

    def print(self, *objects: Any, **more: Any) -> None:
        """Print objects, texts folded."""
        if "soft_wrap" not in more and all(isinstance(one, str) for one in objects):
            objects = tuple(folded(one, self.width) for one in objects)
            more["soft_wrap"] = True
        super().print(*objects, **more)


def console() -> Paper:
    """A new console on stdout as it is now."""
    return Paper()


def print_json(items: Iterable[object]) -> None:
    """A list of objects on stdout and nothing else."""
    json.dump(list(items), sys.stdout, indent=2, allow_nan=False, ensure_ascii=False)
    sys.stdout.write("\n")


def give(json: bool, records: Iterable[object], blocks: Iterable[Block], verbose: bool = False) -> None:
    """Print an answer: its records where JSON is asked for, and its texts, tables and remarks elsewhere.

    Neither of the two is computed where the other is printed.
    """
    if json:
        print_json(records)
    else:
        print_blocks(console(), blocks, verbose)


def print_blocks(out: Console, blocks: Iterable[Block], verbose: bool = False) -> None:
    """Print texts, tables and remarks in their order."""
    for one in blocks:
        match one:
            case Table():
                print_table(out, one)
            case Remarks():
                print_remarks(out, one, verbose)
            case Unfolded():
                out.print(str(one), soft_wrap=True)
            case _:
                out.print(one)


def print_remarks(out: Console, remarks: Remarks, verbose: bool = False) -> None:
    """Print the remarks below tables: level and range in at most two lines, or with `verbose` all there is to say."""
    short = folded(remarks.short, out.width).splitlines()[:REMARKS]
    for line in dict.fromkeys(remarks.details) if verbose else short:
        out.print(line)


def print_table(out: Console, table: Table) -> None:
    """Print a table, long texts folded save in its `whole` columns.

    A table that is wider than the terminal is cut between columns, and each part begins with the columns that tell the
    rows apart. In a pipe such a table stays whole, a line for each row. No cell is ever cut.
    """
    columns = dict(zip(table.columns, map(list, zip(*table.cells, strict=True)), strict=True))
    widths = {name: _least_width(name, cells, name in table.whole) for name, cells in columns.items()}
    parts, unfolded = _parts(columns, widths, out.width), table.whole
    if len(parts) > 1 and getattr(out, "is_piped", False):
        parts, unfolded = [list(columns)], columns
        widths = {name: _least_width(name, cells, True) for name, cells in columns.items()}
    if table.heading:
        out.print(table.heading)
    for part in parts:
        wide = sum(widths[name] + 2 for name in part) <= out.width + 2
        shown = rich.table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, int(wide), 0, 0), show_edge=False)
        for name in part:
            side: Literal["left", "right"] = "right" if table.is_right(name) else "left"
            whole = name in unfolded
            shown.add_column(name, justify=side, overflow="fold", min_width=widths[name], no_wrap=whole)
        for cells in zip(*(columns[name] for name in part), strict=True):
            shown.add_row(*cells)
        _print_shown(out, shown, max(out.width, sum(widths[name] + 1 for name in part)))
    for line in table.remarks:
        out.print(line)


def fits(out: Console, table: Table) -> bool:
    """True if a table with whole cells need not be cut between columns."""
    cells = map(list, zip(*table.cells, strict=True))
    widths = map(_least_width, table.columns, cells, itertools.repeat(True))
    return getattr(out, "is_piped", False) or sum(width + 1 for width in widths) <= out.width


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


def _print_shown(out: Console, table: rich.table.Table, width: int) -> None:
    """Print a table within `width` columns, without trailing blanks."""
    wide = Console(highlight=False, markup=False, emoji=False, width=width)
    with wide.capture() as captured:
        wide.print(table)
    out.file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    out.print("")
