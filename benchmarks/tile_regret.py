"""What a choice among tiles loses to replaying each of them.

    python benchmarks/tile_regret.py        # the short list of `--tiles retuned`
    python benchmarks/tile_regret.py --own  # the reckoning by which our dense and our sparse kernel choose

By the model alone: relative time of the chosen tile over that of the best, for each GPU, head_dim and question. The
short list is held against every tile that fits, fp16 and the implementation's own number of stages, our kernels' choice
against every compiled tile that fits.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.own import flash, sparse, sparse_tiles
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay
from attnsim.studies.search import search_tiles

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "l40s")
PREFILLS = ((1024, 16, 1), (4096, 16, 2), (16384, 32, 1))
"""Length, heads, batch."""
OWN: tuple[tuple[str, Callable[..., Any], Callable[..., Any], Callable[..., Any], tuple[str, ...]], ...] = (
    ("attnsim.flash", flash.able_tiles, flash.choose_tile, flash.schedule_of, ("full", "causal", "causal, window 512")),
    (
        "attnsim.sparse", sparse_tiles.able_tiles, sparse_tiles.choose_tile, sparse.schedule_of,
        ("window 128", "window 512", "window 2048", "causal, window 1024", "window 256, global 16",
         "block window 1x64, global 64, random 3x64 seed 1"),
    ),
)  # fmt: skip
"""Implementation, tiles that fit, choice, schedule on a tile, masks."""


def questions(head_dim: int) -> list[Workload]:
    """Prefill, full and causal, and decode of a model with grouped heads."""
    found = [
        Workload(batch=batch, heads_q=heads, seq_q=seq, head_dim=head_dim, dtype="fp16", mask=mask)
        for seq, heads, batch in PREFILLS
        for mask in (Mask.causal(), Mask.full())
    ]
    found.append(
        Workload(
            batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=16384, head_dim=head_dim, dtype="fp16", passes="decode"
        )
    )
    return found


def short_list() -> Iterator[tuple[str, float, str]]:
    """Who chose, regret, and the question in words."""
    for name, head_dim in itertools.product(GPUS, (64, 128)):
        for question in questions(head_dim):
            found = search_tiles(question, load_gpu(name), stages=())
            yield "short list", found.regret, f"{name}: {question}; best {found.best.tile}"


def own() -> Iterator[tuple[str, float, str]]:
    """The same of our kernels' choice."""
    for name, head_dim, (implementation, tiles, choice, schedule_of, masks) in itertools.product(
        (*GPUS, "b200-sxm-180gb"), (64, 128, 256), OWN
    ):
        gpu, record = load_gpu(name), find_implementation(implementation)
        numbers = choose(record, gpu).numbers
        for mask, seq, heads in itertools.product(masks, (1024, 2500, 6000, 16384), (8, 32)):
            question = Workload(1, heads, seq, head_dim, mask=Mask.parse(mask))
            times = {
                str(tile): replay(schedule_of(question, gpu, tile), gpu, numbers, cache="cold").time_s
                for tile in tiles(question, gpu)
            }
            if len(times) > 1:
                best, chosen = min(times, key=times.__getitem__), str(choice(question, gpu))
                told = f"{implementation} on {name}: {question}; {chosen}, best {best}"
                yield implementation, times[chosen] / times[best] - 1, told


def main() -> None:
    """Print each regret, and their summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--own", action="store_true", help="the choice of our dense and our sparse kernel")
    found: dict[str, list[float]] = {}
    for who, regret, told in own() if parser.parse_args().own else short_list():
        print(f"{100 * regret:5.2f} %  {told}")
        found.setdefault(who, []).append(regret)
    for who, regrets in found.items():
        print(
            f"{who}, {len(regrets)} questions: median {100 * statistics.median(regrets):.2f} %, "
            f"mean {100 * statistics.mean(regrets):.2f} %, largest {100 * max(regrets):.2f} %, "
            f"{sum(regret <= 0.001 for regret in regrets)} within 0.1 %, "
            f"{sum(regret <= 0.01 for regret in regrets)} within 1 %"
        )


if __name__ == "__main__":
    main()
