"""Closed forms of the fused kernels: visits of tiles times what a visit moves and computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import mul

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.closed_forms.band import Band, reaches
from attnsim.models.closed_forms.form import Form, Moved, around_fused, load, store
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE, ROWS_OUTSIDE
from attnsim.models.implementations.fused.flash1 import Flash1Tile
from attnsim.models.implementations.fused.loops import PAGES, page_bytes, pages
from attnsim.models.implementations.fused.memory_dq import MemoryDqTile, dq_in_memory
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, FusedTiles
from attnsim.models.implementations.latent.tiles import LatentTile
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import LANES
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import Splits
from attnsim.models.schedule.widths import padded

MEMORY_DQ = ("clear dQ", "flash_bwd_parts", "flash_bwd_turns", "sum dQ")
"""Kernels of a backward that sums dQ in memory."""
FLASH1_ROWS = 16
"""Query rows of an inner step of FlashAttention-1."""


def closed_form(w: Workload, schedule: Schedule, tiles: FusedTiles) -> list[Form]:
    """Each kernel of a fused schedule: of the kernels only roles and names are used."""
    return [_kernel(w, kernel, tiles, schedule.splits) for kernel in schedule.kernels]


def _kernel(w: Workload, kernel: Kernel, tiles: FusedTiles, splits: Splits) -> Form:
    if tiles.forward and kernel.role == "attention":
        return forward(w, tiles.forward, splits, kernel.name)
    back = tiles.backward
    match kernel.name:
        case "flash_bwd" | "flash_bwd_dkdv" if back:
            return backward(w, back, dq=kernel.name == "flash_bwd")
        case "flash_bwd_dq" if back:
            return rows_outside(w, back)
        case "dot_do_o":
            return row_dots(w, accumulator=any(use.tensor == "dQ accum" for use in kernel.uses))
        case "convert_dQ":
            return convert_dq(w)
    part = around_fused(kernel.name, w, splits.count)
    if isinstance(back, MemoryDqTile) and kernel.name in MEMORY_DQ:
        part = memory_dq(w, back, kernel.name)
    if part is None:
        raise LookupError(f"no closed form of the kernel {kernel.name}; add it to attnsim.models.closed_forms.fused")
    return part


def first_generation(w: Workload, schedule: Schedule, tile: Flash1Tile) -> list[Form]:
    """FlashAttention-1's kernels."""
    return [
        row_dots(w, accumulator=False)
        if kernel.name == "dot_do_o"
        else flash1(w, tile.keys, len(kernel.repeats), is_backward=kernel.name == "flash1_bwd")
        for kernel in schedule.kernels
    ]


@dataclass(frozen=True, slots=True)
class KeyVisits:
    """What the row tiles of a head visit and read, summed over them: of each sequence."""

    tiles: Ints
    kv_rows: Ints
    q_rows: Ints
    seen: Ints


