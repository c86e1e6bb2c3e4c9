"""Steps of whole models against servers that were timed; nothing here is fitted.

    python benchmarks/steps.py [--rows FILE]

**Servers.** The package of the `datasets` extra has a table of servers under a constant load,
``systems/silicon_sample.csv``: SemiAnalysis' InferenceMAX and NVIDIA's own runs. A row says model, GPU, GPUs that share
it, prompt and output of a request, how many requests run at a time, and the measured time of a token, a mean over all
requests (TPOT). It is read in place and not copied here.

Measured is therefore a mean of steps, the host's work between them included; how NVIDIA's own runs were timed is not
said, and some of short outputs leave no room for the prompts that ran beside them. Predicted is the same mean: while
one request makes its tokens, each of the others has a prompt computed in one of the steps, so that of `osl` steps
`batch - 1` have a prompt beside those that decode, at half of their output. InferenceMAX draws lengths from 0.8 of
what a row says to all of it (``RANDOM_RANGE_RATIO``); their mean is taken.

Taken are servers whose model and formats a step has (fp8 and bf16 throughout, no pipeline, no attention that is shared
out by requests). A table with rows that are faster than their work could be is read wrongly, and left out whole.
What a row does not say is assumed: the cache has the format of the weights.

**Layers.** The same package has times of DeepSeek-V3's attention with its projections, bf16, as a framework runs the
module (``mla_{context,generation}_module_perf``): an even sample of each table, against those parts of a step. Mixed
calls of attention alone are in `attnsim accuracy --batches`.

**Experts.** And times of DeepEP's kernels that bring tokens to experts and back, against the all-to-all of a step.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.api.step import step
from attnsim.api.step_answer import StepAnswer
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.collectives.collective import collective_time
from attnsim.models.implementations.collectives.known import COLLECTIVES
from attnsim.models.llm.files import load_model
from attnsim.models.llm.model import Model
from attnsim.validation.measured.aiconfigurator_files import FACTS, SYSTEMS, installed_folder

Asked = TypeVar("Asked", "Server", "Module", "Exchange")
MODELS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama--Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama--Meta-Llama-3.1-8B",
    "Qwen/Qwen3-32B": "Qwen--Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "Qwen/Qwen3.5-397B-A17B": "Qwen--Qwen3.5-397B-A17B",
    "deepseek-ai/DeepSeek-V3": "deepseek-ai--DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1": "deepseek-ai--DeepSeek-R1",
}
DRAFTING = ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "MiniMaxAI/MiniMax-M2.5", "Qwen/Qwen3.5-397B-A17B")
"""Models that can draft tokens with layers of their own. Rows of InferenceMAX's files do not say whether they do: one
question has times that differ by up to 2.3. Those of its database are the slower ones each time, and are taken."""
GPUS = SYSTEMS | {"b300_sxm": "b300-sxm"}
LIBRARIES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
DRAWN = 0.9
"""Mean of lengths that InferenceMAX draws."""
FASTEST = 0.85
"""Of the tensor cores' rate, as the fastest product of the package's tables: 1,678 TFLOP/s in fp8 on H200."""
EP = 8
"""GPUs of the rows of DeepEP's low-latency kernels, which do not say it."""
SAMPLE = 60
"""Rows of a table of modules, about."""
ALIKE = 0.02
"""Two times that differ by less have no order: what two runs of a server differ by."""


