"""NVIDIA cuDNN's fused attention: its closed kernels, and the open ones of NVIDIA/cudnn-frontend.

A closed kernel is played by the nearest public schedule with the GPU's tensor-core instructions.

A graph is built for the longest sequence, and lengths are read on the GPU. The grid therefore has as many row tiles for
each sequence as the longest needs, and keys are split into as many ranges. Packed prompts of the open kernels are an
exception: a preceding kernel counts the row tiles and sorts the sequences, most queries first
(``python/cudnn/frost/tile_dsl/thd.py``). The closed kernels of the same GPUs are assumed to do the same.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import replace
from functools import partial
from pathlib import Path

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import flash_attention_4
from attnsim.models.implementations.flash_attention import fa2_backward, flash3
from attnsim.models.implementations.frameworks.naive import naive
from attnsim.models.implementations.fused.building import (
    Attended,
    each_way,
    fa2_combine,
    fitting,
    one_query,
    override,
)
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import split_count
from attnsim.models.implementations.fused.tile import FlashTile, Order
from attnsim.models.implementations.implementation import Builder, TileRequest, record
from attnsim.models.question.operations import Operations
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.models.schedule.splits import UNCUT, Splits

WIDE = 256
"""Head_dim above which cuDNN has separate kernels."""
WIDE_TILE = FlashTile(64, 32, warps=8, q_in_registers=True, share_q_v=True, order="grid_by_sequence")
"""Tile of the wide kernels on sm_120: only K and V in shared memory (``sm120/prefill_d512_f16.py``; `smem_bytes` of
``config_sm120.py``)."""
WIDE_BACKWARD = Operations.parse("softmax")
"""On sm_100 the wide backward stores S and dS in memory, and three batched products follow (`bprop_d512_f16`,
`bprop_matmul_blackwell`): played as unfused attention in its fewest passes."""
TILE = by_hand(
    FlashTile(128, 128, warps=8, warpgroups=2, max_blocks_per_sm=1, order="grid_by_sequence"),
    "stand-in for the tile of cuDNN's closed kernels before Hopper, one block an SM: read off the waves of its times",
)
DECODE_TILE = by_hand(
    FlashTile(16, 128, loop="staged", stages=2, registers=128, pack_gqa=True, order="grid_by_sequence"),
    "the same in decode: 16 packed rows",
)
HOPPER_ORDER: Order = by_hand(
    "grid_by_sequence",
    "order of row tiles of cuDNN's closed Hopper kernels: longest first makes causal rows of 8 waves 13 % too fast",
)
FEW_ROWS = 128
"""Rows of a tile of NVIDIA/cudnn-frontend's sm_100 decode kernel: the queries of a group are packed if they fit it."""

OFFSETS = "sequence offsets"
_CLOSED = ("closed source: tiles and order are those of the nearest public kernel",)


def choose_tile(w: Workload, gpu: Gpu, decode: bool) -> FlashTile:
    """Stand-in for cuDNN's closed kernels before Hopper: 128 rows, one block per SM; 16 packed rows in decode."""
    wide = max(w.head_dim, w.head_dim_v) > WIDE
    return fitting(WIDE_TILE if wide else DECODE_TILE if decode else TILE, w, gpu)


def blackwell_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Tiles of NVIDIA/cudnn-frontend's open sm_100 kernels (``python/cudnn/sdpa/fwd/config_sm100.py``).

    They are FlashAttention-4's two tiles of 128 rows per block, but all 16-bit exponentials run on the exponential
    units. There is a single tile of rows if it holds the queries of a group. Those are also packed if the queries of a
    head would not fill a pair of blocks.
    """
    tile = fitting(replace(flash_attention_4.choose_tile(w, gpu), emulated=(0, 1)), w, gpu)
    if w.seq_q * w.group <= FEW_ROWS:
        return replace(tile, rows=FEW_ROWS, warps=4, warpgroups=1, extra_threads=128, pack_gqa=True)
    return replace(tile, pack_gqa=w.group > 1 and w.seq_q < blackwell_pair(w) * tile.rows)


def blackwell_pair(w: Workload) -> int:
    """Blocks that multiply together and share K and V: two in prefill from head_dim 128 on."""
    return 2 if w.seq_q * w.group > FEW_ROWS and padded(w.head_dim) >= 128 else 1


def blackwell_splits(w: Workload, gpu: Gpu, tile: FlashTile) -> int:
    """Ranges of keys if there are more keys than queries: a power of two that fills the SMs once.

    Each range has at least two tiles of keys. The plans of NVIDIA/cudnn-frontend's benchmark (``SPLIT_KV``) agree,
    except for some calls of 64 Ki keys or more.
    """
    if w.seq_kv <= w.seq_q:
        return 1
    pair, packed = blackwell_pair(w), w.group if tile.pack_gqa else 1
    blocks = w.batch * w.heads_q // packed * pair * -(-w.seq_q * packed // (pair * tile.rows))
    most = min(gpu.sm.count // blocks, -(-w.seq_kv // tile.keys) // 2)
    return 1 << max(0, most.bit_length() - 1)


def closed_blackwell_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Tiles of the closed sm_100 kernels: as the open ones, but a group's heads are packed for a single query only.

    Eight queries per sequence take eight times as long there as one (cuDNN 9.27, GB200, cudnn-frontend's decode sweep),
    as every query head reads the keys for itself.
    """
    tile = fitting(replace(flash_attention_4.choose_tile(w, gpu), emulated=(0, 1)), w, gpu)
    if w.seq_q > FEW_ROWS:
        return tile
    return replace(tile, rows=FEW_ROWS, warps=4, warpgroups=1, extra_threads=128, pack_gqa=w.seq_q == 1)


