"""attnsim beside other tools on rows that none of them was made from: `python benchmarks/peers.py [--write]`.

The same measured rows are put to each tool in one process, one question after the other. A tool that cannot be had is
named with what to do for it, and has no figures. `--write` puts the tables into docs/index.md, dated; then all must be
there. None of them is needed by attnsim or its tests:

    pip install genz-llm==0.0.16 seaborn plotnine paretoset statsmodels aiconfigurator-core==0.12.0
    git clone https://github.com/zksainx/pipeweave && git -C pipeweave checkout 55e0317
    PIPEWEAVE=pipeweave python benchmarks/peers.py

- GenZ (Bambhaniya et al., arXiv:2406.01698): the operators Logit and Attend, with the scores on the chip (off it where
  attention is unfused) and a GPU by its FLOP/s and bandwidth, its own entry where it has one.
- AIConfigurator (NVIDIA): the package that its estimates come from; its tables of vLLM, else SGLang, else TensorRT-LLM.
  It states a causal prompt, decode by batch and length, and an encoder; parts of a mixed call are added up.
- PipeWeave (Zhang et al., arXiv:2601.14910): its analytical features and the newest weights in its repository.
- Roofline: the longer of useful FLOPs at the peak and bytes that must come and go at the bandwidth of the datasheet;
  unfused attention moves its scores four times.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import logging
import os
import pickle
import sys
import time
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.api.answering import answer
from attnsim.api.tables import question_of
from attnsim.errors import InputError
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.question.workload import Workload
from attnsim.validation.checking.batches import FORWARDS, MIXED, SKEWED
from attnsim.validation.measured.aiconfigurator_files import SYSTEMS
from attnsim.validation.measured.datasets import Row, batches, error_summary, published_cases, row_of
from attnsim.validation.measured.sources import role_of
from benchmarks.refresh_readme import in_place

PAGE = Path(__file__).resolve().parents[1] / "docs" / "index.md"
CHAPTERS = ("prefill", "decode", "ragged", "unfused")


class Tool(ABC):
    """Somebody's prediction of a row.

    Parameters
    ----------
    name : str
    missing : str
        Why it cannot be had here, and what to do; "" where it can.
    """

    name = ""
    missing = ""
    kernels: ClassVar[dict[str, tuple[str, ...]]] = {}
    """The kernels that it was made for, by architecture or "" for the others; nothing where it knows none."""

    @abstractmethod
    def ask_s(self, row: Row) -> float | None:
        """Seconds, or None of a row that the tool cannot state."""


class Attnsim(Tool):
    name = "attnsim"

    def ask_s(self, row: Row) -> float | None:
        with suppress(InputError):
            return answer(question_of(row.case)).time_s
        return None


class Roofline(Tool):
    name = "roofline"

    def ask_s(self, row: Row) -> float | None:
        w, flops = row.workload, MECHANISMS["flash"].useful(row.workload).flops
        moved = sum(
            one.times * (one.queries * w.heads_q + one.keys * w.heads_kv) * (w.head_dim + w.head_dim_v)
            for one in w.parts
        )
        moved += 4 * w.batch * w.heads_q * w.seq_q * w.seq_kv * (kind(row) == "unfused")
        return float(max(flops / peak_flops(row), 2 * moved / row.gpu.hbm.bandwidth_bytes_per_s))


class GenZ(Tool):
    name = "GenZ 0.0.16"
    OWN: ClassVar = {"a100-sxm4-40gb": "A100_40GB_GPU", "a100-sxm4-80gb": "A100_80GB_GPU", "h100-sxm5-80gb": "H100_GPU"}

    def __init__(self) -> None:
        try:
            self.package = importlib.import_module("GenZ")
            self.operators = importlib.import_module("GenZ.analyse_model")
        except ImportError as error:
            self.missing = f"{error}; pip install genz-llm==0.0.16 seaborn plotnine paretoset statsmodels"

    def ask_s(self, row: Row) -> float | None:
        w, models = row.workload, self.operators
        gpu: Any = self.OWN.get(row.gpu.base_id) or {
            "Flops": peak_flops(row) / 1e12, "Memory_BW": row.gpu.hbm.bandwidth_bytes_per_s / 1e9, "real_values": True
        }  # fmt: skip
        system = self.package.get_inference_system(gpu)
        off, on = models.ResidencyInfo.All_offchip, models.ResidencyInfo
        layers = []
        for one in w.parts:
            first, second = (on.AC_onchip, on.AC_onchip) if one.queries == 1 else (on.C_onchip, on.A_onchip)
            if kind(row) == "unfused":
                first = second = off
            shape = (one.times, w.heads_q, one.queries, one.keys)
            layers.append(["Logit", *shape, w.head_dim, w.heads_kv, first, models.OpType.Logit])
            layers.append(["Attend", *shape, w.head_dim_v, w.heads_kv, second, models.OpType.Attend])
        return float(models.analysis_model(layers, system)["Latency (msec)"].sum()) / 1e3


class AIConfigurator(Tool):
    name = "AIConfigurator 0.12.0"
    SYSTEMS: ClassVar = {gpu: system for system, gpu in SYSTEMS.items()} | {"b300-sxm": "b300_sxm", "gb300": "gb300"}

    kernels: ClassVar = {
        "hopper": ("flash-attn.3", "vllm.flash-attn-3"), "blackwell": ("flash-attn.4",),
        "": ("flash-attn.2", "vllm.flash-attn-2"),
    }  # fmt: skip

    def __init__(self) -> None:
        self.read: dict[tuple[str, str], Any] = {}
        try:
            self.operations = importlib.import_module("aiconfigurator_core.sdk.operations")
            self.common = importlib.import_module("aiconfigurator_core.sdk.common")
            self.databases = importlib.import_module("aiconfigurator_core.sdk.perf_database")
            self.refusal = importlib.import_module("aiconfigurator_core.sdk.errors").PerfDataNotAvailableError
        except ImportError as error:
            self.missing = f"{error}; pip install aiconfigurator-core==0.12.0"

    def database(self, system: str, framework: str) -> Any:
        """The tables of a framework on a system, read once; None where the package has none."""
        if (system, framework) not in self.read:
            with suppress(Exception):
                self.read[system, framework] = self.databases.get_database(system, framework, "current")
        return self.read.get((system, framework))

    def ask_s(self, row: Row) -> float | None:
        system = self.SYSTEMS.get(row.gpu.base_id)
        if system is None or kind(row) == "unfused" or row.workload.head_dim != row.workload.head_dim_v:
            return None
        for framework in ("vllm", "sglang", "trtllm"):
            database = self.database(system, framework)
            if database is not None:
                with suppress(self.refusal):
                    return sum(
                        float(operation._engine_query(database, **asked)) / 1e3
                        for operation, asked in self.stated(row.workload)
                    )
        return None

    def stated(self, w: Workload) -> Iterator[tuple[Any, dict[str, int]]]:
        """The operations whose times make the call's; a refusal where one cannot be stated."""
        cache, format_ = self.common.KVCacheQuantMode.bfloat16, self.common.FMHAQuantMode.bfloat16
        decodes = [one for one in w.parts if one.queries == 1]
        for one in w.parts:
            if one.queries > 1 and w.mask.is_causal:
                made = self.operations.ContextAttention(
                    "", 1.0, w.heads_q, w.heads_kv, cache, format_, head_size=w.head_dim
                )
                yield made, {"batch_size": one.times, "s": one.queries, "prefix": one.keys - one.queries}
            elif one.queries > 1:
                if w.heads_q != w.heads_kv or one.queries != one.keys:
                    raise self.refusal("an encoder has equal heads and lengths")
                made = self.operations.EncoderAttention("", 1.0, w.heads_q, w.head_dim, fmha_quant_mode=format_)
                yield made, {"batch_size": one.times, "s": one.queries}
        if decodes:
            count = sum(one.times for one in decodes)
            mean = round(sum(one.times * one.keys for one in decodes) / count)
            made = self.operations.GenerationAttention("", 1.0, w.heads_q, w.heads_kv, cache, head_size=w.head_dim)
            yield made, {"batch_size": count, "s": mean}


