"""Sparse attention, gathered for batched GEMMs and fused: sums, imbalance, metadata, growth with N."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnsim.api import predict
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation
from attnsim.models.implementations.flash_attention_sparse import choose_tile
from attnsim.models.implementations.frameworks.gather import choose_block, gathering
from attnsim.models.implementations.fused.building import flash_schedule
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own import sparse
from attnsim.models.implementations.own.sparse import ROW_TILE_BYTES
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import tile_counts
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import visible
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Replay, replay

A100, H100 = (load_gpu(name) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb"))
GATHER, FUSED = find_implementation("transformers.gather"), find_implementation("attnsim.sparse")
LISTED, FLASH_3 = find_implementation("flash-attn.4-sparse"), find_implementation("flash-attn.3")
MASKS = (
    Mask.longformer(100, 3),
    Mask.longformer(64, 20, dilation=3, causal=True),
    Mask.bigbird(16),
    Mask.sparse_transformer(50),
    Mask.parse("causal, dilated 20 step 9, global at 70 200-210"),
    Mask.blocks(64, ((0, 1), (2, 0), (1, 3))),
    Mask.parse("global 5"),
    Mask.parse("random 2x32 seed 7"),
    Mask.causal(),
    Mask.sliding_window(65, causal=False),
)


def played(schedule: Schedule, gpu: Gpu, mode: str = "fast") -> Replay:
    return replay(schedule, gpu, Numbers(), mode="exact" if mode == "exact" else "fast", cache="cold")


def fused(w: Workload, gpu: Gpu = A100) -> Replay:
    return played(FUSED.build(w, gpu, None), gpu)


def same_loop(w: Workload, gpu: Gpu) -> Schedule:
    """The dense kernel on the sparse one's tile: its loop without a list."""
    tile = choose_tile(w, gpu, None)
    return flash_schedule(w, "flash-attn.4", [flash_forward(w, gpu, tile)], FusedTiles(tile))


@pytest.mark.parametrize("mask", [Mask.full(), Mask.causal()], ids=str)
@pytest.mark.parametrize("seq", [1, 1000, 4096])
@pytest.mark.parametrize(("heads", "heads_kv", "head_dim"), [(32, 8, 128), (6, 2, 64)])
def test_at_full_density_the_dense_kernel_of_the_same_loop_is_never_slower(
    mask: Mask, seq: int, heads: int, heads_kv: int, head_dim: int
) -> None:
    w = Workload(1, heads, seq, head_dim, heads_kv, mask=mask)
    sparse, dense = LISTED.build(w, H100, None), same_loop(w, H100)
    assert sparse.total("flops") >= dense.total("flops")
    assert played(sparse, H100).time_s >= played(dense, H100).time_s
    if seq >= 4096:  # in shorter ones FlashAttention-3's own tiles leave more empty
        assert played(sparse, H100).time_s >= played(FLASH_3.build(w, H100, None), H100).time_s


