"""Attention to what content selects: definitions, times that follow the work, refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnsim.api.answering import predict
from attnsim.api.approximation import approximation_errors
from attnsim.api.asking import ask
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import natten
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.selecting import dsa, moba, nsa_triton
from attnsim.models.implementations.selecting.walks import Walk, keys_outside
from attnsim.models.mask.documents import Neighborhood
from attnsim.models.mask.mask import Mask, block_list
from attnsim.models.mechanisms import only_for
from attnsim.models.question.selection import Selection, compressed_pairs, visible_pairs, walked, walkers, walks
from attnsim.models.question.workload import Latent, Workload
from attnsim.models.references import selecting
from attnsim.models.references.softmax import attention
from attnsim.models.schedule.operation import AMOUNTS
from attnsim.models.schedule.schedule import in_step
from attnsim.simulator.replay import replay
from attnsim.validation.checking.accuracy import UNSEEN, family_rows, numbers_without

A100, H100, B200 = (load_gpu(name) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb"))


@pytest.mark.parametrize(
    "selection", ["top 3x16", "top 16x64", "top 2x32, anywhere", "top 5x8, anywhere", "top 64x64, anywhere"]
)
@pytest.mark.parametrize("seq", [1, 63, 64, 65, 500, 1024, 4100])
def test_counts_of_a_selection_agree(selection: str, seq: int) -> None:
    s = Selection.parse(selection)
    each = walked(s, seq)
    assert each.sum() == walks(s, seq) and each.min() >= 1
    assert (each <= np.arange(seq) // s.block + 1).all() and each.max() <= s.top
    assert walkers(s, seq)[0] == seq
    if not s.anywhere:  # as many walks as walkers, but for rounding up
        assert 0 <= walkers(s, seq).sum() - each.sum() <= s.blocks(seq)


def tensors(seq: int, group: int = 2, kv: int = 2, d: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seq).standard_normal
    return draw((1, kv * group, seq, d)), draw((1, kv, seq, d)), draw((1, kv, seq, d))


def test_choosing_every_block_is_causal_attention() -> None:
    q, k, v = tensors(50)
    blocks = selecting.chosen_blocks(q, k, top=13, block=4, width=4, step=2)
    found = selecting.selected_attention(q, k, v, blocks, 4)
    assert np.allclose(found, attention(q, k, v, Mask.causal())[0], atol=1e-12)


def test_moba_attends_to_its_own_block_and_the_best_of_its_past() -> None:
    q, k, v = tensors(61)
    blocks = selecting.blocks_by_mean(q, k, 3, 8)
    own = np.arange(61) // 8
    assert blocks.shape == (1, 4, 61, 8)
    assert (blocks.sum(axis=-1) == walked(Selection(3, 8), 61)).all()
    assert blocks[0, :, np.arange(61), own].all()
    others = (blocks & (np.arange(8) != own[:, None])).sum(axis=(0, 1, 2))
    assert others.sum() == 4 * moba.choosers(Selection(3, 8), 61).sum() and others[-1] == 0
    seen = np.repeat(blocks, 8, axis=-1)[..., :61] & np.tri(61, dtype=bool)
    assert seen[0, 0].sum() == visible_pairs(Selection(3, 8), 61)
    every = selecting.selected_attention(
        q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), selecting.blocks_by_mean(q, k, 8, 8), 8
    )
    assert np.allclose(every, attention(q, k, v, Mask.causal())[0], atol=1e-12)


def test_compressing_one_key_into_one_is_causal_attention() -> None:
    q, k, v = tensors(33)
    assert np.allclose(selecting.compressed_attention(q, k, v, 1, 1), attention(q, k, v, Mask.causal())[0], atol=1e-12)


@pytest.mark.parametrize(("top", "block"), [(1, 4), (3, 4), (5, 8)])
def test_a_query_chooses_as_many_blocks_as_it_walks(top: int, block: int) -> None:
    q, k, _ = tensors(61)
    blocks = selecting.chosen_blocks(q, k, top, block, 4, 2)
    assert (blocks.sum(axis=-1) == walked(Selection(top, block), 61)).all()
    assert blocks[..., 0].all() or top < 3  # the first block, its own and the one before are always chosen
    seen = np.repeat(blocks, block, axis=-1)[..., :61] & np.tri(61, dtype=bool)
    if top >= 3:
        assert seen[0, 0].sum() == visible_pairs(Selection(top, block), 61)


def test_pairs_with_compressed_keys_are_those_of_the_reference() -> None:
    q, k, _ = tensors(200)
    weights = selecting.compressed_weights(q, selecting.compressed(k, 32, 16), 32, 16)
    assert (weights[0, 0] > 0).sum() == compressed_pairs(Selection(compress=32, step=16), 200)
    assert weights.shape[-1] == Selection(compress=32, step=16).compressed_keys(200)


def test_fewer_blocks_take_less_time_and_time_grows_with_the_sequence_alone() -> None:
    w = Workload(1, 64, 8192, 128, heads_kv=4, mask=Mask.causal(), selection=Selection(16, 64))
    record = IMPLEMENTATIONS["nsa-triton.selected"]

    def time(question: Workload) -> float:
        return replay(record.build(question, A100, None), A100, Numbers(), cache="cold").time_s

    half = time(replace(w, selection=Selection(8, 64)))
    assert half < time(w) < 2.2 * half
    assert 1.9 < time(replace(w, seq_q=16384, seq_kv=16384)) / time(w) < 2.2


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        ("nsa-selected", {"seq_q": 512, "seq_kv": 512}, "selects 16 blocks of 64 keys, 512 keys have 8"),
        ("nsa-selected", {"selection": Selection(2, 16384)}, "blocks of 16384 keys, the sequence has 4096"),
        ("nsa-compressed", {"selection": Selection(2, 64)}, "needs compress"),
        ("nsa-compressed", {"selection": Selection(2, 64, 8192, 16)}, "compresses 8192 keys into one"),
        ("nsa-selected", {"seq_kv": 8192}, "as many keys as queries"),
        ("moba", {"seq_q": 1024, "seq_kv": 1024}, "selects 3 blocks of 512 keys, 1024 keys have 2"),
        ("moba", {"selection": Selection(1, 512)}, "its own block and the best of its past"),
        ("moba", {"head_dim_v": 32}, "stacks K and V"),
        (
            "nsa-selected",
            {"passes": "decode", "seq_q": 1, "seq_kv": 1, "selection": Selection(1, 1)},
            "no decode kernels",
        ),
    ],
)
def test_bad_questions_are_refused_in_one_line(algorithm: str, changes: dict[str, Any], said: str) -> None:
    w = replace(Workload(1, 8, 4096, 64, heads_kv=2, mask=Mask.causal()), **changes)
    with pytest.raises(InputError) as error:
        ask(w, A100, algorithm)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_selection_that_nobody_asked_for_is_no_pattern_and_no_approximation() -> None:
    windowed = Workload(1, 8, 4096, 64, mask=Mask.sliding_window(512))
    assert "nsa" not in only_for(windowed) and "flash" not in only_for(windowed)
    assert "sliding-window" in only_for(windowed)
    w = replace(windowed, mask=Mask.causal())
    assert approximation_errors("nsa", w) == approximation_errors("dsa", w) == ()


def test_a_selection_is_refused_by_kernels_that_see_all_keys_and_said_by_others() -> None:
    w = Workload(1, 8, 4096, 64, mask=Mask.causal(), selection=Selection(16, 64))
    with pytest.raises(InputError, match="selects no keys"):
        IMPLEMENTATIONS["flash-attn.2"].build(w, A100, None)
    with pytest.raises(InputError, match="take --algorithm nsa-selected"):
        ask(w, A100, "flash")
    assert any("none selected by flash" in one for one in ask(w, A100, "flash", in_comparison=True).assumed)


@pytest.mark.parametrize(
    "text", ["", "top", "top x", "top 3 4", "foo 3", "top 3, top 4", "window 512", "top -1", "top 4 anywhere"]
)
def test_a_selection_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        Selection.parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["top 16x64", "top 2048, index 64x128", "top 16x64, compress 32 step 16, window 512", "top 8x64, anywhere"]
)
def test_a_selection_reads_its_own_text(text: str) -> None:
    assert str(Selection.parse(text)) == text


def test_measured_rows_of_the_chapter_have_schedules_and_numbers_fitted_without_them() -> None:
    rows = family_rows("sparse")
    assert {row.case.algorithm for row in rows} >= {"nsa", "nsa-selected", "nsa-compressed", "dsa-indexer", "sparse"}
    for row in rows[::40]:
        assert row.schedule.total("bytes") > 0 or row.schedule.kernels, row.case
        splits = [split for split, _ in numbers_without(row)]
        assert len(set(splits)) == len(splits) and (UNSEEN not in splits or splits == [UNSEEN])


def test_a_neighbourhood_that_needs_a_mask_anywhere_has_it_in_every_tile() -> None:
    """The first tile of each block had none in kernels of mma.sync."""
    w = Workload(1, 2, 64 * 64, 64, mask=Mask.parse("neighborhood 64x64 window 13x13"))
    (kernel,) = IMPLEMENTATIONS["natten.cutlass-fna"].build(w, A100, None).kernels
    softmax = [op for segment in kernel.segments for op in segment.ops if op.scores]
    assert softmax and all(op.fp32 >= 2 * natten.MASK_INSTRUCTIONS * op.scores for op in softmax)


@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_a_neighbourhood_is_a_window_of_equal_size_moved_inside(stride: int) -> None:
    seen = Mask.parse(f"neighborhood 12 window 5 stride {stride}").seen(np.arange(12)[:, None], np.arange(12), 12, 12)
    assert (seen.sum(axis=1) == 5).all()
    first = seen.argmax(axis=1)
    assert (np.diff(first) >= 0).all() and first[0] == 0
    assert (first[: 12 // stride * stride].reshape(-1, stride).std(axis=1) == 0).all()
    square = Mask.parse(f"neighborhood 4x12 window 3x5 stride 1x{stride}")
    both = square.seen(np.arange(48)[:, None], np.arange(48), 48, 48)
    assert (both.sum(axis=1) == 15).all()
    assert block_list(square, 16, 32, 48, 48).dense().tolist() == both.tolist()


@pytest.mark.parametrize(
    "text", ["37 window 9 stride 2", "12x10 window 5x4 stride 3x1", "5x6x7 window 3x3x4 stride 2x3x1"]
)
def test_pairs_of_a_neighbourhood_are_those_of_its_tiles(text: str) -> None:
    """Counted without a look at any pair: 115,200 tokens of a video took half a minute."""
    mask = Mask.parse(f"neighborhood {text}")
    (part,) = mask.parts
    assert isinstance(part, Neighborhood)
    for seq_q in (1, part.tokens // 2, part.tokens):
        assert mask.visible_pairs(seq_q, part.tokens) == mask.tile_counts(seq_q, part.tokens, 64, 64).pairs


@pytest.mark.parametrize(
    "text",
    [
        "neighborhood 8x8 window 3",
        "neighborhood 8 window 9",
        "neighborhood 8 window 3 stride 4",
        "neighborhood 2x2x2x2 window 1x1x1x1",
    ],
)
def test_a_neighbourhood_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InputError) as error:
        Mask.parse(text)
    assert "\n" not in str(error.value)


def test_a_layout_of_another_length_than_the_sequence_is_refused() -> None:
    question = Workload(1, 2, 100, 64, mask=Mask.parse("neighborhood 8x8 window 3x3"))
    with pytest.raises(InputError, match="has 64 tokens, the sequence has 100"):
        IMPLEMENTATIONS["natten.hopper-fna"].build(question, H100, None)


def test_sparse_attention_over_a_latent_needs_no_decompressed_keys() -> None:
    """A step of decode at a million tokens fits the card: the cache of 8 sequences, and their scores once."""
    w = Workload(
        8, 128, 1, 192, head_dim_v=128, seq_kv=2**20, passes="decode", mask=Mask.causal(), latent=Latent(512, 64),
        selection=Selection.parse("top 2048, index 64x128"),
    )  # fmt: skip
    found = predict(w, "h100-sxm5-80gb", "dsa", baseline=False)
    held = w.kv_cache_bytes + 8 * 2**20 * (4 + 128 + 4 + 4)  # scores, the indexer's keys with scales, page table
    assert found.fits
    assert found.peak_memory_bytes == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize(
    ("name", "tensor", "row_bytes"),
    [("mark choice", "choice", 1), ("add weights", "sum", 4), ("add others", "O fp32", 512)],
)
def test_a_pass_of_moba_that_writes_into_a_tensor_reads_what_stays(name: str, tensor: str, row_bytes: int) -> None:
    """`index_add_` sums where it writes, and `scatter_` writes bytes of sectors of 32."""
    s = Selection(3, 512)
    w = Workload(batch=2, heads_q=8, seq_q=4096, head_dim=128, mask=Mask.causal(), selection=s)
    rows = 2 * 8 * (4096 * 2 if name == "mark choice" else int(moba.choosers(s, 4096).sum()))
    (kernel,) = (one for one in IMPLEMENTATIONS["moba.efficient"].build(w, A100, None).kernels if one.name == name)
    asked_for = kernel.requested()
    assert asked_for["load", tensor] == asked_for["store", tensor] == rows * row_bytes


def test_shares_of_decoding_cover_every_chosen_key_once() -> None:
    for batch in (1, 2, 7, 64, 300):
        w = Workload(batch, 128, 1, 576, heads_kv=1, seq_kv=9000, head_dim_v=512, dtype="bf16", passes="decode",
                     mask=Mask.causal(), selection=Selection(2048))  # fmt: skip
        given = dsa.shares(w, 66)
        assert len(given) <= 66 and sum(map(sum, given)) == batch * 32 and all(map(all, given))
        assert dsa.pieces(w, 66).sum() == sum(map(len, given))
    assert dsa.pieces(replace(w, batch=1), 66).tolist() == [32]  # a tile for each share


def scored(batch: int, seq_q: int, seq_kv: int, heads: int = 32) -> Workload:
    return Workload(
        batch=batch, heads_q=heads, heads_kv=1, seq_q=seq_q, seq_kv=seq_kv, head_dim=128, dtype="fp8",
        mask=Mask.causal(), selection=Selection(2048, index_heads=heads, index_dim=128),
    )  # fmt: skip


def test_scores_that_the_memory_does_not_hold_are_computed_a_part_at_a_time() -> None:
    fits, cut = scored(1, 16384, 65536), scored(64, 512, 32768)
    assert len(IMPLEMENTATIONS["deepgemm.mqa-logits"].build(fits, H100, None).kernels) == 1
    parts = IMPLEMENTATIONS["deepgemm.mqa-logits"].build(cut, H100, None)
    wanted = cut.batch * cut.seq_q * cut.batch * cut.seq_kv * 4
    assert len(parts.kernels) == -(-wanted // int(0.2 * H100.hbm.capacity_bytes))
    # The same queries on so much memory that they are scored at once take no longer.
    whole = IMPLEMENTATIONS["deepgemm.mqa-logits"].build(cut, H100.replace("hbm.capacity", "4 TB"), None)
    assert len(whole.kernels) == 1
    assert sum(kernel.total("flops") for kernel in parts.kernels) >= whole.kernels[0].total("flops")
    assert replay(parts, H100, Numbers()).time_s > replay(whole, H100, Numbers()).time_s


def test_parts_of_a_top_k_look_for_their_row_among_all_of_them() -> None:
    cut = scored(64, 512, 32768)
    parts = IMPLEMENTATIONS["sgl-kernel.topk"].build(cut, H100, None)
    (whole,) = IMPLEMENTATIONS["sgl-kernel.topk"].build(cut, H100.replace("hbm.capacity", "4 TB"), None).kernels
    assert len(parts.kernels) > 1
    assert whole.requested()["load", "first rows"] == 64 * 512 * 64 * 4  # each row, the rows that 64 requests begin at
    for part in parts.kernels:
        assert part.requested()["load", "first rows"] == part.blocks * part.blocks * 4


@pytest.mark.parametrize(("heads", "queries"), [(32, 4), (64, 2)])
def test_the_indexer_has_128_columns(heads: int, queries: int) -> None:
    schedule = IMPLEMENTATIONS["deepgemm.mqa-logits"].build(scored(1, 4096, 4096, heads), H100, None)
    assert str(schedule.tile).startswith(f"{queries} queries of {heads} heads x 256 keys")
    assert schedule.kernels[0].blocks == 4096 // queries


def latent(heads: int, seq_kv: int) -> Workload:
    return Workload(
        batch=1, heads_q=heads, heads_kv=1, seq_q=300, seq_kv=seq_kv, head_dim=576, head_dim_v=512, dtype="bf16",
        mask=Mask.causal(), selection=Selection(2048),
    )  # fmt: skip


def test_a_pair_of_blocks_has_128_heads_on_blackwell() -> None:
    few, many = (IMPLEMENTATIONS["flashmla.sparse"].build(latent(heads, 4096), B200, None) for heads in (64, 128))
    assert few.kernels[0].blocks == many.kernels[0].blocks == 2 * 300
    assert few.kernels[0].total("flops") == many.kernels[0].total("flops")
    more = IMPLEMENTATIONS["flashmla.sparse"].build(latent(129, 4096), B200, None)
    assert more.kernels[0].blocks == 4 * 300


@pytest.mark.parametrize("gpu", [H100, B200], ids=["H100", "B200"])
def test_a_tile_without_a_key_is_multiplied_and_not_read(gpu: Gpu) -> None:
    short, long = (IMPLEMENTATIONS["flashmla.sparse"].build(latent(128, keys), gpu, None) for keys in (512, 2048))
    assert short.kernels[0].total("flops") == long.kernels[0].total("flops")
    asked = [one.kernels[0].requested()["load", "KV"] for one in (short, long)]
    assert 4 * asked[0] == asked[1]


def test_a_cache_in_eight_bits_is_read_in_656_bytes_a_token() -> None:
    w = Workload(64, 128, 1, 576, heads_kv=1, seq_kv=9000, head_dim_v=512, dtype="bf16", passes="decode",
                 mask=Mask.causal(), selection=Selection(2048))  # fmt: skip
    asked_for = IMPLEMENTATIONS["flashmla.sparse-decode"].build(w, H100, None).kernels[0].requested()
    assert asked_for["load", "KV"] == 64 * 2048 * 656


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("flashmla.sparse-decode", {"heads_q": 96}, "64 or 128 query heads, not 96"),
        ("flashmla.sparse-decode", {"head_dim": 320}, "a latent of 576 and 512, not 320"),
        ("deepgemm.paged-mqa-logits", {"seq_q": 4}, "1 or 2 queries a sequence, not 4"),
    ],
)
def test_decoding_kernels_refuse_what_they_are_not_compiled_for(name: str, changes: dict[str, Any], said: str) -> None:
    w = Workload(4, 128, 1, 576, heads_kv=1, seq_kv=9000, head_dim_v=512, dtype="bf16", passes="decode",
                 mask=Mask.causal(), selection=Selection(2048))  # fmt: skip
    with pytest.raises(InputError) as error:
        IMPLEMENTATIONS[name].build(replace(w, **changes), H100, None)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_warps_in_step_ask_for_the_same() -> None:
    w = Workload(1, 16, 4096, 128, heads_kv=4, mask=Mask.causal(), selection=Selection(4, 64, 32, 16))
    schedule = IMPLEMENTATIONS["nsa-triton.compressed"].build(replace(w, passes="bwd"), H100, None)
    assert all(kernel.warpgroups == 1 for kernel in schedule.kernels)
    tile = nsa_triton.compressed_tile(w, H100, scores=False).keys
    apart = keys_outside(w, tile, Walk(np.full(8, 9)), "x")
    together = in_step(apart)
    assert {one: apart.total(one) for one in AMOUNTS} == {one: together.total(one) for one in AMOUNTS}


def native(batch: int, seq: int, passes: str) -> Workload:
    return Workload(
        batch, 64, seq, 128, heads_kv=4, passes=passes, mask=Mask.causal(), selection=Selection(16, 64, 32, 16, 512)
    )


@pytest.mark.parametrize(("seq", "passes"), [(8192, "fwd"), (2048, "bwd")])
def test_eight_times_the_sequences_move_about_eight_times_the_bytes(seq: int, passes: str) -> None:
    """Flash-NSA has the queries of a head one after the other, so K and V of one head are in the L2 at a time."""

    def moved(batch: int) -> float:
        schedule = IMPLEMENTATIONS["flash-nsa.nsa"].build(native(batch, seq, passes), H100, None)
        found = replay(schedule, H100, Numbers(), cache="cold", launch="kernel")
        return found.hbm_read_bytes + found.hbm_write_bytes

    assert 6 * moved(1) <= moved(8) <= 12 * moved(1)


@pytest.mark.parametrize(
    ("name", "kernel", "times", "each"),
    [
        ("flash-nsa.nsa", "selected_fwd", 2 * 4, 1),  # (S, B * KH), `slc_attn_fwd` of ops/select_attn.py
        ("flash-nsa.nsa", "selected_bwd_dq", 2 * 4, 1),
        ("flash-nsa.nsa", "selected_bwd_dkdv", 1, 2 * 64),  # (B, QH, blocks)
        ("flash-nsa.nsa", "compressed_fwd", 2 * 64, 1),  # (tiles, B, QH), `cmp_attn_fwd` of ops/compress_attn.py
        ("flash-nsa.nsa", "compressed_bwd_dq", 2 * 64, 1),
        ("flash-nsa.nsa", "compressed_bwd_dkdv", 2, 64),  # (QH, tiles, B)
        ("nsa-triton.selected", "selected_fwd", 1, 2 * 4),  # (batch, heads of K, queries)
        ("nsa-triton.selected", "selected_bwd_dkdv", 1, 2 * 64),
        ("nsa-triton.compressed", "compressed_fwd", 1, 2 * 64),
    ],
)
def test_blocks_are_launched_in_the_order_of_the_librarys_grid(name: str, kernel: str, times: int, each: int) -> None:
    kernels = IMPLEMENTATIONS[name].build(native(2, 2048, "fwd+bwd"), H100, None).kernels
    (found,) = (one for one in kernels if one.name == kernel)
    (launch,) = found.launches
    assert (launch.times, launch.each) == (times, each)


def test_a_pass_of_a_decoding_step_that_writes_into_scores_reads_what_stays() -> None:
    w = replace(native(2, 1024, "decode"), seq_q=1, seq_kv=1024)
    kernels = {one.name: one.requested() for one in IMPLEMENTATIONS["nsa-triton.decode"].build(w, A100, None).kernels}
    for name in ("first blocks", "local blocks"):
        assert kernels[name]["load", "block scores"] == kernels[name]["store", "block scores"]


def test_a_step_of_decoding_computes_the_last_row_of_the_whole() -> None:
    q, k, v = tensors(200)
    whole = selecting.native_sparse_attention(q, k, v, top=2, block=32, width=32, step=16, window=50)
    step = selecting.native_sparse_attention(q[..., -1:, :], k, v, top=2, block=32, width=32, step=16, window=50)
    np.testing.assert_allclose(step[..., 0, :], whole[..., -1, :], rtol=1e-12, atol=1e-14)


def test_decoding_reads_the_compressed_cache_the_chosen_blocks_and_the_window_and_says_that_nothing_timed_it() -> None:
    s = Selection(16, 64, 32, 16, 512)
    w = Workload(1, 64, 1, 128, heads_kv=4, seq_kv=65536, passes="decode", mask=Mask.causal(), selection=s)
    asked_for = IMPLEMENTATIONS["nsa-triton.decode"].build(w, A100, None).requested()
    token = 4 * 128 * 2
    assert asked_for["compressed scores", "load", "K compressed"] == 4095 * token
    assert asked_for["selected_decode", "load", "K"] == 16 * 64 * token
    assert asked_for["window_decode", "load", "K window"] == 16 * 512 * token
    answer = predict(w, "a100-sxm4-80gb", "nsa", baseline=False)
    assert answer.implementation == "nsa-triton.decode"
    assert any("no calibration of nsa-triton.decode" in reason.text for reason in answer.trust.reasons)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seq_q": 2}, "takes one query a sequence"),
        ({"selection": Selection(2, 64, 32, 16)}, "window"),
        ({"selection": Selection(2, 64, 32, 16, 100, anywhere=True)}, "three branches"),
        ({"seq_kv": 512}, "512 keys have 8"),
    ],
)
def test_decoding_refuses_in_one_line(changes: dict[str, Any], said: str) -> None:
    s = Selection(16, 64, 32, 16, 512)
    w = Workload(1, 64, 1, 128, heads_kv=4, seq_kv=4096, passes="decode", mask=Mask.causal(), selection=s)
    with pytest.raises(InputError) as error:
        predict(replace(w, **changes), "a100-sxm4-80gb", "nsa")
    assert said in str(error.value) and "\n" not in str(error.value)