class PipeWeave(Tool):
    name = "PipeWeave 55e0317"
    GPUS: ClassVar = {
        "a100-sxm4-80gb": "A100", "a40": "A40", "h100-sxm5-80gb": "H100", "h20": "H20", "h200-sxm-141gb": "H200",
        "h800-sxm": "H800", "l20": "L20", "l40": "L40", "rtx-6000-ada": "RTX 6000 Ada", "rtx-a6000": "RTX A6000",
        "rtx-pro-6000-server": "RTX PRO 6000 S",
    }  # fmt: skip
    LIKE_FA3 = ("flash-attn.3", "vllm.flash-attn-3", "nvidia.cudnn")
    """Kernels whose prefill is asked as its FA3 on Hopper; all others, and decode as its own tool does, as its FA2."""
    kernels: ClassVar = {
        "hopper": ("flash-attn.3", "vllm.flash-attn-3", "flashinfer.fa2"),
        "": ("flash-attn.2", "vllm.flash-attn-2", "flashinfer.fa2"),
    }  # fmt: skip

    def __init__(self) -> None:
        self.folder = Path(os.environ.get("PIPEWEAVE", "pipeweave"))
        if not (self.folder / "analytical_model").is_dir():
            self.missing = (
                f"no checkout of github.com/zksainx/pipeweave at {self.folder}; git clone it, checkout 55e0317 and set "
                "PIPEWEAVE to its folder"
            )
            return
        sys.path.insert(0, str(self.folder / "analytical_model"))
        self.pipes = importlib.import_module("pipes")
        self.calculators = {
            name: getattr(importlib.import_module(f"{name}_calculator"), f"calculate_{name}_params")
            for name in ("fa2", "fa3")
        }

    @cached_property
    def weights(self) -> dict[str, Any]:
        newest = max((self.folder / "mlp_models" / "attn").iterdir()) / "attn_mlp_model.pth"
        return read_weights(newest)

    def hardware(self, gpu: str) -> Any:
        told = json.loads((self.folder / "hardware" / f"{self.GPUS[gpu]}.json").read_text(encoding="utf-8"))
        return self.pipes.HardwareSpec(
            tc_fp8=told.get("tcFp8", 0), tc_bf16=told["tcBf16"], xu_fp32=told["xuFp32"], fma_fp32=told["FmaFp32"],
            num_sms=told["numSms"], sm_freq=told["smFreq"], mem_bandwidth=told["memBandwidth"],
            l2_cache_bandwidth=told["l2CacheBandwidth"], shared_memory_bandwidth=told["sharedMemoryBandwidth"],
            shared_memory_size=told.get("sharedMemorySize"),
        )  # fmt: skip

    def ask_s(self, row: Row) -> float | None:
        w = row.workload
        if row.gpu.base_id not in self.GPUS or kind(row) == "unfused" or w.head_dim != w.head_dim_v:
            return None
        hardware = self.hardware(row.gpu.base_id)
        each = [one for one in w.parts for _ in range(one.times)]
        problem = self.pipes.FaProblemConfig(
            batch_size=len(each), q_lengths=[one.queries for one in each], kv_lengths=[one.keys for one in each],
            num_qo_heads=w.heads_q, num_kv_heads=w.heads_kv, head_dim=w.head_dim,
            layout="paged" if any(one.queries == 1 for one in each) else "ragged",
            data_size_q=2, data_size_kv=2, data_size_o=2, causal=w.mask.is_causal or w.seq_q == 1,
        )  # fmt: skip
        third = row.gpu.architecture == "hopper" and row.record.name in self.LIKE_FA3 and kind(row) == "prefill"
        found = self.calculators["fa3" if third else "fa2"](problem, hardware)
        features = np.array(
            [getattr(part, name) for part, names in zip(self.parts(found), FEATURES, strict=True) for name in names]
        )
        share = sigmoid_of(np.log1p(features.astype(np.float32)), self.weights)
        return float(found.tensor_pipe.all_cycle / (share * hardware.sm_freq * 1e6))

    @staticmethod
    def parts(found: Any) -> tuple[Any, Any, Any]:
        return found.tensor_pipe, found.xu_pipe, found.memory_pipe


