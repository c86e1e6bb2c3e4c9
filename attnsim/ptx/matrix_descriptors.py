"""Matrix descriptors of wgmma and tcgen05.mma: addresses of an operand's pieces in shared memory, and their values.

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
from attnsim.ptx.counters import floats
from attnsim.ptx.faults import Fault
from attnsim.ptx.lanes import Indices, Values
from attnsim.ptx.ordering import PIECE
from attnsim.ptx.shared import swizzled

DEPTH = 16
"""k of a wgmma or tcgen05.mma on 16-bit elements."""


@dataclass(frozen=True)
class Form:
    """Meaning of a descriptor's bits other than address and strides.

    Parameters
    ----------
    name : str
        Name of the instruction.
    mode_at : int
        First bit of the swizzle mode.
    span_bytes : mapping of int to int
        Bytes that each swizzle mode permutes; 16 for no swizzle.
    fixed : int
        Bits that are always set.
    """

    name: str
    mode_at: int
    span_bytes: Mapping[int, int]
    fixed: int = 0

    def span_of(self, descriptor: int, lane: int) -> int:
        """Return the bytes that the swizzle permutes; raises Fault for unknown bits or modes, or a base offset."""
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
"""Bits of address and strides; of the others only the base offset (49 to 51) and the mode have a meaning."""

WGMMA = Form("wgmma", 62, {0: 16, 1: 128, 2: 64, 3: 32})
TCGEN05 = Form("tcgen05.mma", 61, {0: 16, 2: 128, 4: 64, 6: 32}, fixed=1 << 46)


def piece_addresses(descriptors: Indices, rows: int, transposed: bool, lanes: Indices, form: Form = WGMMA) -> Values:
    """Return shared addresses of the 16-byte pieces of A or B, `rows` along m or n and 16 along k.

    Parameters
    ----------
    descriptors : ndarray of uint64 ``[matrices]``
    transposed : bool
        False where k is contiguous, True where m or n is.
    lanes : ndarray ``[matrices]``
        Lane to name in a fault.
    form : Form
        The instruction's descriptor format.

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
    """Offsets if k is contiguous: rows of `span` bytes in groups of eight, `stride` apart; k takes two adjacent pieces.

    Without swizzle, a row is one piece, and the second piece of k is `leading` bytes away.
    """
    row, piece = np.arange(rows)[:, None], np.arange(2)
    return row % 8 * span + row // 8 * stride + piece * (leading if span == PIECE else PIECE)


def _across_rows(rows: int, span: int, leading: int, stride: int) -> Values:
    """Offsets if m or n is contiguous: a row of `span` bytes for each k.

    The next span is `leading` bytes away, the next eight k are `stride` bytes away.

    Without swizzle the two strides swap their roles.
    """
    k, piece = np.arange(DEPTH)[:, None], np.arange(rows // 8)
    per_span = span // PIECE
    if span == PIECE:
        leading, stride = stride, leading
    return k % 8 * span + k // 8 * stride + piece % per_span * PIECE + piece // per_span * leading


def matrices(memory: Values, places: Indices, rows: int, transposed: bool, kind: str) -> Values:
    """Decode f16 or bf16 matrices to float32 ``[matrices, rows, 16]``, from pieces of shared memory ``[pieces, 8]``."""
    result = np.empty((len(places), rows, DEPTH), np.float32)
    compiled_matrices.pieces_to_floats(memory, places, transposed, floats(kind), result)
    return result
