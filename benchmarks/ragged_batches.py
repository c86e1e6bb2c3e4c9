"""Batches of random lengths: how far default mode is from exact mode, and how long a prediction of 512 sequences takes.

    python benchmarks/ragged_batches.py [--batches 200] [--seed 0]

Prefill, decode and mixed batches on A100 and H100 by every library that takes lengths, in both modes with the same
numbers. Prints one line a kind of batch, and the seconds that this process computes for a prediction of 512 sequences.
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

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-4090")
RUN_BY = (
    "flash-attn.2", "flash-attn.3", "vllm.flash-attn-2", "vllm.flash-attn-3", "sglang.fa3", "flashinfer.fa2",
    "flashinfer.fa3",
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
    for name, gpu in (("flash-attn.2", GPUS[0]), ("vllm.flash-attn-2", GPUS[0]), ("vllm.flash-attn-3", GPUS[1])):
        for passes in ("decode", "fwd"):
            print(f"512 sequences, {passes}, {name}: {1e3 * large(name, gpu, passes):.0f} ms of this process")


if __name__ == "__main__":
    main()