_PIPE = ("all_ops", "all_cycle", "sm_max_ops", "sm_max_cycle")
FEATURES = (
    _PIPE,
    _PIPE,
    (
        "global_in_flight", "global_cycle", "local_cycle", "sm_max_in_flight", "sm_max_global_cycle",
        "sm_max_shared_cycle", "sm_max_local_cycle",
    ),
)  # fmt: skip
"""What PipeWeave's network is given of the tensor, exponential and memory pipes, in the order of its metadata."""


def read_weights(path: Path) -> dict[str, Any]:
    """The tensors of a PyTorch checkpoint by name, without PyTorch and without running what a pickle may name."""
    types = {"FloatStorage": np.float32, "LongStorage": np.int64}
    with zipfile.ZipFile(path) as file:
        inside = next(name for name in file.namelist() if name.endswith("/data.pkl"))

        class Reader(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                allowed = {"OrderedDict": OrderedDict, "_rebuild_tensor_v2": _tensor} | types
                if name not in allowed:
                    raise pickle.UnpicklingError(f"{module}.{name} is no part of a table of weights")
                return allowed[name]

            def persistent_load(self, pid: Any) -> Any:
                return np.frombuffer(file.read(f"{inside.removesuffix('.pkl')}/{pid[2]}"), dtype=pid[1])

        with file.open(inside) as opened:
            return dict(Reader(opened).load()["model_state_dict"])


def _tensor(values: Any, offset: int, shape: tuple[int, ...], *_: Any) -> Any:
    return values[offset : offset + int(np.prod(shape))].reshape(shape)


def sigmoid_of(x: Any, weights: dict[str, Any]) -> float:
    """The network's share of the pipe's rate: layers with ReLU and a normalisation by what training saw."""
    for layer in (0, 4, 8, 12):
        x = weights[f"network.{layer}.weight"] @ x + weights[f"network.{layer}.bias"]
        if layer < 12:
            own = {name: weights[f"network.{layer + 2}.{name}"] for name in ("running_mean", "running_var", "weight")}
            scale = own["weight"] / np.sqrt(own["running_var"] + 1e-5)
            x = (np.maximum(x, 0) - own["running_mean"]) * scale + weights[f"network.{layer + 2}.bias"]
    return float(1 / (1 + np.exp(-x[0])))


def peak_flops(row: Row) -> float:
    """The datasheet's, at the boost clock."""
    return row.gpu.tensor_flops_per_clk(row.case.dtype) * row.gpu.sm.count * row.gpu.clock.boost_hz


def kind(row: Row) -> str:
    """The chapter of a row."""
    if row.case.lengths and len(row.workload.parts) > 1:
        return "ragged"
    if row.case.algorithm == "naive":
        return "unfused"
    return "decode" if row.case.passes == "decode" else "prefill"


def rows() -> list[Row]:
    """Dense forward rows on which no number of attnsim rests, and that are no table of AIConfigurator or PipeWeave.

    Of prefill and decode neither a fit nor a width has seen the errors. No such row is ragged or unfused: there they
    are those by which kernels or mechanisms were chosen by hand, and no number fitted. LLMServingSim's skewed decode is
    of three forwards with a cold L2, as in `attnsim.validation.checking.batches` (inferred).
    """
    found = []
    for case in published_cases("test", "strangers", "choose"):
        chosen_by = role_of(case.source) == "choose"
        stated = case.passes in ("fwd", "decode") and case.window is None and case.algorithm in ("flash", "naive")
        if stated and chosen_by == (case.algorithm == "naive"):
            found.append(row_of(case))
    for row in batches(SKEWED)[2::3]:  # the third of a triple has lengths as they are
        found.append(replace(row, case=replace(row.case, cache="cold", time_s=row.measured_s / FORWARDS)))
    return found + [row for row in batches(MIXED) if kind(row) == "ragged"]


@dataclass(frozen=True)
class Line:
    """A tool on the rows of a chapter that it answers, and attnsim on the same rows."""

    chapter: str
    tool: str
    rows: int
    of: int
    errors: dict[str, float]
    ours: dict[str, float]
    each_s: float


def compare(tools: Sequence[Tool], asked: Sequence[Row]) -> list[Line]:
    """Every tool on every row; time a question is the median."""
    errors: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    for tool in tools:
        errors[tool.name], times[tool.name] = [], []
        for row in asked:
            begin = time.perf_counter()
            found = tool.ask_s(row)
            times[tool.name].append(time.perf_counter() - begin if found is not None else np.nan)
            errors[tool.name].append(np.nan if found is None else abs(found / row.measured_s - 1))
    chapters, lines = np.array([kind(row) for row in asked]), []
    for chapter in CHAPTERS:
        inside = chapters == chapter
        for tool in tools:
            mine, ours = np.array(errors[tool.name]), np.array(errors["attnsim"])
            both = inside & ~np.isnan(mine) & ~np.isnan(ours)
            made_for = both & [made(tool, row) for row in asked]
            for some, words in ((both, ""), (made_for, OWN_KERNELS)):
                if some.any() and (not words or not (some == both).all()):
                    each = float(np.nanmedian(np.array(times[tool.name])[some]))
                    theirs, own = error_summary(mine[some]), error_summary(ours[some])
                    count = int(some.sum())
                    lines.append(Line(chapter, tool.name + words, count, int(inside.sum()), theirs, own, each))
    return lines


OWN_KERNELS = ", its own kernels"


def made(tool: Tool, row: Row) -> bool:
    """Whether a row ran a kernel that a tool was made for."""
    return row.record.name in tool.kernels.get(row.gpu.architecture, tool.kernels.get("", ()))


def tools() -> list[Tool]:
    """Every tool; attnsim is first."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    return [Attnsim(), AIConfigurator(), PipeWeave(), GenZ(), Roofline()]


def table(lines: Sequence[Line]) -> str:
    """A line for every tool in every chapter; attnsim's own is first."""
    heads = ["", "tool", "rows", "mean", "median", "p90", "attnsim there: mean", "median", "p90", "a question"]
    out = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * 8]
    for line in lines:
        first = line.tool == Attnsim.name
        shares = [f"{100 * one[name]:.1f} %" for one in (line.errors, line.ours) for name in ("mean", "median", "p90")]
        cells = [line.chapter * first, line.tool, f"{line.rows} of {line.of}", *shares[: 3 if first else 6]]
        out.append(f"| {' | '.join([*cells, *[''] * 3 * first, f'{1e3 * line.each_s:.2g} ms'])} |")
    return "\n".join(out) + "\n"


