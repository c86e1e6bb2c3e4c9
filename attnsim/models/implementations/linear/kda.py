"""Kimi Delta Attention (arXiv 2510.26692): the gated delta rule with a decay for every channel of a key.

By chunks of 64 in Triton, as in SGLang and vLLM (``fla/kda.py``, ``chunk_intra.py``); by chunks of 16 in
FlashKDA's two CUDA kernels (MoonshotAI/FlashKDA ``csrc/smxx``); and by recurrence, of one token or of a draft's.
"""

from __future__ import annotations

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.linear import gated_delta
from attnsim.models.implementations.linear.chunks import Chunks, Shape, Work
from attnsim.models.implementations.linear.gated_delta import (
    BLOCK,
    CHUNK,
    COLUMNS_A_BLOCK,
    FP32,
    OUTPUT_COLUMNS,
    ROWS,
    chunked_bytes,
    peak_bytes,
    prefill,
    recurring,
    unit_length,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Tensor, along
from attnsim.models.schedule.schedule import Kernel

GATES, DIAGONAL, BELOW, OUTPUT = "kda_gate_chunk_cumsum", "kda_intra_diagonal", "kda_inter_solve", "chunk_gla_fwd_o"
FLASH, PREPARE, RECUR = "flashkda.kda", "flash_kda_fwd_prepare", "flash_kda_fwd_recurrence"
BLOCKS_BELOW = ROWS * (ROWS - 1) // 2
WHOLE_FILE = by_hand(
    255,
    "registers a thread of a CuTe kernel that names no bound on its blocks; measured times of drafts are those of one "
    "block of 256 threads an SM",
)


def _parts(s: Shape, gpu: Gpu) -> tuple[Chunks, ...]:
    """Kernels after Q and K have been scaled to unit length."""
    gates = (Tensor("g", "b h g c x", s.d * s.e), Tensor("g sums", "b h g c x", s.d * FP32, written=True))
    qkg = (*along("b h g c x", {"Q": s.d * s.e, "K": s.d * s.e, "g sums": s.d * FP32}),)
    diagonal = (
        *qkg,
        Tensor("beta", "b h g c x", s.e),
        *along("b h g c x", {"A of Q": BLOCK * s.e, "A diagonal": BLOCK * FP32}, written=True),
    )
    below = (
        *qkg,
        *along("b h g c x", {"beta": s.e, "A diagonal": BLOCK * FP32}),
        *along(
            "b h g c x",
            {"A of Q": BLOCKS_BELOW * BLOCK**2 * s.e, "A inverse": gated_delta.DIAGONAL * BLOCK**2 * s.e},
            written=True,
            by_tile=True,
        ),
    )
    merging = gated_delta.merging()
    # Products of Q and K with K, decayed, are in fp32 at the rate of tf32: twice the time of 16 bits.
    overlaps = ((BLOCK, BLOCK, s.d),) * (2 * 2 * BLOCKS_BELOW)
    rows = ROWS * (BLOCK - 2)
    return (
        Chunks(GATES, CHUNK, s.groups, gates, Work(exps=CHUNK * s.d, fp32=8 * CHUNK * s.d, links=6)),
        Chunks(
            DIAGONAL, BLOCK, s.groups, diagonal,
            Work(exps=BLOCK**2 * s.d, fp32=5 * BLOCK**2 * s.d, links=BLOCK), warps=4,
        ),
        Chunks(
            BELOW, CHUNK, s.groups, below,
            Work(
                (*overlaps, *merging.products), exps=(2 * ROWS - 1 + BLOCKS_BELOW) * BLOCK * s.d,
                fp32=rows * 3 * BLOCK**2 + 4 * CHUNK * s.d, links=rows + merging.links,
            ),
            warps=gated_delta.SOLVE_WARPS, path="mma_sync",
        ),
        gated_delta.updates(s, gpu, s.e, channels=True),
        gated_delta.walk(s, gpu, FP32, FP32, channels=True, turned=True),
        gated_delta.output_by_channels(
            OUTPUT, s, gpu, "V new", within_bytes=s.e, links=s.d // 64 + 1,
            shared=(CHUNK * 64 + 64 * OUTPUT_COLUMNS) * s.e * 3,
        ),
    )  # fmt: skip


def _chunked(name: str) -> Implementation:
    def kernels(s: Shape, gpu: Gpu) -> tuple[Kernel | Chunks, ...]:
        _check_every_head(name, s)
        return (*unit_length(s), *_parts(s, gpu))

    def peak(w: Workload) -> int:
        return chunked_bytes(w) + w.batch * w.seq_q * w.heads_q * w.head_dim * (FP32 + w.element_bytes)

    return prefill(name, COLUMNS_A_BLOCK, kernels, peak)


def _check_every_head(name: str, s: Shape) -> None:
    if s.key_heads != s.heads:
        raise InputError(
            f"{name} has gates for every head of K: heads_kv is {s.key_heads}, heads_q {s.heads}; make them equal"
        )


def _flash_bytes(w: Workload) -> int:
    chunks = w.batch * w.heads_q * -(-w.seq_q // BLOCK)
    return peak_bytes(w) + chunks * (3 * BLOCK * w.head_dim * 2 + w.head_dim * FP32 + 2 * BLOCK**2 * 2)


def _flash_parts(s: Shape, gpu: Gpu) -> tuple[Chunks, Chunks]:
    """FlashKDA's kernels: decayed Q and K and the small matrices of every chunk of 16; then the walk over states.

    ``fwd_launch.cu``: grid (chunks, heads) of 256 threads, and (sequences, heads) of 192, three chunks ahead.
    """
    _check_every_head(FLASH, s)
    decayed = ("K decayed", "Q decayed", "K restored")
    small = ("A inverse", "A of Q")
    prepare = (
        *(Tensor(x, "b h g c x", s.d * s.e) for x in "QKg"),
        Tensor("beta", "b h g c x", s.e),
        *(Tensor(x, "b h g c x", s.d * s.e, written=True) for x in decayed),
        *(Tensor(x, "b h g c x", BLOCK * s.e, written=True) for x in small),
        Tensor("g total", "b h g c x", s.d * FP32, written=True, by_tile=True),
    )
    recur = (
        *along("b h g c x", {"V": s.dv * s.e, "beta": s.e}),
        *(Tensor(x, "b h g c x", s.d * s.e) for x in decayed),
        *(Tensor(x, "b h g c x", BLOCK * s.e) for x in small),
        Tensor("g total", "b h g c x", s.d * FP32, by_tile=True),
        Tensor("O", "b h g c x", s.dv * s.e, written=True),
        Tensor("state", "b h g x", s.d * s.dv * FP32),
        Tensor("state", "b h g x", s.d * s.dv * FP32, written=True),
    )
    tile = BLOCK * s.d * s.e
    inverse = ((BLOCK, BLOCK, BLOCK),) * 6
    first = Work(
        ((BLOCK, BLOCK, s.d), (BLOCK, BLOCK, s.d), *inverse), exps=4 * BLOCK * s.d, fp32=12 * BLOCK * s.d, links=BLOCK
    )
    second = Work(
        ((BLOCK, s.dv, s.d), (BLOCK, s.dv, s.d), (BLOCK, s.dv, BLOCK), (BLOCK, s.dv, BLOCK), (s.d, s.dv, BLOCK)),
        fp32=2 * s.d * s.dv + 2 * BLOCK * s.dv,
        links=6,
    )
    stage = 4 * tile + 2 * BLOCK**2 * s.e + s.d * FP32 + 128
    stages = s.d * s.dv * s.e + max(3 * stage + 2 * tile, s.d * s.dv * FP32)  # `SharedStorageK2`, fwd_kernel2.cuh
    return (
        Chunks(
            PREPARE, BLOCK, s.groups, prepare, first, warps=8, registers=64, shared_memory_bytes=8 * tile,
            path="mma_sync",
        ),
        Chunks(
            RECUR, BLOCK, s.groups, recur, second, serial=True, warps=6, registers=168, shared_memory_bytes=stages,
            path="mma_sync",
        ),
    )  # fmt: skip


RECORDS = (
    _chunked("sglang.kda-chunk"),
    _chunked("vllm.kda-chunk"),
    prefill(FLASH, f"chunks of {BLOCK}, a state a block", _flash_parts, _flash_bytes, (128,)),
    recurring("sglang.kda-packed-decode"),
    recurring("vllm.kda-packed-decode"),
    recurring("vllm.kda-fused-decode", (128,)),
    recurring("sglang.kda-fused-decode", (128,)),
    recurring("vllm.kda-verify"),
    recurring("sglang.kda-verify"),
    recurring("sglang.kda-verify-cutedsl", (128,), range(2, 9), registers=WHOLE_FILE),
)
