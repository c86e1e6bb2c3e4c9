"""The memory-efficient kernels of PyTorch and xformers (cutlass), and xformers' Triton kernel with split keys.

Cutlass: ``generate_kernels.py``, December 2024. Triton: ``xformers/ops/fmha/triton_splitk.py`` of 0.0.27 (commit
a9e2e7b3), without autotuning (`FwOp.AUTOTUNE`).
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import counted
from attnsim.models.implementations.fused.building import (
    alike,
    fitting,
    flash_schedule,
    one_kernel_each_way,
    one_query,
    override,
)
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.splits import combine, copy_rows
from attnsim.models.implementations.fused.tile import BackwardTile, FlashTile, FusedTiles, Order
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Schedule, bytes_of, edited
from attnsim.models.schedule.splits import Splits

MOST_WHOLE, SLICE = 256, 32
"""Head_dim above which shared memory is modelled as in the source: slices of 32 columns of Q and K, and of 32 keys of P
and V, at a time, and fp32 sums of O in memory between key tiles (``kernel_forward.h``, `kKeepOutputInRF`)."""
REGISTERS = by_hand(128, "registers a thread of the memory-efficient kernels")
SMALL_BACKWARD_REGISTERS = by_hand(168, "registers a thread of the memory-efficient backward with tiles of 64 x 64")


def choose_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """PyTorch's and xformers' memory-efficient kernel (cutlass), with fewer keys if shared memory is short."""
    d, order = max(w.head_dim, w.head_dim_v), BY_SEQUENCE if w.lengths else "ascending"
    plain = FlashTile(64, 64, warps=4, registers=REGISTERS, p_in_smem=True, order=order)
    if d <= 64:
        return plain
    if d <= 128:
        return fitting(replace(plain, keys=128, warps=8, warpgroups=2), w, gpu)
    tile = replace(plain, rows=32, keys=128)
    return fitting(tile, w, gpu) if d <= MOST_WHOLE else replace(tile, slices=SLICE)


def choose_backward(w: Workload, gpu: Gpu) -> BackwardTile:
    """The memory-efficient kernel's backward."""
    d = max(w.head_dim, w.head_dim_v)
    if d <= 64:
        return BackwardTile(64, 64, warps=4, stages_q=1, registers=SMALL_BACKWARD_REGISTERS)
    tile = BackwardTile(128, 128, warps=16, stages_q=1, registers=REGISTERS)
    fits = bytes_of(tile.buffers(padded(d), padded(d), w.element_bytes)) <= gpu.sm.shared_memory_per_block_bytes
    small = BackwardTile(64, 64, warps=4, stages_q=1, registers=SMALL_BACKWARD_REGISTERS)
    return tile if d <= 128 and fits else small if d <= MOST_WHOLE else replace(small, slices=SLICE)


BY_SEQUENCE: Order = "grid_by_sequence"
"""For packed sequences (`BlockDiagonalMask`): the grid has sequences outermost, and row tiles for the longest
(``kernel_forward.h``, `getBlocksGrid`: ``dim3(ceil_div(num_queries, kQueriesPerBlock), num_heads, num_batches)``)."""
NAME, SPLIT_K = "xformers.cutlass", "xformers.triton-splitk"
SPLIT_K_HEAD_DIMS, SPLIT_K_CAUSAL_QUERIES = (16, 32, 64, 128, 256, 512), 16
LSE_INSTRUCTIONS = by_hand(38, "FP64 instructions of a row's log-sum-exp in double precision")
"""Instructions of ``log2(l) + m`` over a constant (`_fwd_kernel_splitK`): 30 of ``__nv_log2`` in CUDA 12.9's libdevice,
an addition and seven of a division. Conversions from fp32 are not counted."""
SPLIT_K_NOTE = "copies of K and V overlap products here; Triton compiles this loop with one stage and waits for them"


def triton_split_k(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """``triton_splitk.FwOp``: 16 rows x 64 keys, two warps; the query heads of a group are rows of one tile."""
    check_split_k(alike(w, SPLIT_K, NAME))
    w, grouped = one_query(w), w.group > 1
    widths = (w.head_dim, w.head_dim_v)
    base = FlashTile(16, 64, warps=2, loop="staged", pack_gqa=grouped, warps_share_keys=True, widths=widths)
    tile, splits = override(base, shape, w, gpu), Splits(split_k(w))
    transposed = grouped and w.seq_q > 1 and w.heads_kv > 1
    kernels = [copy_rows(w, "Q")] if transposed else []
    main = flash_forward(w, gpu, tile, "_fwd_kernel_splitK", splits, lse=splits.partial)
    kernels.append(in_double(main, tile.rows * 4 * tile.warps * LSE_INSTRUCTIONS))
    if splits.partial:
        merge = combine(w, splits.count, 1, 128 if w.batch * w.heads_q < 32 else 64)
        each = max(merge.threads, splits.count)  # a maximum and a difference of each log-sum-exp
        kernels.append(edited(merge, lambda op: op._replace(fp64=2 * each) if op.tensor == "scale" else op))
    elif transposed:
        kernels.append(copy_rows(w, "O"))
    return flash_schedule(w, SPLIT_K, kernels, FusedTiles(tile), splits, (SPLIT_K_NOTE,))


def in_double(kernel: Kernel, fp64: int) -> Kernel:
    """The kernel with `fp64` FP64 instructions before it stores log-sum-exps of ranges.

    Every thread computes those of its rows, which four lanes of each warp share (PTX ISA, "mma.m16n8k16").
    """
    work = TileOp("vector", "LSE", fp64=fp64)

    def segment(one: Segment) -> Segment:
        before = next((i for i, op in enumerate(one.ops) if op[:2] == ("store", "LSE partial")), None)
        return one if before is None else replace(one, ops=(*one.ops[:before], work, *one.ops[before:]))

    return replace(kernel, segments=tuple(map(segment, kernel.segments)))


def check_split_k(w: Workload) -> None:
    """Refuse inputs that the operator does not support (`not_supported_reasons`)."""
    if w.head_dim != w.head_dim_v or w.head_dim not in SPLIT_K_HEAD_DIMS:
        raise InputError(
            f"{SPLIT_K} takes K and V of one head_dim of {', '.join(map(str, SPLIT_K_HEAD_DIMS))}; given "
            f"{w.head_dim} and {w.head_dim_v}; take {NAME}"
        )
    if w.mask.is_causal and w.seq_q > SPLIT_K_CAUSAL_QUERIES:
        raise InputError(
            f"{SPLIT_K} takes at most {SPLIT_K_CAUSAL_QUERIES} causal queries; given {w.seq_q}; take {NAME}"
        )


def split_k(w: Workload) -> int:
    """Ranges of keys (`get_split_k`), which counts the heads of a group as one and ignores the number of groups.

    The kernel makes ranges of equally many keys, this schedule of equally many tiles.
    """
    heads = w.batch * (1 if w.group > 1 else w.heads_q)
    most = w.seq_kv / (64 if w.seq_kv <= 512 and heads <= 64 else 128)
    count = max(w.seq_kv, 1024) // heads
    while count > most:
        count //= 2
    return max(1, min(count, 64))


RECORDS = (
    record(
        NAME,
        one_kernel_each_way(
            NAME,
            lambda w, gpu: counted(choose_tile(w, gpu), NAME, w, gpu),
            lambda w, gpu: counted(choose_backward(w, gpu), NAME, w, gpu),
        ),
    ),
    record(SPLIT_K, triton_split_k),
)