@dataclass(frozen=True)
class Server:
    """A row: what was timed."""

    model: str
    system: str
    backend: str
    isl: int
    osl: int
    batch: int
    tp: int
    ep: int
    dtype: str
    blocks: bool
    drawn: bool

    @property
    def table(self) -> str:
        """Rows that one reading has to fit."""
        return f"{self.source}, {self.model}, {self.backend}"

    @property
    def source(self) -> str:
        """Whose runs they are."""
        return "InferenceMAX" if self.drawn else "NVIDIA"

    @property
    def group(self) -> tuple[object, ...]:
        """Rows among which a user chooses."""
        return self.model, self.system, self.backend, self.dtype, self.isl, self.osl

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens of a prompt, and of what is made of it."""
        share = DRAWN if self.drawn else 1.0
        return round(share * self.isl), round(share * self.osl)

    @property
    def mixed(self) -> float:
        """Share of the steps that have a prompt beside those that decode."""
        return min(1.0, (self.batch - 1) / self.lengths[1])

    def steps(self, folder: Path) -> tuple[StepAnswer, StepAnswer]:
        """A step of sequences that decode, and one with a prompt beside them."""
        isl, osl = self.lengths
        model = load_model(str(folder / "model_configs" / f"{MODELS[self.model]}_config.json"))
        model = replace(model, fp8_blocks=model.fp8_blocks or self.blocks)
        how = {"tp": self.tp, "dtype": self.dtype, "library": LIBRARIES[self.backend]}
        how |= {"ep": self.ep} if self.ep > 1 else {}
        keys = isl + osl // 2
        decode, mixed = (
            step(model, GPUS[self.system], lengths, **how)  # type: ignore[arg-type]
            for lengths in (f"1:{keys} x {self.batch}", f"1:{keys} x {self.batch - 1}, {isl}:{isl}")
        )
        return decode, mixed

    def predicted(self, folder: Path) -> tuple[float, float, float]:
        """Seconds of a mean step, and its 90 % range."""
        decode, mixed = self.steps(folder)
        low, time, high = (
            (1 - self.mixed) * getattr(decode, name) + self.mixed * getattr(mixed, name)
            for name in ("time_low_s", "time_s", "time_high_s")
        )
        return low, time, high

    def least(self, folder: Path) -> float:
        """Seconds below which no mean step is: prompts as the fastest product runs, and the cache read at full rate."""
        decode, mixed = self.steps(folder)
        gpu = load_gpu(GPUS[self.system])
        rate = FASTEST * gpu.tensor_flops_per_clk(self.dtype) * gpu.sm.count * gpu.clock.full_hz
        flops = [sum(number * part.flops_useful for number, part in one.parts) for one in (decode, mixed)]
        cached = decode.memory.cache_bytes / gpu.hbm.bandwidth_bytes_per_s
        return (self.batch - 1) / self.lengths[1] * (flops[1] - flops[0]) / rate + (1 - self.mixed) * cached


@dataclass(frozen=True)
class Module:
    """A row of a layer's attention with its projections."""

    system: str
    framework: str
    passes: str
    lengths: str
    heads: int
    kernel: str
    tp: int = 1
    batch: int = 1

    @property
    def group(self) -> tuple[object, ...]:
        """Rows of one table."""
        return self.system, self.framework, self.passes, self.kernel

    def predicted(self, whole: Model) -> tuple[float, float, float]:
        """Seconds of those parts, and their 90 % range."""
        mine = replace(whole, heads_q=self.heads, heads_kv=self.heads)
        gpu = load_gpu(SYSTEMS[self.system])
        record = FACTS.kernels["latent"]["trtllm"][f"default {gpu.compute_capability_number // 10}.x"]
        taken = record if self.framework == "trtllm" and self.passes == "generation" else None
        found = step(mine, gpu, self.lengths, implementation=taken)
        parts = [
            part for _, part in found.parts if part.group in ("attention", "projections") or part.name == "cache write"
        ]
        low, time, high = (
            sum(getattr(part, name) or 0.0 for part in parts) for name in ("time_low_s", "time_s", "time_high_s")
        )
        return low, time, high


@dataclass(frozen=True)
class Exchange:
    """A row of DeepEP: tokens to experts, or back."""

    system: str
    kernels: str
    phase: str
    tokens: int
    hidden: int
    copies: int
    ep: int
    tp: int = 1
    batch: int = 1

    @property
    def size(self) -> str:
        """Few tokens of a GPU, or many."""
        return "up to 64 tokens" if self.tokens <= 64 else "more"

    @property
    def group(self) -> tuple[object, ...]:
        """Rows of one table."""
        return self.system, self.kernels, self.phase

    def predicted(self) -> tuple[float, float, float]:
        """Seconds, and their 90 % range."""
        bytes_each = 1 if self.phase == "dispatch" and self.kernels == "low latency" else 2
        size = self.tokens * self.copies * self.hidden * bytes_each
        found = collective_time(COLLECTIVES["all_to_all"], size, load_gpu(SYSTEMS[self.system]), self.ep)
        return found.low_s, found.time_s, found.high_s


