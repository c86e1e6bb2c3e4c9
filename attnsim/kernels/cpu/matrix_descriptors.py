"""Operands of wgmma in shared memory: from a matrix descriptor to the 16-byte pieces of the matrix.

PTX ISA 9.0, "Asynchronous wgmma: Matrix Descriptor Format" and "Strides"; the layouts are those that CUTLASS writes out
beside ``make_gmma_desc`` (include/cute/atom/mma_traits_sm90_gmma.hpp).
"""

from __future__ import annotations

import functools

import numpy as np

from attnsim.kernels.cpu.faults import Fault
from attnsim.kernels.cpu.lanes import Indices, Values
from attnsim.kernels.cpu.ordering import PIECE
from attnsim.kernels.cpu.tensor_maps import swizzled

DEPTH = 16
"""k of a wgmma on 16-bit elements."""

SPAN_BYTES = {0: 16, 1: 128, 2: 64, 3: 32}
"""Bytes that each swizzle mode permutes, by the mode's number in bits 62 and 63; 0 does not permute."""

_USED = 0xC000_3FFF_3FFF_3FFF
"""Bits of a descriptor that may be set here: of the others, only the base offset (49 to 51) has a meaning."""


def piece_addresses(descriptors: Indices, rows: int, transposed: bool, lanes: Indices) -> Values:
    """Shared addresses of the pieces of A or B, `rows` along m or n and 16 along k.

    Parameters
    ----------
    descriptors : ndarray of uint64 ``[matrices]``
    rows : int
    transposed : bool
        False where k is contiguous, True where m or n is.
    lanes : ndarray ``[matrices]``
        Whom to blame.

    Returns
    -------
    ndarray ``[matrices, rows, 2]``, transposed ``[matrices, 16, rows / 8]``

    Raises
    ------
    Fault
        For a descriptor with bits that mean nothing, or a base offset.
    """
    for descriptor, lane in zip(descriptors.tolist(), lanes.tolist(), strict=True):
        if strange := descriptor & ~_USED:
            raise Fault(
                f"the matrix descriptor {descriptor:#018x} has bits {strange:#x}: tiles that do not start on a "
                "repetition of the swizzle, and other modes, are not modelled",
                lane,
            )
    return np.stack([_pieces(descriptor, rows, transposed) for descriptor in descriptors.tolist()])


@functools.lru_cache(maxsize=1024)
def _pieces(descriptor: int, rows: int, transposed: bool) -> Values:
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    span = SPAN_BYTES[descriptor >> 62]
    offsets = _across_rows(rows, span, leading, stride) if transposed else _along_rows(rows, span, leading, stride)
    return swizzled(start + offsets, span)


def _along_rows(rows: int, span: int, leading: int, stride: int) -> Values:
    """Along k: rows of `span` bytes in groups of eight, `stride` apart; a second piece of k follows the first.

    Without swizzle a row is one piece, and the second piece of k lies `leading` away.
    """
    row, piece = np.arange(rows)[:, None], np.arange(2)
    return row % 8 * span + row // 8 * stride + piece * (leading if span == PIECE else PIECE)


def _across_rows(rows: int, span: int, leading: int, stride: int) -> Values:
    """Along m or n: each k has a row of `span` bytes, the next span lies `leading` away, the next eight k `stride`.

    Without swizzle the two strides swap their parts.
    """
    k, piece = np.arange(DEPTH)[:, None], np.arange(rows // 8)
    per_span = span // PIECE
    if span == PIECE:
        leading, stride = stride, leading
    return k % 8 * span + k // 8 * stride + piece % per_span * PIECE + piece // per_span * leading
