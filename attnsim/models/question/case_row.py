"""One row of a case table: a question or a measurement, checked cell by cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.question.columns import EMPTY, OPTIONS, OWN, VERSIONS, Columns, key, known_columns
from attnsim.models.question.lengths import Length, read_lengths
from attnsim.models.question.words import COUNTS, KERNEL_OPTIONS, read_dtype, read_pass, whole
from attnsim.models.question.workload import DTYPE_BYTES, LARGEST, PASSES, TEXTS, Workload

if TYPE_CHECKING:
    from attnsim.models.hardware.gpu import Gpu

CACHES = ("cold", "warm")
LAUNCHES = ("stream", "host", "graph", "kernel")

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
_NEEDED = "every row needs it"
COLUMN_OWNERS = {"attnimplementation": "transformers", "routine": "flashinfer"}
"""Owner of the names in a column of implementations, by the column's name or the pass's: transformers' argument of
from_pretrained, and flashinfer_benchmark.py's column for the pass.
"""
_NO = EMPTY | {"0", "0.0", "-1", "false", "no", "off", "noop", "auto", "no_bias", "dense"}
"""Cells of a column that is not modelled which request nothing of it."""
_SIDE = re.compile(r"-?\d+")
_ABSORBED, _DECOMPRESSED = (576, 512), (192, 128)
"""Head widths (K, V) of a latent of 512 with a rotary key of 64 in FlashMLA's terms, and widths of DeepSeek-V3's heads
(arXiv 2405.04434, section 2.1, and 2412.19437, section 4.2).
"""
FLOPS = "useful FLOPs, 2 B H (visible pairs)(d + dv) forward and 2.5 times that backward"
"""FLOPs that a throughput counts."""

_T = TypeVar("_T", int, str)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a case table with its defaults filled in; ``assumed`` lists these by column."""

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
    launch: str
    version: str | None
    clock_mhz: float | None
    page_size: int | None
    options: Mapping[str, str] = field(hash=False)
    time_s: float | None
    source: str
    assumed: Mapping[str, str] = field(hash=False)
    lengths: tuple[Length, ...] = ()
    whose: str = ""
    not_understood: tuple[str, ...] = ()


