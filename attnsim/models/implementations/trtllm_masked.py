"""TensorRT-LLM's masked multi-head attention: one query of one head against its keys, on the FP32 lanes.

From ``cpp/tensorrt_llm/kernels/decoderMaskedMultiheadAttention`` of NVIDIA/TensorRT-LLM: the grid is chosen in
``decoderMaskedMultiheadAttentionLaunch.h``, the kernel is ``decoderMaskedMultiheadAttentionTemplate.h``. Threads share
out keys, 16 bytes of one key each, look up the page of every key, and go over K, then over V; no head of a group shares
reads with another. Bias, rotation and cache write are in the same kernel. Partial results of split keys are merged by
the last block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.last_block import merging_last
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.trtllm_tiles import BY_SEQUENCE
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.editing import edited
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Kernel
from attnsim.models.schedule.splits import Splits

NAME = "masked_attention"
THREADS = (256, 512, 1024)
"""Sizes of a block that it is compiled for (``mmha_launch_kernel_ex``)."""
REGISTERS = by_hand(
    64, "of a thread of masked attention, of which an SM holds 32 warps by the comment in its launch code"
)
ELEMENTS = 8
"""Of a key that a thread has, 16 bytes of 16-bit formats (``K_VEC_SIZE``)."""
KEYS_AT_ONCE = 4
"""Keys that a thread loads before it uses the first (``K_LOOP_UNROLL``); of V twice as many."""
KEYS_AT_LEAST = 8
"""Keys a thread that a block of split keys has at least (``multi_block_grid_setup``)."""
LOGIT_BYTES = 6
"""Shared memory of a logit: fp32, and 16 bit for the second product."""
SHARED_MEMORY_LEFT = 2048
"""Bytes that the logits leave of a block's shared memory (``mMaxSharedMemoryPerBlockOptin - 2048``)."""
MERGE_CLKS = by_hand(7000, "latency of the merge in the last block of masked attention, beside its round trips")
"""A fence before the counter, four loads that wait for one another and some twenty barriers of all threads. Read off
steps from one range of keys to two: 4.1 us on H100, 3.3 us on L40S, on both 8,200 clocks with the round trips. A number
fitted by hand: the rows of these two GPUs (``fit`` and ``choose``) are no test of it."""
BARRIERS_CLKS = by_hand(2100, "latency of a block of masked attention beyond XQA's: its twenty barriers")
"""For rotation, maximum, sum, and the outputs of groups of threads, which are halved between two barriers. Read off
steps of up to 32 keys on H100, of one wave and of eight: fitted by hand on rows that are ``fit``."""

Attended = tuple[list[Kernel], FlashTile, Splits]
"""The kernels that attend, their tile, and how the keys are cut."""


class VectorCounts(NamedTuple):
    """Instructions of a thread for 16 bytes of K or V, read in the source: page, address, products, bounds.

    Parameters
    ----------
    issued : int
        All.
    fp32, integer, load_store : int
        Those of each pipe; a multiplication of integers runs with FP32, a conversion with the integers.
    """

    issued: int
    fp32: int
    integer: int
    load_store: int


OF_K = by_hand(
    VectorCounts(59, 22, 30, 3),
    "instructions a 16 bytes of K: 20 for page and address (`getKBlockPtr`, `getKVLocalIdx`), 23 for the product of 8 "
    "elements in fp32 (`qk_dot_`), 16 for scale, bias, bounds, maximum and store",
)
OF_V = by_hand(
    VectorCounts(45, 13, 26, 3),
    "the same of V: 20 for page and address, 16 for 8 elements (`Logit_value_fma`), 9 for bounds, logit and loop",
)


@dataclass(frozen=True, slots=True)
class MaskedTile:
    """A block of masked multi-head attention: one query head.

    Parameters
    ----------
    threads : int
    keys : int
        Of one turn.
    splits : int
        Blocks a sequence and head.
    lanes : int
        Threads that share a key.
    """

    threads: int
    keys: int
    splits: int
    lanes: int

    @property
    def keys_at_once(self) -> int:
        """Keys, and partial results of a merge, that a block reads at a time."""
        return self.threads // self.lanes


