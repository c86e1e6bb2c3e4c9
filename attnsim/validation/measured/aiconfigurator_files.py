"""What the tables of the package ``aiconfigurator-core`` are: where they lie, and what a row of each stands for.

The package (NVIDIA, Apache-2.0) holds operator times measured by its collector, as Parquet files under
``systems/data/<system>/<family>/<framework>/<version>/``. Nothing of them is copied here. What the columns leave open
is stated below with its source, which is the collector (``ai-dynamo/aiconfigurator``, ``collector/<framework>/``) or
what the figures themselves show.

Of every table: time of one attention layer's call, a mean of 6 replays of a captured CUDA graph (SGLang: 20) after
warm-ups, on the same buffers without flushing the L2, launch gaps inside the graph included, clocks not locked
(``collector/helper.py``, `benchmark_with_power`). Context and generation attend through a paged cache and write the
new K and V into it; context is causal from an empty cache, generation is one query. Encoders are neither causal nor
cached.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnsim.models.question.case_row import Case

if TYPE_CHECKING:
    import pandas as pd

PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"

SYSTEMS = {
    "a100_sxm": "a100-sxm4-80gb",
    "h100_sxm": "h100-sxm5-80gb",
    "h200_sxm": "h200-sxm-141gb",
    "b200_sxm": "b200-sxm-180gb",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
}
"""System folders and the GPU that their ``device`` column names; the other folders are of GPUs without a file here."""

KINDS = {
    "context_attention_perf": "context",
    "generation_attention_perf": "generation",
    "encoder_attention_perf": "encoder",
    "context_mla_perf": "mla context",
    "generation_mla_perf": "mla generation",
}
"""Kinds of table by file name."""

DECODE = ("generation", "mla generation")

MODULES = (
    "mla_context_module_perf",
    "mla_generation_module_perf",
    "wideep_context_mla_perf",
    "wideep_generation_mla_perf",
)
"""Multi-head latent attention together with its projections: times of a whole module, not of attention."""

KEYS_WITHOUT_NEW = ("0.14.0", "0.18.0", "0.19.0", "0.20.0", "0.22.0")
"""vLLM versions whose decode rows attend `step` keys, the new one among them (``seq_lens = input_len``); every other
table's attend ``step + 1``. In 0.24 it shows: with a window of 128 keys FlashAttention-2 takes the same time at 127 and
at 255 steps (L40S, to 0.1 %), one tile of 128 keys each, where 255 keys would touch two."""

HALF_PRECISION = ("0.14.0",)
"""vLLM versions that ran fp16 where their table says bfloat16 (renamed in the table later)."""

VALUE_WIDTH = {("sglang", "0.5.14", 192): 128}
"""Width of V where it is not the head_dim's, by framework, version and head_dim. Found in the figures: with V as wide
as K, 23 decode rows on H100 and 61 on RTX PRO 6000 would move up to 1.11 of the HBM bandwidth; with 128 they reach the
share of the neighbouring head_dims (0.89). The shapes are MiMo's, whose V is 128 wide."""

CHUNK = 8192
"""Where SGLang 0.5.14's column says a window of 8192 there is none. FlashAttention-3 attends in chunks (Llama 4: only
keys of the query's own 8192): against no window, 10240, 12288 and 16384 tokens take 0.70, 0.56 and 0.52 of the time;
chunks would take 0.68, 0.56 and 0.50, a window 0.96, 0.89 and 0.75 (vLLM's takes 0.97, 0.91 and 0.80). The other
kernels ignore it: 1.00 at every length on B200, GB200, L40S and RTX PRO 6000."""

ABSORBED = ("sglang",)
"""Frameworks whose MLA prefill before Blackwell runs in the latent space (576 wide, V 512, one KV head), at 0.61 of the
tensor peak on H100; as 192/128 per head it would be 0.18, where TensorRT-LLM's reaches 0.58 on the same chip."""

LATENT, LATENT_WIDTHS = "512x64", (192, 128)
"""DeepSeek-V2 and -V3's latent, and the widths of K and V in the decompressed terms in which a case asks
(``collector/cases/base_ops/mla.yaml``). A row's time is that of the attention call: the cache write, the rotary
embedding in TensorRT-LLM, and attention, without the products with W_UK and W_UV (``collect_mla_bmm.py`` times
those)."""

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
    path : Path
    system, framework, version : str
        As the folders name them.
    kind : str
        One of the values of `KINDS`, "mla module", or "" for other operators.
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
        """Id of the GPU file, "" where there is none."""
        return SYSTEMS.get(self.system, "")

    @property
    def passes(self) -> str:
        """Direction of its rows: "decode" or "fwd"."""
        return "decode" if self.kind in DECODE else "fwd"


