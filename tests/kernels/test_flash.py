"""The flash forward kernel in the interpreter: right on ragged and adversarial cases, with its schedule's bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.arrays import exercise_attention
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.device import Array, Grid
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.variant import Variant
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own.flash import TILES, build, choose_tile
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention, visible
from attnsim.models.schedule.row_tiles import row_tiles
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE, Outcome

label = attrgetter("label")
AssertMatches = Callable[[CpuDevice, Schedule], None]

CASES: dict[str, Workload] = {
    "one query, one key": Workload(1, 1, 1, 64, dtype="fp16"),
    "63, ragged tile": Workload(2, 1, 63, 64),
    "127 causal": Workload(1, 2, 127, 64, dtype="fp16", mask=Mask.causal()),
    "200 causal, grouped": Workload(1, 4, 200, 128, heads_kv=2, mask=Mask.causal()),
    "more keys than queries": Workload(1, 2, 70, 128, seq_kv=301, dtype="fp16", mask=Mask.causal()),
    "more queries than keys": Workload(1, 1, 150, 64, seq_kv=40, mask=Mask.causal()),
    "one key head": Workload(1, 3, 65, 64, heads_kv=1, seq_kv=129, dtype="fp16"),
    "window, causal": Workload(1, 1, 260, 64, mask=Mask.sliding_window(70)),
    "window, both ways": Workload(1, 1, 200, 128, dtype="fp16", mask=Mask.sliding_window(33, causal=False)),
    "window of one key": Workload(1, 1, 130, 64, mask=Mask.sliding_window(1)),
    "head_dim 256": Workload(1, 2, 100, 256, heads_kv=1, seq_kv=140, dtype="fp16", mask=Mask.causal()),
    "head_dim 256, bf16": Workload(1, 1, 64, 256, seq_kv=65),
}


@pytest.mark.parametrize("case", CASES)
def test_right_and_with_the_work_of_its_schedule(
    case: str, cpu_device: CpuDevice, assert_matches_schedule: AssertMatches
) -> None:
    w = CASES[case]
    ran = exercise_attention(flash_forward, cpu_device, w, seed=len(case))
    assert ran.largest_error() <= TOLERANCE[w.dtype], ran.errors()
    schedule = build(w, cpu_device.gpu, None)
    assert_matches_schedule(cpu_device, schedule)
    counters = cpu_device.launches[0].counters
    assert counters.tensor_flops == schedule.total("flops")
    # How often O is rescaled depends on the scores; the schedule says once a block.
    assert counters.exponentials == pytest.approx(schedule.total("exps"), rel=0.02)
    assert counters.shared_bytes_loaded == schedule.total("smem_bytes") + counters.stores["O"]  # O passes through
    assert counters.bank_conflicts == 0
    assert counters.local_bytes == 0


def test_exponentials_are_the_schedules_where_the_first_tile_is_typical(cpu_device: CpuDevice) -> None:
    w = Workload(1, 1, 128, 128, seq_kv=192, dtype="fp16")
    exercise_attention(flash_forward, cpu_device, w)
    assert cpu_device.launches[0].counters.exponentials == build(w, cpu_device.gpu, None).total("exps")


WINDOW = Mask.sliding_window(150, causal=False)


@pytest.mark.parametrize("tile", [(d, tile) for d, tiles in TILES.items() for tile in tiles], ids=str)
def test_every_tile(
    tile: tuple[int, FlashTile], monkeypatch: pytest.MonkeyPatch, assert_matches_schedule: AssertMatches
) -> None:
    head_dim, chosen = tile
    monkeypatch.setitem(TILES, head_dim, (chosen,))
    device = CpuDevice("h100-sxm5-80gb" if chosen.stages > 1 else "a100-sxm4-80gb")
    w = Workload(1, 2, 130, head_dim, heads_kv=1, seq_kv=300, mask=WINDOW)
    shape = TileRequest(chosen.rows, chosen.keys)
    random = np.random.default_rng(head_dim)
    shapes = ((1, 2, 130, head_dim), (1, 1, 300, head_dim), (1, 1, 300, head_dim))
    q, k, v = (encode(random.standard_normal(size), w.dtype) for size in shapes)
    got = flash_forward(device, q, k, v, mask=WINDOW, tile=(chosen.rows, chosen.keys))
    assert outcome(got, (q, k, v), WINDOW).largest_error() <= TOLERANCE["bf16"]
    assert_matches_schedule(device, build(w, device.gpu, shape))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_grid_of_few_blocks_is_cut_into_shorter_ones(head_dim: int) -> None:
    gpu = load_gpu("a100-sxm4-80gb")
    few, many = (choose_tile(Workload(1, heads, 1024, head_dim), gpu).rows for heads in (16, 512))
    assert (few, many) == (64, 128)


def outcome(got: tuple[Array, Array], inputs: tuple[Array, ...], mask: Mask | None) -> Outcome:
    """Outputs of the kernel beside the reference's for the same inputs."""
    q, k, v = map(decode, inputs)
    o, lse = attention(q, k, v, mask)
    return Outcome({"O": decode(got[0]), "LSE": decode(got[1])}, {"O": o, "LSE": lse})


