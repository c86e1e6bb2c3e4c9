"""Files of the package ``aiconfigurator-core``: their locations, and the meaning of a row in each table.

The package (NVIDIA, Apache-2.0) holds operator times measured by its collector, as Parquet files under
``systems/data/<system>/<family>/<framework>/<version>/``. Nothing of them is copied here. ``aiconfigurator.yaml``
states, with sources, what the columns leave open.

In every table, a time is one attention layer's call (``collector/helper.py``, `benchmark_with_power`):

- the mean of 6 replays of a captured CUDA graph (SGLang: 20) after warm-ups;
- on the same buffers, without flushing the L2, with unlocked clocks;
- including launch gaps inside the graph.

Context and generation use a paged cache and write the new K and V into it. Context is causal from an empty cache;
generation has one query. Encoders are neither causal nor cached.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnsim.files import read_typed
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import match
from attnsim.models.question.case_row import Case


@dataclass(frozen=True, slots=True)
class _Values:
    framework: str
    version: str
    head_dim: int
    width: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that the tables' columns leave open; ``aiconfigurator.yaml`` explains each key with its source.

    Parameters
    ----------
    systems, kinds : mapping of str to str
        GPU by system folder, kind of table by file name.
    kernels : mapping of str to mapping
        Implementation by group of kinds, framework and kernel.
    keys_without_new, half_precision : tuple of str
        Versions of vLLM.
    chunk : int
        Tokens.
    absorbed : tuple of str
        Frameworks.
    latent_widths : (int, int)
        Widths of K and V.
    """

    package: str
    version: str
    systems: Mapping[str, str]
    kinds: Mapping[str, str]
    kernels: Mapping[str, Mapping[str, Mapping[str, str]]]
    keys_without_new: tuple[str, ...]
    half_precision: tuple[str, ...]
    value_width: tuple[_Values, ...]
    chunk: int
    absorbed: tuple[str, ...]
    latent: str
    latent_widths: tuple[int, int]


FACTS = read_typed(Path(__file__).with_name("aiconfigurator.yaml"), "table", Facts)
PACKAGE, VERSION, SYSTEMS, KINDS = FACTS.package, FACTS.version, FACTS.systems, FACTS.kinds

MODULE = "mla module"
"""Kind of the tables whose rows are only counted."""

