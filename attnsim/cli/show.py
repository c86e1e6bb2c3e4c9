"""What people read: tables 100 columns wide, plain text in a pipe, sentences below."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from attnsim.models.hardware.units import bound_text
from attnsim.models.wording import NOTHING, interval_text, number, time_text, times_text

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
    "print_json",
    "print_predictions",
    "print_remarks",
    "print_rows",
    "time_text",
    "times_text",
]

WIDTH = 100

_SHORT = 26
_LEVEL_NAMES = {"validated": "validated", "interpolated": "interpol.", "extrapolated": "extrapol."}


def console() -> Console:
    """A console on stdout: colours on a terminal only, at least `WIDTH` columns."""
    from rich.console import Console

    found = Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal or found.width < WIDTH:
        found = Console(highlight=False, markup=False, emoji=False, width=WIDTH)
    return found


def print_json(items: Iterable[object]) -> None:
    """A list of objects on stdout and nothing else."""
    json.dump(list(items), sys.stdout, indent=2, allow_nan=False, ensure_ascii=False)
    sys.stdout.write("\n")


def print_predictions(
    out: Console, title: str, predictions: Sequence[Prediction], unchanged: Sequence[Prediction] = ()
) -> None:
    """A table of predictions, one a line; with `unchanged`, also the speedup over those."""
    table = _table()
    table.add_column("algorithm", no_wrap=True)
    for name in (
        "time",
        "90 % range",
        "vs\nnaive",
        *(("vs\nbase",) if unchanged else ()),
        "HBM\nGB",
        "TFLOP/s",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound", no_wrap=True)
    for name in ("blk\n/SM", "waves"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("trust", no_wrap=True)
    before = {(item.algorithm, item.implementation): item.time_s for item in unchanged}
    for item, name in zip(predictions, _names(predictions), strict=True):
        cells = [name, time_text(item.time_s) if item.fits else "too large"]
        cells += [
            interval_text(item.time_low_s, item.time_high_s, item.time_s),
            times_text(item.speedup_vs_naive),
        ]
        if unchanged:
            old = before.get((item.algorithm, item.implementation))
            cells.append(times_text(old / item.time_s if old and item.time_s else None))
        flops = item.useful_flops_per_s
        cells += [
            number(None if item.hbm_bytes is None else item.hbm_bytes / 1e9),
            number(None if flops is None else flops / 1e12),
            bound_text(item.bound),
            NOTHING if item.blocks_per_sm is None else str(item.blocks_per_sm),
            number(item.waves),
            _LEVEL_NAMES[item.trust.level],
        ]
        table.add_row(*cells)
    out.print(title)
    _print_table(out, table, 2 * WIDTH)  # a longer line is better than a cut number


def print_remarks(out: Console, predictions: Sequence[Prediction]) -> None:
    """What the tables cannot hold: implementations, tiles, notes, and why to trust a time so far."""
    lines: list[str] = []
    names = _names(predictions)
    for item in predictions:
        tiles = "" if item.tiles == "shipped" else f" ({item.tiles})"
        if item.tile:
            lines.append(f"{item.algorithm}: {item.implementation}, tile {item.tile}{tiles}")
    about: dict[str, list[str]] = {}
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


def _table() -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)


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


def print_rows(
    out: Console,
    title: str,
    rows: Sequence[Mapping[str, object]],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """A table of plain records; numbers and the columns of `right` to the right, long texts but `whole` folded."""
    table = _table()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        values = [row.get(name) for row in rows]
        numeric = all(isinstance(value, (int, float)) or value is None for value in values)
        short = name in whole or max((len(_cell(value)) for value in values), default=0) <= _SHORT
        justify: Literal["left", "right"] = "right" if numeric or name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=short)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    if title:
        out.print(title)
    _print_table(out, table, 2 * WIDTH if whole else out.width)


def _cell(value: object) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)
