"""Block-sparse flash attention: any mask of patterns; only tiles with a visible pair are visited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.arrays import attention_workload, factor_of, int32, scale_log2
from attnsim.kernels.device import Array, Device
from attnsim.kernels.variant import Variant
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own.sparse import (
    ENTRY,
    LIST,
    MASKS,
    ROW_TILES,
    TILES,
    SparseTile,
    blocks_at_once,
    choose_tile,
    counts_of,
    following,
    heads_together,
    launch_order,
)
from attnsim.models.mask.mask import Mask, block_list
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload


def variants() -> tuple[Variant, ...]:
    """Return every tile in both formats."""
    return tuple(variant(dtype, tile) for dtype in ("bf16", "fp16") for tiles in TILES.values() for tile in tiles)


def variant(dtype: str, tile: SparseTile) -> Variant:
    """Return the variant of the kernel for a tile."""
    return Variant("sparse.cu", ENTRY, tile.constants(dtype), tile.threads, tile.shared_memory_bytes)


@dataclass(frozen=True, eq=False, slots=True)
class ListedBlocks:
    """A mask's block list in device memory, for calls that share it.

    Parameters
    ----------
    shape : (int, int, int, int, int)
        Query heads and key/value heads of the whole batch, queries, keys, head_dim.
    tensors : mapping of str to array
        The kernel's metadata by name.
    blocks : int
        Blocks of the grid.
    """

    mask: Mask
    shape: tuple[int, int, int, int, int]
    tile: SparseTile
    tensors: Mapping[str, Array]
    blocks: int


def list_blocks(device: Device, w: Workload, tile: tuple[int, int] | None = None) -> ListedBlocks:
    """Make and upload the block list of a workload.

    Parameters
    ----------
    tile : (int, int), optional
        Queries x keys; by default the compiled tile that suits mask and GPU best.

    Raises
    ------
    InputError
        If the kernel has no such tile, or the mask's list is too long.
    """
    chosen = choose_tile(w, device.gpu, tile and TileRequest(*tile))
    counts, listed = counts_of(w, chosen), block_list(w.mask, chosen.rows, chosen.keys, w.seq_q, w.seq_kv)
    row_tiles = w.batch * w.heads_q * counts.tiles.row_tiles
    blocks = min(row_tiles, blocks_at_once(w, device.gpu, chosen)) if device.persistent else row_tiles
    visits = _at_least_one(np.stack([listed.key_tile, listed.pattern], axis=1))
    tensors = {
        ROW_TILES: device.upload(_plan(w, device.gpu, counts, listed.row_start, visits, blocks)),
        LIST: device.upload(visits),
        MASKS: device.upload(_at_least_one(listed.bits)),
    }
    return ListedBlocks(w.mask, _shape(w), chosen, tensors, blocks)


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
    """Compute O and the log-sum-exp of the scaled scores.

    Parameters
    ----------
    q : array ``[batch, heads_q, seq_q, head_dim]``
        float16, or uint16 with the bits of bf16; head_dim 64, 128 or 256.
    k, v : array ``[batch, heads_kv, seq_kv, head_dim]``
        `heads_kv` divides `heads_q`.
    mask : Mask, optional
        Any mask, patterns included, the same for all heads; default none.
    scale : float, optional
        More than 0; default ``1 / sqrt(head_dim)``.
    tile : (int, int), optional
        Queries x keys; by default the compiled tile that suits mask and GPU best.
    listed : ListedBlocks, optional
        From :func:`list_blocks`, in place of mask and tile, to reuse one list for many calls.

    Returns
    -------
    o : array ``[batch, heads_q, seq_q, head_dim]``
        In the type of `q`; 0 for queries without a visible key.
    lse : array ``[batch, heads_q, seq_q]``, float32
        Natural logarithm; -inf for queries without a visible key.

    Raises
    ------
    InputError
        If the kernel does not support the inputs or the GPU, or the mask's list is too long.
    """
    if listed is not None and (mask is not None or tile is not None):
        raise InputError("a block list is given, and a mask or a tile too; the list has both, leave the others out")
    w = attention_workload(q, k, v, listed.mask if listed else mask, head_dims=tuple(TILES), patterns=True)
    blocks = listed or list_blocks(device, w, tile)
    if blocks.shape != _shape(w):
        listed_for, given = (_in_words(shape) for shape in (blocks.shape, _shape(w)))
        raise InputError(f"the block list is for {listed_for}, the arrays have {given}; make one with list_blocks")
    factor = factor_of(w, scale, positive=True)
    o, lse = device.empty(q.shape, str(q.dtype)), device.empty(q.shape[:3], "float32")
    tensors = {"Q": q, "K": k, "V": v, **blocks.tensors, "O": o, "LSE": lse}
    numbers = {**int32(seq_q=w.seq_q, seq_kv=w.seq_kv), **scale_log2(factor)}
    device.launch(variant(w.dtype, blocks.tile), (blocks.blocks, 1, 1), {**tensors, **numbers})
    return o, lse


def _shape(w: Workload) -> tuple[int, int, int, int, int]:
    return w.batch * w.heads_q, w.batch * w.heads_kv, w.seq_q, w.seq_kv, w.head_dim


def _in_words(shape: tuple[int, int, int, int, int]) -> str:
    heads, kv_heads, queries, keys, head_dim = shape
    return f"{heads} heads on {kv_heads}, {queries} queries, {keys} keys and head_dim {head_dim}"


def _plan(
    w: Workload, gpu: Gpu, counts: TileCounts, row_start: NDArray[np.int32], visits: NDArray[Any], blocks: int
) -> NDArray[np.int32]:
    """Return the row tiles of all heads in launch order, in the columns of the kernel's `RowTile`."""
    order, heads = launch_order(counts), w.batch * w.heads_q
    if heads_together(w, gpu, counts) == 1:
        number, head = np.tile(order, heads), np.repeat(np.arange(heads), len(order))
    else:
        number, head = np.repeat(order, heads), np.tile(np.arange(heads), len(order))
    begin, each = row_start[number], counts.visits[number]
    first = visits[np.minimum(begin, len(visits) - 1)]
    columns = number, head, begin, each, *first.T, following(each, blocks), head // w.group
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.int32)


def _at_least_one(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array, or one row of zeros if it is empty, because a kernel's pointer must be valid."""
    return array if len(array) else np.zeros((1, *array.shape[1:]), dtype=array.dtype)
