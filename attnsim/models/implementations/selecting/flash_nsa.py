"""Complete native sparse attention, as mdy666/Scalable-Flash-Native-Sparse-Attention launches it (commit fcf117c3c8a1).

``flash_nsa/modules/hf_level_nsa.py``: compression of keys and values, attention over them, block scores summed over a
group on the fly (`_slc_probs_kernel`), top-k by successive maxima (`_topk_kernel`), attention over
chosen blocks with one warp per query, FlashAttention-3's window, and the weighted sum. Backward: each branch's kernels;
the queries of each block are found in a table of blocks x queries (`get_bind_from_find`), dK and dV are summed in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import hopper_tile
from attnsim.models.implementations.fused.backward import flash_backward
from attnsim.models.implementations.fused.forward import flash_forward, flash_peak_bytes
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.selecting import nsa_triton
from attnsim.models.implementations.selecting.nsa_triton import CompressedTile, SelectedTile, power_of_two
from attnsim.models.implementations.selecting.walks import clear, over
from attnsim.models.mask.mask import Mask
from attnsim.models.question.selection import Selection, compressed_pairs, visible_pairs
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, declared
from attnsim.models.schedule.operation import BLOCK, STEP, Nest, TileOp, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule, renamed

NAME = "flash-nsa.nsa"
PROBABILITIES = "block scores"
_OUTPUTS = ("O", "LSE", "D", "dO", "dQ", "dQ accum", "dK", "dV", "dK expanded", "dV expanded")
BRANCH = {
    branch: {name: f"{name} {branch}" for name in own}
    for branch, own in (("compressed", ("K", "V", *_OUTPUTS)), ("window", _OUTPUTS))
}
"""Names of a branch's own tensors; the window's keys are those of the question."""
MAXIMUM_INSTRUCTIONS = 4
"""FP32-lane instructions per element and maximum: compare, select value and index, remove the last one found."""


@dataclass(frozen=True, slots=True)
class NsaTile:
    """Tiles of the three branches."""

    compressed: CompressedTile
    selected: SelectedTile
    window: FlashTile
    window_backward: BackwardTile

    def __str__(self) -> str:
        return f"compressed {self.compressed.forward}; chosen {self.selected}; window {self.window}"


def choose_tile(w: Workload) -> NsaTile:
    """The fixed tiles of its calls on Hopper."""
    s = whole(w)
    block = power_of_two(s.block)
    heads = max(16, power_of_two(w.group))
    passes = BackwardTile(64, 64, warps=4, stages_q=2, path="wgmma")
    return NsaTile(
        CompressedTile(
            FlashTile(64, 128, warps=4, loop="ring", stages=2, path="wgmma"),
            passes,
            passes,
            None,
            first=0,
            grid="h g b t",
            keys_grid="b t h g",
        ),
        SelectedTile(
            FlashTile(heads, block, warps=1, loop="ring", stages=2, pack_gqa=True),
            BackwardTile(heads, block, warps=2, stages_q=2),
            BackwardTile(64, block, warps=4, stages_q=2, path="wgmma"),
            1,
            grid="b h t",
        ),
        replace(hopper_tile(128, 128), persistent=False),
        BackwardTile(64, 128, warps=8, stages_q=2, path="wgmma", extra_threads=128, registers=168),
    )


def whole(w: Workload) -> Selection:
    """The selection of a question, with all three branches.

    Raises
    ------
    InputError
        If the selection lacks a branch.
    """
    selection = nsa_triton.chosen(w)
    if not (selection.compress and selection.window):
        raise InputError(
            f"{NAME} has three branches; the selection is {selection}: add compress 32 step 16, window 512"
        )
    return selection


def window_of(w: Workload) -> Workload:
    """The question of the window's branch."""
    return replace(w, mask=Mask.sliding_window(whole(w).window, causal=True), selection=None).bounded()


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """All kernels of a call."""
    s, tile = whole(w), choose_tile(w)
    kernels = forward(w, gpu, tile) if "fwd" in w.directions else []
    kernels += backward(w, gpu, tile) if "bwd" in w.directions else []
    chosen = visible_pairs(s, w.seq_q) + compressed_pairs(s, w.seq_q)
    pairs = w.batch * chosen + window_of(w).visible_pairs
    blocks = w.batch * w.heads_kv * w.seq_q * power_of_two(s.blocks(w.seq_kv)) * 2
    memory = flash_peak_bytes(w, blocks + 3 * w.batch * w.heads_q * w.seq_q * w.head_dim_v * w.output_bytes)
    return Schedule("nsa", NAME, tuple(kernels), tile, memory, useful_flops=w.matrix_flops(pairs))


