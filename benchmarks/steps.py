"""Steps of whole models against servers that were timed; nothing here is fitted.

    python benchmarks/steps.py [--rows FILE]

The package of the `datasets` extra has a table of servers under a constant load, ``systems/silicon_sample.csv``:
SemiAnalysis' InferenceMAX and NVIDIA's own runs. A row says model, GPU, GPUs that share it, prompt and output of a
request, how many requests run at a time, and the measured time of a token, a mean over all requests (TPOT). It is read
in place and not copied here.

Measured is therefore a mean of steps, the host's work between them included. Predicted is the same mean: while one
request makes its tokens, each of the others has a prompt computed in one of the steps, so that of `osl` steps
`batch - 1` have a prompt beside those that decode, at half of their output. InferenceMAX draws lengths from 0.8 of what
a row says to all of it (``RANDOM_RANGE_RATIO``); their mean is taken.

Taken are servers whose model and formats a step has (fp8 and bf16 throughout, no pipeline, no attention that is shared
out by requests). What a row does not say is assumed: the cache has the format of the weights, the LM head too.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.api.step import step
from attnsim.errors import InputError
from attnsim.models.llm.files import load_model
from attnsim.validation.measured.aiconfigurator_files import SYSTEMS, installed_folder

MODELS = {
    "meta-llama/Llama-3.1-70B": "meta-llama--Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama--Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama--Meta-Llama-3.1-8B",
    "Qwen/Qwen3-32B": "Qwen--Qwen3-32B",
    "Qwen/Qwen3-235B-A22B-FP8": "Qwen--Qwen3-235B-A22B-FP8",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxAI--MiniMax-M2.5",
    "Qwen/Qwen3.5-397B-A17B": "Qwen--Qwen3.5-397B-A17B",
    "deepseek-ai/DeepSeek-R1": "deepseek-ai--DeepSeek-R1",
}
LIBRARIES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
DRAWN = 0.9
"""Mean of lengths that InferenceMAX draws."""
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
    drawn: bool

    @property
    def group(self) -> tuple[object, ...]:
        """Rows among which a user chooses."""
        return self.model, self.system, self.backend, self.dtype, self.isl, self.osl

    def predicted(self, folder: Path) -> tuple[float, float, float]:
        """Seconds of a mean step, and its 90 % range."""
        share = DRAWN if self.drawn else 1.0
        isl, osl = round(share * self.isl), round(share * self.osl)
        model = load_model(str(folder / "model_configs" / f"{MODELS[self.model]}_config.json"))
        decoding = f"1:{isl + osl // 2} x {self.batch}"
        mixed = f"1:{isl + osl // 2} x {self.batch - 1}, {isl}:{isl}"
        how = {"tp": self.tp, "dtype": self.dtype, "library": LIBRARIES[self.backend]}
        how |= {"ep": self.ep} if self.ep > 1 else {}
        alone = step(model, SYSTEMS[self.system], decoding, **how)  # type: ignore[arg-type]
        beside = step(model, SYSTEMS[self.system], mixed, **how)  # type: ignore[arg-type]
        part = min(1.0, (self.batch - 1) / osl)
        low, time, high = (
            (1 - part) * getattr(alone, name) + part * getattr(beside, name)
            for name in ("time_low_s", "time_s", "time_high_s")
        )
        return low, time, high


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
            "a model or GPU that is not taken": row["model_path"] not in MODELS or row["system"] not in SYSTEMS,
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
            tp, ep, row["precision"], drawn,
        )  # fmt: skip
        taken[one].append(1e-3 * row["silicon_tpot_ms"])
    return {one: median(times) for one, times in taken.items()}, left


def ordered(found: Sequence[tuple[Server, float, float]], per_gpu: bool) -> tuple[int, int]:
    """Pairs of one group whose order is right, and all that have one; by time, or by tokens a second and GPU."""
    right = pairs = 0
    groups = defaultdict(list)
    for server, measured, predicted in found:
        scale = server.tp / server.batch if per_gpu else 1.0
        groups[server.group].append((measured * scale, predicted * scale))
    for group in groups.values():
        for (m1, p1), (m2, p2) in itertools.combinations(group, 2):
            if abs(m1 / m2 - 1) > ALIKE:
                pairs += 1
                right += (m1 > m2) == (p1 > p2)
    return right, pairs


def told(name: str, found: Sequence[tuple[Server, float, float]], within: int) -> str:
    """A line of the table."""
    errors = [abs(predicted / measured - 1) for _, measured, predicted in found]
    bias = median(predicted / measured for _, measured, predicted in found)
    orders = [
        f"{right / pairs:5.0%} of {pairs:6,}"
        for right, pairs in (ordered(found, one) for one in (False, True))
        if pairs
    ]
    return (
        f"{name:58} {len(found):5} {mean(errors):6.1%} {median(errors):6.1%} {bias:6.2f} {within / len(found):6.0%}   "
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
    found, covered, refused = [], {}, Counter[str]()
    for server, measured in timed.items():
        try:
            low, time, high = server.predicted(folder)
        except InputError as error:
            refused[str(error).split(";")[0][:100]] += 1
            continue
        found.append((server, measured, time))
        covered[server] = low <= measured <= high
    print(f"{'':58} {'rows':>5} {'mean':>6} {'median':>6} {'ratio':>6} {'range':>6}   order by time, by tokens a GPU")
    for keys in ("model", "system", "backend", "tp", ""):
        by = defaultdict(list)
        for one in found:
            by[f"{keys} {getattr(one[0], keys)}" if keys else "all"].append(one)
        for name, some in sorted(by.items()):
            print(told(name, some, sum(covered[one] for one, _, _ in some)))
    for what, counts in (("not taken", left), ("refused", refused)):
        for said, number in counts.most_common():
            print(f"{what}: {number:5} {said}")
    if rows_to:
        lines = [f"{measured:.6g},{time:.6g},{time / measured:.3f},{server}" for server, measured, time in found]
        rows_to.write_text("\n".join(["measured_s,predicted_s,ratio,server", *lines]) + "\n")


if __name__ == "__main__":
    main()
