"""What our model says of the speed goals of docs/kernels.md, and of sparse time against visited tiles.

    python benchmarks/gpu_goals.py

Nothing here is measured: `benchmarks/gpu_run.py` does that. A forward or backward goal is the speed of our kernel over
FlashAttention's on the same question: 16k tokens a batch, 2,048 / d heads, bf16, cold L2. Decode's is over a kernel
that only reads as much: its bytes at the HBM rate of the model, and the same launch. Sparse is a window of falling
width, its time over that of the widest: a tile of 64 x 64 in which something is seen, and a score of the tiles that the
kernel visits, which may be taller.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

import attnsim
from attnsim.models.calibrations.calibration import numbers_of
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

A100, H100 = "a100-sxm4-80gb", "h100-sxm5-80gb"
GOALS = (
    ("flash", 1.0, "flash-2", "fwd", "attnsim.flash", "flash-attn.2", (A100, H100)),
    ("flash for Hopper", 0.95, "flash-3", "fwd", "attnsim.flash-hopper", "flash-attn.3", (H100,)),
    ("backward", 0.95, "flash-2", "bwd", "attnsim.flash-backward", "flash-attn.2", (A100, H100)),
)
DECODE_GOAL = 0.92
TILE = 64
"""Rows and keys of the tiles in which something is seen."""


def seconds(w: Workload, gpu: str, algorithm: str, implementation: str) -> Any:
    """The prediction of one question."""
    return attnsim.predict(w, gpu, algorithm, implementation=implementation, baseline=False, cache="cold")


def beside_flash_attention() -> Iterator[dict[str, Any]]:
    """Our kernels' speeds over FlashAttention's."""
    for name, goal, algorithm, passes, ours, theirs, gpus in GOALS:
        for gpu, head_dim, causal, seq in itertools.product(gpus, (64, 128), (False, True), (4096, 16384)):
            mask = Mask.causal() if causal else Mask()
            w = Workload(16384 // seq, 2048 // head_dim, seq, head_dim, mask=mask, passes=passes)
            mine, other = (seconds(w, gpu, algorithm, one).time_s for one in (ours, theirs))
            row = {"kernel": name, "gpu": gpu, "head_dim": head_dim, "mask": "causal" if causal else "full", "seq": seq}
            yield {**row, "goal": goal, "predicted": round(other / mine, 3)}


def beside_reading() -> Iterator[dict[str, Any]]:
    """Decode's speed over that of a kernel that only reads K and V."""
    for gpu, head_dim, (batch, seq) in itertools.product((A100, H100), (64, 128), ((64, 8192), (8, 32768), (1, 65536))):
        machine = attnsim.load_gpu(gpu)
        w = Workload(batch, 32, 1, head_dim, heads_kv=8, seq_kv=seq, passes="decode")
        found = seconds(w, gpu, "split-kv", "attnsim.decode")
        rate = machine.hbm.bandwidth_bytes_per_s * numbers_of(machine)[0].hbm_fraction
        reading = 2 * batch * 8 * seq * head_dim * 2 / rate + found.launch_s
        row = {"kernel": "decode", "gpu": gpu, "head_dim": head_dim, "mask": "full", "seq": seq, "batch": batch}
        yield {**row, "goal": DECODE_GOAL, "predicted": round(reading / found.time_s, 3)}


def by_visited_tiles(gpu: str, head_dim: int, seq: int) -> Iterator[dict[str, Any]]:
    """Sparse time over that of the widest window, a tile and a visited score."""
    first: tuple[float, ...] = ()
    for share in (2, 4, 8, 16, 32, 64):
        width = seq // (2 * share)
        w = Workload(1, 16, seq, head_dim, mask=Mask.sliding_window(width, causal=False))
        tiles = sum(min(seq, row + TILE + width) // TILE - max(0, row - width) // TILE for row in range(0, seq, TILE))
        found = seconds(w, gpu, "sparse", "attnsim.sparse")
        each = found.time_s / tiles, found.time_s / found.flops_executed
        first = first or each
        row = {"kernel": "sparse", "gpu": gpu, "head_dim": head_dim, "seq": seq}
        row |= {"density": round(tiles / (seq // TILE) ** 2, 4), "tile": found.tile}
        names = "time_a_tile", "time_a_visited_score"
        yield row | {name: round(one / widest, 3) for name, one, widest in zip(names, each, first, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="rows as JSON lines")
    options = parser.parse_args()
    windows = itertools.product((A100, H100), (64, 128), (16384, 65536))
    sparse = itertools.chain.from_iterable(by_visited_tiles(*one) for one in windows)
    for row in itertools.chain(beside_flash_attention(), beside_reading(), sparse):
        print(
            json.dumps(row) if options.json else "  ".join(f"{key} {value}" for key, value in row.items()), flush=True
        )


if __name__ == "__main__":
    main()
