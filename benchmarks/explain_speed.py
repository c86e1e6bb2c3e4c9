"""Seconds that `attnsim.explain` takes: dense, decoding, training, unfused and sparse calls, none asked before.

`python benchmarks/explain_speed.py` prints the median CPU time of each over a few batches, and where most of it goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim import Mask, Workload, explain

CAUSAL = Mask.causal()
GQA = Workload(heads_q=32, heads_kv=8, seq_q=8192, head_dim=128, mask=CAUSAL)
LONG = Workload(heads_q=16, seq_q=65536, head_dim=64)
CALLS = {
    "flash, h100": ("flash", "h100-sxm5-80gb", GQA),
    "flash-2, a100": ("flash-2", "a100-sxm4-80gb", Workload(heads_q=16, seq_q=4096, head_dim=128, mask=CAUSAL)),
    "decode, h100": ("flash", "h100-sxm5-80gb", replace(GQA, batch=16, seq_q=1, passes="decode")),
    "fwd+bwd, h100": ("flash", "h100-sxm5-80gb", replace(GQA, passes="fwd+bwd")),
    "naive, a100": ("naive", "a100-sxm4-80gb", Workload(heads_q=16, seq_q=2048, head_dim=128)),
    "sparse 64 k, h100": (
        "sparse",
        "h100-sxm5-80gb",
        replace(LONG, mask=Mask.parse("causal, window 1024, global 64")),
    ),
    "random 64 k, a100": ("sparse", "a100-sxm4-80gb", replace(LONG, mask=Mask.parse("window 512, random 3x64"))),
}


def seconds(name: str, times: int) -> float:
    """Median CPU seconds of a call over batches that were not explained before."""
    mechanism, gpu, w = CALLS[name]
    explain(w, gpu, mechanism)
    found = []
    for batch in range(1, times + 1):
        begin = time.process_time()
        explain(replace(w, batch=w.batch + batch), gpu, mechanism)
        found.append(time.process_time() - begin)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="calls of each")
    parser.add_argument("--profile", choices=CALLS, help="where one of them spends its time, in place of all")
    given = parser.parse_args()
    if given.profile:
        mechanism, gpu, w = CALLS[given.profile]
        explain(w, gpu, mechanism)
        profile = cProfile.Profile()
        profile.runcall(explain, replace(w, batch=w.batch + 1), gpu, mechanism)
        pstats.Stats(profile).sort_stats("cumulative").print_stats(30)
        return 0
    for name in CALLS:
        print(f"{name:20} {1e3 * seconds(name, given.times):5.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