DECODE = ("generation", "mla generation")

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8": "fp8"}
_COLUMNS = (
    "kernel_source", "attn_dtype", "mla_dtype", "kv_cache_dtype", "batch_size", "isl", "num_heads",
    "num_key_value_heads", "head_dim", "window_size", "step", "latency",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of attention times.

    Parameters
    ----------
    system, framework, version : str
        Names of the folders.
    kind : str
        One of the values of `KINDS`.
    """

    path: Path
    system: str
    framework: str
    version: str
    kind: str

    @property
    def name(self) -> str:
        """``h100_sxm/attention/vllm/0.24.0/context_attention_perf``."""
        family = self.path.parts[-4]
        return f"{self.system}/{family}/{self.framework}/{self.version}/{self.path.stem}"

    @property
    def gpu(self) -> str:
        """Id of the GPU file, "" without one."""
        return SYSTEMS.get(self.system, "")

    @property
    def passes(self) -> str:
        """Pass of its rows: "decode" or "fwd"."""
        return "decode" if self.kind in DECODE else "fwd"


def installed_folder() -> Path | None:
    """Return ``systems/data`` of the installed package; None if it is not installed at the pinned version."""
    try:
        if importlib.metadata.version(PACKAGE) != VERSION:
            return None
    except importlib.metadata.PackageNotFoundError:
        return None
    found = importlib.util.find_spec("aiconfigurator_core")  # finds without importing
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "systems" / "data"
    return folder if folder.is_dir() else None


def table_files(folder: Path) -> tuple[TableFile, ...]:
    """Return the files of attention times under ``systems/data``, sorted by name."""
    found = []
    for path in sorted(folder.glob("*/*/*/*/*.parquet")):
        if path.stem in KINDS:
            system, _, framework, version, _ = path.relative_to(folder).parts
            found.append(TableFile(path, system, framework, version, KINDS[path.stem]))
    return tuple(found)


def parquet() -> Any:
    """The reader of Parquet files, an extra that other commands do without."""
    import pyarrow.parquet

    return pyarrow.parquet


def read_shapes(file: TableFile) -> pd.DataFrame:
    """Read the rows of a file, converted to this package's columns.

    Returns
    -------
    pandas.DataFrame
        ``kernel, dtype, kv_dtype`` (categories), ``batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v,
        window`` (0 without one) and ``time_s``, in the file's order. For latent attention, heads and widths are those
        of the kernel: widths 576 and 512 and one key head if it attends the latent itself.
    """
    present = parquet().read_schema(file.path).names
    raw = pd.read_parquet(file.path, columns=[name for name in _COLUMNS if name in present], engine="pyarrow")
    mla = file.kind.startswith("mla")
    new_keys = 0 if file.framework == "vllm" and file.version in FACTS.keys_without_new else 1
    dtype = raw["mla_dtype" if mla else "attn_dtype"].astype("category")
    kv_dtype = raw["kv_cache_dtype"].astype("category") if "kv_cache_dtype" in raw else dtype
    window = raw["window_size"].fillna(0).clip(lower=0).astype(np.int64) if "window_size" in raw else 0
    frame = pd.DataFrame(
        {
            "kernel": raw["kernel_source"].astype("category"),
            "dtype": dtype.cat.rename_categories(lambda name: _DTYPES.get(name, name)),
            "kv_dtype": kv_dtype.cat.rename_categories(lambda name: _DTYPES.get(name, name)),
            "batch": raw["batch_size"],
            "heads_q": raw["num_heads"],
            "heads_kv": raw["num_key_value_heads"] if "num_key_value_heads" in raw else raw["num_heads"],
            "seq_q": 1 if file.kind in DECODE else raw["isl"],
            "seq_kv": raw["step"] + new_keys if file.kind in DECODE else raw["isl"],
            "head_dim": raw.get("head_dim", 192),
            "window": window,
            "time_s": raw["latency"] * 1e-3,
        }
    )
    frame["heads_kv"] = frame["heads_kv"].where(frame["heads_kv"] > 0, frame["heads_q"])
    frame["head_dim_v"] = frame["head_dim"]
    if mla:
        blackwell = file.system in ("b200_sxm", "b300_sxm", "gb200", "gb300")
        absorbed = file.kind == "mla generation" or (file.framework in FACTS.absorbed and not blackwell)
        frame["head_dim"], frame["head_dim_v"] = (576, 512) if absorbed else (192, 128)
        if absorbed:
            frame["heads_kv"] = 1
    for one in FACTS.value_width:
        if (file.framework, file.version) == (one.framework, one.version) and not mla:
            frame.loc[frame["head_dim"] == one.head_dim, "head_dim_v"] = one.width
    if file.framework == "vllm" and file.version in FACTS.half_precision:
        for column in ("dtype", "kv_dtype"):
            frame[column] = frame[column].cat.rename_categories({"bf16": "fp16"})
    if (file.framework, file.version) == ("sglang", "0.5.14"):
        chunked = (frame["kernel"] == "fa3") & (frame["seq_kv"] > FACTS.chunk)
        frame["window"] = frame["window"].where((frame["window"] != FACTS.chunk) | chunked, 0)
    return frame


@functools.cache
def implementation_of(file: TableFile, kernel: str) -> str:
    """Return the implementation of a kernel in a file on its GPU, "" if there is none."""
    latent = file.kind.startswith("mla")
    if latent and kernel == "default" and file.gpu:
        kernel = f"default {load_gpu(file.gpu).compute_capability_number // 10}.x"
    group = "latent" if latent else "encoder" if file.kind == "encoder" else "serving"
    name = FACTS.kernels[group].get(file.framework, {}).get(kernel, "")
    return match(name, gpu=load_gpu(file.gpu)).record.name if name and file.gpu else name


def page_size(file: TableFile, kernel: str) -> int | None:
    """Return the keys per page: 64, but 1 in SGLang 0.5.14 except TensorRT-LLM's kernels; None without a cache."""
    if file.kind == "encoder":
        return None
    return 1 if (file.framework, file.version) == ("sglang", "0.5.14") and not kernel.startswith("trtllm") else 64


def cases_of(file: TableFile, frame: pd.DataFrame) -> Iterator[Case]:
    """Yield rows of a file as cases; a kernel without an implementation keeps its own name.

    Parameters
    ----------
    frame : pandas.DataFrame
        Of `read_shapes`, or a part of it.
    """
    mla = file.kind.startswith("mla")
    cell: Any  # pandas-stubs knows no types of columns
    for cell in frame.itertuples(index=False):
        kernel, dtype, kv_dtype = str(cell.kernel), str(cell.dtype), str(cell.kv_dtype)
        yield Case(
            gpu=file.gpu,
            implementation=implementation_of(file, kernel) or kernel,
            algorithm="mla" if mla else "flash",
            passes=file.passes,
            dtype=dtype,
            batch=int(cell.batch),
            heads_q=int(cell.heads_q),
            heads_kv=int(cell.heads_q if mla else cell.heads_kv),
            seq_q=int(cell.seq_q),
            seq_kv=int(cell.seq_kv),
            head_dim=FACTS.latent_widths[0] if mla else int(cell.head_dim),
            head_dim_v=FACTS.latent_widths[1] if mla else int(cell.head_dim_v),
            causal=file.kind != "encoder",
            window=int(cell.window) or None,
            cache="warm",
            launch="graph",
            version=f"{file.framework} {file.version}",
            clock_mhz=None,
            page_size=page_size(file, kernel),
            options={"kernel": kernel}
            | ({} if dtype == kv_dtype else {"kv_dtype": kv_dtype})
            | ({"latent": FACTS.latent} if mla else {}),
            time_s=float(cell.time_s),
            source=f"{PACKAGE}-{VERSION}/{file.name}",
            assumed={},
        )
