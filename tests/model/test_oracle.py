"""Schedules ask for what a brute-force count of their blocks, tiles and visible pairs finds."""

import random
from collections import Counter
from itertools import compress
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.fused.building import one_query
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule
from tests.model.oracle import Attention, Count, count, count_gemm, fetches

A100, H100 = "a100-sxm4-80gb", "h100-sxm5-80gb"
QUESTIONS = 40
BANDS = (Mask.full(), Mask.causal(), Mask.sliding_window(50), Mask.sliding_window(900), Mask(left=30, right=40))
PATTERNS = tuple(
    map(Mask.parse, ("causal, global 64", "dilated 64 step 4", "causal, strided 128", "random 10 % x64 seed 1"))
)
CASES = {
    "FlashAttention-2": ("flash-attn.2", A100, "fwd", BANDS),
    "FlashAttention-2, split keys": ("flash-attn.2", A100, "decode", BANDS),
    "FlashAttention-2 backward": ("flash-attn.2", A100, "bwd", BANDS),
    "FlashAttention-3": ("flash-attn.3", H100, "fwd", BANDS),
    "FlashAttention-3, split keys": ("flash-attn.3", H100, "decode", BANDS),
    "FlashAttention-3 backward": ("flash-attn.3", H100, "bwd", BANDS),
    "Triton's tutorial": ("triton.tutorial", A100, "fwd", BANDS[:2]),
    "cuDNN on Hopper": ("nvidia.cudnn", H100, "fwd", BANDS[:2]),
    "our decoding": ("attnsim.decode", A100, "decode", BANDS),
    "our sparse attention": ("attnsim.sparse", A100, "fwd", BANDS + PATTERNS),
}
MAIN = ("decode_split", "sparse_forward", "flash_bwd")
"""Names of the kernels that are counted, where none has the role of attention."""
LISTS = ("row tiles", "block list", "bit masks")
"""What our sparse kernel reads to learn its tiles: a fact of that kernel."""


def question(draw: random.Random, passes: str, masks: tuple[Mask, ...]) -> Workload:
    """A small shape that fills the GPU or does not, ragged or not."""
    decodes = passes == "decode"
    seq_q = draw.choice((1, 2, 4) if decodes else (64, 130, 257, 384, 500))
    heads_kv = draw.choice((1, 2, 4))
    return Workload(
        batch=draw.choice((1, 2, 24)),
        heads_q=heads_kv * draw.choice((1, 2, 4)),
        seq_q=seq_q,
        head_dim=draw.choice((64, 128)),
        heads_kv=heads_kv,
        seq_kv=seq_q + draw.choice((0, 300, 1500, 2500, 4001) if decodes else (0, 0, 33, 300, 1500)),
        passes=passes,
        mask=draw.choice(masks),
    )


def told(name: str, w: Workload, schedule: Schedule) -> Attention:
    """What the oracle is told: of the schedule its tile and splits alone."""
    w = w if name == "attnsim.sparse" else one_query(w)
    seen = w.mask.seen(np.arange(w.seq_q)[:, None], np.arange(w.seq_kv)[None], w.seq_q, w.seq_kv)
    d, ours, backward = w.head_dim, name.startswith("attnsim."), w.passes == "bwd"
    tile: Any = schedule.tile if ours else getattr(schedule.tile, "backward" if backward else "forward")
    wide = d if ours else padded(d)
    return Attention(
        w.batch,
        w.heads_kv,
        w.group,
        np.broadcast_to(seen, (w.seq_q, w.seq_kv)),
        (tile.rows, tile.keys),
        (d, d, wide, wide),
        pack=w.group if name == "attnsim.decode" or getattr(tile, "pack_gqa", False) else 1,
        splits=schedule.splits.count,
        ranges_of="even" if name == "attnsim.decode" else "seen" if schedule.splits.of_seen else "all",
        outside="keys" if backward else "rows",
        gaps=name == "attnsim.sparse",
        rescaled={"attnsim.decode": (16, 16), "attnsim.sparse": (4, 0)}.get(name, (1, 1)),
    )


def by_block(kernel: Kernel) -> Counter[tuple[int, int]]:
    """How many blocks ask for so many bytes and FLOPs."""
    sums = [(sum(op.bytes for op in s.ops), sum(op.flops for op in s.ops) * kernel.warpgroups) for s in kernel.segments]
    each = (kernel.turns @ np.array(sums)).tolist()
    found: Counter[tuple[int, int]] = Counter()
    for (moved, flops), blocks in zip(each, kernel.class_counts.tolist(), strict=True):
        found[moved, flops] += blocks
    return found


def requested(kernel: Kernel) -> Counter[tuple[str, str]]:
    """Bytes by tensor, under the names of a kernel that nothing merges or adds up afterwards."""
    found: Counter[tuple[str, str]] = Counter()
    for (kind, tensor), size in kernel.requested().items():
        if tensor not in LISTS:
            found[kind, tensor.removesuffix(" partial").removesuffix(" expanded")] += size
    return found


def check(kernel: Kernel, counted: Count, what: str) -> None:
    assert requested(kernel) == counted.moved, what
    assert (kernel.total("flops"), kernel.total("exps")) == (counted.flops, counted.exps), what


