"""Case tables as files: CSV or Parquet, read completely and written atomically."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from attnsim.errors import InputError
from attnsim.models.question.case_row import NUMBER, Case, parse_row
from attnsim.models.question.columns import EMPTY, Columns, key, known_columns, read_columns
from attnsim.models.question.headings import frame_of, frame_of_lines, read_printed
from attnsim.writing import writing

if TYPE_CHECKING:
    import pandas as pd

# fmt: off
COLUMNS = (
    "source", "gpu", "implementation", "algorithm", "pass", "dtype", "batch", "heads_q", "heads_kv",
    "seq_q", "seq_kv", "head_dim", "head_dim_v", "causal", "window", "cache", "time_s", "notes",
)
# fmt: on
"""The columns of every published table, in order."""

MAX_FILE_BYTES = 256 << 20
_PARQUET_SUFFIXES = (".parquet", ".pq")


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a table, keeping every row, the order, and every column under its own name.

    Parameters
    ----------
    path : str or Path
        A CSV file (UTF-8, commas, a header line), the output of a benchmark, a Markdown table, or a Parquet file; the
        content decides which.

    Returns
    -------
    pandas.DataFrame
        Cells as strings for CSV ("" if empty), with the lines of the file as its index; as stored for Parquet.

    Raises
    ------
    InputError
        One line, if the file as a whole cannot be a table. The meaning of columns is left to `read_columns`, bad cells
        to `parse_row`.
    """
    path = Path(path)
    content = _content(path)
    return _from_parquet(path, content) if content.startswith(b"PAR1") else _from_csv(path, content)


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a CSV or Parquet file")
    try:
        with path.open("rb") as handle:
            content = handle.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; give a CSV or Parquet file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; split it into several tables")
    if not content.strip():
        raise InputError(f"{path} is empty; a case table starts with a line of column names")
    return content


def _from_parquet(path: Path, content: bytes) -> pd.DataFrame:
    import pandas as pd

    try:
        frame = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    except ImportError:
        raise InputError(
            f'{path} is Parquet, which needs pyarrow: pip install "attnsim[datasets]", or save it as CSV'
        ) from None
    except Exception as error:  # pyarrow's own hierarchy, which cannot be named without importing it
        raise InputError(f"{path} is not a readable Parquet file: {_first_line(error)}") from None
    frame.columns = pd.Index([str(name) for name in frame.columns])
    frame = frame.reset_index(drop=frame.index.names == [None])
    return frame.set_index(pd.RangeIndex(1, len(frame) + 1, name="row"))


def _from_csv(path: Path, content: bytes) -> pd.DataFrame:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(f"{path} is not a CSV file in UTF-8; save the table as CSV with commas, or as Parquet")
    first = next(csv.reader(text.lstrip().splitlines()[:1]), [])
    names = {*known_columns(), *(name for known in known_columns().values() for name in known.names)} - {""}
    own = "|" not in text.lstrip().partition("\n")[0] and any(
        key(name) in names or name.strip().casefold() in names for name in first
    )
    if printed := [] if own else read_printed(text):
        return frame_of_lines(printed, "line")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    numbers: list[int] = []
    header: list[str] = []
    try:
        for cells in reader:
            if not header:
                header = [name.strip() for name in cells]
                while header and not header[-1]:  # a spreadsheet's trailing commas
                    header.pop()
                if len(header) == 1 and (mark := next((mark for mark in ";\t|" if mark in header[0]), "")):
                    raise InputError(f"{path} is separated by {mark!r}; save it as CSV with commas")
            elif cells:
                if any(cell.strip() for cell in cells[len(header) :]):
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells under {len(header)} column "
                        "names; put quotes around a cell that contains a comma"
                    )
                numbers.append(reader.line_num)
                rows.append((cells + [""] * (len(header) - len(cells)))[: len(header)])
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    if header and all(NUMBER.fullmatch(name) or name.casefold() in EMPTY for name in header):
        raise InputError(f"{path}: the first line holds numbers; it must hold column names")
    return frame_of(rows, numbers, columns=header, dtype=str).rename_axis("line")


def read_cases(path: str | Path) -> list[Case]:
    """Read the cases of a table, one per row.

    Raises
    ------
    InputError
        Naming the first line that is not a case.
    """
    frame = read_table(path)
    try:
        columns = read_columns(frame)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return cases_of(path, frame, columns)


def cases_of(path: str | Path, frame: pd.DataFrame, columns: Columns) -> list[Case]:
    """Cases of a table that was read, one per row.

    Raises
    ------
    InputError
        Naming the first line that is not a case.
    """
    cases = []
    for line, row in zip(frame.index, records(frame), strict=True):
        try:
            cases.append(parse_row(row, columns))
        except InputError as error:
            raise InputError(f"{path}, {frame.index.name} {line}: {error}") from None
    return cases


def records(frame: pd.DataFrame) -> list[dict[str, object]]:
    """Rows of a table as dictionaries from column name to cell."""
    return [{str(name): cell for name, cell in row.items()} for row in frame.to_dict("records")]


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table atomically as CSV or Parquet, by the file name's ending.

    Raises
    ------
    InputError
        If the ending is unknown or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", *_PARQUET_SUFFIXES):
        raise InputError(f"{path}: end the name with .csv or .parquet, which choose the format")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file name")
    try:
        with writing(path) as file:
            if path.suffix.lower() == ".csv":
                frame.to_csv(file, index=False, lineterminator="\n")
            else:
                frame.to_parquet(file, index=False, engine="pyarrow")
    except InputError:
        raise
    except ImportError:
        raise InputError(f'{path}: Parquet needs pyarrow: pip install "attnsim[datasets]", or name a .csv') from None
    except (TypeError, ValueError) as error:  # a column of mixed types, which Parquet cannot hold
        raise InputError(f"{path} cannot be written: {_first_line(error)}; write CSV instead") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
