"""Block-sparse flash attention: any mask of patterns, visiting only the tiles in which something is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.kernels.arrays import attention_workload, factor_of, int32, scale_log2
from attnsim.kernels.build.variant import Variant
from attnsim.kernels.device import Array, Device
from attnsim.models.errors import InputError
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own.sparse import LIST, MASKS, ROW_TILES
from attnsim.models.implementations.own.sparse_tiles import (
    ENTRY,
    TILES,
    SparseTile,
    choose_tile,
    counts_of,
    heads_together,
    launch_order,
)
from attnsim.models.mask.block_list import BlockList, block_list
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload


def variants() -> tuple[Variant, ...]:
    """Both formats of every tile."""
    return tuple(variant(dtype, tile) for dtype in ("bf16", "fp16") for tiles in TILES.values() for tile in tiles)


def variant(dtype: str, tile: SparseTile) -> Variant:
    """The compilation of the kernel for a tile."""
    return Variant("sparse.cu", ENTRY, tile.constants(dtype), tile.threads, tile.shared_memory_bytes)


@dataclass(frozen=True, eq=False, slots=True)
class ListedBlocks:
    """A mask's block list in the memory of a device, for calls that share it.

    Parameters
    ----------
    mask : Mask
    seq_q, seq_kv : int
    tile : SparseTile
    tensors : mapping of str to array
        The kernel's metadata by name.
    heads_together : int
        Heads whose blocks are launched in turn.
    """

    mask: Mask
    seq_q: int
    seq_kv: int
    tile: SparseTile
    tensors: Mapping[str, Array]
    heads_together: int


def list_blocks(device: Device, w: Workload, tile: tuple[int, int] | None = None) -> ListedBlocks:
    """The block list of a workload, uploaded.

    Parameters
    ----------
    device : Device
    w : Workload
    tile : (int, int), optional
        Queries x keys; default the one of the compiled tiles that suits mask and GPU.

    Raises
    ------
    InputError
        When the kernel has no such tile, or the mask makes too long a list.
    """
    chosen = choose_tile(w, device.gpu, tile and TileRequest(*tile))
    counts, listed = counts_of(w, chosen), block_list(w.mask, chosen.rows, chosen.keys, w.seq_q, w.seq_kv)
    tensors = {
        ROW_TILES: device.upload(_row_tiles(listed, launch_order(counts))),
        LIST: device.upload(_at_least_one(np.stack([listed.key_tile, listed.pattern], axis=1))),
        MASKS: device.upload(_at_least_one(listed.bits)),
    }
    return ListedBlocks(w.mask, w.seq_q, w.seq_kv, chosen, tensors, heads_together(w, device.gpu, counts))


def sparse_forward(
    device: Device,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    tile: tuple[int, int] | None = None,
    listed: ListedBlocks | None = None,
) -> tuple[Array, Array]:
    """O and the log-sum-exp of the scaled scores.

    Parameters
    ----------
    device : Device
    q : array ``[batch, heads_q, seq_q, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64, 128 or 256.
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        `heads_kv` divides `heads_q`.
    mask : Mask, optional
        Any mask, patterns included, the same for all heads; default none.
    scale : float, optional
        More than 0; default ``1 / sqrt(head_dim)``.
    tile : (int, int), optional
        Queries x keys; default the one of the compiled tiles that suits mask and GPU.
    listed : ListedBlocks, optional
        From :func:`list_blocks`, in place of mask and tile, to make and upload the list once for many calls.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``
        In the type of `q`; 0 where a query sees no key.
    lse : array ``[batch, heads_q, seq_q]``, float32
        Natural logarithm; -inf where a query sees no key.

    Raises
    ------
    InputError
        When the inputs or the GPU do not fit the kernel, or the mask makes too long a list.
    """
    if listed is not None and (mask is not None or tile is not None):
        raise InputError("a block list is given, and a mask or a tile too; the list has both, leave the others out")
    w = attention_workload(q, k, v, listed.mask if listed else mask, head_dims=tuple(TILES), patterns=True)
    blocks = listed or list_blocks(device, w, tile)
    if (blocks.seq_q, blocks.seq_kv, blocks.tile.head_dim) != (w.seq_q, w.seq_kv, w.head_dim):
        raise InputError(
            f"the block list is for {blocks.seq_q} queries, {blocks.seq_kv} keys and head_dim {blocks.tile.head_dim}, "
            f"the arrays have {w.seq_q}, {w.seq_kv} and {w.head_dim}; make one with list_blocks"
        )
    factor = factor_of(w, scale, positive=True)
    o, lse = device.empty(q.shape, str(q.dtype)), device.empty(q.shape[:3], "float32")
    heads = w.batch * w.heads_q
    device.launch(
        variant(w.dtype, blocks.tile),
        (heads * -(-w.seq_q // blocks.tile.rows), 1, 1),
        {
            **{"Q": q, "K": k, "V": v, **blocks.tensors, "O": o, "LSE": lse},
            **int32(seq_q=w.seq_q, seq_kv=w.seq_kv, heads=heads, group=w.group),
            **int32(section=min(heads, blocks.heads_together)),
            **scale_log2(factor),
        },
    )
    return o, lse


def _row_tiles(listed: BlockList, order: NDArray[np.int64]) -> NDArray[np.int32]:
    """Row tiles in launch order: number, first visit, end of the visits and nothing for each."""
    columns = order, listed.row_start[order], listed.row_start[order + 1], np.zeros_like(order)
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.int32)


def _at_least_one(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or one entry of zeros where it has none: a kernel's pointer has to point somewhere."""
    return array if len(array) else np.zeros((1, *array.shape[1:]), dtype=array.dtype)
