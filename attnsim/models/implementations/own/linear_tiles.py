"""Blocks of our linear-attention kernels, and the number of ranges that sequences are split into.

Both the operation that launches the kernels and their schedule use them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Floats, Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.own.resources import ELEMENT, Compiled, check_compiled, kernel_label
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Buffers, check_shared_memory

NAME = "attnsim.linear"
STATE, REDUCE, OUTPUT = "linear_state", "linear_reduce", "linear_output"
SCAN, CAUSAL, DECODE = "linear_scan", "linear_causal", "linear_decode"
HEAD_DIMS = (64, 128)

WARPS = 4
KEYS = 64
"""Keys of a tile of `linear_state`."""
CHUNK = 16 * WARPS
"""Queries and keys of a chunk of `linear_causal`, which is quadratic within it."""
PARTS = ("features", "weights", "output", "next")
"""Separately counted parts of a step that writes O: up to the barrier of a chunk, up to the last product for O, up to
its store, and the rest if another step follows."""
SLAB = 32
"""Rows of Q that a warp of `linear_output` processes at a time."""
ROWS = SLAB * WARPS
"""Rows of a row tile of `linear_output`."""
MERGE_WARPS = 8
HEADS = 4
"""Query heads that `linear_decode` processes together."""
MAX_RANGES = 256
"""Most partial states per head, as they are merged sequentially."""

Constants = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class Block(Compiled):
    """Resources of a block of one kernel at one width.

    Parameters
    ----------
    kernel : str
        Entry point.
    buffers : tuple of (str, int)
        Shared-memory buffers and their bytes.
    shape : tuple of (str, int)
        Compile-time constants after the width.
    residents : int
        Blocks that fit an SM's registers.
    """

    kernel: str
    head_dim: int
    warps: int
    buffers: Buffers = ()
    shape: tuple[tuple[str, int], ...] = ()
    residents: int = 2

    def constants(self, dtype: str) -> Constants:
        """Compile-time constants, in the order of the kernel's label."""
        return (("ELEMENT", ELEMENT[dtype]), ("HEAD_DIM", self.head_dim), *self.shape)

    def label(self, dtype: str) -> str:
        """Entry and constants in one word."""
        return kernel_label(self.kernel, self.constants(dtype))

    def slots(self, gpu: Gpu) -> int:
        """Blocks that run at the same time.

        Raises
        ------
        InputError
            When not even one fits.
        """
        check_shared_memory(self.kernel, self.buffers, gpu, f"{gpu.id} is too small for {NAME}")
        return gpu.sm.count * max(1, min(self.residents, self.blocks_in_shared_memory(gpu)))


@dataclass(frozen=True, slots=True)
class LinearTile:
    """Number of ranges that the sequences of a head are split into.

    Parameters
    ----------
    ranges : int
        Ranges of the keys or, causal, of the chunks; 0 in decoding, which processes tokens sequentially.
    row_ranges : int
        Ranges of the rows of Q; 0 for causal kernels, which split them together with the keys.
    """

    head_dim: int
    ranges: int = 0
    row_ranges: int = 0

    def __str__(self) -> str:
        if not self.ranges:
            return f"{self.head_dim} x {self.head_dim} state"
        ranges, rows = (f"{n} range{'s' * (n > 1)} a head" for n in (self.ranges, self.row_ranges))
        return f"{KEYS} keys, {ranges}; {ROWS} rows, {rows}" if self.row_ranges else f"chunks of {CHUNK}, {ranges}"


