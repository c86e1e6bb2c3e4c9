"""Schedules of ``kernels/cuda/linear_*.cu``: linear attention with phi = elu + 1 (Katharopoulos et al., 2006.16236).

* Without a mask: `linear_state` sums ranges of the keys, `linear_reduce` puts them together, `linear_output` multiplies
  every query with the one state.
* Causal: `linear_causal` walks chunks of a range with the state in registers; where there are several ranges,
  `linear_state` and `linear_scan` find the states that they begin with (the chunked form, as in Yang et al., arXiv
  2312.06635, section 4).
* Decode: `linear_decode` updates the state token by token.

Nothing grows faster than the sequences, and in decoding nothing grows with them at all.
"""

from __future__ import annotations

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.linear_kernels import (
    causal_kernel,
    decode_kernel,
    output_kernel,
    state_kernel,
)
from attnsim.models.implementations.own.linear_merging import reduce_kernel, scan_kernel
from attnsim.models.implementations.own.linear_tiles import (
    NAME,
    LinearTile,
    causal_ranges,
    check_takes,
    is_causal,
    row_ranges,
    state_ranges,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule

NOTES = ("weights are phi(q) phi(k) with phi = elu + 1, not softmax's: another function of the same inputs",)


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The kernels of a workload as the operations launch them.

    Raises
    ------
    InputError
        When the kernels are not written for it, or do not fit.
    """
    check_takes(w)
    kernels: tuple[Kernel, ...]
    tile, scratch = LinearTile(w.head_dim), 0
    if w.passes == "decode":
        kernels = (decode_kernel(w, gpu),)
    elif is_causal(w):
        tile = LinearTile(w.head_dim, causal_ranges(w, gpu))
        kernels = _causal_kernels(w, gpu, tile.ranges)
        scratch = (tile.ranges - 1) * _state_bytes(w)
    else:
        tile = LinearTile(w.head_dim, state_ranges(w, gpu), row_ranges(w, gpu))
        kernels = _full_kernels(w, gpu, tile.ranges, tile.row_ranges)
        scratch = tile.ranges * _state_bytes(w) + w.batch * w.heads_kv * w.head_dim * (2 * w.head_dim_v + 4)
    notes = (*NOTES, _state_note(w)) if w.passes == "decode" else NOTES
    return Schedule("linear", NAME, kernels, tile, peak_memory_bytes(w) + scratch, notes)


def peak_memory_bytes(w: Workload) -> int:
    """Inputs and outputs; in decoding the state and its normaliser in place of the keys so far."""
    keys = w.seq_q if w.passes == "decode" else w.seq_kv
    rows = w.batch * (w.heads_q * w.seq_q + w.heads_kv * keys)
    state = _state_bytes(w) if w.passes == "decode" else 0
    return rows * (w.head_dim * w.element_bytes + w.head_dim_v * w.output_bytes) + state


def _state_bytes(w: Workload) -> int:
    """S and z of every key head, fp32."""
    return w.batch * w.heads_kv * w.head_dim * (w.head_dim_v + 1) * 4


def _state_note(w: Workload) -> str:
    whole, head = _state_bytes(w), _state_bytes(w) // (w.batch * w.heads_kv)
    return f"state of {whole:,} bytes ({head:,} a key head), read and written at each step, whatever the length"


def _full_kernels(w: Workload, gpu: Gpu, ranges: int, rows: int) -> tuple[Kernel, ...]:
    return state_kernel(w, gpu, ranges, ranges), reduce_kernel(w, gpu, ranges), output_kernel(w, gpu, rows)


def _causal_kernels(w: Workload, gpu: Gpu, ranges: int) -> tuple[Kernel, ...]:
    before = [state_kernel(w, gpu, ranges, ranges - 1)] if ranges > 1 else []
    before += [scan_kernel(w, gpu, ranges - 1)] if ranges > 2 else []
    return *before, causal_kernel(w, gpu, ranges)


RECORD = record(NAME, build, peak_bytes=peak_memory_bytes)