def installed_folder() -> Path | None:
    """``systems/data`` of the installed package, or None without it or at another version than the pinned one."""
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
    """The files of attention times under ``systems/data``, in order of their names."""
    found = []
    for path in sorted(folder.glob("*/*/*/*/*.parquet")):
        kind = KINDS.get(path.stem, "mla module" if path.stem in MODULES else "")
        if kind:
            system, _, framework, version, _ = path.relative_to(folder).parts
            found.append(TableFile(path, system, framework, version, kind))
    return tuple(found)


def read_shapes(file: TableFile) -> pd.DataFrame:
    """The rows of a file in the terms of this package.

    Returns
    -------
    pandas.DataFrame
        ``kernel, dtype, kv_dtype`` (categories), ``batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, head_dim_v,
        window`` (0 without one) and ``time_s``, in the file's order. Of latent attention heads and widths are those
        that the kernel works on: 576, 512 and one key head where it attends the latent itself.
    """
    import pandas as pd
    import pyarrow.parquet

    present = pyarrow.parquet.read_schema(file.path).names
    raw = pd.read_parquet(file.path, columns=[name for name in _COLUMNS if name in present], engine="pyarrow")
    mla = file.kind.startswith("mla")
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
            "seq_kv": raw["step"] + _new_keys(file) if file.kind in DECODE else raw["isl"],
            "head_dim": raw.get("head_dim", 192),
            "window": window,
            "time_s": raw["latency"] * 1e-3,
        }
    )
    frame["heads_kv"] = frame["heads_kv"].where(frame["heads_kv"] > 0, frame["heads_q"])
    frame["head_dim_v"] = frame["head_dim"]
    if mla:
        absorbed = file.kind == "mla generation" or (file.framework in ABSORBED and not _blackwell_data_centre(file))
        frame["head_dim"], frame["head_dim_v"] = (576, 512) if absorbed else (192, 128)
        if absorbed:
            frame["heads_kv"] = 1
    for (framework, version, head_dim), width in VALUE_WIDTH.items():
        if (file.framework, file.version) == (framework, version) and not mla:
            frame.loc[frame["head_dim"] == head_dim, "head_dim_v"] = width
    if file.framework == "vllm" and file.version in HALF_PRECISION:
        for column in ("dtype", "kv_dtype"):
            frame[column] = frame[column].cat.rename_categories({"bf16": "fp16"})
    if (file.framework, file.version) == ("sglang", "0.5.14"):
        chunked = (frame["kernel"] == "fa3") & (frame["seq_kv"] > CHUNK)
        frame["window"] = frame["window"].where((frame["window"] != CHUNK) | chunked, 0)
    return frame


def _new_keys(file: TableFile) -> int:
    """Keys that a decode row attends beside its `step`."""
    return 0 if file.framework == "vllm" and file.version in KEYS_WITHOUT_NEW else 1


def _blackwell_data_centre(file: TableFile) -> bool:
    return file.system in ("b200_sxm", "b300_sxm", "gb200", "gb300")


def page_size(file: TableFile, kernel: str) -> int | None:
    """Keys in a page of the cache: 64, and 1 in SGLang 0.5.14 save for TensorRT-LLM's kernels; None without a cache."""
    if file.kind == "encoder":
        return None
    return 1 if (file.framework, file.version) == ("sglang", "0.5.14") and not kernel.startswith("trtllm") else 64


def cases_of(file: TableFile, frame: pd.DataFrame, implementation: Callable[[TableFile, str], str]) -> Iterator[Case]:
    """Rows of a file as cases.

    Parameters
    ----------
    file : TableFile
    frame : pandas.DataFrame
        Of `read_shapes`, or a part of it.
    implementation : callable
        (file, kernel) to the implementation's name, "" where there is none: the kernel's then stands for it.
    """
    mla = file.kind.startswith("mla")
    cell: Any  # pandas-stubs knows no types of columns
    for cell in frame.itertuples(index=False):
        kernel, dtype, kv_dtype = str(cell.kernel), str(cell.dtype), str(cell.kv_dtype)
        yield Case(
            gpu=file.gpu,
            implementation=implementation(file, kernel) or kernel,
            algorithm="mla" if mla else "flash",
            passes=file.passes,
            dtype=dtype,
            batch=int(cell.batch),
            heads_q=int(cell.heads_q),
            heads_kv=int(cell.heads_q if mla else cell.heads_kv),
            seq_q=int(cell.seq_q),
            seq_kv=int(cell.seq_kv),
            head_dim=LATENT_WIDTHS[0] if mla else int(cell.head_dim),
            head_dim_v=LATENT_WIDTHS[1] if mla else int(cell.head_dim_v),
            causal=file.kind != "encoder",
            window=int(cell.window) or None,
            cache="warm",
            launch="graph",
            version=f"{file.framework} {file.version}",
            clock_mhz=None,
            page_size=page_size(file, kernel),
            options={"kernel": kernel}
            | ({} if dtype == kv_dtype else {"kv_dtype": kv_dtype})
            | ({"latent": LATENT} if mla else {}),
            time_s=float(cell.time_s),
            source=f"{PACKAGE}-{VERSION}/{file.name}",
            assumed=(),
        )