def parse_row(row: Mapping[str, object], columns: Columns = OWN) -> Case:
    """Read one row of a case table.

    Spreadsheet spellings are accepted (``32.0``, ``TRUE``, blanks around a cell, ``NaN`` for empty), as are other
    vocabularies (``columns.toml``). Columns that `columns` leaves out are ignored. The caller checks whether the GPU,
    the algorithm and the implementation exist.

    Parameters
    ----------
    row : mapping of str to object
        Column name to cell, as strings or as the types of a Parquet file.
    columns : Columns
        Meaning and unit of each column; by default by our names.

    Returns
    -------
    Case
        - Defaults of empty cells: ``heads_kv``, ``seq_kv`` and ``head_dim_v`` as the query's, pass fwd, dtype bf16,
          algorithm flash, causal 0, cache warm, launch stream; each is noted in ``assumed``.
        - ``seq`` is the length of queries and keys; in a decode row without ``seq_kv``, that of the keys of one query.
        - ``lengths`` replaces all of these by the lengths of each sequence.
        - ``embed_dim`` is the width of all heads together.
        - ``tflops`` becomes a time by the useful FLOPs of softmax attention, 2 B H pairs (d + dv) forward; ``gbs`` by
          the bytes of Q, K, V and O.
        - Unknown columns are in ``not_understood``.

    Raises
    ------
    InputError
        One line naming every bad cell: the column, the given value, the allowed ones.
    """
    cells = _Cells(row, columns)
    gpu = cells.text("gpu", needed=_NEEDED)
    passes = cells.choice("pass", PASSES, read_pass) or cells.assume("pass", "fwd")
    lengths = cells.lengths("lengths", passes == "decode")
    if lengths and "pass" in cells.assumed and all(one.queries == 1 for one in lengths):
        passes = cells.assume("pass", "decode")
    batch = cells.count("batch", LARGEST["batch"], needed="" if lengths else _NEEDED)
    heads_q = cells.count("heads_q", LARGEST["heads_q"], needed=_NEEDED)
    length = cells.count("seq", LARGEST["seq_q"], needed=_NEEDED if columns.find("seq") and not lengths else "")
    length_known = length or lengths or columns.find("seq") or (passes == "decode" and not columns.find("seq_q"))
    seq_q = cells.count("seq_q", LARGEST["seq_q"], needed="" if length_known else _NEEDED)
    embed_dim = cells.count("embed_dim", LARGEST["head_dim"] * LARGEST["heads_q"])
    head_dim = cells.count("head_dim", LARGEST["head_dim"], needed="" if embed_dim else _NEEDED)
    head_dim = head_dim or cells.share(embed_dim, heads_q)
    seq_kv = cells.count(
        "seq_kv",
        LARGEST["seq_kv"],
        needed="a decode row needs the keys in its cache" if passes == "decode" and not (length or lengths) else "",
    )
    if length and not seq_kv:
        seq_q, seq_kv = 1 if passes == "decode" else length, length
    if passes == "decode" and seq_kv and not (seq_q or lengths or columns.find("seq_q")):
        seq_q = cells.assume("seq_q", 1)
    causal = cells.flag("causal")
    if lengths:
        batch, seq_q, seq_kv = cells.derive(lengths, batch=batch, seq=length, seq_q=seq_q, seq_kv=seq_kv)
    case = Case(
        gpu=_file_or_id(gpu or ""),
        implementation=cells.text("implementation") or cells.text("framework"),
        algorithm=_word(cells.text("algorithm") or cells.assume("algorithm", "flash")),
        passes=passes,
        dtype=cells.choice("dtype", tuple(DTYPE_BYTES), read_dtype) or cells.assume("dtype", "bf16"),
        batch=batch or 0,
        heads_q=heads_q or 0,
        heads_kv=cells.count("heads_kv", LARGEST["heads_q"]) or cells.assume("heads_kv", heads_q or 0),
        seq_q=seq_q or length or 0,
        seq_kv=seq_kv or cells.assume("seq_kv", seq_q or 0),
        head_dim=head_dim or 0,
        head_dim_v=cells.count("head_dim_v", LARGEST["head_dim"]) or cells.assume("head_dim_v", head_dim or 0),
        causal=bool(cells.assume("causal", 0)) if causal is None else causal,
        window=cells.window(causal),
        cache=cells.choice("cache", CACHES) or cells.assume("cache", "warm"),
        launch=cells.choice("launch", LAUNCHES) or cells.assume("launch", "stream"),
        version=cells.versions() or None,
        clock_mhz=cells.number("clock_mhz", "MHz"),
        page_size=cells.pages(),
        options=cells.options(),
        time_s=cells.number("time_s", "seconds"),
        source=cells.text("source") or "",
        assumed=cells.assumed,
        lengths=lengths,
        whose=cells.text("framework")
        or next(filter(None, (COLUMN_OWNERS.get(key(columns.name_of(one))) for one in ("implementation", "pass"))), ""),
        not_understood=columns.not_understood(row),
    )
    rate, bandwidth = cells.number("tflops", "TFLOP/s"), cells.number("gbs", "GB/s")
    cells.check_modelled(case.dtype)
    if cells.problems:
        raise InputError("; ".join(cells.problems))
    dense = "latent" not in case.options and "selection" not in case.options  # sparse kernels are asked in these widths
    absorbed = dense and (case.head_dim, case.head_dim_v) == _ABSORBED and case.heads_kv == 1
    if case.time_s is None and (rate or bandwidth):
        case = _timed(case, (rate or 0.0) * 1e12, (bandwidth or 0.0) * 1e9)
    return _decompressed(case) if absorbed else case


def _timed(case: Case, flops_per_s: float, bytes_per_s: float) -> Case:
    """The case with a time from its throughput, in FLOPs or otherwise in bytes."""
    w = workload_of(case)
    if flops_per_s:
        assumed = {"tflops": f"time from the throughput by {FLOPS}"}
        return replace(case, time_s=w.matrix_flops(w.visible_pairs) / flops_per_s, assumed={**case.assumed, **assumed})
    if case.passes not in ("fwd", "decode"):
        raise InputError(f"a bandwidth says no time of pass {case.passes}; give a time or a throughput of FLOPs")
    queries = sum(one.queries * one.times for one in w.parts) * w.heads_q * (w.head_dim + w.head_dim_v)
    assumed = {"gbs": "time from the bandwidth by the bytes of Q, K, V and O, each once"}
    size = queries * w.element_bytes + w.kv_cache_bytes
    return replace(case, time_s=size / bytes_per_s, assumed={**case.assumed, **assumed})


