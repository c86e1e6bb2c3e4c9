"""Batches whose sequences differ: one path with those of one length, and what schedulers make of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnsim import predict
from attnsim.api.asking import Conditions
from attnsim.api.explaining import one_launch
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.flashinfer import taken_in_turn
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.xformers import SPLIT_K, SPLIT_K_CAUSAL_QUERIES
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Latent, Tree, Workload
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import Replay, replay
from tests.model.bounds import compulsory, requested, useful

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb")
OF_THEIR_OWN = tuple(f"flashinfer.{name}" for name in ("pod", "pod-streams", "pod-serial", "cascade", "tree"))
TAKING = [one for one in IMPLEMENTATIONS.values() if one.lengths and one.name not in OF_THEIR_OWN and not one.picks]
MASKS = (Mask.causal(), Mask.full(), Mask.sliding_window(500))


def drawn(rng: random.Random, decode: bool) -> list[tuple[int, int, int]]:
    found = []
    for _ in range(rng.randint(2, 9)):
        keys = rng.randint(1, 9000)
        found.append((1 if decode or rng.random() < 0.4 else rng.randint(1, keys), keys, rng.randint(1, 3)))
    return found


def of(lengths: Any, **given: Any) -> Workload:
    return Workload(lengths=lengths, **given)


def asked(record: Implementation, lengths: Any, **given: Any) -> Workload:
    """A question of the kind that `record` answers: of a latent cache where it attends one."""
    if record.form:
        given |= {"heads_kv": 0, "head_dim": 192, "head_dim_v": 128, "latent": Latent(512, 64)}
    return of(lengths, **given)


def built(record: Implementation, w: Workload, gpu: Gpu) -> tuple[Workload, Schedule]:
    """The schedule; of a kernel that takes as many queries of every sequence, of the batch with one of each."""
    try:
        return w, record.build(w, gpu, None)
    except InputError as error:
        assert "takes as many queries of every sequence" in str(error)
        w = w.having(one._replace(queries=1) for one in w.parts)
        return w, record.build(w, gpu, None)


@pytest.mark.parametrize(
    ("record", "passes"),
    [
        pytest.param(record, passes, id=f"{record.name}-{passes}")
        for record in TAKING
        for passes in ("fwd", "decode", "fwd+bwd")
        if passes in record.passes
    ],
)
def test_every_output_row_is_written_once_and_every_visible_pair_computed(record: Implementation, passes: str) -> None:
    gpu = next(load_gpu(gpu) for gpu in reversed(GPUS) if runs_on(record, load_gpu(gpu)))
    rng = random.Random(passes)
    for number, mask in enumerate(MASKS):
        if mask.is_windowed and (record.form or not record.windows):
            continue
        w, schedule = built(record, asked(
            record, drawn(rng, passes == "decode"), heads_q=8, heads_kv=(8, 2, 2)[number],
            head_dim=(64, 128, 128)[number], mask=mask, passes=passes,
        ), gpu)  # fmt: skip
        if not record.form:  # some kernels of latents leave the product with W_UV to others
            stores = [size for key, size in schedule.requested().items() if key[1:] == ("store", "O")]
            assert sum(stores) == w.heads_q * w.queries * w.head_dim_v * w.output_bytes
        assert schedule.total("flops") >= useful(w, record.name).flops


@pytest.mark.parametrize("record", TAKING, ids=lambda record: record.name)
def test_equal_sequences_have_the_schedule_of_their_batch(record: Implementation) -> None:
    gpu = next(load_gpu(gpu) for gpu in reversed(GPUS) if runs_on(record, load_gpu(gpu)))
    given: dict[str, Any] = {"heads_q": 8, "heads_kv": 2, "head_dim": 128, "mask": Mask.causal()}
    queries = SPLIT_K_CAUSAL_QUERIES if record.name == SPLIT_K else 300
    w = asked(record, [(queries, 900)] * 5, **given)
    alike = replace(w, lengths=(), batch=5, seq_q=queries, seq_kv=900)
    told, batch = (record.build(one, gpu, None) for one in (w, alike))
    assert str(told) == str(batch) and told.requested() == batch.requested()


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("flashmla.dense", 1), ("sglang.fa3-mla", 1), ("cutlass.mla", 2), ("sglang.triton-mla", 0), ("nvidia.cudnn", 0),
        ("nvidia.cudnn-frontend-sm100", 2), ("flash-attn.4", 2), ("tensorrt-llm.attention", 0),
        ("tensorrt-llm.attention", 1), ("tensorrt-llm.attention", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("passes", ["fwd", "decode"])
def test_the_replay_asks_for_what_the_schedule_says(name: str, gpu: int, passes: str) -> None:
    record = IMPLEMENTATIONS[name]
    lengths = "1:1000, 1:3000 x 3, 1:9" if passes == "decode" else "70:1000, 1:3000 x 3, 300:300, 1:9"
    w = asked(record, lengths, heads_q=8, heads_kv=2, head_dim=128, mask=Mask.causal(), passes=passes)
    _, schedule = built(record, w, load_gpu(GPUS[gpu]))
    keeps_between_its_bounds(schedule, replay(schedule, load_gpu(GPUS[gpu]), Numbers(), mode="exact", cache="cold"))


def keeps_between_its_bounds(schedule: Schedule, played: Replay) -> None:
    for kernel, seen in zip(schedule.kernels, played.kernels, strict=True):
        assert dict(seen.requested) == {key: size for key, size in kernel.requested().items() if size}, kernel.name
    moved = played.hbm_read_bytes + played.hbm_write_bytes
    assert compulsory(schedule) <= moved * (1 + 1e-9) <= requested(schedule) * (1 + 2e-9)


def test_one_query_more_unpacks_the_heads_of_all_sequences() -> None:
    """`mha_varlen_fwd` packs the heads of a group, and cuts keys, only where every sequence has one query."""
    gpu, record = load_gpu("rtx-4090"), IMPLEMENTATIONS["vllm.flash-attn-2"]
    given: dict[str, Any] = {"heads_q": 32, "heads_kv": 8, "head_dim": 128, "mask": Mask.causal()}
    alone = record.build(of("1:4000 x 15, 1:9", **given), gpu, None)
    mixed = record.build(of("1:4000 x 15, 2:9", **given), gpu, None)
    assert alone.splits.partial and not mixed.splits.partial
    attention = [next(kernel for kernel in one.kernels if kernel.role == "attention") for one in (alone, mixed)]
    assert [kernel.blocks for kernel in attention] == [8 * 16 * alone.splits.count, 32 * 16]


def test_the_grid_is_of_the_longest_and_its_empty_blocks_leave() -> None:
    gpu, record = load_gpu("rtx-4090"), IMPLEMENTATIONS["flash-attn.2"]
    w = of("512:2560, 1:4000 x 20", heads_q=32, heads_kv=8, head_dim=128, mask=Mask.causal())
    (kernel,) = record.build(w, gpu, None).kernels
    assert kernel.blocks == 32 * 21 * (512 // 64)
    number = [segment.name for segment in kernel.segments].index("no rows")
    assert kernel.executions[number] == 32 * 20 * (512 // 64 - 1)


def test_flash_attention_3_gives_long_sequences_more_splits_and_takes_them_first() -> None:
    gpu, record = load_gpu("h100-sxm5-80gb"), IMPLEMENTATIONS["sglang.fa3"]
    w = of("1:500 x 3, 1:60000", heads_q=8, heads_kv=2, head_dim=128, passes="decode")
    schedule = record.build(w, gpu, None)
    assert schedule.splits.each[1] > schedule.splits.each[0] >= 1
    kernel = next(kernel for kernel in schedule.kernels if kernel.role == "attention")
    assert (
        kernel.blocks == sum(n * one.times for n, one in zip(schedule.splits.each, w.parts, strict=True)) * w.heads_kv
    )


def test_flashinfers_plan_fills_two_blocks_an_sm() -> None:
    gpu, record = load_gpu("a100-sxm4-80gb"), IMPLEMENTATIONS["flashinfer.fa2"]
    w = of("1:500 x 3, 1:60000", heads_q=8, heads_kv=2, head_dim=128, passes="decode")
    schedule = record.build(w, gpu, None)
    kernel = next(kernel for kernel in schedule.kernels if kernel.role == "attention")
    assert 0.85 * 2 * gpu.sm.count < kernel.blocks <= 2 * gpu.sm.count


HEADS: dict[str, Any] = {"heads_q": 16, "heads_kv": 4, "head_dim": 128, "mask": Mask.causal()}


def launched(kernel: Kernel) -> list[tuple[int, ...]]:
    """How often each block runs each segment, in launch order."""
    order = np.concatenate([np.tile(one.classes, one.times) for one in kernel.launches])
    return [tuple(row) for row in kernel.repeats[order, 0].tolist()]


def attention(name: str, gpu: int, w: Workload) -> Kernel:
    schedule = IMPLEMENTATIONS[name].build(w, load_gpu(GPUS[gpu]), None)
    return next(kernel for kernel in schedule.kernels if kernel.role == "attention")


def test_flash_attention_4_has_a_grid_of_as_many_blocks_as_there_might_be() -> None:
    """`SingleTileVarlenScheduler.get_grid_shape`; sequences as they come, of each the last row tile first."""
    w = of([(300, 300), (2000, 2000), (10, 10)], **HEADS)
    kernel = attention("flash-attn.4", 2, w)
    blocks = launched(kernel)
    assert len(blocks) == (2310 + 3 * 255) // 256 * 16
    leaving = [segment.name for segment in kernel.segments].index("no rows")
    assert [block[leaving] for block in blocks] == [0] * 16 * 11 + [1] * 16
    steps = kernel.turns.sum(axis=1)[np.concatenate([one.classes for one in kernel.launches])]
    of_long = steps[32 : 32 + 8 * 16]
    assert (np.diff(of_long) <= 0).all() and of_long[0] > of_long[-1]
    assert len(set(of_long[:16].tolist())) == 1  # 16 heads of a row tile side by side


def test_fmha_v2_launches_the_row_tiles_of_the_longest_of_every_sequence() -> None:
    """Blocks (steps, heads, batch) before Hopper: a short sequence leaves most of its own, before the next begins."""
    kernel = attention("tensorrt-llm.attention", 0, of([(64, 64), (640, 640)], **HEADS))
    leaving = [segment.name for segment in kernel.segments].index("no rows")
    assert [block[leaving] for block in launched(kernel)] == ([0] + [1] * 9) * 16 + [0] * 160


def test_balanced_fmha_takes_the_last_row_tile_of_every_sequence_first() -> None:
    kernel = attention("tensorrt-llm.attention", 1, of([(128, 128), (640, 640)], **HEADS))
    leaving = [segment.name for segment in kernel.segments].index("no rows")
    assert [block[leaving] for block in launched(kernel)] == [1, 0] * 16 * 4 + [0, 0] * 16


def test_masked_attention_cuts_the_keys_of_all_as_those_of_the_longest() -> None:
    """`timesteps_per_block`: of a short sequence the first range has all keys, and the others none."""
    w = of("1:100, 1:20000", heads_q=2, head_dim=128, passes="decode")
    schedule = IMPLEMENTATIONS["tensorrt-llm.attention"].build(w, load_gpu(GPUS[0]), None)
    kernel = schedule.kernels[0]
    assert schedule.splits.chunk > 1 and kernel.blocks == 2 * 2 * schedule.splits.count
    keys = [sum(op.bytes for op in one.ops if (op.kind, op.tensor) == ("load", "K")) for one in kernel.segments]
    read = [sum(n * size for n, size in zip(block, keys, strict=True)) // 256 for block in launched(kernel)]
    count = schedule.splits.count
    assert read[:count] == [100] + [0] * (count - 1)
    assert sum(read[2 * count : 3 * count]) == 20000 and read[2 * count] == max(read)


def test_cudnns_open_kernels_take_the_prompt_of_most_queries_first() -> None:
    w = of([(300, 300), (2000, 2000), (10, 10)], **HEADS)
    kernel = attention("nvidia.cudnn-frontend-sm100", 2, w)
    assert kernel.blocks == 16 * (2 + 8 + 1)
    steps = kernel.turns.sum(axis=1)[np.concatenate([np.tile(one.classes, one.times) for one in kernel.launches])]
    assert steps[0] == steps.max() and steps[-1] == steps.min() and steps[8] == steps[0]


def test_flash_mla_shares_a_long_sequence_out() -> None:
    given: dict[str, Any] = {"heads_q": 64, "head_dim": 192, "head_dim_v": 128, "latent": Latent(512, 64)}
    skewed, mean = (of(text, passes="decode", **given) for text in ("1:1000 x 63, 1:200000", "1:4109 x 64"))
    times = [
        predict(w, GPUS[1], "mla", implementation="flashmla.dense", baseline=False).time_s or 0 for w in (skewed, mean)
    ]
    assert skewed.keys == pytest.approx(mean.keys, rel=0.01) and times[0] < 1.2 * times[1]


@pytest.mark.parametrize(
    ("name", "gpu", "latent"),
    [("flashmla.dense", 1, True), ("cutlass.mla", 2, True), ("tensorrt-llm.mla-trtllm-gen", 2, True),
     ("tensorrt-llm.attention", 0, False), ("vllm.trtllm-gen", 2, False)],
)  # fmt: skip
def test_kernels_of_one_number_of_queries_say_so(name: str, gpu: int, latent: bool) -> None:
    w = asked(IMPLEMENTATIONS[name], "1:900 x 3, 4:1000", heads_q=8, heads_kv=8, head_dim=128, passes="decode")
    with pytest.raises(InputError, match="as many queries of every sequence, they are 1 to 4") as caught:
        IMPLEMENTATIONS[name].build(w, load_gpu(GPUS[gpu]), None)
    assert "\n" not in str(caught.value) and (w.latent is not None) == latent


def test_who_takes_one_tensor_refuses_different_lengths() -> None:
    w = of("5:10 6:10", heads_q=8, head_dim=64)
    with pytest.raises(InputError, match="takes sequences of one length"):
        predict(w, "h100-sxm5-80gb", "naive")


@pytest.mark.parametrize(
    ("name", "w"),
    [
        *((name, of("700:900, 1:4000 x 5, 300:300, 1:77", **HEADS)) for name in OF_THEIR_OWN[:3]),
        ("flashinfer.pod", of("2000:2000, 1:20000 x 2", **HEADS)),
        ("flashinfer.cascade", of("1:9000, 1:9100 x 3, 1:8200", prefix=8192, passes="decode", **HEADS)),
        ("flashinfer.cascade", of("70:9000, 5:9100", prefix=300, **HEADS)),
        ("flashinfer.tree", of("7:900, 7:3000", tree=Tree((-1, 0, 0, 1, 1, 2, 2)), **HEADS)),
        ("flashinfer.fa2", of("7:900, 1:3000", page_size=16, **HEADS)),
        ("vllm.flash-attn-2", of("7:900, 1:3000", page_size=16, **HEADS)),
    ],
)
def test_fused_shared_and_paged_batches_keep_between_their_bounds(name: str, w: Workload) -> None:
    schedule = IMPLEMENTATIONS[name].build(w, load_gpu(GPUS[0]), None)
    keeps_between_its_bounds(schedule, replay(schedule, load_gpu(GPUS[0]), Numbers(), cache="cold"))
    assert schedule.total("flops") >= useful(w, name).flops


def test_pod_takes_blocks_in_turn() -> None:
    assert taken_in_turn(2, 5).tolist() == [0, 1, 1, 0, 1, 1, 1]
    assert taken_in_turn(5, 2).tolist() == [0, 0, 1, 0, 0, 1, 0]


def test_one_launch_wins_where_halves_want_different_units() -> None:
    found = one_launch(of("8192:8192, 1:8192 x 128", **HEADS), load_gpu(GPUS[0]), Conditions(launch="graph"))
    assert found is not None and found.ways[0].way == "one launch"
    assert found.sentence.startswith("One launch wins") and found.ways[0].time_s < found.ways[-1].time_s
    assert one_launch(of("1:8192 x 64, 1:9", **HEADS), load_gpu(GPUS[0]), Conditions()) is None


def test_a_shared_prefix_is_read_once() -> None:
    given = dict(HEADS, lengths=[(1, 9000 + n) for n in range(32)], passes="decode")
    apart = predict(Workload(**given), GPUS[0], implementation="flashinfer.fa2")
    shared = predict(Workload(prefix=8192, **given), GPUS[0], implementation="flashinfer.cascade")
    assert (shared.time_s or 0) < 0.5 * (apart.time_s or 0)
    assert (shared.hbm_bytes or 0) < 0.3 * (apart.hbm_bytes or 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"page_size": 4096}, "page_size is 4096, the longest cache holds 1000 keys; allowed: 1 to 1000"),
        ({"prefix": 1200}, "prefix is 1200, the shortest cache holds 893 keys before its queries"),
        ({"tree": Tree((-1, 0))}, "the tree has 2 tokens and a sequence 7 queries; give each 2"),
        ({"tree": Tree((-1,) * 7), "mask": Mask.full()}, "the mask is not causal"),
    ],
)
def test_caches_that_cannot_be_are_refused_in_a_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        of("7:900 7:1000", **{**HEADS, **given})
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "told"), [("-1 0 2", "token 2 comes after"), ("0", "no tree"), ("a", "write")])
def test_a_tree_that_is_none_is_refused(text: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        Tree.parse(text)
    assert told in str(caught.value)


def test_a_question_takes_the_text_of_its_parts() -> None:
    shape: dict[str, Any] = {"heads_q": 8, "head_dim": 192, "seq_q": 4, "seq_kv": 96, "mask": Mask.causal()}
    texts: dict[str, Any] = {"tree": "-1 0 0 1", "operations": "copies", "selection": "top 2x16"}
    w = Workload(**shape, **texts)
    assert w.tree == Tree((-1, 0, 0, 1))
    assert w == Workload(**shape, tree=w.tree, operations=w.operations, selection=w.selection)
    assert (str(w.operations), str(w.selection)) == ("copies", "top 2x16")
    assert Workload(**shape | {"latent": "512x64"}).latent == Latent(512, 64)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tree": "a"}, "tree is 'a'; write the parent of each token"),
        ({"tree": (-1, 0, 0, 1)}, "tree is (-1, 0, 0, 1); give Tree, or its text as --tree has it"),
        ({"latent": 512}, "latent is 512; give Latent, or its text"),
        ({"operations": "dance"}, "dance"),
        ({"selection": ["top 2"]}, "selection is ['top 2']; give Selection"),
    ],
)
def test_parts_of_a_question_that_are_none_are_refused_in_a_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        Workload(heads_q=8, head_dim=192, seq_q=4, seq_kv=96, **given)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_a_tree_sees_ancestors_alone() -> None:
    w = of("4:100 x 2", tree=Tree.parse("-1 0 0 1"), **HEADS)
    assert w.visible_pairs == 2 * (4 * 96 + 1 + 2 + 2 + 3)
