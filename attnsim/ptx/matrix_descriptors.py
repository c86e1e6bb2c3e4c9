"""Operands of wgmma and tcgen05.mma in shared memory: from a matrix descriptor to the pieces of the matrix, and those.

PTX ISA 9.0, "Asynchronous wgmma: Matrix Descriptor Format" and "Strides", "tcgen05: Shared memory descriptor" and
"Canonical layouts"; the layouts are those that CUTLASS writes out beside ``make_gmma_desc`` and ``make_umma_desc``
(include/cute/atom/mma_traits_sm90_gmma.hpp, mma_traits_sm100.hpp), the same for both but for the bits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attnsim.ptx import compiled_matrices
from attnsim.ptx.faults import Fault
from attnsim.ptx.formats import floats
from attnsim.ptx.lanes import Indices, Values
from attnsim.ptx.ordering import PIECE
from attnsim.ptx.tensor_maps import swizzled

DEPTH = 16
"""k of a wgmma or tcgen05.mma on 16-bit elements."""


@dataclass(frozen=True)
class Form:
    """What the bits of a descriptor mean beside its address and strides.

    Parameters
    ----------
    name : str
        Of the instruction.
    mode_at : int
        Where the number of the swizzle mode begins.
    span_bytes : mapping of int to int
        Bytes that each mode permutes; 16 where it does not permute.
    fixed : int
        Bits that are always set.
    """

    name: str
    mode_at: int
    span_bytes: Mapping[int, int]
    fixed: int = 0

    def span_of(self, descriptor: int, lane: int) -> int:
        """Bytes that its swizzle permutes; Fault for bits that mean nothing, a base offset or another mode."""
        mode = descriptor >> self.mode_at
        strange = descriptor & ~(_PLACES | -1 << self.mode_at) ^ self.fixed
        if strange or mode not in self.span_bytes:
            raise Fault(
                f"the matrix descriptor {descriptor:#018x} of {self.name} has bits "
                f"{strange or mode << self.mode_at:#x}: tiles that do not start on a repetition of the swizzle, and "
                "other modes, are not modelled",
                lane,
            )
        return self.span_bytes[mode]


_PLACES = 0x3FFF_3FFF_3FFF
"""Address and strides; of the other bits, only the base offset (49 to 51) and modes have a meaning."""

WGMMA = Form("wgmma", 62, {0: 16, 1: 128, 2: 64, 3: 32})
TCGEN05 = Form("tcgen05.mma", 61, {0: 16, 2: 128, 4: 64, 6: 32}, fixed=1 << 46)


def piece_addresses(descriptors: Indices, rows: int, transposed: bool, lanes: Indices, form: Form = WGMMA) -> Values:
    """Shared addresses of the pieces of A or B, `rows` along m or n and 16 along k.

    Parameters
    ----------
    descriptors : ndarray of uint64 ``[matrices]``
    rows : int
    transposed : bool
        False where k is contiguous, True where m or n is.
    lanes : ndarray ``[matrices]``
        Whom to blame.
    form : Form
        Of which instruction they are.

    Returns
    -------
    ndarray ``[matrices, rows, 2]``, transposed ``[matrices, 16, rows / 8]``

    Raises
    ------
    Fault
        For a descriptor with bits that mean nothing, or a base offset.
    """
    return np.stack(
        [
            _pieces(descriptor, rows, transposed, form.span_of(descriptor, lane))
            for descriptor, lane in zip(descriptors.tolist(), lanes.tolist(), strict=True)
        ]
    )


@functools.lru_cache(maxsize=1024)
def _pieces(descriptor: int, rows: int, transposed: bool, span: int) -> Values:
    start, leading, stride = ((descriptor >> at & 0x3FFF) << 4 for at in (0, 16, 32))
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


def matrices(memory: Values, places: Indices, rows: int, transposed: bool, kind: str) -> Values:
    """Matrices of f16 or bf16 as float32 ``[matrices, rows, 16]``, from pieces of shared memory ``[pieces, 8]``."""
    result = np.empty((len(places), rows, DEPTH), np.float32)
    compiled_matrices.pieces_to_floats(memory, places, transposed, floats(kind), result)
    return result
