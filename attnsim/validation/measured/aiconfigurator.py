"""Measured attention times of the package ``aiconfigurator-core``, read from its files.

More than two million rows are on GPUs with a file here: prefill, decode, sliding windows and encoders of vLLM, SGLang
and TensorRT-LLM, and multi-head latent attention. The package is part of the extra ``datasets``. Without it,
`available` returns False, and `missing` says what is not checked and how to install it.

Every row is *kept* (it has a schedule), *rejected* (by a rule of `RULES`), or *not covered* (for a stated reason);
`tables` counts all three. A rule names rows that are not measurements of attention, by a fact about the data and its
source; no prediction takes part in it. A rule marked `known` names a fault of one collection. The other rules are
physical bounds that hold for any table; together they reject far less than one row in a hundred.

Examples
--------
>>> from attnsim.validation.measured import aiconfigurator
>>> if aiconfigurator.available():
...     some = aiconfigurator.rows(gpu="h100-sxm5-80gb", implementation="sglang.fa3", passes="decode", sample=20)
...     assert len(some) == 20
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest
from attnsim.files import read_typed
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation, runs_on
from attnsim.models.mechanisms import MECHANISMS
from attnsim.validation.measured.aiconfigurator_files import (
    FACTS,
    MODULE,
    PACKAGE,
    SYSTEMS,
    VERSION,
    TableFile,
    cases_of,
    implementation_of,
    installed_folder,
    parquet,
    read_shapes,
    table_files,
)
from attnsim.validation.measured.datasets import Row, row_of
from attnsim.validation.measured.groups import even_sample, strata

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

SPIKE = by_hand(2.0, "a row this many times slower than both its neighbours in length is a disturbed measurement")
"""Larger than every step that a change of kernel or split was seen to cause (1.6)."""

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}


@dataclass(frozen=True, eq=False)
class Measured:
    """Rows of one table, with the columns of `attnsim.validation.measured.aiconfigurator_files.read_shapes`."""

    frame: pd.DataFrame
    file: TableFile

    @property
    def gpu(self) -> Gpu:
        """The GPU that they were measured on."""
        return load_gpu(self.file.gpu)

    def all_rows(self, flag: bool) -> Flags:
        """Return one verdict for every row, ``[rows]``."""
        return np.full(len(self.frame), flag)

    def floats(self, column: str) -> Floats:
        """Return a column as float64."""
        return np.asarray(self.frame[column], dtype=np.float64)

    @property
    def visible_pairs(self) -> Floats:
        """(query, key) pairs of one head under the row's mask."""
        queries, keys, window = self.floats("seq_q"), self.floats("seq_kv"), self.floats("window")
        if self.file.kind == "encoder":
            return queries * keys
        reach = np.where(window > 0, np.minimum(window, keys), keys)  # keys that the last query sees
        first = np.maximum(0.0, reach - (keys - queries) - 1)  # queries before the band is full
        return np.asarray(queries * reach - first * (first + 1) / 2)

    @property
    def flops(self) -> Floats:
        """Floating-point operations of the two products over visible pairs."""
        width = self.floats("head_dim") + self.floats("head_dim_v")
        return 2 * self.floats("batch") * self.floats("heads_q") * self.visible_pairs * width

    @property
    def cache_bytes(self) -> Floats:
        """Bytes of K and V that some query sees."""
        keys, window = self.floats("seq_kv"), self.floats("window")
        seen = np.where(window > 0, np.minimum(keys, window + self.floats("seq_q") - 1), keys)
        width = self.floats("head_dim") + self.floats("head_dim_v")
        if self.file.kind == "mla generation":
            width = self.floats("head_dim")  # V is a part of K
        size = self.frame["kv_dtype"].astype(str).map(_BYTES).to_numpy(np.float64)
        return self.floats("batch") * self.floats("heads_kv") * seen * width * size


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that rejects rows, with its reason and source; the function of the same name finds the rows.

    Parameters
    ----------
    reason : str
        What is wrong with such rows.
    source : str
        Source of the reason.
    known : bool
        True for a known fault of one collection; otherwise it is a physical bound for any table.
    """

    name: str
    reason: str
    source: str
    known: bool

    @property
    def applies(self) -> Callable[[Measured], Flags]:
        """The function that flags the rows."""
        return _FLAGS[self.name]


def corrupt_collection(m: Measured) -> Flags:
    """Flag all rows of vLLM 0.19 on H200."""
    return m.all_rows(m.file.framework == "vllm" and m.file.version.startswith("0.19") and m.gpu.id.startswith("h200"))


def one_token_context(m: Measured) -> Flags:
    """Flag context rows of one token."""
    return m.all_rows(m.file.kind in ("context", "mla context")) & np.isin(m.floats("seq_q"), 1)


def keys_only_cache(m: Measured) -> Flags:
    """Flag decode rows of TensorRT-LLM 1.0, except long caches without grouped heads."""
    of_these = m.all_rows((m.file.framework, m.file.version, m.file.kind) == ("trtllm", "1.0.0", "generation"))
    return of_these & ((m.floats("heads_q") > m.floats("heads_kv")) | (m.floats("seq_kv") < 512))


def ignored_fp8_cache(m: Measured) -> Flags:
    """Flag MLA rows of TensorRT-LLM 1.0 with an fp8 cache."""
    of_these = m.all_rows((m.file.framework, m.file.version) == ("trtllm", "1.0.0") and m.file.kind.startswith("mla"))
    return of_these & (m.frame["kv_dtype"].astype(str) == "fp8").to_numpy(bool)


def not_a_time(m: Measured) -> Flags:
    """Flag missing, zero, negative or infinite times."""
    time = m.floats("time_s")
    return ~(np.isfinite(time) & (time > 0))


def above_tensor_peak(m: Measured) -> Flags:
    """Flag rows above the peak rate of all tensor cores at the boost clock, in the faster of the two formats."""
    rate = {name: m.gpu.tensor_flops_per_clk(name) for name in _BYTES}
    per_clk = np.maximum(*(m.frame[c].astype(str).map(rate).to_numpy(np.float64) for c in ("dtype", "kv_dtype")))
    return np.asarray(m.flops > m.floats("time_s") * per_clk * m.gpu.sm.count * m.gpu.clock.boost_hz)


def above_hbm_bandwidth(m: Measured) -> Flags:
    """Flag rows that read K and V faster than the datasheet's bandwidth, if the whole L2 was filled before."""
    beyond = m.cache_bytes - m.gpu.l2.capacity_bytes
    return np.asarray(beyond > m.floats("time_s") * m.gpu.hbm.bandwidth_bytes_per_s)