def _decompressed(case: Case) -> Case:
    """A case in FlashMLA's widths, converted to the widths of the heads that its latent stands for."""
    width, width_v = _DECOMPRESSED
    remark = "head_dim 576 on 512 and one key head, taken as latent 512x64 under heads of 192 and 128, as DeepSeek-V3's"
    assumed, options = {**case.assumed, "latent": remark}, {**case.options, "latent": "512x64"}
    whole_heads = replace(case, heads_kv=case.heads_q, head_dim=width, head_dim_v=width_v)
    return replace(whole_heads, options=options, assumed=assumed)


def _word(text: str) -> str:
    """Name of an algorithm in small letters, unless all are capitals: that is a constant of another program."""
    return text if text.isupper() and "_" in text else text.lower()


def _file_or_id(gpu: str) -> str:
    return gpu if gpu.lower().endswith((".yaml", ".yml")) else gpu.lower()


class _Cells:
    """Cells of one row as they are read, with problems and assumptions."""

    def __init__(self, row: Mapping[str, object], columns: Columns) -> None:
        self.row = row
        self.columns = columns
        self.problems: list[str] = []
        self.assumed: dict[str, str] = {}

    def assume(self, column: str, value: _T) -> _T:
        self.assumed[column] = f"{column} empty, taken as {value}"
        return value

    def text(self, column: str, needed: str = "") -> str | None:
        """The stripped cell; None if it is empty, which is a problem if `needed` gives a reason."""
        text = str(self.columns.cell(self.row, column)).strip()
        if text.casefold() not in EMPTY:
            return text
        if needed:
            self.problems.append(f"{self.columns.name_of(column)} is empty; {needed}")
        return None

    def versions(self) -> str:
        """The version, and those of other columns with their packages: "2.7, torch 2.6"."""
        others = ((name.removesuffix("_version"), self.text(name)) for name in VERSIONS)
        return ", ".join(filter(None, [self.text("version"), *(f"{what} {text}" for what, text in others if text)]))

    def count(self, column: str, largest: int, needed: str = "") -> int | None:
        text = self.text(column, needed)
        if text is None:
            return None
        value = float(text) if NUMBER.fullmatch(text) else float(whole(text) or 0)
        if 1 <= value <= largest and value.is_integer():
            return int(value)
        self._bad(column, text, f"a whole number from 1 to {largest}")
        return None

    def share(self, embed_dim: int | None, heads: int | None) -> int | None:
        """head_dim from the width of all heads."""
        if not embed_dim or not heads:
            return None
        if embed_dim % heads:
            self._bad("embed_dim", str(embed_dim), f"a multiple of {self.columns.name_of('heads_q')}, {heads}")
        return embed_dim // heads

    def pages(self) -> int | None:
        """Keys of a page; 0 means no pages."""
        none = self.text("page_size") in ("0", "0.0")
        return None if none else self.count("page_size", LARGEST["seq_kv"])

    def window(self, causal: bool | None) -> int | None:
        """Keys of a window, including the query's own; -1 and (-1, -1) mean none.

        A pair is flash_attn_func's window_size: keys before and after the query's own. A causal call has none after.
        """
        text = (self.text("window") or "").strip("()[] ")
        sides = [part.strip() for part in text.split(",")]
        if {*sides} <= {"-1", ""}:
            return None
        if len(sides) == 1:
            return self.count("window", LARGEST["seq_kv"])
        before, after = ([int(part) for part in sides] if all(map(_SIDE.fullmatch, sides)) else (-1, -1))[:2]
        if len(sides) != 2 or before < 0 or not (causal or after == before):
            self._bad("window", text, "one number of keys, (keys before, 0) of a causal call, (n, n) of others, or -1")
        return before + 1

    def check_modelled(self, dtype: str) -> None:
        """Report requests of a row that are not modelled."""
        for name, known in known_columns().items():
            text = (self.text(name) or "") if known.unmodelled else ""
            if text.casefold() not in _NO and read_dtype(text) != dtype:
                self._bad(name, text, f"none, because it is not modelled: {known.unmodelled}")

    def lengths(self, column: str, decode: bool) -> tuple[Length, ...]:
        text = self.text(column)
        try:
            return read_lengths(text, decode) if text else ()
        except InputError as error:
            self.problems.append(str(error))
            return ()

    def derive(self, lengths: tuple[Length, ...], **given: int | None) -> tuple[int, int, int]:
        """Batch and longest sequences from `lengths`; given values of the row must agree."""
        queries, keys = (max(one[axis] for one in lengths) for axis in (0, 1))
        derived = {"batch": sum(one.times for one in lengths), "seq": queries, "seq_q": queries, "seq_kv": keys}
        for column, value in given.items():
            if value not in (None, derived[column]):
                self._bad(column, str(value), f"{derived[column]}, as lengths say, or empty")
        return derived["batch"], queries, keys

    def number(self, column: str, unit: str) -> float | None:
        text = self.text(column)
        if text is None:
            return None
        value = float(text) if NUMBER.fullmatch(text) else 0.0
        theirs = self.columns.find(column)
        if 0 < value < float("inf"):
            return value if theirs is None else value * theirs.factor
        foreign = theirs is not None and theirs.theirs != column
        self._bad(column, text, f"a number of {theirs.unit if theirs and foreign else unit} above 0")
        return None

    def flag(self, column: str) -> bool | None:
        text = self.text(column)
        if text is None:
            return None
        word = known_columns()[column].words.get(key(text), text).casefold()
        if word not in _FLAGS:
            self._bad(column, text, "1, 0, true, false or empty")
        return _FLAGS.get(word)

    def choice(self, column: str, allowed: tuple[str, ...], read: Callable[[str], str] = str.lower) -> str | None:
        text = self.text(column)
        if text is None:
            return None
        name = read(known_columns()[column].words.get(key(text), text))
        if name in allowed:
            return name
        self._bad(column, text, ", ".join(allowed))
        return None

    def pairs(self, column: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in (self.text(column) or "").split(";"):
            option, equals, value = (piece.strip() for piece in part.partition("="))
            if option and equals and option not in found:
                found[option] = value
            elif part.strip():
                self._bad(column, part, "key=value;key=value with each key once")
        return found

    def options(self) -> dict[str, str]:
        """Pairs of the column `options`, and cells of options with their own columns."""
        found = self.pairs("options")
        for name in OPTIONS:
            text = self.text(name)
            if text is not None and found.setdefault(name, text) != text:
                self._bad(name, text, f"{shown_cell(found[name])}, as options say, or empty")
        return found

    def _bad(self, column: str, given: str, allowed: str) -> None:
        self.problems.append(f"{self.columns.name_of(column)} is {shown_cell(given)}; allowed: {allowed}")


def workload_of(case: Case) -> Workload:
    """The workload of a case; the row's window and causal flag become its mask."""
    mask = Mask.causal() if case.causal else Mask.full()
    if "mask" in case.options:
        mask = mask & Mask.parse(case.options["mask"])
    if case.window is not None:
        mask = mask & Mask.sliding_window(case.window, case.causal)
    options = case.options
    texts: dict[str, Any] = {name: options[name] for name in (*TEXTS, *KERNEL_OPTIONS) if name in options}
    prefix = whole(options.get("prefix", "0"))
    if prefix is None:
        raise InputError(f"prefix is {shown_cell(options['prefix'])}; allowed: a whole number of keys that all share")
    same = {name: getattr(case, name) for name in (*COUNTS, "lengths", "dtype", "passes")}
    dropout = float(options.get("dropout") or 0) > 0
    return Workload(**same, mask=mask, dropout=dropout, prefix=prefix, **texts)


def gpu_of(case: Case) -> Gpu:
    """The GPU of a case, at the clock that the row states, if any.

    A clock is a condition of the measurement, not another GPU: it is not recorded as a change.
    """
    from attnsim.models.hardware.files import load_gpu

    gpu = load_gpu(case.gpu)
    if case.clock_mhz is None:
        return gpu
    return replace(gpu.replace("clock.sustained", case.clock_mhz * 1e6), changes=gpu.changes)


def shown_cell(given: str) -> str:
    """The cell quoted for a message, shortened."""
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:56]}...'"
