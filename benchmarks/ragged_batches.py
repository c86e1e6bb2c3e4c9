"""Batches of random lengths: how far default mode is from exact mode, and how long a prediction of 512 sequences takes.

    python benchmarks/ragged_batches.py [--batches 200] [--seed 0]

Prefill, decode and mixed batches by every library that takes lengths, in both modes with the same numbers. Prints one
line a kind of batch; and of 512 sequences how long this process computes for a prediction, and how far off batches of
as many are.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

from attnsim.api.asking import ask, read_conditions
from attnsim.api.playing import play
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation, runs_on
from attnsim.models.question.length_sources import read_lengths
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-4090", "b200-sxm-180gb")
RUN_BY = (
    "flash-attn.2", "flash-attn.3", "vllm.flash-attn-2", "vllm.flash-attn-3", "sglang.fa3", "flashinfer.fa2",
    "flashinfer.fa3", "flash-attn.4", "vllm.flash-attn-4", "nvidia.cudnn", "tensorrt-llm.attention",
)  # fmt: skip
KINDS = ("prefill", "decode", "mixed")
LARGE = "lognormal 512 median 2048 sigma 1"


def drawn(rng: random.Random, kind: str) -> Workload:
    """A batch of a kind, of lengths that a GPU plays whole in a second or two."""
    lengths = []
    for _ in range(rng.randint(2, 40)):
        keys = min(16384, max(1, round(rng.lognormvariate(6.5, 1.2))))
        queries = 1 if kind == "decode" or (kind == "mixed" and rng.random() < 0.8) else rng.randint(1, min(keys, 2048))
        lengths.append(Length(queries, keys))
    heads, group = rng.choice((8, 16, 32)), rng.choice((1, 4, 8))
    passes = "decode" if kind == "decode" else "fwd"
    given = {"head_dim": rng.choice((64, 128)), "causal": True, "passes": passes, "lengths": lengths}
    return Workload(heads_q=heads, heads_kv=heads // group, **given)


def compared(count: int, seed: int) -> Iterator[tuple[str, str, str, float, float]]:
    """Kind, implementation, GPU, default over exact time less one, and the spread that the default tells, of each."""
    rng = random.Random(seed)
    pairs = [(name, gpu) for name in RUN_BY for gpu in GPUS if runs_on(find_implementation(name), load_gpu(gpu))]
    for number in range(count):
        kind, (name, gpu) = KINDS[number % len(KINDS)], pairs[number % len(pairs)]
        w = drawn(rng, kind)
        times, spread = [], 0.0
        for mode in ("fast", "exact"):
            played = play(ask(w, gpu, "flash", name, read_conditions(mode=mode, launch="kernel"))).replay
            assert played is not None, w
            times.append(played.time_s)
            spread = max(spread, played.spread)  # exact mode plays once and tells none
        yield kind, name, gpu, times[0] / times[1] - 1, spread


MANY = (
    ("flash-attn.2", GPUS[0]),
    ("vllm.flash-attn-2", GPUS[0]),
    ("flashinfer.fa2", GPUS[0]),
    ("vllm.flash-attn-3", GPUS[1]),
)
"""Who is asked for a batch of 512 sequences."""


DRAWS = 16
"""Batches of 512 sequences of each kind."""


def many(name: str, gpu: str, passes: str) -> list[float]:
    """Default over exact time less one of batches of 512 sequences, prefill of few heads and short."""
    errors = []
    for seed in range(DRAWS):
        text = LARGE if passes == "decode" else LARGE.replace("2048", "512")
        lengths = read_lengths(f"{text} seed {40 + seed}", passes == "decode")
        heads = 32 if passes == "decode" else 8
        w = Workload(heads_q=heads, heads_kv=heads // 4, head_dim=128, causal=True, passes=passes, lengths=lengths)
        asked = [ask(w, gpu, "flash", name, read_conditions(mode=mode, launch="kernel")) for mode in ("fast", "exact")]
        fast, exact = (play(one).replay for one in asked)
        assert fast is not None and exact is not None, w
        errors.append(fast.time_s / exact.time_s - 1)
    return errors


def large(name: str, gpu: str, passes: str) -> float:
    """Seconds of this process for a prediction of 512 sequences, the median of several draws."""
    spent = []
    for seed in range(6):
        lengths = read_lengths(f"{LARGE} seed {seed}", passes == "decode")
        begun = time.process_time()
        w = Workload(heads_q=32, heads_kv=8, head_dim=128, causal=True, passes=passes, lengths=lengths)
        play(ask(w, gpu, "flash", name, read_conditions()))
        spent.append(time.process_time() - begun)
    return statistics.median(spent[1:])


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = list(compared(given.batches, given.seed))
    for kind in (*KINDS, "all"):
        errors = [abs(error) for one, _, _, error, _ in found if kind in (one, "all")]
        beyond = [max(0.0, abs(error) - spread) for one, _, _, error, spread in found if kind in (one, "all")]
        if errors:
            print(
                f"{kind}: {len(errors)} batches, median {statistics.median(errors):.2%}, worst {max(errors):.2%}, "
                f"beyond the spread told {max(beyond):.2%}"
            )
    for kind, name, gpu, error, spread in sorted(found, key=lambda one: -abs(one[3]))[:3]:
        print(f"  worst: {kind} by {name} on {gpu}, {error:+.2%}, spread {spread:.2%}")
    for name, gpu in MANY:
        for passes in ("decode", "fwd"):
            off = [abs(error) for error in many(name, gpu, passes)]
            told = f"{statistics.mean(off):.1%} in the mean, median {statistics.median(off):.1%}, worst {max(off):.1%}"
            spent = 1e3 * large(name, gpu, passes)
            print(f"512 sequences, {passes}, {name}: {spent:.0f} ms of this process; of {DRAWS} off by {told}")


if __name__ == "__main__":
    main()