def spike(m: Measured) -> Flags:
    """Flag rows `SPIKE` times slower than both the next shorter and the next longer row of the same shape."""
    shape = ["kernel", "dtype", "kv_dtype", "batch", "heads_q", "heads_kv", "head_dim", "window"]
    ordered = m.frame.sort_values([*shape, "seq_kv"], kind="stable")
    times = ordered.groupby(shape, sort=False, observed=True)["time_s"]
    slower = np.maximum(times.shift(1), times.shift(-1))  # NaN at the ends, which are never spikes
    return np.asarray((ordered["time_s"] > SPIKE * slower).reindex(m.frame.index))


_FLAGS = {
    flags.__name__: flags
    for flags in (
        corrupt_collection,
        one_token_context,
        keys_only_cache,
        ignored_fp8_cache,
        not_a_time,
        above_tensor_peak,
        above_hbm_bandwidth,
        spike,
    )
}

RULES = read_typed(Path(__file__).with_name("implausible.yaml"), "rule", tuple[Rule, ...])
"""Rules in order: a row counts under the first rule that rejects it."""


def rejected_by(m: Measured) -> NDArray[np.object_]:
    """Return the name of the rule that rejects each row, "" for none."""
    verdict = np.full(len(m.frame), "", dtype=object)
    for rule in RULES:
        verdict[(verdict == "") & rule.applies(m)] = rule.name
    return verdict