def exchanges(folder: Path) -> dict[Exchange, float]:
    """The measured seconds of DeepEP within a server: its low-latency kernels in fp8 and bf16, the others in bf16."""
    import pandas as pd

    found: dict[Exchange, float] = {}
    for path in sorted(folder.glob("systems/data/*/comm/*/*/*.parquet")):
        system = path.parts[-5]
        if system not in SYSTEMS or path.stem not in ("wideep_deepep_ll_perf", "moe_a2a_perf"):
            continue
        rows = pd.read_parquet(path).query("node_num == 1")
        for row in rows.to_dict("records"):
            if path.stem == "wideep_deepep_ll_perf":
                for phase in ("dispatch", "combine"):
                    shape = (row["num_token"], row["hidden_size"], row["num_topk"])
                    found[Exchange(system, "low latency", phase, *shape, EP)] = 1e-6 * row[f"{phase}_avg_t_us"]
            elif row["comm_dtype"] in ("bfloat16", "default"):
                shape = (row["num_tokens"], row["hidden_size"], row["topk"])
                one = Exchange(system, row["comm_backend"], row["phase"], *shape, row["ep_size"])
                found[one] = 1e-6 * row["latency"]
    return found


def modules(folder: Path) -> dict[Module, float]:
    """The measured seconds of an even sample of each table."""
    import pandas as pd

    found: dict[Module, float] = {}
    for path in sorted(folder.glob("systems/data/*/mla/*/*/mla_*_module_perf.parquet")):
        if path.parts[-5] not in SYSTEMS:
            continue
        rows = pd.read_parquet(path).query(
            "gemm_type == mla_dtype == kv_cache_dtype == 'bfloat16' and architecture == 'DeepseekV3ForCausalLM'"
        )
        rows = rows[(rows.isl > 1) | (path.stem == "mla_generation_module_perf")]
        for row in rows.iloc[:: max(1, len(rows) // SAMPLE)].to_dict("records"):
            new, keys = (1 if "generation" in path.stem else row["isl"]), row["isl"] + row["step"]
            one = Module(
                path.parts[-5], path.parts[-3], path.stem.split("_")[1], f"{new}:{keys} x {row['batch_size']}",
                int(row["num_heads"]), row["kernel_source"],
            )  # fmt: skip
            found[one] = 1e-3 * row["latency"]
    return found


def servers(folder: Path) -> tuple[dict[Server, float], Counter[str]]:
    """The measured seconds of each server that a step can be asked of, and how many rows are not taken."""
    import pandas as pd

    rows = pd.read_csv(folder / "systems" / "silicon_sample.csv")
    taken: dict[Server, list[float]] = defaultdict(list)
    left: Counter[str] = Counter()
    for row in rows.to_dict("records"):
        tp, ep = (
            int(row["tp_size"]) if row["tp_size"] > 0 else 0,
            int(row["moe_ep_size"]) if row["moe_ep_size"] > 0 else 1,
        )
        why = {
            "prefill and decode on servers of their own": row["mode"] != "agg",
            "weights of 4 bits": row["precision"] not in ("fp8", "bf16"),
            "a model or GPU that is not taken": row["model_path"] not in MODELS or row["system"] not in GPUS,
            "a model that drafts tokens or not, which the row does not say": row["model_path"] in DRAFTING
            and "db-dump" not in row["silicon_data_source"],
            "attention shared out by requests, or several servers": row["attention_dp_size"] > 1
            or tp > 8
            or ep not in (1, tp),
        }
        if said := next((said for said, holds in why.items() if holds), None):
            left[said] += 1
            continue
        drawn = "/" not in row["silicon_data_source"].split(";")[0] or "db-dump" in row["silicon_data_source"]
        one = Server(
            row["model_path"], row["system"], row["backend"], int(row["isl"]), int(row["osl"]), int(row["batch_size"]),
            tp, ep, row["precision"], "fp8_block" in (row["gemm_quant_mode"], row["moe_quant_mode"]), drawn,
        )  # fmt: skip
        taken[one].append(1e-3 * row["silicon_tpot_ms"])
    return {one: median(times) for one, times in taken.items()}, left


@dataclass(frozen=True)
class Held:
    """What was timed, its time, and the ends of the predicted range with the time between them."""

    asked: Server | Module | Exchange
    measured_s: float
    times_s: tuple[float, float, float]

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.times_s[1] / self.measured_s

    @property
    def covered(self) -> bool:
        """Whether the measured time lies in the range."""
        return self.times_s[0] <= self.measured_s <= self.times_s[2]


def held(
    timed: Mapping[Asked, float], predict: Callable[[Asked], tuple[float, float, float]]
) -> tuple[list[Held], Counter[str]]:
    """Every row with its prediction, and why some have none."""
    found, refused = list[Held](), Counter[str]()
    for asked, measured in timed.items():
        try:
            found.append(Held(asked, measured, predict(asked)))
        except InputError as error:
            refused[re.sub(r"\d+", "N", str(error).split(";")[0])[:100]] += 1
    return found, refused


def ordered(found: Sequence[Held], per_gpu: bool) -> tuple[int, int]:
    """Pairs of one group whose order is right, and all that have one; by time, or by tokens a second and GPU."""
    right = pairs = 0
    groups = defaultdict(list)
    for one in found:
        scale = one.asked.tp / one.asked.batch if per_gpu else 1.0
        groups[one.asked.group].append((one.measured_s * scale, one.times_s[1] * scale))
    for group in groups.values():
        for (m1, p1), (m2, p2) in itertools.combinations(group, 2):
            if abs(m1 / m2 - 1) > ALIKE:
                pairs += 1
                right += (m1 > m2) == (p1 > p2)
    return right, pairs


def table(found: Sequence[Held], keys: Sequence[str]) -> None:
    """A line for every value of each key, and of all."""
    print(f"{'':42} {'rows':>5} {'mean':>6} {'median':>6} {'ratio':>6} {'range':>6}   order by time, by tokens a GPU")
    for key in keys:
        by = defaultdict(list)
        for one in found:
            by[f"{key} {getattr(one.asked, key)}" if key else "all"].append(one)
        for name, some in sorted(by.items()):
            errors = [abs(one.ratio - 1) for one in some]
            orders = [f"{right / n:5.0%} of {n:6,}" for right, n in (ordered(some, way) for way in (False, True)) if n]
            print(
                f"{name:42} {len(some):5} {mean(errors):6.1%} {median(errors):6.1%} "
                f"{median(one.ratio for one in some):6.2f} {mean(one.covered for one in some):6.0%}   "
                f"{'   '.join(orders)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=Path, help="CSV of each server: measured and predicted")
    rows_to = parser.parse_args().rows
    folder = installed_folder()
    if folder is None:
        raise SystemExit('steps: the table of servers is not installed; pip install "attnsim[datasets]"')
    folder = next(one for one in folder.parents if (one / "model_configs").is_dir())
    warnings.simplefilter("ignore")
    timed, left = servers(folder)
    found, refused = held(timed, lambda server: server.predicted(folder))
    misread = {one.asked.table for one in found if one.measured_s < one.asked.least(folder)}
    for one in sorted(misread):
        some = [each for each in found if each.asked.table == one]
        off, ratio = mean(abs(each.ratio - 1) for each in some), median(each.ratio for each in some)
        left[f"read wrongly, since steps are faster than their work: {one} ({off:.1%} off, ratio {ratio:.2f})"] = len(
            some
        )
    found = [one for one in found if one.asked.table not in misread]
    table(found, ("model", "system", "backend", "tp", "source", ""))
    for what, counts in (("not taken", left), ("refused", refused)):
        for said, number in counts.most_common():
            print(f"{what}: {number:5} {said}")
    if rows_to:
        lines = [f"{one.measured_s:.6g},{one.times_s[1]:.6g},{one.asked}" for one in found]
        rows_to.write_text("\n".join(["measured_s,predicted_s,server", *lines]) + "\n")
    whole = load_model("deepseek-v3")
    dense = replace(whole, layers=1, mlp=whole.mlp and replace(whole.mlp, experts=None))
    print("\nDeepSeek-V3's attention with its projections")
    found, refused = held(modules(folder), lambda module: module.predicted(dense))
    table(found, ("system", "framework", "passes", ""))
    print("\nDeepEP within a server, against NCCL's all-to-all")
    found, refused = held(exchanges(folder), lambda exchange: exchange.predicted())
    table(found, ("kernels", "system", "size", ""))
    for said, number in refused.most_common():
        print(f"refused: {number:5} {said}")


if __name__ == "__main__":
    main()