@pytest.mark.parametrize(
    "mask", [Mask(), Mask.causal(), Mask(60, 30), Mask(60, None), Mask.sliding_window(200)], ids=str
)
def test_masked_steps_are_the_tiles_that_are_not_whole(mask: Mask) -> None:
    for seq_q, seq_kv, rows, keys in product((70, 256, 301), (64, 250, 301), (64, 128), (32, 64, 128)):
        found = row_tiles(Workload(1, 1, seq_q, 64, seq_kv=seq_kv, mask=mask), rows, keys, edges_only=True)
        seen = visible(mask, seq_q, seq_kv)
        for tile, first in enumerate(range(0, seq_q, rows)):
            blocks = [seen[first : first + rows, start : start + keys] for start in range(0, seq_kv, keys)]
            partly = sum(bool(block.any()) and not (block.all() and block.shape[1] == keys) for block in blocks)
            assert (found.steps[tile], found.masked[tile]) == (sum(bool(block.any()) for block in blocks), partly)


class FirstBlocks(CpuDevice):
    """Launches only the first five blocks of a grid."""

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Array]) -> None:
        super().launch(variant, (5, 1, 1), arguments)


@pytest.mark.parametrize(
    ("mask", "first"),
    [(Mask(), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]), (Mask.causal(), [(0, 2), (1, 2), (2, 2), (0, 1), (1, 1)])],
    ids=["full: ascending", "causal: longest first"],
)
def test_blocks_come_in_the_schedules_order(mask: Mask, first: list[tuple[int, int]]) -> None:
    q = encode(np.ones((1, 3, 300, 64)), "fp16")
    _, lse = flash_forward(FirstBlocks(), q, q[:, :1], q[:, :1], mask=mask, tile=(128, 128))
    written = np.isfinite(lse) & (lse > 0)
    assert [(head, tile) for head in range(3) for tile in range(3) if written[0, head, tile * 128]] == sorted(first)
    w = Workload(1, 3, 300, 64, heads_kv=1, dtype="fp16", mask=mask)
    kernel = build(w, FirstBlocks().gpu, TileRequest(128, 128)).kernels[0]
    order = [block for launch in kernel.launches for block in np.tile(launch.classes, launch.times)]
    scores = [sum(op.tensor == "S" for op in segment.ops) for segment in kernel.segments]
    visits = [sum(n * scores[segment] for segment, n in kernel.runs(block)) for block in order[:5]]
    assert visits == [tile + 1 if mask.is_causal else 3 for _, tile in first]


def attended(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], mask: Mask | None = None) -> Outcome:
    """Given values, not random ones, as fp16 through kernel and reference."""
    inputs = tuple(encode(array[None, None], "fp16") for array in (q, k, v))
    return outcome(flash_forward(CpuDevice(), *inputs, mask=mask), inputs, mask)


RANDOM = np.random.default_rng(7)
Q, K, V = (RANDOM.standard_normal((130, 64)) for _ in range(3))


@pytest.mark.parametrize(
    ("q", "k"),
    [
        (Q * 40, K * 40),  # scores of 1e4
        (np.zeros_like(Q), K),  # all scores alike
        (Q, np.where(np.arange(130)[:, None] == 77, 60.0, K)),  # one key dwarfs the rest, in the tile visited second
        (-np.abs(Q) * 30, np.abs(K) * 30),  # only very negative scores
    ],
    ids=["huge", "equal", "one key", "negative"],
)
@pytest.mark.parametrize("mask", [Mask(), Mask.causal()], ids=str)
def test_adversarial_scores(q: NDArray[Any], k: NDArray[Any], mask: Mask) -> None:
    ran = attended(q, k, V, mask)
    assert ran.largest_error() <= TOLERANCE["fp16"], ran.errors()


@pytest.mark.parametrize("steepness", [2.0, 12.0, 200.0], ids=["tolerated", "in steps", "every tile"])
def test_a_maximum_that_grows_from_tile_to_tile(steepness: float) -> None:
    q, k = np.ones((40, 64)), np.linspace(steepness / 8, 0, 500)[:, None] * np.ones((1, 64))  # scores 0 to steepness
    ran = attended(q, k, RANDOM.standard_normal((500, 64)))
    assert ran.largest_error() <= TOLERANCE["fp16"], ran.errors()


def test_rows_without_keys_are_zero() -> None:
    ran = attended(Q, K[:30], V[:30], Mask.causal())
    assert (ran.outputs["O"][0, 0, :100] == 0).all()
    assert np.isneginf(ran.outputs["LSE"][0, 0, :100]).all()
    assert np.isfinite(ran.outputs["LSE"][0, 0, 100:]).all()


def test_a_tile_that_is_not_compiled_is_refused() -> None:
    q = encode(Q[None, None], "fp16")
    with pytest.raises(InputError, match=r"has the tile 128 x 128 or 128 x 64 or 64 x 64 at head_dim 64"):
        flash_forward(CpuDevice(), q, q, q, tile=(48, 48))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_not_positive_is_refused(scale: float) -> None:
    q = encode(Q[None, None], "fp16")
    with pytest.raises(InputError, match=r"scale is .*; allowed: more than 0"):
        flash_forward(CpuDevice(), q, q, q, scale=scale)