def block_of(kernel: str, head_dim: int) -> Block:
    """Block of a kernel at a width; `residents` follows from the registers that the compiler reports."""
    d, wide = head_dim, head_dim > 64
    averages = ("S / z", 2 * d * d)
    warps: tuple[str, int] = ("WARPS", WARPS)
    if kernel == STATE:
        stages = 2 if wide else 3
        ring = stages * KEYS * d * 2
        constants = (("BLOCK_N", KEYS), warps, ("STAGES", stages))
        return Block(kernel, d, WARPS, (("K", ring), ("V", ring)), constants, 2 if wide else 4)
    if kernel == OUTPUT:
        slabs, sums = ("Q", 2 * ROWS * d * 2), ("z", 4 * d)
        return Block(kernel, d, WARPS, (averages, slabs, sums), (warps, ("STAGES", 2)), 2 if wide else 3)
    if kernel == CAUSAL:
        chunk = CHUNK * d * 2
        buffers = (averages, ("K", chunk), ("V", chunk), ("Q", chunk), ("z", 2 * 4 * d))
        return Block(kernel, d, WARPS, buffers, (warps,), 2 if wide else 4)
    if kernel == DECODE:
        decode_warps = 16 if wide else 4
        vectors = ("vectors", 4 * (3 * d + HEADS * d + HEADS * d // 32))
        outputs = ("O", 4 * decode_warps * HEADS * d)
        return Block(kernel, d, decode_warps, (vectors, outputs), (("WARPS", decode_warps), ("HEADS", HEADS)))
    return Block(kernel, d, MERGE_WARPS, (), (("WARPS", MERGE_WARPS),))


def merge_blocks(w: Workload) -> int:
    """Blocks of `linear_reduce` and `linear_scan`: a thread has four numbers of a head's state."""
    return w.batch * w.heads_kv * (w.head_dim**2 // (4 * 32 * MERGE_WARPS))


def is_causal(w: Workload) -> bool:
    """Return whether the mask hides anything: a single query sees all keys before it."""
    return w.mask.right is not None and w.mask.right < w.seq_q - 1


def check_takes(w: Workload) -> None:
    """Refuse a workload that the kernels do not support."""
    check_compiled(NAME, w, HEAD_DIMS)
    mask = w.mask.within(w.seq_q, w.seq_kv)
    if not mask.is_band or mask.is_windowed or (is_causal(w) and not mask.is_causal):
        raise InputError(
            f"{NAME} sums keys into one state, from which a window cannot be taken out again; the mask is {w.mask}; "
            "allowed: none or causal (leave --window out)"
        )
    if w.passes == "decode":
        if w.seq_q > w.seq_kv or (w.seq_q > 1 and not mask.is_causal):
            raise InputError(
                f"{NAME} decodes the last tokens one after the other: seq_q is {w.seq_q}, seq_kv {w.seq_kv}, the mask "
                f"{w.mask}; allowed: seq_q 1 to seq_kv, and causal above 1"
            )
    elif is_causal(w) and w.seq_q != w.seq_kv:
        raise InputError(
            f"{NAME} is causal over a sequence of its own: seq_q is {w.seq_q}, seq_kv {w.seq_kv}; make them equal, or "
            "keep the state of the tokens before and take pass decode"
        )


def lengths(tiles: int, ranges: int) -> Ints:
    """Tiles of each of `ranges` even ranges."""
    bounds = tiles * np.arange(ranges + 1, dtype=np.int64) // ranges
    return np.diff(bounds)


def state_ranges(w: Workload, gpu: Gpu) -> int:
    """Ranges of the keys of a head in `linear_state`, without a mask."""
    slots = block_of(STATE, w.head_dim).slots(gpu)
    tiles = -(-w.seq_kv // KEYS)
    counts = _counts(tiles)
    heads, state = w.batch * w.heads_kv, w.head_dim / 32
    time = _waves(heads * counts, slots, gpu) * (2 * -(-tiles // counts) + 2 * state) + counts / 16
    return int(counts[np.argmin(time)])


def row_ranges(w: Workload, gpu: Gpu) -> int:
    """Ranges of the row tiles of a query head in `linear_output`."""
    slots = block_of(OUTPUT, w.head_dim).slots(gpu)
    tiles = -(-w.seq_q // ROWS)
    counts = _counts(tiles)
    time = _waves(w.batch * w.heads_q * counts, slots, gpu) * (4 * -(-tiles // counts) + w.head_dim / 64)
    return int(counts[np.argmin(time)])


def causal_ranges(w: Workload, gpu: Gpu) -> int:
    """Ranges of the chunks of a query head in `linear_causal`.

    With one, K and V are read once. With more, all but the last range are read twice, for the initial states of the
    others.
    """
    slots, state_slots = (block_of(kernel, w.head_dim).slots(gpu) for kernel in (CAUSAL, STATE))
    chunks = -(-w.seq_q // CHUNK)
    counts = _counts(chunks)
    steps, several, state = -(-chunks // counts), counts > 1, w.head_dim / 32
    # In units of 64 rows of one tensor; to merge 16 partial states, which waits for memory, counts as one of them.
    output = _waves(w.batch * w.heads_q * counts, slots, gpu) * (4 * steps + several * state)
    before = _waves(w.batch * w.heads_kv * (counts - 1), state_slots, gpu) * (2 * steps + 3 * state)
    return int(counts[np.argmin(output + before + (counts - 1) / 16)])


def _counts(tiles: int) -> Ints:
    return np.arange(1, min(tiles, MAX_RANGES) + 1, dtype=np.int64)


def _waves(blocks: Ints, slots: int, gpu: Gpu) -> Floats:
    """Time of equal blocks, in units of one full wave: a rule to choose a split by, checked against replays.

    A partial last wave takes the mean of two bounds. If HBM limits the kernel, the wave takes the share of slots that
    it fills. If SMs limit it, the wave takes as long as the SM with most blocks, where half of a block's time is
    latency that other blocks on the SM hide.
    """
    rest, residents = blocks % slots, slots / gpu.sm.count
    busiest = np.where(rest > 0, -(-rest // gpu.sm.count) + 0.5, 0.0)
    return np.asarray(blocks // slots + (rest / slots + busiest / (residents + 0.5)) / 2, dtype=np.float64)
