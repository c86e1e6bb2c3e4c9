"""Case tables: one row per question or measurement, read from CSV or Parquet, checked cell by cell."""

from __future__ import annotations

import csv
import io
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attnsim.models.errors import InputError
from attnsim.models.gpu_fields import nearest
from attnsim.models.workload import DTYPE_BYTES, LARGEST, PASSES

if TYPE_CHECKING:
    import pandas as pd

# fmt: off
COLUMNS = (
    "source", "gpu", "implementation", "algorithm", "pass", "dtype", "batch", "heads_q", "heads_kv",
    "seq_q", "seq_kv", "head_dim", "head_dim_v", "causal", "window", "cache", "time_s", "notes",
)
# fmt: on
"""The columns of every published table, in order."""

OPTIONAL_COLUMNS = ("version", "launch", "clock_mhz", "page_size", "options")
REQUIRED_COLUMNS = ("gpu", "batch", "heads_q", "seq_q", "head_dim")
CACHES = ("cold", "warm")
LAUNCHES = ("stream", "graph", "kernel")
MAX_FILE_BYTES = 256 << 20

_EMPTY = frozenset({"", "nan", "na", "n/a", "none", "null", "<na>", "nat"})
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_DTYPE_ALIASES = {"float32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "fp8_e4m3": "fp8"}
_PARQUET_SUFFIXES = (".parquet", ".pq")
_NEEDED = "every row needs it"

_T = TypeVar("_T", int, str)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a case table with its defaults filled in; ``assumed`` says which."""

    gpu: str
    implementation: str | None
    algorithm: str
    passes: str
    dtype: str
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    head_dim_v: int
    causal: bool
    window: int | None
    cache: str
    launch: str | None
    version: str | None
    clock_mhz: float | None
    page_size: int | None
    options: Mapping[str, str] = field(hash=False)
    time_s: float | None
    source: str
    assumed: tuple[str, ...]


def parse_row(row: Mapping[str, object]) -> Case:
    """Read one row of a case table.

    Spreadsheet spellings are accepted (``32.0``, ``TRUE``, blanks around a cell, ``NaN`` for empty), and
    columns the format does not know are ignored. Whether the GPU, the algorithm and the implementation exist
    is for those who look them up.

    Parameters
    ----------
    row : mapping of str to object
        Column name to cell, as strings or as the types of a Parquet file.

    Returns
    -------
    Case
        Where a cell is empty: ``heads_kv``, ``seq_kv`` and ``head_dim_v`` as the query's, pass fwd, dtype
        bf16, algorithm flash, causal 0, cache warm; each is noted in ``assumed``.

    Raises
    ------
    InputError
        One line naming every bad cell: the column, what was given, what is allowed.
    """
    cells = _Cells(row)
    gpu = cells.text("gpu", needed=_NEEDED)
    batch = cells.count("batch", LARGEST["batch"], needed=_NEEDED)
    heads_q = cells.count("heads_q", LARGEST["heads_q"], needed=_NEEDED)
    seq_q = cells.count("seq_q", LARGEST["seq_q"], needed=_NEEDED)
    head_dim = cells.count("head_dim", LARGEST["head_dim"], needed=_NEEDED)
    passes = cells.choice("pass", PASSES) or cells.assume("pass", "fwd")
    seq_kv = cells.count(
        "seq_kv",
        LARGEST["seq_kv"],
        needed="a decode row needs the keys in its cache" if passes == "decode" else "",
    )
    causal = cells.flag("causal")
    case = Case(
        gpu=(gpu or "").lower(),
        implementation=cells.text("implementation"),
        algorithm=(cells.text("algorithm") or cells.assume("algorithm", "flash")).lower(),
        passes=passes,
        dtype=cells.choice("dtype", tuple(DTYPE_BYTES), _DTYPE_ALIASES) or cells.assume("dtype", "bf16"),
        batch=batch or 0,
        heads_q=heads_q or 0,
        heads_kv=cells.count("heads_kv", LARGEST["heads_q"]) or cells.assume("heads_kv", heads_q or 0),
        seq_q=seq_q or 0,
        seq_kv=seq_kv or cells.assume("seq_kv", seq_q or 0),
        head_dim=head_dim or 0,
        head_dim_v=cells.count("head_dim_v", LARGEST["head_dim"]) or cells.assume("head_dim_v", head_dim or 0),
        causal=bool(cells.assume("causal", 0)) if causal is None else causal,
        window=cells.count("window", LARGEST["seq_kv"]),
        cache=cells.choice("cache", CACHES) or cells.assume("cache", "warm"),
        launch=cells.choice("launch", LAUNCHES),
        version=cells.text("version"),
        clock_mhz=cells.number("clock_mhz", "MHz"),
        page_size=cells.count("page_size", LARGEST["seq_kv"]),
        options=cells.pairs("options"),
        time_s=cells.number("time_s", "seconds"),
        source=cells.text("source") or "",
        assumed=tuple(cells.assumed),
    )
    if cells.problems:
        raise InputError("; ".join(cells.problems))
    return case


class _Cells:
    """The cells of one row as they are read, with what was wrong and what was assumed."""

    def __init__(self, row: Mapping[str, object]) -> None:
        self.row = row
        self.problems: list[str] = []
        self.assumed: list[str] = []

    def assume(self, column: str, value: _T) -> _T:
        self.assumed.append(f"{column} empty, taken as {value}")
        return value

    def text(self, column: str, needed: str = "") -> str | None:
        """The stripped cell, or None if it is empty: a problem where `needed` says why."""
        text = str(self.row.get(column, "")).strip()
        if text.casefold() not in _EMPTY:
            return text
        if needed:
            self.problems.append(f"{column} is empty; {needed}")
        return None

    def count(self, column: str, largest: int, needed: str = "") -> int | None:
        text = self.text(column, needed)
        if text is None:
            return None
        value = float(text) if _NUMBER.fullmatch(text) else 0.0
        if 1 <= value <= largest and value.is_integer():
            return int(value)
        self._bad(column, text, f"a whole number from 1 to {largest}")
        return None

    def number(self, column: str, unit: str) -> float | None:
        text = self.text(column)
        if text is None:
            return None
        value = float(text) if _NUMBER.fullmatch(text) else 0.0
        if 0 < value < float("inf"):
            return value
        self._bad(column, text, f"a number of {unit} above 0, or empty")
        return None

    def flag(self, column: str) -> bool | None:
        text = self.text(column)
        if text is None:
            return None
        if text.casefold() not in _FLAGS:
            self._bad(column, text, "1, 0, true, false or empty")
        return _FLAGS.get(text.casefold())

    def choice(self, column: str, allowed: tuple[str, ...], aliases: Mapping[str, str] | None = None) -> str | None:
        text = self.text(column)
        if text is None:
            return None
        name = text.lower()
        name = (aliases or {}).get(name, name)
        if name in allowed:
            return name
        self._bad(column, text, ", ".join(allowed))
        return None

    def pairs(self, column: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in (self.text(column) or "").split(";"):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key and equals and key not in found:
                found[key] = value
            elif part.strip():
                self._bad(column, part, "key=value;key=value with each key once")
        return found

    def _bad(self, column: str, given: str, allowed: str) -> None:
        self.problems.append(f"{column} is {_shown(given)}; allowed: {allowed}")


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a case table, keeping every row, the order, and columns the format does not know.

    Parameters
    ----------
    path : str or Path
        A CSV file (UTF-8, commas, a header line) or a Parquet file, told apart by content.

    Returns
    -------
    pandas.DataFrame
        Cells as strings for CSV ("" where empty), as stored for Parquet.

    Raises
    ------
    InputError
        One line, when the file as a whole cannot be a case table. Bad cells are left to `parse_row`.
    """
    path = Path(path)
    content = _content(path)
    frame = _from_parquet(path, content) if content.startswith(b"PAR1") else _from_csv(path, content)
    columns = list(frame.columns)
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: column {_shown(repeated[0])} appears more than once; keep one")
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        given = [name for name in columns if name not in (*COLUMNS, *OPTIONAL_COLUMNS)]
        hints = [f"{name} ({nearest(name, given)})" if given else name for name in missing]
        raise InputError(
            f"{path}: no column {', '.join(hints)}; the first line must name at least {', '.join(REQUIRED_COLUMNS)}"
        )
    return frame


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
    return frame.reset_index(drop=frame.index.names == [None])


def _from_csv(path: Path, content: bytes) -> pd.DataFrame:
    import pandas as pd

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(f"{path} is not a CSV file in UTF-8; save the table as CSV with commas, or as Parquet")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[list[str]] = []
    header: list[str] = []
    try:
        for cells in reader:
            if not header:
                header = [name.strip() for name in cells]
                while header and not header[-1]:  # a spreadsheet's trailing commas
                    header.pop()
            elif cells:
                if any(cell.strip() for cell in cells[len(header) :]):
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells under {len(header)} column "
                        "names; put quotes around a cell that contains a comma"
                    )
                rows.append((cells + [""] * (len(header) - len(cells)))[: len(header)])
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    if len(header) == 1 and (mark := next((mark for mark in ";\t|" if mark in header[0]), "")):
        raise InputError(f"{path} is separated by {mark!r}; save it as CSV with commas")
    if header and all(_NUMBER.fullmatch(name) or name.casefold() in _EMPTY for name in header):
        raise InputError(f"{path}: the first line holds numbers; it must hold column names")
    return pd.DataFrame(rows, columns=pd.Index(header), dtype=str)


