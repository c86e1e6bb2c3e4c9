"""The flags about a table that somebody gives: what its columns mean, and where another one goes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import yaml

from attnsim.cli import options, outputs
from attnsim.cli.options import flag
from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.models.question.columns import Columns, Naming, given_cells
from attnsim.writing import write_whole

Maps = Annotated[
    list[str],
    flag(
        "OURS=THEIRS", "Which column of the table is ours, such as heads_q=n_heads, or a file of --save-map.", "--map"
    ),
]
TimeUnit = Annotated[
    str | None,
    flag("UNIT", "Unit of times that have none: s, ms, us or ns; tflops or gbs of kernels' columns.", "--time-unit"),
]
Cells = Annotated[list[str], flag("NAME=VALUE", "A value of all rows, such as heads=32; repeat it.", "--set-column")]
SaveMap = Annotated[Path | None, flag("FILE", "Write how the columns were read, for --map.", "--save-map")]


@dataclass(frozen=True)
class SavedMap:
    """The reading of a table's columns, as ``--save-map`` writes it.

    Parameters
    ----------
    map : dict
        Their column by ours.
    set : dict
        What all rows say, by our column.
    time_unit : str, optional
    """

    map: dict[str, str] = field(default_factory=dict)
    set: dict[str, str] = field(default_factory=dict)
    time_unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    """The flags that say what the columns of a table mean."""

    maps: Maps = field(default_factory=list)
    time_unit: TimeUnit = None
    set_columns: Cells = field(default_factory=list)
    save_map: SaveMap = None

    def naming(self, gpu: str | None = None, implementation: str | None = None) -> Naming:
        """The meaning of a table's columns by the flags, and by a file of ``--save-map`` where they are silent."""
        files = [text for text in self.maps if text.lower().endswith((".yaml", ".yml")) and "=" not in text]
        saved = [read_typed(Path(name), "map", SavedMap) for name in files]
        maps = [text for text in self.maps if text not in files]
        given = options.pairs(maps, "--map", "OURS=THEIRS", "heads_q=n_heads")
        set_here = given_cells(options.pairs(self.set_columns, "--set-column", "NAME=VALUE", "heads=32"))
        found: dict[str, str] = {}
        all_rows: dict[str, str] = {}
        time_unit = self.time_unit
        for one in saved:
            found, all_rows, time_unit = one.map | found, given_cells(one.set) | all_rows, time_unit or one.time_unit
        return Naming(found | given, time_unit, gpu, implementation, all_rows | set_here)

    def save(self, columns: Columns, said: Naming) -> list[Path]:
        """Write how the columns of a table were read, where ``--save-map`` asks for it; the file, if there is one."""
        if self.save_map is None:
            return []
        read = {one.ours: one.theirs for one in columns.columns if one.theirs != one.ours}
        content = {"map": read | dict(said.maps), "set": dict(said.given), "time_unit": said.time_unit}
        text = yaml.safe_dump({key: part for key, part in content.items() if part}, sort_keys=False)
        write_whole(self.save_map, text)
        return [self.save_map]

    def check_without(self, flag: str) -> None:
        """Refuse these flags where the `flag` with the table is not given."""
        given = (self.maps, self.time_unit, self.set_columns, self.save_map)
        for name, value in zip(("--map", "--time-unit", "--set-column", "--save-map"), given, strict=True):
            if value:
                raise InputError(f"{name} is about the table of {flag}; add {flag}, or leave it out")


NAMES = tuple(one.name for one in fields(ColumnFlags))
"""Parameters of commands that are about the columns of a table."""


def check_table(out: Path) -> None:
    """Refuse, before anything is computed, a table that could not be written."""
    if out.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise InputError(f"{out}: end the name with .csv or .parquet, which choose the format")
    outputs.check_output(out)


def print_columns(columns: Columns) -> None:
    """Say on stderr which column was read as which, where a name is not ours."""
    if columns.foreign:
        for line in columns.table():
            unit = f" in {line['unit']}" if line["unit"] else ""
            print(f"column {line['column']}: {line['read_as']}{unit}", file=sys.stderr)