def masked_tile(w: Workload, gpu: Gpu) -> MaskedTile:
    """Threads by how many blocks there are, and splits so that blocks of 1024 threads fill the SMs once.

    As many times 256 threads as an SM's blocks of that size go to each block that there is, rounded up, then down to a
    size that is compiled (``mmha_launch_kernel_ex``). Keys are split at least as often as their logits ask of shared
    memory (``estimate_min_multi_block_count``), and into ranges of as many keys, whole turns or not.
    """
    blocks, smallest = w.batch * w.heads_q, THREADS[0]
    held = THREADS[-1] // smallest
    factor = min(held, -(-held * gpu.sm.count // blocks))
    threads = max(size for size in THREADS if size <= smallest * factor)
    width = max(32, 1 << (max(w.head_dim, w.head_dim_v) - 1).bit_length())
    lanes = width // ELEMENTS
    at_once = threads // lanes
    seen = w.seq_kv if w.mask.left is None else min(w.seq_kv, w.mask.left + 1)
    room = (gpu.sm.shared_memory_per_block_bytes - SHARED_MEMORY_LEFT) // LOGIT_BYTES
    wanted = min(-(-gpu.sm.count // blocks), -(-w.seq_kv // (at_once * KEYS_AT_LEAST)))
    splits = max(-(-seen // room), wanted)
    share = -(-seen // splits)
    turns = -(-share // (at_once * KEYS_AT_ONCE))
    return MaskedTile(threads, -(-share // turns), splits, lanes)


def masked_attention(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Attended:
    """The kernel, its tile and its splits.

    Raises
    ------
    InputError
        Where a tile is asked for.
    """
    if shape is not None:
        raise InputError("masked multi-head attention has no tile to choose; leave --tile out")
    chosen = masked_tile(w, gpu)
    tile = FlashTile(
        1, chosen.keys, warps=chosen.threads // 32, loop="staged", registers=REGISTERS, path="simt",
        widths=(chosen.lanes * ELEMENTS,) * 2, order=BY_SEQUENCE,
    )  # fmt: skip
    seen = within_window(w, 1)
    # `timesteps_per_block`: ranges as long as those of the longest, the last of shorter sequences empty.
    splits = Splits(chosen.splits, chunk=-(-seen.seq_kv // (chosen.keys * chosen.splits)))
    main = _on_lanes(flash_forward(seen, gpu, tile, NAME, splits, lse=False), chosen.lanes)
    logits = min(-(-seen.seq_kv // splits.count) * LOGIT_BYTES, gpu.sm.shared_memory_per_block_bytes)
    main = replace(
        main,
        buffers=(("logits", logits),),
        in_flight_bytes=chosen.threads * KEYS_AT_ONCE * ELEMENTS * w.element_bytes,
    )
    if splits.partial:
        main = merging_last(main, w, splits.count, 1, chosen.keys_at_once, MERGE_CLKS)
    return [main], tile, splits


def _on_lanes(kernel: Kernel, lanes: int) -> Kernel:
    """Products by the instructions of threads, the sum of Q K over the lanes that share a key, and the barriers."""
    halvings = lanes.bit_length() - 1  # each a shuffle and an addition
    summed = OF_K._replace(
        issued=OF_K.issued + 2 * halvings, fp32=OF_K.fp32 + halvings, load_store=OF_K.load_store + halvings
    )
    counts = {"S": summed, "O": OF_V}

    def edit(op: TileOp) -> TileOp:
        if (op.kind, op.tensor) == ("delay", "block"):
            return op._replace(clks=BARRIERS_CLKS // 2)
        if op.kind != "mma":
            return op
        vectors, each = op.flops // 2 // ELEMENTS, counts[op.tensor]
        return TileOp(
            "vector", op.tensor, fp32=vectors * each.fp32, int32=vectors * each.integer,
            load_stores=vectors * each.load_store, issues=-(-vectors * each.issued // 32),
        )  # fmt: skip

    return edited(kernel, edit)


def within_window(w: Workload, step: int) -> Workload:
    """A generation step without the keys before its window, in whole steps: blocks start behind them."""
    if w.seq_q == 1 and w.mask.right == 0:
        w = replace(w, mask=Mask(left=w.mask.left))
    if w.mask.left is None:
        return w
    left = w.mask.left
    return w.having(
        one._replace(keys=one.keys - max(0, one.keys - one.queries - left) // step * step) for one in w.parts
    )
