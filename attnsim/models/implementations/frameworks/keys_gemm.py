"""GEMMs that sum over the keys: a small result of a long sum, split over blocks by split-K.

C of m x n has few tiles, and one block each would leave most of the GPU idle. Libraries then split the sum into parts
that write fp32 results, and add those up in a second kernel (NVIDIA/cutlass, ``media/docs/cpp/efficient_gemm.md``,
parallelised reductions). cuBLAS's rule is not public. Assumed is the smallest number of parts that gives every SM a
block, each of at least as many steps as the GEMM has stages; or up to twice as many if they are then equal.
"""

from __future__ import annotations

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import summed
from attnsim.models.implementations.own.linear_tiles import is_causal
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm, gemm_path, library_tiles, waves_s
from attnsim.models.schedule.schedule import Kernel

Sizes = tuple[int, int, int]
"""m, n, k."""


def check_nothing_hidden(w: Workload, reason: str) -> None:
    """Refuse a mask, or dropout, for a mechanism that sums all keys before any query; `reason` is its explanation."""
    if w.mask.within(w.seq_q, w.seq_kv).is_windowed or is_causal(w) or w.dropout:
        raise InputError(
            f"{reason}, so that none can be hidden: the mask is {w.mask}{', dropout' if w.dropout else ''}; "
            "allowed: no mask, no dropout; linear and performer have a causal form"
        )


def _parts(tile: GemmTile, batch: int, shape: Sizes, sms: int) -> int:
    """Parts of k: as many as give every SM a block, or up to twice as many if they are then equal."""
    m, n, k = shape
    steps = -(-k // tile.k)
    wanted = min(-(-sms // (batch * -(-m // tile.m) * -(-n // tile.n))), max(1, steps // tile.stages))
    equal = (n for n in range(wanted, min(2 * wanted, steps // tile.stages) + 1) if k % (n * tile.k) == 0)
    return next(equal, -(-steps // -(-steps // wanted)))  # none of which is empty


def keys_gemm(
    name: str, batch: int, shape: Sizes, a: Operand, b: Operand, c: Operand, *, dtype: str, gpu: Gpu
) -> list[Kernel]:
    """Batched GEMM C[m, n] = A[m, k] B[k, n], and the sum of its parts if k is split.

    Parameters
    ----------
    shape : (int, int, int)
        m, n, k.
    gpu : Gpu
        GPU whose SMs are to be filled.
    """
    (m, n, _), chosen_for = shape, gpu.tiled_for
    cuts = [
        (tile, _parts(tile, batch, shape, chosen_for.sm.count))
        for tile in library_tiles(chosen_for, dtype, m, a.element_bytes)
    ]
    tile, parts = min(cuts, key=lambda cut: waves_s(cut[0], batch, shape, chosen_for, dtype, a.element_bytes, cut[1]))
    out, size = c if parts == 1 else Operand(f"{c.tensor} partial", 4), batch * m * n
    kernel = gemm(name, batch, shape, a, b, out, dtype=dtype, path=gemm_path(gpu), tile=tile, parts=parts)
    if parts == 1:
        return [kernel]
    reads, writes = (out.tensor, size * parts * 4), (c.tensor, size * c.element_bytes)
    return [
        kernel,
        summed(f"add parts of {c.tensor}", reads, writes, size * parts),
    ]
