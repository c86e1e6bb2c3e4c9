"""What gathering has to copy for a mask: blocks of keys for each block of queries, and global tokens beside them.

A batched GEMM needs as many keys for every block of queries, so each is given as many blocks as the one that sees most.
Global tokens would make that all of them; frameworks therefore take them out and multiply them apart: their columns
with every query, their rows with every key (Hugging Face ``modeling_longformer.py``,
``_concat_with_global_key_attn_probs`` and ``_compute_global_attn_output_from_hidden``; ``modeling_big_bird.py``,
``bigbird_block_sparse_attention``, parts 1, 3 and 5).
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.mask.block_patterns import Blocks, BlockWindow, Random
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.patterns import Dilated, Global, Part, Window
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload

STEP = by_hand(64, "blocks that gathered attention chooses for a window are multiples of this")
LARGEST_BLOCK = by_hand(512, "largest block that gathered attention chooses for a window")
INDEX_BYTES = 8
"""An entry of PyTorch's index tensors (int64)."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Sizes of the gathered tensors of one head.

    Parameters
    ----------
    rows, keys : int
        Queries and keys of a block.
    row_blocks : int
        Blocks of queries, the last one filled up.
    blocks : int
        Blocks of keys copied for each block of queries; 0 where the mask has nothing but global tokens.
    touched_keys : int
        Keys in blocks that any query sees.
    passes : float
        Times that they are read with no neighbouring block of queries to share the read.
    global_keys, global_rows : int
        Global tokens among the keys and among the queries.
    """

    rows: int
    keys: int
    row_blocks: int
    blocks: int
    touched_keys: int
    passes: float
    global_keys: int
    global_rows: int

    @property
    def width(self) -> int:
        """Keys copied for each block of queries."""
        return self.blocks * self.keys

    @property
    def seq_q(self) -> int:
        """Queries with the last block filled up."""
        return self.row_blocks * self.rows

    @property
    def index_bytes(self) -> int:
        """Bytes of the list of blocks."""
        return self.row_blocks * self.blocks * INDEX_BYTES

    def __str__(self) -> str:
        return f"blocks of {self.keys}"


def gathering(w: Workload, block: int) -> Gathering:
    """What a workload's mask makes a framework gather in blocks of so many keys."""
    ranges = tuple(one for part in w.mask.parts if isinstance(part, Global) for one in part.ranges)
    tokens = Global(ranges).ranges if ranges else ()
    global_keys, global_rows = (
        sum(max(0, min(stop, w.seq_kv) - max(start, low)) for start, stop in tokens) for low in (0, w.seq_kv - w.seq_q)
    )
    counts = _local_counts(w, block)
    blocks = int(counts.visits.max()) if counts else 0
    return Gathering(
        rows=min(block, w.seq_q),
        keys=block,
        row_blocks=-(-w.seq_q // block),
        blocks=blocks,
        touched_keys=counts.touched_keys if counts else 0,
        passes=max(1.0, counts.fresh * block / counts.touched_keys) if counts and blocks else 1.0,
        global_keys=global_keys,
        global_rows=global_rows,
    )


def _local_counts(w: Workload, block: int) -> TileCounts | None:
    """Blocks that the mask without its global tokens shows, if it has anything else."""
    local = tuple(part for part in w.mask.parts if not isinstance(part, Global))
    if w.mask.parts and not local:
        return None
    return Mask(w.mask.left, w.mask.right, local).tile_counts(w.seq_q, w.seq_kv, block, block)


def choose_block(w: Workload, shape: TileRequest | None) -> int:
    """The block given, or the one that code for the mask would take.

    Patterns of blocks bring their own. A window is cut into chunks as long as it reaches to one side, so that a chunk
    of queries sees three chunks of keys (`_sliding_chunks_query_key_matmul` of Hugging Face's Longformer).

    Raises
    ------
    InputError
        When the given tile is not square.
    """
    if shape is not None:
        if shape.rows != shape.keys:
            raise InputError(f"transformers.gather takes blocks of as many queries as keys, such as 64x64, not {shape}")
        return shape.rows
    own = [part.block for part in w.mask.parts if isinstance(part, (BlockWindow, Random, Blocks))]
    if own:
        return max(own)
    reach = max((_reach(part) for part in w.mask.parts or (Window(w.mask.left, w.mask.right),)), default=0)
    longest = min(LARGEST_BLOCK, max(w.seq_q, w.seq_kv))
    return max(STEP, -(-min(reach, longest) // STEP) * STEP)


def _reach(part: Part) -> int:
    """Keys to one side of a window; 0 of a part that is none, or has no end."""
    if isinstance(part, Dilated):
        return part.reach
    return max(part.left or 0, part.right or 0) if isinstance(part, Window) else 0