def band_visits(t: FlashTile | LatentTile, splits: int, band: Band, chunk: int = 0) -> KeyVisits:
    """Key tiles counted from key 0, ranges of equal numbers of them, or of `chunk`."""
    key_tiles = -(-band.other // t.keys)
    share = (chunk or -(-key_tiles // splits)) * t.keys
    coarse, coarse_last = band.visits(share)
    q_rows = coarse * t.rows + coarse_last * band.last_rows if splits > 1 else band.busy_rows()
    return KeyVisits(*band.reads(t.keys), q_rows, band.touched(t.keys))


def _own_visits(w: Workload, t: FlashTile, splits: Splits, pack: int) -> KeyVisits:
    """The same where ranges or key tiles are each row tile's own."""
    each = [_tile_visits(queries, keys, w.mask, t, splits, pack) for queries, keys, _ in w.parts]
    return KeyVisits(*np.array(each, dtype=np.int64).T)


def _tile_visits(
    queries: int, keys: int, mask: Mask, t: FlashTile, splits: Splits, pack: int
) -> tuple[int, int, int, int]:
    """Of one sequence: one entry a row tile."""
    shift, band = keys - queries, Band.of_queries(queries, keys, *reaches(mask), t.rows, pack=pack)
    rows = np.minimum(t.rows, queries * pack - np.arange(int(band.tiles)) * t.rows)
    first = np.arange(int(band.tiles)) * t.rows
    begin = np.maximum(0, first // pack + shift - band.left)
    end = np.clip((first + rows - 1) // pack + shift + band.right + 1, 0, keys)
    own = t.from_first_key and mask.is_windowed
    origin = begin if own else np.zeros_like(begin)
    visits = np.where(end > begin, -(-(end - origin) // t.keys) - (begin - origin) // t.keys, 0)
    beyond = np.maximum(0, -(-(end - origin) // t.keys) * t.keys + origin - keys)
    short = int(beyond[-1] if own else beyond[visits > 0].sum())
    share = np.full_like(visits, splits.chunk) if splits.chunk else np.maximum(1, -(-visits // splits.count))
    ranges = np.minimum(-(-visits // share), splits.count)
    low = int(begin[visits > 0].min()) if visits.any() else keys
    seen = keys - (low if own else low // t.keys * t.keys)
    return int(visits.sum()), int(visits.sum()) * t.keys - short, int(ranges @ rows), seen


def forward(w: Workload, t: FlashTile, splits: Splits, name: str, lse: bool = True) -> Form:
    """FlashAttention-2 and -3, sliding-window and split-KV forward (arXiv 2307.08691, algorithm 1).

    Per head, with ``v`` visits of key tiles: K and V ``v keys`` rows less the missing rows of the last tile;
    Q its rows once per range of keys that a tile's visits touch; O and LSE every row once per range. Sequences of
    different lengths are summed up, all of them with the same splits.
    """
    pack = w.group if t.pack_gqa else 1
    queries, keys, times = np.array(w.parts, dtype=np.int64).T
    band = Band.of_queries(queries, keys, *reaches(w.mask), t.rows, pack=pack)
    own = (splits.of_seen and splits.partial) or (t.from_first_key and w.mask.is_windowed)
    each = _own_visits(w, t, splits, pack) if own else band_visits(t, splits.count, band, splits.chunk)
    counts = times.tolist()

    def total(amounts: Iterable[int]) -> int:
        """Of a head of all sequences."""
        return sum(map(mul, amounts, counts))

    heads, every_tile = w.heads_q // pack, each.tiles.tolist()
    visits, kv_rows, seen = total(every_tile), total(each.kv_rows.tolist()), total(each.seen.tolist())
    q_rows, q_seen = total(each.q_rows.tolist()), total(band.busy_rows().tolist())
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    d_pad, dv_pad = t.compiled(w)
    rows = t.rows // t.warpgroups * t.warpgroups
    # Of each step: K and V once per reading warp or warpgroup, Q unless in registers, P where it passes
    # through.
    reads = t.readers * t.keys * (d_pad + dv_pad) * e
    reads += 0 if t.q_in_registers else rows * d_pad * e
    reads += rows * t.keys * e if t.p_in_smem else 0
    busy = total((band.tiles - band.idle_tiles()).tolist())
    factors = {"always": visits * rows, "first": 4 * rows * busy, "seldom": 0}
    scores, listed = visits * rows * t.keys, heads * page_bytes(w, t.keys)
    polynomials = total(t.polynomials(n * rows * t.keys) for n in every_tile)
    listed_once = total(min(n * listed, 4 * pages(w, one.keys)) for n, one in zip(every_tile, w.parts, strict=True))
    return Form(
        name,
        (
            load("Q", heads * q_rows * d * e, heads * q_seen * d * e),
            load("K", heads * kv_rows * d * e, w.heads_kv * seen * d * e),
            load("V", heads * kv_rows * dv * e, w.heads_kv * seen * dv * e),
            *_outputs(w, splits.count if splits.partial else 0, lse),
            *([load(PAGES, visits * listed, listed_once)] if w.page_size or t.looks_up_pages else []),
        ),
        flops=heads * scores * 2 * (d_pad + dv_pad),
        exponentials=heads * (scores - polynomials + factors[t.rescale]),
        smem_bytes=heads * visits * reads,
    )


def _outputs(w: Workload, splits: int, lse: bool) -> tuple[Moved, ...]:
    rows = w.heads_q * w.queries
    if splits:
        partial = rows * splits
        return (store("O partial", partial * w.head_dim_v * 4), store("LSE partial", partial * 4))
    out = (store("O", rows * w.head_dim_v * w.output_bytes),)
    return (*out, store("LSE", rows * 4)) if lse else out


def backward(w: Workload, t: BackwardTile, *, dq: bool = True) -> Form:
    """The main backward kernel (arXiv 2307.08691, algorithm 2): one block per key tile; dQ summed in fp32 if asked."""
    band = Band.of_keys(w.seq_q, w.seq_kv, *reaches(w.mask), t.keys)
    heads, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    d_pad, dv_pad = padded(d), padded(dv)
    m = t.rows
    visits, q_rows, seen = band.read(m)
    keys = int(band.busy_rows())
    expanded = " expanded" if w.group > 1 else ""
    products = (*KEYS_OUTSIDE, "dQ") if dq else KEYS_OUTSIDE
    accumulated = store("dQ accum", heads * visits * m * d_pad * 4 // t.pair, heads * seen * d_pad * 4)
    return Form(
        "flash_bwd" if dq else "flash_bwd_dkdv",
        (
            load("K", heads * keys * d * e, kv * keys * d * e),
            load("V", heads * keys * dv * e, kv * keys * dv * e),
            load("Q", heads * q_rows * d * e, heads * seen * d * e),
            load("LSE, D", heads * q_rows * 8, _outside_lse(w, heads * seen)),
            load("dO", heads * q_rows * dv * e, heads * seen * dv * e),
            *((accumulated,) if dq else ()),
            store(f"dK{expanded}", heads * w.seq_kv * d * e),
            store(f"dV{expanded}", heads * w.seq_kv * dv * e),
        ),
        *step_amounts(t, products, heads * visits, (d_pad, dv_pad), e),
    )


def step_amounts(
    t: BackwardTile, products: tuple[str, ...], visits: int, widths: tuple[int, int], e: int
) -> tuple[int, ...]:
    """FLOPs, exponentials and shared-memory bytes of the products of so many pairs of tiles, in two halves each."""
    d, dv = widths
    scores = t.rows * t.keys
    widths_of = {product: dv if product in ("dP", "dV") else d for product in products}
    flops = sum(4 * (scores * width // 2) * t.copies(product, d) for product, width in widths_of.items())
    shared = sum(2 * t.product_bytes(product, products, d, dv, e) for product in products)
    return visits * flops, visits * 2 * (scores // 2), visits * shared


def memory_dq(w: Workload, t: MemoryDqTile, name: str) -> Form:
    """Backward of ``triton.ops``: at each visit of a head dQ of its rows goes to memory, in turns comes from it too."""
    heads, e, d, dv = w.batch * w.heads_q, w.element_bytes, w.head_dim, w.head_dim_v
    tensor, size = dq_in_memory(w, t)
    dq = heads * w.seq_q * d * e
    if name == "clear dQ":
        return Form(name, (store(tensor, size),))
    if name == "sum dQ":
        return Form(name, (load(tensor, size), store("dQ", dq)))
    visits, q_rows, seen = Band.of_keys(w.seq_q, w.seq_kv, *reaches(w.mask), t.keys).read(t.rows)
    moved = heads * q_rows * d * (e if t.parallel else 4)
    spills = heads * visits * t.warps * LANES if t.stack else 0
    kv = [(one, heads * w.seq_kv * width * e) for one, width in (("K", d), ("V", dv))]
    return Form(
        name,
        (
            *(load(one, size) for one, size in kv),
            load("Q", heads * q_rows * d * e, heads * seen * d * e),
            load("LSE, D", heads * q_rows * 8, _outside_lse(w, heads * seen)),
            load("dO", heads * q_rows * dv * e, heads * seen * dv * e),
            *(() if t.parallel else (load(tensor, moved, 0),)),
            store(tensor, moved, 0),
            *((load("spills", spills * t.reloaded, 0), store("spills", spills * t.spilled, 0)) if spills else ()),
            *(store(f"d{one}", size) for one, size in kv),
        ),
        *step_amounts(t, (*KEYS_OUTSIDE, "dQ"), heads * visits, (d, dv), e),
    )


def rows_outside(w: Workload, t: BackwardTile) -> Form:
    """The pass for dQ, per head ``v`` visits of key tiles by row tiles: K and V once a visit, Q, dO and dQ once."""
    band = Band.of_queries(w.seq_q, w.seq_kv, *reaches(w.mask), t.rows)
    heads, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    e, d, dv = w.element_bytes, w.head_dim, w.head_dim_v
    d_pad, dv_pad = padded(d), padded(dv)
    visits, kv_rows, seen = band.read(t.keys)
    rows = heads * int(band.busy_rows())
    return Form(
        "flash_bwd_dq",
        (
            load("Q", rows * d * e),
            load("LSE, D", rows * 8),
            load("dO", rows * dv * e),
            load("K", heads * kv_rows * d * e, kv * seen * d * e),
            load("V", heads * kv_rows * dv * e, kv * seen * dv * e),
            store("dQ", heads * w.seq_q * d * e),
        ),
        *step_amounts(t, ROWS_OUTSIDE, heads * visits, (d_pad, dv_pad), e),
    )


def _outside_lse(w: Workload, rows: int) -> int:
    """The log-sum-exps come from outside unless this call's forward wrote them."""
    return 0 if "fwd" in w.directions else rows * 4


def row_dots(w: Workload, accumulator: bool) -> Form:
    """D = rowsum(dO * O), and FlashAttention-2's clearing of the dQ accumulator (rows padded to 128)."""
    heads = w.batch * w.heads_q
    out = heads * w.seq_q * w.head_dim_v * w.element_bytes
    moved = (load("O", out), load("dO", out), store("D", heads * w.seq_q * 4))
    return Form("dot_do_o", (*moved, store("dQ accum", _accumulator(w))) if accumulator else moved)


def convert_dq(w: Workload) -> Form:
    """dQ from the fp32 accumulator."""
    dq = w.batch * w.heads_q * w.seq_q * w.head_dim * w.element_bytes
    return Form("convert_dQ", (load("dQ accum", _accumulator(w)), store("dQ", dq)))


def _accumulator(w: Workload) -> int:
    return w.batch * w.heads_q * -(-w.seq_q // 128) * 128 * padded(w.head_dim) * 4


def flash1(w: Workload, keys: int, splits: int, *, is_backward: bool) -> Form:
    """FlashAttention-1 (arXiv 2205.14135, algorithm 1): keys outside, rows inside, partial O (or dQ) in fp32.

    A row step is visited once per block of keys it sees; every visit but its first reads the partial result,
    every visit but its last writes it, the last writes the result (``is_final_write`` in
    ``fmha_fprop_kernel_1xN.h`` of flash-attention v1.0.9).
    """
    band = Band.of_keys(w.seq_q, w.seq_kv, *reaches(w.mask), keys)
    heads, kv = w.batch * w.heads_q, w.batch * w.heads_kv
    e, d, dv, size = w.element_bytes, w.head_dim, w.head_dim_v, FLASH1_ROWS
    visits, visited, seen = band.read(size)
    again = visited - seen
    width, partial, result = (d, "dQ tmp", "dQ") if is_backward else (dv, "O tmp", "O")
    passes = 1 if is_backward else splits
    moved = [
        load("K", heads * passes * w.seq_kv * d * e, kv * w.seq_kv * d * e),
        load("V", heads * passes * w.seq_kv * dv * e, kv * w.seq_kv * dv * e),
        load("Q", heads * visited * d * e, heads * seen * d * e),
        load(partial, heads * again * width * 4, 0),
        store(f"{partial}", heads * again * width * 4, min(again, seen) * heads * width * 4),
        store(result, heads * seen * width * e),
    ]
    if is_backward:
        moved += [
            load("dO", heads * visited * dv * e, heads * seen * dv * e),
            load("LSE, D", heads * visited * 8, _outside_lse(w, heads * seen)),
            store("dK", heads * w.seq_kv * d * e),
            store("dV", heads * w.seq_kv * dv * e),
        ]
        products = 3 * d + 2 * dv
        smem = 8 * size * (2 * d + 2 * dv) * e + 2 * size * keys * e + 8 * size * d * 4 + keys * d * e
    else:
        moved.append(store("LSE", heads * seen * 4))
        products = d + dv
        smem = 4 * size * d * e + 8 * size * dv * 4
    return Form(
        "flash1_bwd" if is_backward else "flash1_fwd",
        tuple(moved),
        flops=heads * visits * 2 * size * keys * products,
        exponentials=heads * visits * size * keys,
        smem_bytes=heads * visits * smem,
    )
