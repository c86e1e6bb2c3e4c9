"""A step of decoding with native sparse attention: `nsa_infer` of XunhaoLai/native-sparse-attention-triton.

``infer/nsa_inference.py`` and ``infer/inference_func.py``, commit 36e7472. Attention over the compressed cache and the
choice of blocks are PyTorch's own operations, whose einsum copies K and V of several sequences to merge batch and heads
(`sumproduct_pair` in ``aten/src/ATen/native/Linear.cpp``). Attention over chosen blocks has one thread block per
sequence and head of K and V. Attention over the window multiplies 16 sequences of a query head on the FP32 lanes.
Compression of the newest keys is left out, as most steps complete no stretch of them, and so are gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import flash_peak_bytes
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.selecting.nsa_triton import forward_tile, power_of_two
from attnsim.models.implementations.selecting.walks import INDEX_BYTES, Walk, best_past, clear, forward, over, top_k
from attnsim.models.question.selection import Selection, of_last_query
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, declared
from attnsim.models.schedule.gemm import Operand, library_gemm
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, by_size, loop
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes, padded
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule

NAME = "nsa-triton.decode"
TOGETHER, WINDOW_KEYS = 16, 128
"""Sequences and keys of a step of `decode_kernel` (`BLOCK_SIZE_B`, `BLOCK_SIZE_K`)."""
LANE_INSTRUCTIONS = by_hand(2, "FP32-lane instructions an element of K or V and sequence: widening and multiply-add")
WINDOW_REGISTERS = by_hand(255, "registers of a thread of the window's kernel in NSA's decoding: all, not compiled")
"""A step with 16 sequences holds 128 keys of K, more than all registers of its block."""


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """Tiles of a step of decoding.

    Parameters
    ----------
    chosen : FlashTile
        Tile of the attention over chosen blocks.
    together : int
        Sequences of a block of the window's kernel.
    """

    chosen: FlashTile
    together: int

    def __str__(self) -> str:
        return f"chosen {self.chosen}; window {self.together} sequences x {WINDOW_KEYS} keys"


def selection_of(w: Workload) -> Selection:
    """The selection of a question, with all three branches.

    Raises
    ------
    InputError
        If the selection lacks a branch, or the call is not a causal decode.
    """
    s = w.selection
    if s is None or not (s.top and s.compress and s.window) or s.anywhere:
        raise InputError(
            f"{NAME} has three branches, the selection is {s or 'none'}; "
            "write --selection 'top 16x64, compress 32 step 16, window 512'"
        )
    if w.seq_q != 1:
        raise InputError(f"{NAME} takes one query a sequence, not {w.seq_q}; write --pass decode")
    if not w.mask.is_causal:
        raise InputError(f"{NAME} takes a causal mask, not {w.mask}; write --causal")
    if reason := s.misfit(w.seq_kv):
        raise InputError(f"{NAME}: selection {s} {reason}")
    return s


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """All kernels of a step."""
    s = selection_of(w)
    tile = DecodeTile(forward_tile(w, s, gpu), min(TOGETHER, power_of_two(w.batch)))
    kernels = (
        *compressed(w, s, gpu),
        *choice(w, s),
        *chosen(w, s, tile.chosen),
        *window(w, s, tile.together),
        *combined(w),
    )
    scores = w.batch * w.heads_q * s.compressed_keys(w.seq_kv) * (4 + 2 * w.element_bytes)
    compressed_cache = w.batch * w.heads_kv * s.compressed_keys(w.seq_kv) * (w.head_dim + w.head_dim_v)
    kept = compressed_cache * w.element_bytes * (1 + (w.batch > 1))
    pairs = w.batch * of_last_query(s, w.seq_kv)
    memory = flash_peak_bytes(w, scores + kept)
    return Schedule("nsa", NAME, kernels, tile, memory, useful_flops=w.matrix_flops(pairs))


def compressed(w: Workload, s: Selection, gpu: Gpu) -> Iterator[Kernel]:
    """`compressed_attention_decode` up to its output."""
    e, keys, heads = w.element_bytes, s.compressed_keys(w.seq_kv), w.batch * w.heads_kv
    scores = w.batch * w.heads_q * keys
    by_head = " by head" if w.batch > 1 else ""
    k, v = heads * keys * w.head_dim * e, heads * keys * w.head_dim_v * e
    yield over("compare lengths", {}, {"absent": w.batch * keys}, w.batch * keys)
    if by_head:
        yield over("K by head", {"K compressed": k}, {f"K compressed{by_head}": k}, k // e)
    operands = Operand("Q", e), Operand(f"K compressed{by_head}", e), Operand("scores", e)
    yield library_gemm("compressed scores", heads, (w.group, keys, w.head_dim), *operands, dtype=w.dtype, gpu=gpu)
    yield over("scale", {"scores": scores * e}, {"scores": scores * e}, scores)
    yield over("hide absent", {"scores": scores * e, "absent": w.batch * keys}, {"scores": scores * e}, scores)
    softmax = Access("scores", scores * e), Access("weights", scores * 4, True)
    yield streaming("softmax", softmax, elements=4 * scores, exps=scores, blocks=w.batch * w.heads_q)
    yield over("no number", {"weights": scores * 4}, {"weights": scores * 4}, scores)
    yield over("to 16 bits", {"weights": scores * 4}, {"P": scores * e}, scores)
    if by_head:
        yield over("V by head", {"V compressed": v}, {f"V compressed{by_head}": v}, v // e)
    operands = Operand("P", e), Operand(f"V compressed{by_head}", e), Operand("O compressed", e)
    yield library_gemm("compressed output", heads, (w.group, w.head_dim_v, keys), *operands, dtype=w.dtype, gpu=gpu)


def offsets(s: Selection) -> int:
    """Scores that touch a block, each a separate pass in `transform_score`."""
    return max(1, s.block // s.step) + -(-s.compress // s.step) - 1


def choice(w: Workload, s: Selection) -> Iterator[Kernel]:
    """`transform_score`, and the best blocks in order."""
    rows, keys, blocks = w.batch * w.heads_kv, s.compressed_keys(w.seq_kv), s.blocks(w.seq_kv)
    scores, summed, whole = rows * keys * 4, rows * blocks * 4, rows * (w.seq_kv // s.block) * 4
    wider = scores + 2 * rows * (-(-s.compress // s.step) - 1) * 4
    top = min(s.top, blocks)
    yield over("sum heads", {"weights": scores * w.group}, {"score": scores}, rows * keys * w.group)
    yield over("pad", {"score": scores}, {"score padded": wider}, wider // 4)
    yield clear("clear block scores", "block scores", summed)
    for place in range(offsets(s)):
        yield over(f"times {place}", {"score padded": whole}, {"part": whole}, whole // 4)
        yield over(f"add {place}", {"part": whole, "block scores": whole}, {"block scores": whole}, whole // 4)
    yield over("first blocks", {"block scores": rows * 4}, {"block scores": rows * 4}, rows)
    masks = w.batch * blocks
    for name in ("up to its own", "after those far"):
        yield over(name, {}, {name: masks}, masks)
    yield over("local", {"up to its own": masks, "after those far": masks}, {"local": masks}, masks)
    hidden = {"local": rows * blocks, "block scores": summed}
    yield over("local blocks", hidden, {"block scores": summed}, rows * blocks)
    yield over("no score", {"block scores": summed}, {"block scores": summed}, rows * blocks)
    yield from top_k("block scores", rows, blocks, top)
    yield from best_past(rows, top)


def chosen(w: Workload, s: Selection, tile: FlashTile) -> Iterator[Kernel]:
    """`topk_sparse_attention_decode`: all heads of a group against the chosen blocks, one after the other."""
    steps = min(s.top, s.blocks(w.seq_kv))
    walk = Walk(np.array([steps]), INDEX_BYTES, grid="t b h")
    yield clear("clear O", "O", w.batch * w.heads_q * w.head_dim_v * w.output_bytes)
    yield forward(w, tile, walk, np.array([w.group]), "selected_decode", 1, steps * tile.keys, lse=False)


def window(w: Workload, s: Selection, together: int) -> Iterator[Kernel]:
    """`flash_attention_decode` over the newest keys: a block for each query head and 16 sequences."""
    e, d, dv = w.element_bytes, padded(w.head_dim), padded(w.head_dim_v)
    tiles, keys = Axis(w.batch, together), Axis(min(s.window, w.seq_kv), WINDOW_KEYS)
    axes = {"b": Axis(w.batch), "h": Axis(w.heads_kv), "g": Axis(w.group), "j": keys}
    q, o = (
        Tensor("Q", "b h g", w.head_dim * e),
        Tensor("O window", "b h g", w.head_dim_v * w.output_bytes, written=True),
    )
    k, v = Tensor("K window", "b h j", w.head_dim * e), Tensor("V window", "b h j", w.head_dim_v * e)
    pairs, short = together * WINDOW_KEYS, int(keys.missing[-1])
    work = TileOp(
        "vector",
        "P",
        scores=pairs,
        exps=pairs + together,
        fp32=LANE_INSTRUCTIONS * pairs * (d + dv) + together * dv,
    )

    def turn(sequences: int, whole: bool) -> tuple[TileOp, ...]:
        each = sequences * (WINDOW_KEYS if whole else WINDOW_KEYS - short)
        return k.load(each), v.load(each), k.wait(), v.wait(), STEP, work

    def body(missing: Ints) -> Nest:
        nest = by_size("begin", missing, lambda n: (BLOCK, q.load(together - n)))
        for n in sorted(set(missing.tolist())):
            steps, whole = keys.tiles * (missing == n), keys.tiles - (short > 0)
            nest += loop(f"{together - n} sequences", steps, partial(turn, together - n), whole=whole)
        return [*nest, *by_size("store", missing, lambda n: [o.store(together - n)])]

    yield clear("clear O window", "O window", w.batch * w.heads_q * w.head_dim_v * w.output_bytes)
    yield declared(
        "window_decode",
        axes,
        "b h g",
        (q, k, v, o),
        {"missing": tiles.missing},
        body,
        threads=128 if w.head_dim <= 64 else 256,  # `num_warps` of `flash_attention_decode`
        registers_per_thread=WINDOW_REGISTERS,
        launches=(Launch(classes(tiles.missing)[1], each=w.heads_q),),
        dtype=w.dtype,
        step="tile",
    )


def combined(w: Workload) -> Iterator[Kernel]:
    """Three products with gates and two sums, each a PyTorch operation."""
    rows = w.batch * w.heads_q
    out = rows * w.head_dim_v * w.output_bytes
    for x in ("O compressed", "O", "O window"):
        yield over(f"gate {x}", {x: out, "gates": rows * w.element_bytes}, {f"{x} gated": out}, rows * w.head_dim_v)
    yield over("add chosen", {"O compressed gated": out, "O gated": out}, {"two": out}, rows * w.head_dim_v)
    yield over("add window", {"two": out, "O window gated": out}, {"O combined": out}, rows * w.head_dim_v)


RECORDS = (record(NAME, build),)