def sequence_offsets(w: Workload) -> Kernel:
    """Kernel before packed prompts: offsets and order of the sequences, and number of row tiles."""
    sizes = [Access("lengths", 8 * w.batch), Access("offsets", 16 * w.batch, True)]
    return streaming(OFFSETS, sizes, elements=w.batch, threads=256, blocks=1)


def _blackwell(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, closed: bool) -> Schedule:
    """Forward and backward by tcgen05; the closed kernels split keys for a single query only."""
    w_main = one_query(w)
    if "bwd" in w.directions and max(w.head_dim, w.head_dim_v) > WIDE:
        apart = naive(replace(w, passes="bwd"), gpu, shape, name, WIDE_BACKWARD)
        if w.passes == "bwd":
            return apart
        first = _blackwell(replace(w, passes="fwd"), gpu, shape, name, closed)
        return replace(apart, kernels=(*first.kernels, *apart.kernels))

    def forward() -> Attended:
        chosen = (closed_blackwell_tile if closed else blackwell_tile)(w_main, gpu)
        packed = bool(w.lengths) and w.passes != "decode"
        if w.lengths:
            chosen = replace(chosen, order="most_queries_first" if packed else "grid_by_sequence")
        tile = override(chosen, shape, w_main, gpu)
        splits = Splits(blackwell_splits(w_main, gpu, tile)) if not closed or w.seq_q == 1 else UNCUT
        main = flash_forward(w_main, gpu, tile, splits=splits)
        few = closed and w.seq_q <= FEW_ROWS
        kernels = [sequence_offsets(w)] if packed else []
        kernels.append(replace(main, multicast=1 if few else blackwell_pair(w_main)))
        return [*kernels, *([fa2_combine(w, splits.count)] if splits.partial else [])], tile, splits

    back = partial(flash_attention_4.choose_backward, w, gpu)
    return each_way(w, name, shape, forward, back, flash_attention_4.backward, _CLOSED if closed else ())


def _ampere(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str) -> Schedule:
    """Schedule before Hopper, and on GPUs with mma.sync only, as cuDNN's timings suggest.

    Its chunked-prefill times on A100 step with whole waves of 128-row blocks, one per SM. Its decode reaches the HBM
    bandwidth with 8 query heads per key head, which a 64-row tile cannot: 16 rows, the heads of a group packed, keys
    split. Its backward is FlashAttention-2's.
    """
    w_main = one_query(w)

    def forward() -> Attended:
        decode = w.seq_q * w.group <= 16
        tile = override(choose_tile(w, gpu, decode), shape, w_main, gpu)
        heads, key_tiles = w.batch * w.heads_kv, -(-w.seq_kv // tile.keys)
        splits = Splits(split_count(heads, 2 * gpu.sm.count, key_tiles)) if decode else UNCUT
        main = flash_forward(w_main, gpu, tile, splits=splits)
        return [main, *([fa2_combine(w, splits.count)] if splits.partial else [])], tile, splits

    return each_way(w, name, shape, forward, lambda: fa2_backward(w, gpu), notes=_CLOSED)


@functools.cache
def _widths() -> tuple[dict[str, str], ...]:
    """The rows of ``cudnn_widths.csv``: largest head_dim by compute capability, pass and format."""
    with Path(__file__).with_name("cudnn_widths.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def check_width(name: str, w: Workload, gpu: Gpu) -> None:
    """Refuse a head_dim or a format that cuDNN has no kernels for on the GPU."""
    width, number = max(w.head_dim, w.head_dim_v), gpu.compute_capability_number
    for way in w.directions:
        rows = [one for one in _widths() if one["pass"] == way and int(one["low"]) <= number <= int(one["high"])]
        largest = max((int(one["largest"]) for one in rows if w.dtype in one["dtype"].split()), default=0)
        if width > largest:
            some = f"head_dim up to {largest} in {w.dtype}, not {width}" if largest else f"fp16 and bf16, not {w.dtype}"
            raise InputError(
                f"{name} takes {some} on {gpu.id} ({gpu.sm_arch}), pass {way}; take xformers.cutlass or torch.flex, or "
                "ask for another head_dim or dtype"
            )


def _cudnn(name: str) -> Builder:
    """cuDNN's fused attention by the GPU's instructions: tcgen05, wgmma (FlashAttention-3's), otherwise mma.sync."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_width(name, w, gpu)
        if gpu.features.tcgen05:
            return _blackwell(w, gpu, shape, name, closed=True)
        if gpu.features.wgmma:
            return replace(flash3(w, gpu, shape, HOPPER_ORDER, machine=""), implementation=name, notes=_CLOSED)
        return _ampere(w, gpu, shape, name)

    return build


OPEN_BLACKWELL = "nvidia.cudnn-frontend-sm100"

RECORDS = (
    *(record(name, _cudnn(name)) for name in ("nvidia.cudnn", "nvidia.cudnn-frontend")),
    record(OPEN_BLACKWELL, lambda w, gpu, shape: _blackwell(w, gpu, shape, OPEN_BLACKWELL, closed=False)),
)