@dataclass(frozen=True, slots=True)
class Table:
    """Counts of the rows of one kernel in one file.

    Parameters
    ----------
    kernel : str
        In the package's words, "" for all of a file that is not read.
    rows, kept : int
        All rows, and those that `rows` may return.
    rejected : mapping of str to int
        Number of rows by the rule that rejects them.
    uncovered : mapping of str to int
        Number of rows by the reason why they have no schedule.
    """

    file: TableFile
    kernel: str
    rows: int
    kept: int
    rejected: Mapping[str, int]
    uncovered: Mapping[str, int]

    @property
    def gpu(self) -> str:
        """Id of the GPU, "" without a GPU file."""
        return self.file.gpu

    @property
    def implementation(self) -> str:
        """Implementation that models it, "" if none does."""
        return implementation_of(self.file, self.kernel)


def available() -> bool:
    """Return True if the package is installed at the pinned version, with a Parquet reader."""
    return installed_folder() is not None and importlib.util.find_spec("pyarrow") is not None


def missing() -> str:
    """Return one line on what is not checked without the package and how to install it; "" if it is installed."""
    if available():
        return ""
    return (
        f"not checked: serving prefill, decode, windows and encoders on {len(SYSTEMS)} GPUs ({PACKAGE} {VERSION} is "
        'not installed); pip install "attnsim[datasets]"'
    )


def tables(folder: Path | None = None) -> tuple[Table, ...]:
    """Return every table of attention times, with its counts of kept, rejected and uncovered rows.

    Parameters
    ----------
    folder : Path, optional
        A ``systems/data`` folder; the installed package's by default.

    Raises
    ------
    InputError
        If the package is not available.
    """
    return _tables(_folder(folder))


def cells() -> list[tuple[str, str, str]]:
    """Return (GPU, implementation, pass) with rows, in order; empty without the package."""
    files = tables() if available() else ()
    return sorted({(one.gpu, one.implementation, one.file.passes) for one in files if one.kept})