def read_cases(path: str | Path) -> list[Case]:
    """The cases of a table, every row one.

    Raises
    ------
    InputError
        Naming the first line that is not a case.
    """
    cases = []
    for line, row in enumerate(read_table(path).to_dict("records"), start=2):
        try:
            cases.append(parse_row({str(name): cell for name, cell in row.items()}))
        except InputError as error:
            raise InputError(f"{path}, line {line}: {error}") from None
    return cases


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table as CSV or Parquet, by the file name's ending, all or nothing.

    The rows go to a new file in the same folder that then takes the name, so a reader or an interruption
    never sees half a table.

    Raises
    ------
    InputError
        When the ending is unknown or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", *_PARQUET_SUFFIXES):
        raise InputError(f"{path}: end the name with .csv or .parquet, which choose the format")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give a file name")
    target = path.resolve()  # through a link, so that the link stays
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            if path.suffix.lower() == ".csv":
                with temporary.open("x", encoding="utf-8", newline="") as text:
                    frame.to_csv(text, index=False, lineterminator="\n")
            else:
                with temporary.open("xb") as binary:
                    frame.to_parquet(binary, index=False, engine="pyarrow")
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except ImportError:
        raise InputError(f'{path}: Parquet needs pyarrow: pip install "attnsim[datasets]", or name a .csv') from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
    except (TypeError, ValueError) as error:  # a column of mixed types, which Parquet cannot hold
        raise InputError(f"{path} cannot be written: {_first_line(error)}; write CSV instead") from None


def _shown(given: str) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:56]}...'"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
