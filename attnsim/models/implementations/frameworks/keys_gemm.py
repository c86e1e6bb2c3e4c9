"""GEMMs that sum over the keys: a small result of a long sum, shared out over blocks by split-K.

C of m x n has few tiles, and one block each would leave most of the GPU idle. Libraries then cut the sum into parts
that write fp32 results, and add those up in a second kernel (NVIDIA/cutlass, ``media/docs/cpp/efficient_gemm.md``,
parallelised reductions). cuBLAS's rule is not public; here the parts are the fewest that give every SM a block, each
of at least as many steps as the GEMM keeps in flight, or up to twice as many where they are equal then.
"""

from __future__ import annotations

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import summed
from attnsim.models.implementations.own.linear_tiles import is_causal
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import BATCHED, Operand, gemm
from attnsim.models.schedule.schedule import Kernel, Path

Sizes = tuple[int, int, int]
"""m, n, k."""

STEP = BATCHED.k
STAGES = BATCHED.stages


def check_nothing_hidden(w: Workload, told: str) -> None:
    """Refuse a mask, or dropout, where all keys are summed before any query: `told` says how.

    Raises
    ------
    InputError
    """
    if w.mask.within(w.seq_q, w.seq_kv).is_windowed or is_causal(w) or w.dropout:
        raise InputError(
            f"{told}, so that none can be hidden: the mask is {w.mask}{', dropout' if w.dropout else ''}; "
            "allowed: no mask, no dropout; linear and performer have a causal form"
        )


def _parts(wanted: int, k: int) -> int:
    """Parts of k: as many as wanted, or up to twice as many where they are then equal."""
    steps = -(-k // STEP)
    wanted = min(wanted, max(1, steps // STAGES))
    equal = (n for n in range(wanted, min(2 * wanted, steps // STAGES) + 1) if k % (n * STEP) == 0)
    return next(equal, -(-steps // -(-steps // wanted)))  # none of which is empty


def keys_gemm(
    name: str, batch: int, shape: Sizes, a: Operand, b: Operand, c: Operand, *, dtype: str, path: Path, gpu: Gpu
) -> list[Kernel]:
    """A batched GEMM C[m, n] = A[m, k] B[k, n], and the sum of its parts where k is cut.

    Parameters
    ----------
    name : str
    batch : int
    shape : (int, int, int)
        m, n, k.
    a, b, c : Operand
    dtype : str
    path : str
    gpu : Gpu
        Whose SMs are to be filled.
    """
    m, n, k = shape
    tiles = batch * -(-m // 128) * -(-n // (64 if n <= 64 else 128))
    parts = _parts(-(-gpu.sm.count // tiles), k)
    if parts == 1:
        return [gemm(name, batch, shape, a, b, c, dtype=dtype, path=path)]
    partial, size = Operand(f"{c.tensor} partial", 4), batch * m * n
    reads, writes = (partial.tensor, size * parts * 4), (c.tensor, size * c.element_bytes)
    return [
        gemm(name, batch, shape, a, b, partial, dtype=dtype, path=path, parts=parts),
        summed(f"add parts of {c.tensor}", reads, writes, size * parts),
    ]
