"""Attention to chosen blocks of keys: a query and the heads of its group a block (NSA, arXiv 2502.11089, section 3.4).

``ops/triton/topk_sparse_attention.py`` of XunhaoLai/native-sparse-attention-triton, commit 9bea856c911e:
`forward_kernel`, `backward_dq` and `backward_dkdv`, which walks the queries of each block of keys; they are found by
sorting the list of blocks (`reorder_topk_idx`). Triton keeps `num_stages - 1` tiles of K and V in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import sums_of_groups
from attnsim.models.implementations.fused.building import in_step
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.selecting.triton_tiles import TritonBackwardTile, compiled, registers
from attnsim.models.implementations.selecting.walks import (
    INDEX_BYTES,
    LIST,
    Walk,
    forward,
    keys_outside,
    rows_outside,
    scattered,
    walked_tiles,
)
from attnsim.models.question.selected import walked, walkers
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Path
from attnsim.models.schedule.uses import TensorUse
from attnsim.models.schedule.widths import padded

NAME = "nsa-triton.selected"
QUERIES = 64
"""Queries of a step of `backward_dkdv` (`BLOCK_SIZE_Q`)."""
LONG = 32768
"""Tokens from which on a block has one query more in turn (`num_q_loop`)."""
SORT_BYTES = by_hand(100, "bytes that sorting moves a pair of int32 key and int64 value: four passes of eight bits")
"""A histogram of the keys, then each pass reads and writes 12 bytes (cub's radix sort, which `torch.argsort` calls)."""


@dataclass(frozen=True, slots=True)
class SelectedTile:
    """Tiles of the kernels that walk chosen blocks.

    Parameters
    ----------
    forward : FlashTile
        Its rows are the query heads of a group, at least 16.
    queries, keys : BackwardTile
        Of the pass for dQ and of that for dK and dV.
    turns : int
        Queries that a block has one after the other.
    """

    forward: FlashTile
    queries: BackwardTile
    keys: BackwardTile
    turns: int

    def __str__(self) -> str:
        return f"{self.forward.rows} heads x {self.forward.keys}, {self.forward.warps} warps"


def power_of_two(number: int) -> int:
    """The next power of two, as Triton's tiles have them."""
    return 1 << max(0, number - 1).bit_length()


def forward_tile(w: Workload, selection: Selection, gpu: Gpu) -> FlashTile:
    """The tile of `forward_kernel`: the query heads of a group against a block."""
    heads, block, width = max(16, power_of_two(w.group)), power_of_two(selection.block), padded(w.head_dim_v)
    warps = 8 if max(w.head_dim, w.head_dim_v) > 64 else 4
    tile = FlashTile(
        heads, block, warps=warps, loop="ring", stages=2, registers=registers("forward", gpu, width), pack_gqa=True,
        warps_share_keys=True, across=warps, p_in_smem=True,
    )  # fmt: skip
    return compiled(tile, NAME, gpu, width)


def choose_tile(w: Workload, gpu: Gpu) -> SelectedTile:
    """The tiles of `_topk_sparse_attention_fwd` and `_bwd`."""
    tile = forward_tile(w, chosen(w), gpu)
    heads, block, width = tile.rows, tile.keys, padded(w.head_dim_v)
    wide, hopper = max(w.head_dim, w.head_dim_v) > 64, gpu.features.wgmma
    back = (4 if hopper else 8) if wide != (block > 64) else 8 if wide else 2
    queries = TritonBackwardTile(
        heads, block, warps=back, stages_q=2 if wide or block > 64 else 1, registers=registers("dq", gpu, width),
        across=back,
    )  # fmt: skip
    beside = (4 if hopper else 8) if wide else 2
    path: Path = "wgmma" if hopper and wide else "mma_sync"
    keys = TritonBackwardTile(
        QUERIES, block, warps=beside, stages_q=2 if path == "wgmma" else 1, path=path,
        across=beside if wide else 1,
    )  # fmt: skip
    return SelectedTile(
        tile,
        compiled(queries, f"{NAME} dq", gpu, width),
        compiled(keys, f"{NAME} backward", gpu, width),
        w.batch * w.seq_q // LONG + 1,
    )


def chosen(w: Workload) -> Selection:
    """The selection of a question.

    Raises
    ------
    InputError
        When it has none with blocks, or the kernels do not compute it.
    """
    selection = w.selection
    if selection is None or not selection.top:
        raise InputError("kernels of chosen blocks need a selection: --selection 'top 16x64'")
    if reason := selection.misfit(w.seq_kv):
        raise InputError(f"selection {selection} {reason}")
    if w.seq_q != w.seq_kv or not w.mask.is_causal:
        raise InputError(
            f"kernels of chosen blocks are causal with as many keys as queries, not {w.mask}, {w.seq_q} x {w.seq_kv}"
        )
    return selection


def turns_of(steps: np.ndarray, turns: int) -> np.ndarray:
    """Steps of each query as ``[blocks, turns]``, the last block filled up with none."""
    blocks = -(-len(steps) // turns)
    return np.concatenate([steps, np.zeros(blocks * turns - len(steps), dtype=np.int64)]).reshape(blocks, turns)


def selected_forward(w: Workload, gpu: Gpu, tile: SelectedTile) -> list[Kernel]:
    """`_topk_sparse_attention_fwd`: outputs are cleared, then one kernel."""
    rows = w.batch * w.heads_q * w.seq_q
    cleared = clear("clear O", "O", rows * w.head_dim_v * w.output_bytes), clear("clear LSE", "LSE", rows * 4)
    return [*cleared, *attention(w, gpu, tile)]


def attention(w: Workload, gpu: Gpu, tile: SelectedTile) -> list[Kernel]:
    """The one kernel of attention to chosen blocks."""
    selection, e = chosen(w), w.element_bytes
    steps = walked(selection, w.seq_q)
    walk = Walk(turns_of(steps, tile.turns), w.batch * w.heads_kv, INDEX_BYTES)
    kv = w.batch * w.heads_kv
    asked = {x: int(steps.sum()) * kv * tile.forward.keys * n * e for x, n in (("K", w.head_dim), ("V", w.head_dim_v))}
    rows = w.batch * w.heads_q
    uses = (
        TensorUse("Q", w.seq_q * w.head_dim * e, rows),
        scattered("K", w.seq_kv * w.head_dim * e, kv, asked["K"], gpu.sm.count),
        scattered("V", w.seq_kv * w.head_dim_v * e, kv, asked["V"], gpu.sm.count),
        TensorUse(LIST, int(steps.sum()) * INDEX_BYTES, kv),
        TensorUse("O", w.seq_q * w.head_dim_v * w.output_bytes, rows, written=True),
        TensorUse("LSE", w.seq_q * 4, rows, written=True),
    )
    return [forward(w, tile.forward, walk, np.full(len(walk.steps), w.group), "selected_fwd", uses)]


def clear(name: str, tensor: str, size: int) -> Kernel:
    """`torch.zeros`: the tensor written once."""
    return streaming(name, [Access(tensor, size, True)], elements=size // 2)


def selected_backward(w: Workload, gpu: Gpu, tile: SelectedTile) -> list[Kernel]:
    """`_topk_sparse_attention_bwd`: row sums, the queries of each block, dK and dV a query head, their sums, dQ."""
    selection, e = chosen(w), w.element_bytes
    rows, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    out = rows * w.seq_q * w.head_dim_v * e
    dots = streaming(
        "dot_do_o",
        [Access("O", out), Access("dO", out), Access("D", rows * w.seq_q * 4, True)],
        elements=out // e,
        fp32_per_element=3,
    )
    entries = kv * w.seq_q * selection.top
    order = streaming(
        "sort queries",
        [Access(LIST, 2 * entries * INDEX_BYTES), Access("order", entries * SORT_BYTES // 2), *_written(entries)],
        elements=entries,
    )
    return [
        dots,
        order,
        clear("clear dK", "dK expanded", rows * w.seq_kv * w.head_dim * e),
        clear("clear dV", "dV expanded", rows * w.seq_kv * w.head_dim_v * e),
        _keys_pass(w, gpu, tile),
        *sums_of_groups(w),
        clear("clear dQ", "dQ", rows * w.seq_q * w.head_dim * e),
        _queries_pass(w, gpu, tile),
    ]


def _written(entries: int) -> tuple[Access, Access]:
    return Access("order", entries * SORT_BYTES // 2, True), Access("queries", entries * INDEX_BYTES, True)


def _keys_pass(w: Workload, gpu: Gpu, tile: SelectedTile) -> Kernel:
    e, rows = w.element_bytes, w.batch * w.heads_q
    steps = -(-walkers(chosen(w), w.seq_q) // tile.keys.rows)
    walk = Walk(steps, rows, tile.keys.rows * INDEX_BYTES)
    tiles, expanded = walked_tiles(walk), " expanded" if w.group > 1 else ""
    row = {"Q": w.head_dim * e, "dO": w.head_dim_v * e, "LSE, D": 8}
    uses = (
        TensorUse("K", w.seq_kv * w.head_dim * e, w.batch * w.heads_kv, w.group),
        TensorUse("V", w.seq_kv * w.head_dim_v * e, w.batch * w.heads_kv, w.group),
        *(scattered(x, w.seq_q * n, rows, tiles * tile.keys.rows * n, gpu.sm.count) for x, n in row.items()),
        TensorUse(LIST, tiles // w.group * walk.listed // w.batch, w.batch, w.group),
        TensorUse(f"dK{expanded}", w.seq_kv * w.head_dim * e, rows, written=True),
        TensorUse(f"dV{expanded}", w.seq_kv * w.head_dim_v * e, rows, written=True),
    )
    return in_step(keys_outside(w, tile.keys, walk, "selected_bwd_dkdv", uses))


def _queries_pass(w: Workload, gpu: Gpu, tile: SelectedTile) -> Kernel:
    e, rows, kv = w.element_bytes, w.batch * w.heads_q, w.batch * w.heads_kv
    steps = walked(chosen(w), w.seq_q)
    walk = Walk(turns_of(steps, tile.turns), kv, INDEX_BYTES)
    asked = int(steps.sum()) * kv * tile.queries.keys * e
    uses = (
        scattered("K", w.seq_kv * w.head_dim * e, kv, asked * w.head_dim, gpu.sm.count),
        scattered("V", w.seq_kv * w.head_dim_v * e, kv, asked * w.head_dim_v, gpu.sm.count),
        TensorUse("Q", w.seq_q * w.head_dim * e, rows),
        TensorUse("dO", w.seq_q * w.head_dim_v * e, rows),
        TensorUse("LSE, D", w.seq_q * 8, rows),
        TensorUse(LIST, int(steps.sum()) * INDEX_BYTES, kv),
        TensorUse("dQ", w.seq_q * w.head_dim * e, rows, written=True),
    )
    return in_step(rows_outside(w, tile.queries, walk, w.group, "selected_bwd_dq", uses))