@pytest.mark.parametrize("case", CASES)
def test_blocks_ask_for_what_is_counted_pair_by_pair(case: str) -> None:
    name, gpu, passes, masks = CASES[case]
    draw, asked = random.Random(case), 0
    while asked < QUESTIONS:
        w = question(draw, passes, masks)
        try:
            schedule = find_implementation(name).build(w, load_gpu(gpu), None)
        except InputError:
            continue
        asked += 1
        (kernel,) = (one for one in schedule.kernels if one.role == "attention" or one.name in MAIN)
        counted = count(told(name, w, schedule))
        check(kernel, counted, str(w))
        if name != "attnsim.sparse":  # whose blocks also read lists
            assert by_block(kernel) == +counted.blocks, str(w)


@pytest.mark.parametrize("shape", [(128, 128, 64), (300, 77, 100), (1000, 64, 4096), (129, 257, 33)])
@pytest.mark.parametrize("batch", [1, 6])
def test_a_gemm_asks_for_what_is_counted_tile_by_tile(shape: tuple[int, int, int], batch: int) -> None:
    tile = GemmTile(128, 64, 32, stages=3, warps=4)
    kernel = gemm("product", batch, shape, Operand("A"), Operand("B"), Operand("C"), dtype="bf16", tile=tile)
    counted = count_gemm(batch, shape, (tile.m, tile.n, tile.k))
    check(kernel, counted, str(shape))
    assert by_block(kernel) == counted.blocks


def steps_of(kernel: Kernel) -> list[list[str]]:
    """Operations of the stretches that multiply twice, as "kind tensor"."""
    products = [[f"{op.kind} {op.tensor}" for op in s.ops] for s in kernel.segments]
    return [ops for ops in products if "mma_async S" in ops]


def test_flash_attention_3_computes_its_softmax_while_o_is_multiplied() -> None:
    """The order is the whole of the algorithm: softmax of a tile between the issue of O += P V and the wait for it."""
    w = Workload(4, 16, 2048, 128, mask=Mask.causal())
    (kernel,) = find_implementation("flash-attn.3").build(w, load_gpu(H100), None).kernels
    steps = steps_of(kernel)
    assert len(steps) >= 3
    for ops in steps:
        issued, softmax, waited = (ops.index(what) for what in ("mma_async O", "vector P", "mma_wait O"))
        assert ops.index("mma_async S") < issued < ops.index("mma_wait S") < softmax < waited, ops


@pytest.mark.parametrize(
    ("name", "gpu"), [("flash-attn.2", A100), ("flash-attn.3", H100), ("flash-attn.4", "b200-sxm-180gb")]
)
def test_nothing_is_read_before_it_is_asked_for_and_waited_for(name: str, gpu: str) -> None:
    """In each block S follows a wait for K, O one for V, and no wait is without a load under way."""
    w = Workload(2, 8, 1000, 128, 4, mask=Mask.causal())
    (kernel,) = find_implementation(name).build(w, load_gpu(gpu), None).kernels
    for block_class in range(len(kernel.repeats)):
        under_way: Counter[str] = Counter()
        landed: Counter[str] = Counter()
        for segment, n in kernel.runs(block_class):
            for op in n * kernel.segments[segment].ops:
                if op.kind == "load":
                    under_way[op.tensor] += 1
                elif op.kind == "wait":
                    under_way[op.tensor] -= 1
                    landed[op.tensor] += 1
                    assert under_way[op.tensor] >= 0, f"{kernel.segments[segment].name} waits for {op.tensor}"
                elif op.kind in ("mma", "mma_async"):
                    operand = {"S": "K", "O": "V"}[op.tensor]
                    landed[operand] -= 1
                    assert landed[operand] >= 0, f"{kernel.segments[segment].name} multiplies {operand} not yet there"
        assert not +under_way, under_way


def fetched(places: tuple[int, ...], own: tuple[bool, ...], running: int) -> float:
    """The same as the axes of a declaration say it."""
    axes = {name: Axis(n) for name, n in zip("abcde", places, strict=False)}
    tensor = Tensor("K", " ".join(compress(axes, own)), 2)
    return tensor.use(axes, " ".join(axes)).fetched(running)


@pytest.mark.parametrize(
    ("places", "own", "running", "times"),
    [
        ((16, 4), (True, False), 20, 1.0),  # A of a product in 16 x 4 tiles: four blocks side by side read a row of it
        ((16, 4), (False, True), 20, 3.2),  # B: every fourth block reads a column, 20 at a time
        ((4, 6), (False, True), 6, 4.0),  # K in six ranges, of four query heads that share a head of K one by one
        ((8, 12), (True, False), 6, 2.0),
    ],
)
def test_blocks_fetch_again_what_is_out_of_their_reach(
    places: tuple[int, ...], own: tuple[bool, ...], running: int, times: float
) -> None:
    assert fetched(places, own, running) == pytest.approx(times)
    assert fetches(places, own, running) == pytest.approx(times, rel=0.25)


def test_what_blocks_fetch_is_near_brute_force() -> None:
    draw, off = random.Random(45), []
    for _ in range(1500):
        places = tuple(draw.choices((1, 2, 3, 4, 6, 8, 12, 16), k=draw.randint(2, 4)))
        own, running = tuple(draw.random() < 0.5 for _ in places), draw.randint(1, 64)
        off.append(abs(np.log(fetched(places, own, running) / fetches(places, own, running))))
    assert np.exp(off).mean() <= 1.12 and (np.exp(off) <= 1.25).mean() >= 0.8