def forward(w: Workload, gpu: Gpu, tile: NsaTile) -> list[Kernel]:
    """The three branches, the choice between the first two, and the weighted sum."""
    small = nsa_triton.over_compressed(w)
    e, kv = w.element_bytes, w.batch * w.heads_kv
    out = w.batch * w.heads_q * w.seq_q * w.head_dim_v * w.output_bytes
    overlap = -(-whole(w).compress // whole(w).step)
    mean = [
        streaming(
            f"compress {x}",
            [Access(x, overlap * kv * w.seq_kv * n * e), Access(f"{x} compressed", kv * small.seq_kv * n * e, True)],
            elements=overlap * kv * w.seq_kv * n,
        )
        for x, n in (("K", w.head_dim), ("V", w.head_dim_v))
    ]
    weights = w.batch * w.heads_q * w.seq_q * 3 * e
    outs = ("O compressed", "O", "O window")
    combine = streaming(
        "combine branches",
        [*(Access(x, out) for x in outs), Access("weights", weights), Access("O combined", out, True)],
        elements=3 * out // 2,
        fp32_per_element=2,
    )
    return [
        *mean,
        *(renamed(one, BRANCH["compressed"]) for one in nsa_triton.compressed_attention(w, tile.compressed)),
        *choice(w, tile),
        *nsa_triton.selected_attention(w, tile.selected),
        renamed(flash_forward(window_of(w), gpu, tile.window, "window_fwd"), BRANCH["window"]),
        combine,
    ]


def choice(w: Workload, tile: NsaTile) -> list[Kernel]:
    """Scores of blocks, and the best of them."""
    s, rows = whole(w), w.batch * w.heads_kv * w.seq_q
    columns = max(16, power_of_two(s.blocks(w.seq_kv)))
    size = rows * columns * 2
    found = rows * s.top * 4
    return [
        clear("clear block scores", PROBABILITIES, size),
        _block_scores(w, tile),
        clear("clear selected", "selected", found),
        _maxima(w, columns),
    ]


def _block_scores(w: Workload, tile: NsaTile) -> Kernel:
    """`_slc_probs_kernel`: 64 queries x 128 compressed keys per block, heads of a group in turn, none in the future.

    In addition to these scores, those of the key before each block are computed, a quarter as many.
    """
    s, e, t, d = whole(w), w.element_bytes, tile.compressed.forward, padded(w.head_dim)
    keys, fewer = s.compressed_keys(w.seq_kv), t.keys * s.step // s.block
    i, j = Axis(w.seq_q, t.rows), Axis(keys, t.keys, cuts="c")
    axes = {
        "b": Axis(w.batch),
        "h": Axis(w.heads_kv),
        "g": Axis(w.group),
        "i": i,
        "j": j,
        "c": Axis(-(-keys * s.step // s.block)),
    }
    seen = Seen("j", w.seq_q, max(1, j.tiles // 2))  # half of the tiles are in the future
    q, lse = Tensor("Q", "b h g i", w.head_dim * e, seen=seen), Tensor("LSE compressed", "b h g i", 4, seen=seen)
    k, scores = Tensor("K compressed", "b h j", w.head_dim * e), Tensor(PROBABILITIES, "b h i c", 2, written=True)
    pairs = t.rows * (t.keys + fewer)
    dot = TileOp("mma", "S", flops=2 * pairs * d, smem_bytes=(t.readers * (t.keys + fewer) + 2 * t.rows) * d * e)
    vector, load = TileOp("vector", "P", scores=pairs, exps=pairs), (q.load(t.rows), lse.load(t.rows))

    def head(load_next: bool) -> tuple[TileOp, ...]:
        return q.wait(), lse.wait(), STEP, *(load if load_next else ()), dot, vector

    def body() -> Nest:
        return [
            *once("keys", [BLOCK, k.load(2 * t.keys), *load, k.wait()]),
            *loop("head", w.group, head, load_next=w.group - 1),
            *once("store", [BLOCK, scores.store(t.rows * fewer)]),
        ]

    return declared(
        "block scores",
        axes,
        "b h i j",
        (q, lse, k, scores),
        {},
        body,
        threads=t.threads,
        registers_per_thread=t.registers,
        path=t.path,
        dtype=w.dtype,
        step="head",
        launches=(Launch.alike(w.batch * w.heads_kv * score_tiles(w, t.rows, t.keys)),),
        buffers=(("Q", 2 * t.rows * d * e), ("K", 2 * t.keys * d * e)),
    )


def score_tiles(w: Workload, rows: int, width: int) -> int:
    """Tiles of queries x compressed keys per head that are not entirely in the future; the others return at once."""
    s = whole(w)
    last = -(-(np.arange(0, w.seq_q, rows) + rows) // s.block)
    keys = np.arange(0, s.compressed_keys(w.seq_kv), width)
    return int(np.searchsorted(keys * s.step // s.block, last, side="right").sum())


def _maxima(w: Workload, columns: int) -> Kernel:
    """`_topk_kernel`: a warp reads a row of scores (four if they are short) and takes successive maxima."""
    top, each = whole(w).top, 1 if columns >= 2048 else 4
    axes = {"r": Axis(w.batch * w.heads_kv * w.seq_q, each), "c": Axis(columns)}
    scores, found = Tensor(PROBABILITIES, "r c", 2), Tensor("selected", "r", top * 4, written=True)
    work = TileOp("vector", "maxima", fp32=MAXIMUM_INSTRUCTIONS * each * columns)

    def body() -> Nest:
        return [
            *once("row", [BLOCK, scores.load(each * columns), scores.wait()]),
            *loop("maximum", top, lambda: (STEP, work)),
            *once("store", [found.store(each)]),
        ]

    return declared(
        "maxima",
        axes,
        "r",
        (scores, found),
        {},
        body,
        threads=32,
        registers_per_thread=128,
        dtype="fp32",
        step="maximum",
    )


def backward(w: Workload, gpu: Gpu, tile: NsaTile) -> list[Kernel]:
    """The sum's gradients, then those of each branch."""
    s, e = whole(w), w.element_bytes
    out = w.batch * w.heads_q * w.seq_q * w.head_dim_v * e
    weights = w.batch * w.heads_q * w.seq_q * 3 * e
    outs = ("O compressed", "O", "O window")
    combine = streaming(
        "combine_bwd",
        [
            *(Access(x, out) for x in (*outs, "dO combined")),
            Access("weights", weights),
            *(Access(f"d{x}", out, True) for x in outs),
            Access("dweights", weights, True),
        ],
        elements=3 * out // e,
        fp32_per_element=4,
    )
    table = w.batch * w.heads_kv * power_of_two(s.blocks(w.seq_kv)) * power_of_two(w.seq_q) * 4
    entries = w.batch * w.heads_kv * w.seq_q * s.top
    find = [
        clear("clear table", "queries", table),
        over("mark queries", {"selected": entries * 4, "queries": entries * 4}, {"queries": entries * 4}, entries),
        over("order queries", {"queries": table}, {"queries": table}, table // 4),
    ]
    window = flash_backward(window_of(w), tile.window_backward)
    small, keys = nsa_triton.compressed_backward(w, tile.compressed), s.compressed_keys(w.seq_kv)
    kv = w.batch * w.heads_kv
    spread = [
        over(
            f"spread d{x}",
            {f"d{x} compressed": kv * keys * n * e},
            {f"d{x} all": kv * w.seq_kv * n * e},
            kv * w.seq_kv * n,
        )
        for x, n in (("K", w.head_dim), ("V", w.head_dim_v))
    ]
    return [
        combine,
        *(renamed(one, BRANCH["window"]) for one in window),
        *find,
        *(one for one in nsa_triton.selected_backward(w, tile.selected) if one.name != "sort queries"),
        *(_added(w, f"d{x}", "window") for x in "QKV"),
        *(renamed(one, BRANCH["compressed"]) for one in small),
        *spread,
        *(_added(w, f"d{x}", branch) for x, branch in (("Q", "compressed"), ("K", "all"), ("V", "all"))),
    ]


def _added(w: Workload, gradient: str, branch: str) -> Kernel:
    """Autograd's sum of a branch's gradient with that of the branches before: each is a separate function."""
    rows = w.batch * (w.heads_q * w.seq_q if gradient == "dQ" else w.heads_kv * w.seq_kv)
    elements = rows * (w.head_dim_v if gradient == "dV" else w.head_dim)
    size = elements * w.element_bytes
    name = f"{gradient} {branch}"
    return over(f"add {name}", {gradient: size, name: size}, {gradient: size}, elements)


RECORDS = (record(NAME, build),)
