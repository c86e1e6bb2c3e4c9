"""The block-sparse kernel in the interpreter: right on every kind of mask, and as many bytes as its schedule says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.arrays import exercise_attention
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.sparse import list_blocks, sparse_forward
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.own.sparse import TILES, SparseTile, build, following
from attnsim.models.mask.mask import Mask, block_list
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE, Outcome

AssertMatches = Callable[[CpuDevice, Schedule], None]
Array = NDArray[Any]

CASES: dict[str, tuple[str, str, tuple[int, int, int, int, int, int]]] = {
    "causal": ("fp16", "causal", (1, 1, 1, 130, 130, 64)),
    "window": ("bf16", "causal window 70", (1, 2, 1, 200, 200, 64)),
    "dilated": ("fp16", "dilated 20 step 5", (1, 1, 1, 140, 210, 128)),
    "dilated beyond tiles": ("bf16", "dilated 3 step 100", (1, 1, 1, 65, 400, 64)),
    "global": ("fp16", "global at 3 90-91", (1, 1, 1, 129, 129, 64)),
    "random": ("bf16", "random 2x16 seed 5", (2, 2, 2, 100, 180, 64)),
    "strided": ("fp16", "causal, strided 33", (1, 1, 1, 127, 191, 64)),
    "block window": ("fp16", "block window 1x32", (1, 1, 1, 160, 160, 128)),
    "listed blocks": ("bf16", "blocks 64 0:0 1:2 2:1", (1, 1, 1, 192, 192, 64)),
    "Longformer": ("bf16", "window 40, global 5", (1, 4, 2, 150, 150, 128)),
    "BigBird": ("fp16", "block window 1x16, global 16, random 1x16 seed 2", (1, 1, 1, 170, 170, 64)),
    "all at once": (
        "fp16",
        "causal, window 9, global 2, random 1x8, dilated 9 step 7, strided 50",
        (1, 1, 1, 99, 99, 256),
    ),
    "one query": ("fp16", "window 9 left, global 1", (1, 2, 1, 1, 300, 64)),
    "one key": ("bf16", "strided 3", (1, 1, 1, 70, 1, 64)),
    "more queries than keys": ("fp16", "causal, window 5, global 2", (1, 1, 1, 150, 40, 64)),
    "nothing visible at all": ("fp16", "blocks 8 5:5", (1, 1, 1, 30, 30, 64)),
}  # fmt: skip
"""Format, mask, and (batch, heads_q, heads_kv, seq_q, seq_kv, head_dim)."""


def workload(case: str) -> Workload:
    dtype, mask, (batch, heads_q, heads_kv, seq_q, seq_kv, d) = CASES[case]
    return Workload(batch, heads_q, seq_q, d, heads_kv, seq_kv, dtype=dtype, mask=Mask.parse(mask))


@pytest.mark.parametrize("case", CASES)
def test_right_and_with_the_bytes_of_its_schedule(
    case: str, cpu_device: CpuDevice, assert_matches_schedule: AssertMatches
) -> None:
    w = workload(case)
    outcome = exercise_attention(sparse_forward, cpu_device, w, seed=len(case))
    assert outcome.largest_error() <= TOLERANCE[w.dtype], outcome.errors()
    assert_matches_schedule(cpu_device, build(w, cpu_device.gpu, None))


@pytest.mark.parametrize("tile", [tile for tiles in TILES.values() for tile in tiles], ids=str)
@pytest.mark.parametrize("together", [False, True])
def test_every_tile_and_both_launch_orders(
    tile: SparseTile, together: bool, monkeypatch: pytest.MonkeyPatch, cpu_device: CpuDevice,
    assert_matches_schedule: AssertMatches,
) -> None:  # fmt: skip
    monkeypatch.setattr("attnsim.models.implementations.own.sparse.ALONE_TOO_LONG", 0.0 if together else 1e9)
    monkeypatch.setitem(TILES, tile.head_dim, (tile,))
    w = Workload(1, 3, 200, tile.head_dim, 1, 230, dtype="fp16", mask=Mask.parse("causal, window 60, global at 7 150"))
    q, k, v = inputs(w)
    got = outcome_of(w, sparse_forward(cpu_device, q, k, v, mask=w.mask), q, k, v)
    assert got.largest_error() <= TOLERANCE[w.dtype], got.errors()
    assert_matches_schedule(cpu_device, build(w, cpu_device.gpu, None))


@pytest.mark.parametrize("tile", [tile for tiles in TILES.values() for tile in tiles], ids=str)
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("mask", ["causal, window 60, global at 7 150", "blocks 16 1:2 4:0 4:7 20:3 21:9"])
def test_blocks_that_take_one_row_tile_after_the_other(
    mask: str, tile: SparseTile, together: bool, monkeypatch: pytest.MonkeyPatch, assert_matches_schedule: AssertMatches
) -> None:
    """Long lists, lists of one visit and of none follow one another on the few blocks that one SM has room for."""
    monkeypatch.setattr("attnsim.models.implementations.own.sparse.ALONE_TOO_LONG", 0.0 if together else 1e9)
    monkeypatch.setitem(TILES, tile.head_dim, (tile,))
    device = CpuDevice(load_gpu("a100-sxm4-80gb").replace("sm.count", "=1"))
    w = Workload(1, 4, 340, tile.head_dim, 2, 350, dtype="fp16", mask=Mask.parse(mask))
    q, k, v = inputs(w)
    got = outcome_of(w, sparse_forward(device, q, k, v, mask=w.mask), q, k, v)
    assert got.largest_error() <= TOLERANCE[w.dtype], got.errors()
    schedule = build(w, device.gpu, None)
    assert schedule.main.persistent
    assert_matches_schedule(device, schedule)


def test_a_grid_of_more_blocks_gives_the_same_bits() -> None:
    w = Workload(1, 3, 500, 64, 1, dtype="bf16", mask=Mask.parse("causal, window 100, global 3"))
    arrays, a100 = inputs(w), load_gpu("a100-sxm4-80gb")
    one, some = (CpuDevice(a100.replace("sm.count", f"={count}")) for count in (1, 40))
    few, many = (sparse_forward(device, *arrays, mask=w.mask, tile=(64, 64)) for device in (one, some))
    assert one.launches[0].grid < some.launches[0].grid == (24, 1, 1)
    assert all(np.array_equal(a, b) for a, b in zip(few, many, strict=True))


def test_a_plan_gives_each_row_tile_once_and_no_block_much_more_than_its_share() -> None:
    visits = np.sort(np.random.default_rng(3).integers(0, 40, 300))[::-1]
    after = following(visits, 7)
    taken = []
    for block in range(7):
        mine, place = [], block
        while place >= 0:
            mine.append(place)
            place = int(after[place])
        assert mine == sorted(mine)
        taken.append(mine)
    assert sorted(place for mine in taken for place in mine) == list(range(300))
    work = np.array([(visits[mine] + 1).sum() for mine in taken])
    assert work.max() - work.min() <= visits[6] + 1
    assert (following(visits[:5], 7) == -1).all()


@pytest.mark.parametrize("mask", ["full", "causal", "window 30", "causal window 90"])
@pytest.mark.parametrize("d", [64, 128])
def test_bands_give_the_bits_of_dense_flash(mask: str, d: int, cpu_device: CpuDevice) -> None:
    """On the same tile both walk the keys from the last to the first, so that even the rounding is the same."""
    w = Workload(1, 2, 160, d, 1, 170, dtype="bf16", mask=Mask.parse(mask))
    arrays = inputs(w)
    dense = flash_forward(cpu_device, *arrays, mask=w.mask, tile=(128, 64))
    sparse = sparse_forward(cpu_device, *arrays, mask=w.mask, tile=(128, 64))
    assert all(np.array_equal(one, other) for one, other in zip(dense, sparse, strict=True))


def inputs(w: Workload) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(7)
    kv = (w.batch, w.heads_kv, w.seq_kv, w.head_dim)
    q, k, v = (
        encode(random.standard_normal(shape), w.dtype) for shape in ((w.batch, w.heads_q, w.seq_q, w.head_dim), kv, kv)
    )
    return q, k, v


def outcome_of(w: Workload, got: tuple[Array, Array], q: Array, k: Array, v: Array) -> Outcome:
    o, lse = attention(decode(q), decode(k), decode(v), w.mask)
    return Outcome({"O": decode(got[0]), "LSE": decode(got[1])}, {"O": o, "LSE": lse})


def test_scores_of_ten_thousand(cpu_device: CpuDevice) -> None:
    w = Workload(1, 1, 100, 64, dtype="fp16", mask=Mask.parse("window 9, random 1x16, global 1"))
    q, k, v = inputs(w)
    q, k = q * np.float16(60), k * np.float16(60)  # all of a row's probability falls on one key
    got = outcome_of(w, sparse_forward(cpu_device, q, k, v, mask=w.mask), q, k, v)
    assert np.abs(got.expected["LSE"]).max() > 1e4
    assert got.errors()["LSE"] <= 1e-6 and got.errors()["O"] <= TOLERANCE["fp16"]


def test_rows_without_a_key_are_zero_beside_rows_with_some(cpu_device: CpuDevice) -> None:
    w = Workload(1, 1, 128, 64, dtype="fp16", mask=Mask.parse("blocks 16 1:2 4:0 4:7"))
    o, lse = sparse_forward(cpu_device, *inputs(w), mask=w.mask)
    seen = w.mask.seen(np.arange(128)[:, None], np.arange(128)[None, :], 128, 128).any(axis=1)
    assert 0 < seen.sum() < 128
    assert (o[0, 0, ~seen] == 0).all() and np.isneginf(lse[0, 0, ~seen]).all()
    assert np.isfinite(lse[0, 0, seen]).all()


def test_a_list_longer_than_its_place_in_shared_memory(
    cpu_device: CpuDevice, assert_matches_schedule: AssertMatches
) -> None:
    """Lists are refilled every 16 visits; the row tile of a global token sees every key."""
    w = Workload(1, 1, 1, 64, 1, 64 * 120 + 5, dtype="fp16", mask=Mask.parse("global at 0 7684"))
    assert block_list(w.mask, 64, 64, 1, w.seq_kv).visits == 121
    q, k, v = inputs(w)
    got = outcome_of(w, sparse_forward(cpu_device, q, k, v, mask=w.mask), q, k, v)
    assert got.largest_error() <= TOLERANCE["fp16"]
    assert_matches_schedule(cpu_device, build(w, cpu_device.gpu, None))


def test_a_list_made_once_serves_many_calls(cpu_device: CpuDevice) -> None:
    w = Workload(1, 2, 90, 64, 1, dtype="fp16", mask=Mask.longformer(16, 2))
    q, k, v = inputs(w)
    listed = list_blocks(cpu_device, w)
    for arrays in ((q, k, v), (q + 1, v, k)):
        again = sparse_forward(cpu_device, *arrays, listed=listed)
        fresh = sparse_forward(cpu_device, *arrays, mask=w.mask)
        assert all((one == other).all() for one, other in zip(again, fresh, strict=True))
    with pytest.raises(InputError, match="a block list is given, and a mask or a tile too"):
        sparse_forward(cpu_device, q, k, v, mask=w.mask, listed=listed)
    told = "for 2 heads on 1, 90 queries, 90 keys and head_dim 64, the arrays have 2 heads on 1, 80 queries"
    with pytest.raises(InputError, match=told):
        sparse_forward(cpu_device, q[:, :, :80].copy(), k, v, listed=listed)


def test_what_does_not_fit_is_refused_before_anything_runs(cpu_device: CpuDevice) -> None:
    array = np.zeros((1, 1, 64, 64), np.float16)
    with pytest.raises(InputError, match="has the tile 128 x 64 or 64 x 64 at head_dim 64, not 64 x 32"):
        sparse_forward(cpu_device, array, array, array, tile=(64, 32))
    with pytest.raises(InputError, match=r"scale is -1\.0; allowed: more than 0"):
        sparse_forward(cpu_device, array, array, array, scale=-1.0)
    with pytest.raises(InputError, match="head_dim is 96; this kernel takes 64, 128, 256"):
        wide = np.zeros((1, 1, 64, 96), np.float16)
        sparse_forward(cpu_device, wide, wide, wide)
    with pytest.raises(InputError, match=r"Shared memory: attnsim.sparse at head_dim 256 needs"):
        build(Workload(1, 1, 64, 256), cpu_device.gpu.replace("sm.shared_memory_per_block", "64KiB"), None)
    assert not cpu_device.launches