def sources(asked: Sequence[Row]) -> str:
    """The sources of each chapter, by their keys."""
    names = {one: dict.fromkeys(row.case.source for row in asked if kind(row) == one) for one in CHAPTERS}
    return "; ".join(f"{chapter}: {', '.join(f'`{name}`' for name in some)}" for chapter, some in names.items())


def missing(every: Sequence[Tool]) -> list[str]:
    """A line for each tool that cannot be had here."""
    return [f"{tool.name} is not run: {tool.missing}" for tool in every if tool.missing]


def markdown(every: Sequence[Tool], asked: Sequence[Row]) -> str:
    """The table and its sources, of the tools that are there."""
    lines = compare([tool for tool in every if not tool.missing], asked)
    return f"{table(lines)}\nSources: {sources(asked)}.\n"


def block() -> dict[str, str]:
    """The generated block of docs/index.md by its name; nothing where a tool is missing."""
    every = tools()
    if missing(every):
        return {}
    taken = f"Taken on {datetime.date.today().isoformat()} with `python benchmarks/peers.py --write`.\n\n"
    return {"peers": taken + markdown(every, rows())}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/index.md, dated; every tool must be there")
    parser.add_argument("--every", type=int, default=1, help="one row in so many")
    options = parser.parse_args(arguments)
    every = tools()
    for line in missing(every):
        print(line, file=sys.stderr)
    if not options.write:
        print(markdown(every, rows()[:: options.every]), end="")
        return 0
    if made := block():
        PAGE.write_text(in_place(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    return int(not made)


if __name__ == "__main__":
    sys.exit(main())