@pytest.mark.parametrize("group", [1, 3, 4])
def test_heads_of_a_group_walk_one_list_of_each_128_queries(group: int) -> None:
    mask = Mask.parse("causal, random 2x64 seed 5, global 3")
    w = Workload(2, 2 * group, 500, 64, 2, 700, mask=mask)
    schedule = LISTED.build(w, H100, None)
    seen = np.pad(visible(mask, 500, 700), ((0, 12), (0, 68))).reshape(4, 128, 6, 128)
    visits = seen.any(axis=(1, 3)).sum(axis=1)
    tiles = [group, group, group, -(-(500 - 384) * group // 128)]
    walked = 2 * 2 * int(np.dot(tiles, visits)) if group > 1 else 2 * 2 * int(visits.sum())
    assert schedule.requested()["flash_fwd_sparse", "load", "block list"] == 4 * walked
    assert schedule.kernels[0].blocks == 2 * 2 * sum(tiles)


def test_rows_without_keys_are_written_and_nothing_is_read_for_them() -> None:
    w = Workload(1, 4, 512, 128, mask=Mask.blocks(128, ((1, 0), (3, 2))))
    requested = LISTED.build(w, H100, None).requested()
    assert requested["flash_fwd_sparse", "load", "Q"] == 4 * 256 * 128 * 2
    assert requested["flash_fwd_sparse", "store", "O"] == 4 * 512 * 128 * 2
    assert requested["flash_fwd_sparse", "load", "K"] == 4 * 2 * 128 * 128 * 2


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_what_is_gathered_holds_every_visible_pair(mask: Mask) -> None:
    w = Workload(1, 1, 301, 64, seq_kv=333, mask=mask)
    block = choose_block(w, None)
    sizes, seen = gathering(w, block), visible(mask, 301, 333)
    tokens = {n for part in mask.parts for start, stop in getattr(part, "ranges", ()) for n in range(start, stop)}
    keys = np.array([n in tokens for n in range(333)])
    queries = np.array([n + 32 in tokens for n in range(301)])
    assert (keys.sum(), queries.sum()) == (sizes.global_keys, sizes.global_rows)
    rest = seen & ~keys & ~queries[:, None]
    padded = np.pad(rest, ((0, -301 % block), (0, -333 % block)))
    tiles = padded.reshape(-1, block, padded.shape[1] // block, block).any(axis=(1, 3))
    assert tiles.sum(axis=1).max() <= sizes.blocks


def test_a_longformer_chunk_sees_three_chunks_as_the_framework_cuts_them() -> None:
    w = Workload(1, 12, 4096, 64, mask=Mask.longformer())
    sizes = gathering(w, choose_block(w, None))
    assert (sizes.keys, sizes.blocks, sizes.row_blocks) == (256, 3, 16)
    assert (sizes.global_keys, sizes.global_rows) == (16, 16)


def test_a_bigbird_block_gathers_its_window_and_its_random_blocks() -> None:
    w = Workload(1, 12, 4096, 64, mask=Mask.bigbird())
    sizes = gathering(w, choose_block(w, None))
    assert (sizes.keys, sizes.blocks, sizes.global_keys, sizes.global_rows) == (64, 6, 128, 128)
    assert GATHER.build(w, A100, None).requested()["gather K", "load", "block index"] == 12 * 64 * 6 * 8


@pytest.mark.parametrize("mask", [Mask.longformer(), Mask.bigbird()], ids=str)
def test_gather_writes_what_fused_never_does(mask: Mask) -> None:
    w = Workload(1, 12, 16384, 64, mask=mask)
    gathered, kernel = GATHER.build(w, A100, None), FUSED.build(w, A100, None)
    slow, fast = played(gathered, A100), played(kernel, A100)
    width = gathering(w, choose_block(w, None)).width
    copies = 2 * 12 * 16384 * width * 64 * 2 // choose_block(w, None)
    assert sum(n for (_, kind, tensor), n in gathered.requested().items()
               if kind == "store" and tensor.endswith("gathered")) == copies  # fmt: skip
    assert gathered.peak_memory_bytes - kernel.peak_memory_bytes > copies
    assert slow.hbm_read_bytes + slow.hbm_write_bytes > 5 * (fast.hbm_read_bytes + fast.hbm_write_bytes)
    assert slow.time_s > 3 * fast.time_s


def test_grouped_heads_gather_their_keys_once() -> None:
    w = Workload(1, 8, 1024, 64, mask=Mask.bigbird())
    one, all_ = (GATHER.build(replace(w, heads_kv=heads), A100, None).requested() for heads in (1, 8))
    assert 8 * one["gather K", "store", "K gathered"] == all_["gather K", "store", "K gathered"]


def test_scratch_of_gather_grows_with_n_and_not_with_its_square() -> None:
    short, long = (
        GATHER.build(Workload(1, 12, n, 64, mask=Mask.longformer()), A100, None).peak_memory_bytes
        for n in (1 << 15, 1 << 17)
    )
    assert long == pytest.approx(4 * short, rel=0.01)


@pytest.mark.parametrize("mask", [Mask.longformer(), Mask.bigbird()], ids=str)
@pytest.mark.parametrize("implementation", ["gather", "attnsim.sparse"])
def test_a_million_tokens_take_memory_by_the_tile(mask: Mask, implementation: str) -> None:
    record = find_implementation(implementation)
    tile_counts.cache_clear()
    tracemalloc.start()
    schedule = record.build(Workload(1, 1, 1 << 20, 64, mask=mask), A100, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20 and sum(kernel.blocks for kernel in schedule.kernels) >= 1 << 13


def test_a_mask_of_nothing_still_writes_its_output() -> None:
    w = Workload(1, 2, 128, 64, mask=Mask.blocks(64, ((9, 9),)))
    schedule = GATHER.build(w, A100, None)
    assert schedule.requested() == {("fill O", "store", "O"): 2 * 128 * 64 * 2}


def test_metadata_is_read_and_counted() -> None:
    """Each row tile of each head has a place of its own in the plan, which says what its block takes next."""
    w = Workload(2, 4, 4096, 64, mask=Mask.longformer(512, 16))
    asked = FUSED.build(w, A100, TileRequest(64, 64)).requested()
    tiles = {tensor: n for (_, _, tensor), n in asked.items()}
    visits = tiles["block list"] // (8 * 8)
    assert tiles["row tiles"] == 8 * 64 * ROW_TILE_BYTES
    assert visits * 64 * 64 * 2 * 8 == tiles["K"] == tiles["V"]
    assert tiles["bit masks"] % (8 * 64 * 64 // 8) == 0 and tiles["bit masks"] > 0


@pytest.mark.parametrize("mask", [Mask.parse("window 257"), Mask.bigbird()], ids=str)
def test_sparse_time_grows_with_n_and_dense_time_with_its_square(mask: Mask) -> None:
    lengths = [1 << 15, 1 << 16, 1 << 17]  # at 16 k tokens the last of ten waves is half empty
    listed = [fused(Workload(1, 12, n, 64, mask=mask)).time_s for n in lengths]
    flash = find_implementation("flash-attn.2")
    dense = [played(flash.build(Workload(1, 12, n, 64), A100, None), A100).time_s for n in lengths]
    slopes = [np.polyfit(np.log(lengths), np.log(times), 1)[0] for times in (listed, dense)]
    assert slopes == pytest.approx([1.0, 2.0], abs=0.1)


@pytest.mark.parametrize("change", [("sm.count", "216"), ("tensor.bf16", "4096"), ("hbm.bandwidth", "4 TB/s")])
def test_a_better_gpu_is_never_given_a_worse_tile(change: tuple[str, str]) -> None:
    """Rows of global tokens see every key: with more SMs they decide, and tall tiles would make them longer.

    More SMs may take longer all the same: 311 us in exact mode, 296 on the A100.
    """
    w = Workload(1, 12, 16384, 64, mask=Mask.longformer(512, 16))
    better = A100.replace(*change)
    before, after = (played(FUSED.build(w, gpu, None), gpu).time_s for gpu in (A100, better))
    if change[0] == "sm.count":
        exact = [played(FUSED.build(w, gpu, None), gpu, "exact").time_s for gpu in (A100, better)]
        assert after / before == pytest.approx(exact[1] / exact[0], rel=0.01)
    else:
        assert after < 1.01 * before
    for tile in (TileRequest(64, 64), TileRequest(128, 64)):
        assert after < 1.01 * played(FUSED.build(w, better, tile), better).time_s


SAME_COMPILATION = {64: "128x64", 128: "128x64", 256: "64x64"}
"""By head_dim: a tile that both of our kernels are compiled for, with as many warps."""


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "l40s", "h100-sxm5-80gb"])
@pytest.mark.parametrize("head_dim", SAME_COMPILATION)
def test_with_every_tile_visited_a_list_costs_time(gpu: str, head_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our block-sparse kernel over its list of all tiles is never faster than the dense one that shares its loop.

    Each of its blocks does what a block of that one does, reads its list beside, and takes longer for it. Both launch
    one head after another here: with all heads together the row tiles that end short come last, and where the grid
    waits for the L2 that gains as much as the list costs. Held for
    blocks that have their SM to themselves: of larger grids the dense kernel's blocks, all alike, stay in step, which
    costs up to a tenth where they wait for one memory, or end with few of a wave (docs/design/replay.md).
    """
    monkeypatch.setattr(sparse, "heads_together", lambda *_: 1)
    sms = load_gpu(gpu).sm.count
    for seq in (64, 200, 1024, 4096):
        for heads in {1, sms // -(-seq // 64)} - {0}:
            question = Workload(batch=1, heads_q=heads, seq_q=seq, head_dim=head_dim)
            listed, dense = (
                predict(question, gpu, algorithm, implementation=name, tile=SAME_COMPILATION[head_dim], baseline=False)
                for algorithm, name in (("sparse", "attnsim.sparse"), ("flash", "attnsim.flash"))
            )
            if listed.tile == dense.tile:
                least = 0.98 if seq % 64 else 1  # a ragged tile: the list's bits hide keys with fewer integers
                assert listed.time_s and dense.time_s and listed.time_s >= least * dense.time_s, (seq, heads)


@pytest.mark.parametrize("mask", ["full", "causal", "random 3x64 seed 2", "causal, window 100, global 70", "bigbird"])
@pytest.mark.parametrize(("seq_q", "seq_kv"), [(300, 300), (256, 1000), (129, 64)])
def test_a_key_tile_is_visited_by_the_row_tiles_that_see_it(mask: str, seq_q: int, seq_kv: int) -> None:
    found = Mask.bigbird(16) if mask == "bigbird" else Mask.full() if mask == "full" else Mask.parse(mask)
    counts = found.tile_counts(seq_q, seq_kv, 128, 64)
    seen = found.seen(np.arange(seq_q)[:, None], np.arange(seq_kv)[None], seq_q, seq_kv)
    for tile in range(counts.tiles.key_tiles):
        parts = [seen[row : row + 128, tile * 64 : tile * 64 + 64] for row in range(0, seq_q, 128)]
        assert counts.key_visits[tile] == sum(bool(one.any()) for one in parts)
        whole = [one.all() and one.shape[1] == 64 for one in parts]
        partial = sum(bool(one.any()) and not full for one, full in zip(parts, whole, strict=True))
        assert counts.key_partial[tile] == partial


def test_the_backward_over_a_block_mask_follows_the_blocks_and_adds_up_a_group_in_its_blocks() -> None:
    w = Workload(1, 8, 4096, 128, heads_kv=2, dtype="bf16", passes="bwd")
    record = IMPLEMENTATIONS["torch.flex-mask"]

    def of(mask: str) -> Schedule:
        return record.build(replace(w, mask=Mask.parse(mask)), A100, None)

    half, every = of("random 16x128"), of("random 32x128")
    assert [kernel.name for kernel in half.kernels] == ["dot_do_o", "flex_attention_backward"]
    assert half.total("flops") * 2 == every.total("flops")
    stored = every.kernels[1].requested()
    assert stored["store", "dK"] == 2 * 4096 * 128 * 2 and stored["store", "dQ"] == 4 * stored["store", "dK"]
    assert of("causal").kernels[1].total("fp32") > of("causal").kernels[1].total("scores")  # the mask's function


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 64}, "has head_dim 128 only"),
        ({"seq_q": 1000}, "takes whole blocks of 384, 256, 128, 64"),
        ({"mask": Mask.causal()}, "takes whole blocks"),
        ({"passes": "bwd"}, "bwd"),
        ({"dtype": "fp16"}, "fp16"),
    ],
)
def test_flex_block_attn_refuses_what_it_has_no_blocks_for(changes: dict[str, Any], said: str) -> None:
    w = replace(Workload(1, 2, 1536, 128, dtype="bf16", mask=Mask.parse("random 2x384")), **changes)
    with pytest.raises(InputError) as error:
        predict(w, "h800-sxm", "sparse", implementation="tencent.flex-block-attn", baseline=False)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_flex_block_attn_takes_the_tile_of_the_largest_blocks() -> None:
    record, h800 = IMPLEMENTATIONS["tencent.flex-block-attn"], load_gpu("h800-sxm")
    for block, tile in ((384, "192 x 128"), (256, "128 x 128"), (128, "64 x 128"), (64, "64 x 64")):
        w = Workload(1, 2, 1536, 128, dtype="bf16", mask=Mask.parse(f"random 2x{block}"))
        built = record.build(w, h800, None)
        assert str(built.tile).startswith(tile) and f"blocks of {block}" in str(built.tile)
