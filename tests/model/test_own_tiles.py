"""The tiles that our dense and our sparse kernel choose, against a replay of each compiled one."""

from __future__ import annotations

from itertools import product
from statistics import mean

import pytest

from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.own import flash, sparse
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay

QUESTIONS = [
    Workload(1, heads, seq, head_dim, mask=mask)
    for seq, heads, head_dim in product((2048, 16384), (8, 16), (64, 128))
    for mask in (Mask.causal(), *(Mask.sliding_window(seq // share, causal=False) for share in (8, 32, 64)))
]


@pytest.mark.parametrize("gpu_name", ["a100-sxm4-80gb", "h100-sxm5-80gb", "l40s"])
@pytest.mark.parametrize(
    ("implementation", "tiles", "choice", "schedule_of"),
    [
        ("attnsim.flash", flash.able_tiles, flash.choose_tile, flash.schedule_of),
        ("attnsim.sparse", sparse.able_tiles, sparse.choose_tile, sparse.schedule_of),
    ],
    ids=["dense", "sparse"],
)
def test_a_chosen_tile_is_hardly_slower_than_the_best(implementation, tiles, choice, schedule_of, gpu_name) -> None:  # type: ignore[no-untyped-def]
    """Up to head_dim 128."""
    gpu = load_gpu(gpu_name)
    numbers = choose(find_implementation(implementation), gpu).numbers
    regrets = {}
    for w in QUESTIONS:
        times = {
            tile: replay(schedule_of(w, gpu, tile), gpu, numbers, budget=60_000, cache="cold").time_s
            for tile in tiles(w, gpu)
        }
        regrets[str(w)] = times[choice(w, gpu)] / min(times.values()) - 1
    assert max(regrets.values()) < 0.06 and mean(regrets.values()) < 0.005, regrets
