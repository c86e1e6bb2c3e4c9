"""The other members of the family in flash-linear-attention (commit bc3b101d), by chunks of 64 and by recurrence.

Without a delta rule there are two kernels: the states before every chunk (``fla/ops/common/chunk_h.py``,
`chunk_fwd_kernel_h`) and the outputs (``chunk_o.py``, `chunk_fwd_kernel_o`). With a decay per channel
(``fla/ops/gla/chunk.py``), separate kernels add up the decays and compute the products within a chunk. DeltaNet
(``fla/ops/delta_rule/chunk.py``) runs Gated DeltaNet's kernels without gates. mLSTM's chunks (NX-AI/mlstm_kernels,
``chunkwise/xl_chunk``) are the first form with a column of ones appended to V, which gives the sum of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.linear import gated_delta
from attnsim.models.implementations.linear.chunks import Chunks, Shape, Work, path_of
from attnsim.models.implementations.linear.gated_delta import (
    CHUNK,
    COLUMNS_A_BLOCK,
    FP32,
    OUTPUT_COLUMNS,
    chunked_bytes,
    prefill,
    recurring,
)
from attnsim.models.schedule.axes import Tensor

TILE = by_hand(64, "rows and columns of a state that a block of chunk_fwd_h has: Triton times 32 and 64 both ways")
WITHIN = "chunk_gla_fwd_A"


@dataclass(frozen=True, slots=True)
class States:
    """Chunks with separate kernels for states and outputs.

    Parameters
    ----------
    gates : int
        Decays read per token and head: 0, 1, or one per channel (-1).
    normalises : bool
        Whether the sum of the keys is kept with each state.
    """

    gates: int = 0
    normalises: bool = False


def _states(s: Shape, tile: States, gpu: Gpu) -> Chunks:
    across, down = s.dv // TILE, s.d // TILE
    tensors = [
        Tensor("K", "b h c n", TILE * s.e),
        Tensor("V", "b h g c m", TILE * s.e),
        Tensor("states", "b h g c m n", TILE * TILE * s.e, written=True, by_tile=True),
    ]
    if tile.gates:
        channels = tile.gates < 0
        tensors.append(Tensor("g sums", "b h g c n" if channels else "b h g c", TILE * FP32 if channels else FP32))
    if tile.normalises:
        tensors.append(Tensor("key sums", "b h g c m n", TILE * FP32, written=True, by_tile=True))
    work = Work(
        ((TILE, TILE, CHUNK),),
        exps=CHUNK * (TILE if tile.gates < 0 else 1) if tile.gates else 0,
        fp32=2 * TILE * TILE,
        links=2,
    )
    return Chunks(
        gated_delta.WALK,
        CHUNK,
        s.groups,
        tuple(tensors),
        work,
        columns={"m": across, "n": down},
        serial=True,
        shared_memory_bytes=2 * CHUNK * 2 * TILE * s.e,
        path=path_of(gpu, TILE, 4),
    )


def _outputs(s: Shape, tile: States, gpu: Gpu) -> Chunks:
    one = gated_delta.output(s, gpu, "V", tile.gates != 0)
    sums = Tensor("key sums", "b h g c", s.d * FP32, by_tile=True)
    return replace(one, tensors=(*one.tensors, sums)) if tile.normalises else one


def _channel_parts(s: Shape, gpu: Gpu) -> tuple[Chunks, ...]:
    """Gated linear attention: decays added up, states, products within chunks, outputs."""
    sums = (Tensor("g", "b h g c x", s.d * s.e), Tensor("g sums", "b h g c x", s.d * FP32, written=True))
    within = (
        Tensor("Q", "b h g c x", s.d * s.e),
        Tensor("K", "b h c x", s.d * s.e),
        Tensor("g sums", "b h g c x", s.d * FP32),
        Tensor("A of Q", "b h g c x", CHUNK * FP32, written=True),
    )
    return (
        Chunks(gated_delta.SUMS, CHUNK, s.groups, sums, Work(fp32=6 * CHUNK * s.d, links=6)),
        _states(s, States(-1), gpu),
        Chunks(
            WITHIN,
            CHUNK,
            s.groups,
            within,
            Work(((CHUNK, CHUNK, s.d),) * 2, exps=4 * CHUNK * s.d, fp32=8 * CHUNK * s.d, links=16),
            path="mma_sync",
        ),
        gated_delta.output_by_channels(
            gated_delta.OUTPUT,
            s,
            gpu,
            "V",
            within_bytes=FP32,
            links=3,
            shared=(2 * CHUNK + OUTPUT_COLUMNS) * s.d * s.e,
        ),
    )


def _delta_net(s: Shape, gpu: Gpu) -> Iterator[Chunks]:
    """Gated DeltaNet's kernels without decays and exponentials."""
    solved = gated_delta.overlap(s, gpu, s.e), *gated_delta.solve(s)
    for one in (*solved, gated_delta.updates(s, gpu, s.e), gated_delta.walk(s, gpu, 0, 0), gated_delta.output(s, gpu)):
        tensors = tuple(tensor for tensor in one.tensors if tensor.name != "g sums")
        yield replace(one, tensors=tensors, work=replace(one.work, exps=0))


def _by_chunks(name: str, tile: States) -> Implementation:
    def parts(s: Shape, gpu: Gpu) -> tuple[Chunks, ...]:
        return _channel_parts(s, gpu) if tile.gates < 0 else (_states(s, tile, gpu), _outputs(s, tile, gpu))

    return prefill(name, f"chunks of {CHUNK}, {TILE} x {TILE} of a state a block", parts, chunked_bytes)


RECORDS = (
    _by_chunks("fla.gla-chunk", States(-1)),
    recurring("fla.gla-recurrent"),
    prefill("fla.delta-net-chunk", COLUMNS_A_BLOCK, _delta_net, chunked_bytes),
    recurring("fla.delta-net-recurrent"),
    _by_chunks("fla.retention-chunk", States()),
    recurring("fla.retention-recurrent"),
    _by_chunks("mlstm-kernels.chunkwise", States(1, normalises=True)),
    recurring("mlstm-kernels.step"),
)
