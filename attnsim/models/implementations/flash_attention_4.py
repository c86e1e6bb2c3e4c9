"""FlashAttention-4 on data-centre Blackwell: ``flash_attn/cute/flash_fwd_sm100.py`` and ``flash_bwd_sm100.py``.

If packed sequences differ in length, blocks find their sequence themselves (`SingleTileVarlenScheduler`). Each sequence
has the same number of key ranges, which split the keys that a row tile sees evenly.

Forward: a block has two tiles of 128 query rows with a softmax warpgroup each. The accumulators of S and O fill the
tensor memory and P replaces S, so all steps within a tile of rows are sequential; the two tiles overlap. On sm_100 part
of the exponentials are polynomials on the FMA pipes. Separate warps rescale O, rarely.

Backward: a block keeps 128 keys and has 16 warps: two softmax warpgroups, one that drains dQ, and warps that load and
issue. S, dP, dV, dK and dQ accumulate in tensor memory, from which dV and dK also read P and dS. From head_dim 128 on
two blocks multiply together. The two halves of a tile of scores model products issued ahead of the softmax.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import flash_backward, two_pass_backward
from attnsim.models.implementations.fused.building import Attended, each_way, override
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import MAX_SPLITS, combine
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, Order
from attnsim.models.implementations.implementation import TileRequest, preset, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import step_counts
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule, bytes_of
from attnsim.models.schedule.splits import Splits

EMULATED = (3, 16)
"""Share of the exponentials that are polynomials: 4 of every 16 columns in three of a tile's four fragments
(``ex2_emu_freq`` 16, ``ex2_emu_res`` 4, and the last fragment left out; ``softmax.py``, `apply_exp2_convert`)."""
TWICE_THE_EXPONENTIALS = 103
"""Compute capability with twice the exponential rate, on which no exponential is a polynomial (``flash_fwd_sm100.py``,
`enable_ex2_emu`)."""
ONE_PASS = 192
"""Widest head_dim whose backward is one kernel (``interface.py``, `use_dedicated_hd256_kernel`)."""
FEW_KEY_TILES = 4
"""Key tiles up to which keys are not split (``interface.py``, `num_splits_heuristic`)."""


def choose_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """256 rows x 128 keys; above head_dim 128 one tile of rows."""
    stages = 1 if _is_wide(w) else 2
    plain = replace(plain_tile(w, gpu), keys=128, loop="staged", stages=stages)
    emulated = (0, 1) if gpu.compute_capability_number == TWICE_THE_EXPONENTIALS else EMULATED
    counts = step_counts("flash-attn.4", gpu.compute_capability_number, padded(w.head_dim_v))
    return replace(plain, rescale="seldom", emulated=emulated, edges_only=True, counts=counts)


def _is_wide(w: Workload) -> bool:
    return padded(max(w.head_dim, w.head_dim_v)) > 128


def _order(w: Workload) -> Order:
    """Row tiles with most keys first under a mask; `SingleTileVarlenScheduler`'s order if sequences differ."""
    if w.lengths:
        return "sections_by_sequence"
    return "longest_first" if w.mask.is_causal or w.mask.is_windowed else "ascending"


def plain_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """A Blackwell block like FlashAttention-4's: two 128-row tiles with a softmax warpgroup each, accumulators in TMEM.

    For kernels with no further known details: pipelined as FA3, all exponentials on the exponential units.
    """
    wide = _is_wide(w)
    rows, keys = (128, 64) if wide else (256, 128)
    return FlashTile(rows, keys, order=_order(w), **preset("blackwell"))


def split_count(w: Workload, gpu: Gpu, tile: FlashTile) -> int:
    """Ranges of keys if the caller does not set them: SMs over row tiles."""
    key_tiles = -(-w.seq_kv // tile.keys)
    blocks = w.batch * w.heads_kv * -(-w.seq_q * w.group // tile.rows)
    return 1 if key_tiles <= FEW_KEY_TILES else max(1, min(gpu.sm.count // blocks, MAX_SPLITS, key_tiles))


def flash4(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, *, may_split: bool) -> Schedule:
    """FlashAttention-4 with one range of keys; with `may_split`, as vLLM calls it, ``num_splits`` is not set."""

    def forward() -> Attended:
        tile = override(choose_tile(w, gpu), shape, w, gpu)
        splits = Splits(split_count(w, gpu, tile) if may_split else 1)
        main = flash_forward(w, gpu, tile, splits=splits)
        return [main, *([combine(w, splits.count, 8, 256)] if splits.partial else [])], tile, splits

    return each_way(w, name, shape, forward, lambda: choose_backward(w, gpu), backward)


def choose_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """128 rows x 128 keys; from head_dim 128 on pairs of blocks, except in one pass for a window (``interface.py``).

    If shared memory is short, 64 keys, as NVIDIA/cudnn-frontend's kernel for dK and dV has at head_dim 256.
    """
    d, dv = padded(w.head_dim), padded(w.head_dim_v)
    wide = max(d, dv)
    pair = 2 if wide >= 128 and not (w.mask.is_windowed and wide <= ONE_PASS) else 1
    stages = 2 if wide <= 128 or pair > 1 else 1
    tile = BackwardTile(128, 128, path="tcgen05", stages_q=stages, extra_threads=256, registers=128, pair=pair)
    needed = bytes_of(tile.buffers(d, dv, w.element_bytes))
    return tile if needed <= gpu.sm.shared_memory_per_block_bytes else replace(tile, keys=64)


def backward(w: Workload, tile: BackwardTile) -> tuple[Kernel, ...]:
    """One pass; two at head_dim 256, where dK, dV and dQ do not fit tensor memory together."""
    wide = padded(max(w.head_dim, w.head_dim_v)) > ONE_PASS
    return two_pass_backward(w, tile) if wide else flash_backward(w, tile)


RECORDS = (
    record("flash-attn.4", partial(flash4, name="flash-attn.4", may_split=False)),
    record("vllm.vit-flash-attn-4", partial(flash4, name="vllm.vit-flash-attn-4", may_split=True)),
)
