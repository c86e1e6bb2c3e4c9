"""Measured attention times of the package ``aiconfigurator-core``, read from its files.

More than two million rows are on GPUs with a file here: prefill, decode, sliding windows and encoders of vLLM, SGLang
and TensorRT-LLM, and multi-head latent attention. The package is part of the extra ``datasets``. Without it,
`available` returns False, and `missing` says what is not checked and how to install it.

Every row is *kept* (it has a schedule), *rejected* (by a rule of `attnsim.validation.measured.implausible`), or *not
covered* (for a stated reason); `tables` counts all three.

Examples
--------
>>> from attnsim.validation import aiconfigurator
>>> if aiconfigurator.available():
...     some = aiconfigurator.rows(gpu="h100-sxm5-80gb", implementation="sglang.fa3", passes="decode", sample=20)
...     assert len(some) == 20
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnsim.errors import InputError, nearest
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation, runs_on
from attnsim.models.mechanisms import MECHANISMS
from attnsim.validation.measured.aiconfigurator_files import (
    DECODE,
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
from attnsim.validation.measured.implausible import Measured, rejected_by


@dataclass(frozen=True, slots=True)
class Table:
    """Counts of the rows of one kernel in one file.

    Parameters
    ----------
    name : str
        The file: ``h100_sxm/attention/vllm/0.24.0/context_attention_perf``.
    gpu : str
        Id of the GPU, "" without a GPU file.
    framework, version, kernel : str
        Caller, its version and its kernel, in the package's words.
    kind : str
        "context", "generation", "encoder", "mla context", "mla generation" or "mla module".
    implementation : str
        Implementation that models it, "" if none does.
    rows, kept : int
        All rows, and those that `rows` may return.
    rejected : mapping of str to int
        Number of rows by the rule that rejects them.
    uncovered : mapping of str to int
        Number of rows by the reason why they have no schedule.
    """

    name: str
    gpu: str
    framework: str
    version: str
    kernel: str
    kind: str
    implementation: str
    rows: int
    kept: int
    rejected: Mapping[str, int]
    uncovered: Mapping[str, int]


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
    return sorted(
        {(one.gpu, one.implementation, "decode" if one.kind in DECODE else "fwd") for one in files if one.kept}
    )


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
        Largest number of rows, taken evenly from the strata of `attnsim.validation.measured.groups`. Equal arguments
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
    verdict = rejected_by(Measured(frame, gpu, file.framework, file.version, file.kind))
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
            found.append(
                Table(
                    name=file.name,
                    gpu=file.gpu,
                    framework=file.framework,
                    version=file.version,
                    kernel=kernel,
                    kind=file.kind,
                    implementation=implementation_of(file, kernel),
                    rows=len(rejects),
                    kept=int((reasons == "").sum()),
                    rejected=dict(sorted(Counter(rejects[rejects != ""].tolist()).items())),
                    uncovered=dict(sorted(Counter(reasons[reasons != ""].tolist()).items())),
                )
            )
    return tuple(found)


def _unread(file: TableFile) -> Table:
    """Return a table whose rows are only counted."""
    number = int(parquet().read_metadata(file.path).num_rows)
    why = "MLA with its projections" if file.gpu else "no GPU file"
    return Table(file.name, file.gpu, file.framework, file.version, "", file.kind, "", number, 0, {}, {why: number})


def _sampled(
    parts: list[tuple[TableFile, pd.DataFrame]], sample: int, seed: int
) -> list[tuple[TableFile, pd.DataFrame]]:
    """Return at most `sample` rows of all parts together."""
    if not parts:
        return []
    chosen = even_sample(np.concatenate([strata(frame) for _, frame in parts]), sample, seed)
    ends = np.cumsum([len(frame) for _, frame in parts])
    return [(file, frame[part]) for (file, frame), part in zip(parts, np.split(chosen, ends[:-1]), strict=True)]