def rows(
    *,
    gpu: str | None = None,
    implementation: str | None = None,
    passes: str | None = None,
    kind: str | None = None,
    framework: str | None = None,
    dtype: str | None = None,
    windowed: bool | None = None,
    sample: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[Row, ...]:
    """Return rows that have a schedule, in the files' order; schedules are built on first use.

    Parameters
    ----------
    gpu, implementation : str, optional
        Only rows of this GPU; only rows of this implementation.
    passes : {"fwd", "decode"}, optional
    kind : {"context", "generation", "encoder", "mla context", "mla generation"}, optional
    framework : {"vllm", "sglang", "trtllm"}, optional
        Caller of the kernel; several frameworks may call one implementation.
    dtype : {"bf16", "fp16", "fp8"}, optional
    windowed : bool, optional
        Only with, or only without, a sliding window.
    sample : int, optional
        Largest number of rows, taken evenly from the strata of `attnsim.validation.measured.datasets`. Equal arguments
        give equal rows, and a larger sample contains a smaller one.
    seed : int
        Selects another sample.
    folder : Path, optional
        A ``systems/data`` folder; the installed package's by default.

    Raises
    ------
    InputError
        If the package is not available, it has no rows for a filter, or an implementation is unknown.
    """
    parts = []
    for file in _wanted(folder, {"gpu": gpu, "passes": passes, "kind": kind, "framework": framework}):
        frame, verdict, reason = _judged(file)
        keep = (verdict == "") & (reason == "")
        if implementation is not None:
            name = find_implementation(implementation).name
            kernels = [kernel for kernel in frame["kernel"].cat.categories if implementation_of(file, kernel) == name]
            keep &= frame["kernel"].isin(kernels).to_numpy()
        if dtype is not None:
            keep &= (frame["dtype"] == dtype).to_numpy()
        if windowed is not None:
            keep &= (frame["window"] > 0).to_numpy() == windowed
        parts.append((file, frame[keep]))
    if sample is not None:
        parts = _sampled(parts, sample, seed)
    return tuple(row_of(case) for file, frame in parts for case in cases_of(file, frame))


def _wanted(folder: Path | None, filters: Mapping[str, str | None]) -> list[TableFile]:
    """Return the files that pass the filters."""
    known = [file for file in table_files(_folder(folder)) if file.gpu and file.kind != MODULE]
    for name, value in filters.items():
        if value is None:
            continue
        allowed = sorted({getattr(file, name) for file in known})
        if value not in allowed:
            raise InputError(f"{name} is {value!r}, which {PACKAGE} has no rows of; {nearest(value, allowed)}")
        known = [file for file in known if getattr(file, name) == value]
    return known


def _folder(folder: Path | None) -> Path:
    found = folder or (installed_folder() if available() else None)
    if found is None:
        raise InputError(missing())
    return found


@lru_cache(maxsize=16)
def _judged(file: TableFile) -> tuple[pd.DataFrame, NDArray[np.object_], NDArray[np.object_]]:
    """Return a file's rows, the rule that rejects each, and the reason why each has no schedule ("" for none)."""
    frame, gpu = read_shapes(file), load_gpu(file.gpu)
    verdict = rejected_by(Measured(frame, file))
    return frame, verdict, _uncovered(file, frame, gpu)


def _uncovered(file: TableFile, frame: pd.DataFrame, gpu: Gpu) -> NDArray[np.object_]:
    """Return the reason why each row has no schedule; "" if it has one."""
    reason = np.full(len(frame), "", dtype=object)
    dtype, kernels = frame["dtype"].astype(str).to_numpy(), frame["kernel"].astype(str).to_numpy()
    mixed = dtype != frame["kv_dtype"].astype(str).to_numpy()
    chunked = (frame["window"] == FACTS.chunk).to_numpy() & (file.framework == "sglang")
    for kernel in frame["kernel"].cat.categories:
        rows, name = kernels == kernel, implementation_of(file, kernel)
        if not name:
            reason[rows] = "kernel without a schedule"
            continue
        record = IMPLEMENTATIONS[name]
        if not runs_on(record, gpu):
            reason[rows] = f"{name} has no schedule on {gpu.sm_arch}"
            continue
        if not MECHANISMS["mla"].run_by(record):  # whose widths here are those of the absorbed form
            reason[rows & (frame["head_dim"] > record.largest_head_dim).to_numpy()] = "head_dim above the largest"
        reason[rows & ~np.isin(dtype, record.dtypes)] = f"{name} has no fp8 schedule"
        reason[rows & mixed] = "16-bit queries on an fp8 cache"
        reason[rows & chunked] = "chunked attention"
    return reason


@lru_cache(maxsize=2)
def _tables(folder: Path) -> tuple[Table, ...]:
    found: list[Table] = []
    for file in table_files(folder):
        if not file.gpu or file.kind == MODULE:
            found.append(_unread(file))
            continue
        frame, verdict, reason = _judged(file)
        kernels = frame["kernel"].astype(str).to_numpy()
        for kernel in sorted(set(kernels)):
            rejects, reasons = verdict[kernels == kernel], reason[kernels == kernel]
            reasons = reasons[rejects == ""]
            counts = (dict(sorted(Counter(some[some != ""].tolist()).items())) for some in (rejects, reasons))
            found.append(Table(file, kernel, len(rejects), int((reasons == "").sum()), *counts))
    return tuple(found)


def _unread(file: TableFile) -> Table:
    """Return a table whose rows are only counted."""
    number = int(parquet().read_metadata(file.path).num_rows)
    why = "MLA with its projections" if file.gpu else "no GPU file"
    return Table(file, "", number, 0, {}, {why: number})


def _sampled(
    parts: list[tuple[TableFile, pd.DataFrame]], sample: int, seed: int
) -> list[tuple[TableFile, pd.DataFrame]]:
    """Return at most `sample` rows of all parts together."""
    if not parts:
        return []
    chosen = even_sample(np.concatenate([strata(frame) for _, frame in parts]), sample, seed)
    ends = np.cumsum([len(frame) for _, frame in parts])
    return [(file, frame[part]) for (file, frame), part in zip(parts, np.split(chosen, ends[:-1]), strict=True)]
