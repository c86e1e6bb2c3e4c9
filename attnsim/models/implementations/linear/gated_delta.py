"""Gated DeltaNet (arXiv 2412.06464) as serving frameworks run it: prefill by chunks, decoding by recurrence.

The Triton kernels of flash-linear-attention for the gated delta rule, by chunks of 64.

Read in SGLang's copy, ``python/sglang/srt/layers/attention/fla`` (commits named at each function), from which vLLM's
and TensorRT-LLM's differ where a parameter says so. A chunk's products are those of the WY form (arXiv 2412.06464):
``A = (I + tril(b K K^T))^-1``, ``W = A b e^g K``, ``U = A b V``, then the walk over states and the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation, TileRequest, facts, preset, record
from attnsim.models.implementations.linear.chunks import (
    Chunks,
    Recurrence,
    Shape,
    Work,
    check_takes,
    io_bytes,
    path_of,
    state_bytes,
)
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Tensor, along
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule

CHUNK = 64
BLOCK = 16
"""Rows of the blocks that A is inverted in."""
WALK_COLUMNS = 32
"""BV of ``chunk_gated_delta_rule_fwd_h``."""
OUTPUT_COLUMNS = 64
"""BV of ``chunk_fwd_o``."""
WIDE = 64
"""BK and BV of ``recompute_w_u_fwd``."""
FP32 = 4

SOLVE_WARPS = by_hand(2, "warps of a block that inverts A: Triton times 1, 2 and 4 when it is first called")
TOGETHER_WARPS = by_hand(
    4, "warps of a block that makes and inverts A: Triton times 1, 2 and 4 on the first, short call"
)
TOGETHER_REGISTERS = by_hand(
    255, "registers of such a thread: twenty blocks of A, and no bound; chosen on rows fitted on"
)
TOGETHER_ROW = by_hand(
    14,
    "links of a row of a substitution in registers: two sums and a change of layout, each by way of shared memory",
)
TURNED_CONFLICTS = by_hand(8, "lanes that meet in a bank of shared memory when a tile of fp32 is turned")
TURNED_LINKS = by_hand(4, "links of a turned tile: store, barrier, load, barrier")
SHARED_ACCESS = 4
"""FP32-lane instructions in the time of a lane's access to shared memory: 32 lanes a clock against 128."""

SUMS, OVERLAP, SOLVE, MERGE, UPDATES, WALK, OUTPUT = (
    "chunk_local_cumsum",
    "chunk_scaled_dot_kkt",
    "solve_tril_16x16",
    "merge_16x16_to_64x64",
    "recompute_w_u",
    "chunk_fwd_h",
    "chunk_fwd_o",
)
OVERLAP_SOLVE = "chunk_kkt_solve"
ROWS = CHUNK // BLOCK
DIAGONAL = sum(range(1, ROWS + 1))
"""Blocks of A on and below the diagonal: ten of sixteen."""
MERGE_PRODUCTS = 16
"""Products of 16 x 16 that put the inverse of A together, in tf32: ``merge_16x16_to_64x64_inverse_kernel``."""


def sums(s: Shape, gate_bytes: int) -> Chunks:
    """Decays added up within each chunk (``cumsum.py``, `chunk_local_cumsum_scalar_kernel`): a warp's scan."""
    tensors = (Tensor("g", "b h g c x", gate_bytes), Tensor("g sums", "b h g c x", FP32, written=True))
    return Chunks(SUMS, CHUNK, s.groups, tensors, Work(fp32=6 * CHUNK, links=6), warps=2, registers=32)


def overlap(s: Shape, gpu: Gpu, gate_bytes: int) -> Chunks:
    """``A = tril(b K K^T e^(g_i - g_j), -1)`` in fp32 (``chunk_scaled_dot_kkt.py``)."""
    tensors = (
        Tensor("K", "b h c x", s.d * s.e),
        *along("b h g c x", {"beta": gate_bytes, "g sums": FP32}),
        Tensor("A", "b h g c x", CHUNK * FP32, written=True),
    )
    work = Work(((CHUNK, CHUNK, s.d),), exps=CHUNK**2, fp32=4 * CHUNK**2, links=s.d // WIDE)
    shared = 2 * CHUNK * min(s.d, WIDE) * s.e
    return Chunks(
        OVERLAP, CHUNK, s.groups, tensors, work, warps=8, shared_memory_bytes=shared, path=path_of(gpu, 64, 8)
    )


def solve(s: Shape) -> tuple[Chunks, ...]:
    """Inverses of the diagonal blocks, row by row, and the blocks below them put together (``solve_tril.py``)."""
    diagonal = (Tensor("A", "b h g c x", BLOCK * FP32), Tensor("A diagonal", "b h g c x", BLOCK * FP32, written=True))
    substitution = Work(fp32=2 * BLOCK**3, links=BLOCK - 2)
    below = BLOCK * (DIAGONAL - ROWS) * BLOCK * FP32
    merge = (
        Tensor("A", "b h g c x", below, by_tile=True),
        Tensor("A diagonal", "b h g c x", BLOCK * FP32),
        Tensor("A inverse", "b h g c x", CHUNK * s.e, written=True),
    )
    return (
        Chunks(SOLVE, BLOCK, s.groups, diagonal, substitution, warps=1, registers=64),
        Chunks(MERGE, CHUNK, s.groups, merge, merging(), path="mma_sync"),
    )


def overlap_solve(s: Shape) -> Chunks:
    """Both at once, A in registers (``chunk_fwd.py``, `chunk_gated_delta_rule_fwd_kkt_solve_kernel`).

    The rows of the four blocks on the diagonal follow one another: `solve` has a block of warps for each.
    """
    tensors = (
        Tensor("K", "b h c x", s.d * s.e),
        *along("b h g c x", {"beta": FP32, "g sums": FP32}),
        Tensor("A inverse", "b h g c x", BLOCK * DIAGONAL * BLOCK * s.e // CHUNK, written=True),
    )
    together = merging()
    overlaps = ((BLOCK, BLOCK, s.d),) * DIAGONAL
    rows = ROWS * (BLOCK - 2)
    work = Work(
        (*overlaps, *together.products),
        exps=DIAGONAL * BLOCK**2,
        fp32=DIAGONAL * 3 * BLOCK**2 + rows * 3 * BLOCK**2,
        links=TOGETHER_ROW * rows + s.d // WIDE + together.links,
    )
    return Chunks(
        OVERLAP_SOLVE,
        CHUNK,
        s.groups,
        tensors,
        work,
        warps=TOGETHER_WARPS,
        registers=TOGETHER_REGISTERS,
        path="mma_sync",
    )


def merging() -> Work:
    """The products that put the inverse of A together from its diagonal blocks."""
    # tf32 runs at half the rate of 16 bits: each product counts twice.
    return Work(((BLOCK, BLOCK, BLOCK),) * (2 * MERGE_PRODUCTS), links=2 * (ROWS - 1))


def updates(s: Shape, gpu: Gpu, gate_bytes: int, channels: bool = False) -> Chunks:
    """``W = A b e^g K`` and ``U = A b V`` (``wy_fast.py``, `recompute_w_u_fwd_kernel`).

    With a decay a channel it is ``kda.py``'s, which writes ``K e^(g_last - g)`` too.
    """
    tensors = [
        *along("b h g c x", {"A inverse": CHUNK * s.e, "beta": gate_bytes, "V": s.dv * s.e}),
        Tensor("K", "b h g c" if channels else "b h c", s.d * s.e),
        Tensor("g sums", "b h g c x", s.d * FP32 if channels else FP32),
        *along("b h g c x", {"U": s.dv * s.e, "W": s.d * s.e}, written=True),
    ]
    if channels:
        tensors.append(Tensor("K decayed", "b h g c x", s.d * s.e, written=True))
    tiles = -(-s.dv // WIDE), -(-s.d // WIDE)
    work = Work(
        ((CHUNK, WIDE, CHUNK),) * sum(tiles),
        exps=2 * CHUNK * s.d if channels else CHUNK,
        fp32=2 * CHUNK * (s.d + s.dv),
        links=sum(tiles),
    )
    shared = CHUNK * (CHUNK + 2 * WIDE) * s.e
    return Chunks(UPDATES, CHUNK, s.groups, tuple(tensors), work, shared_memory_bytes=shared, path=path_of(gpu, 64, 4))


def walk(s: Shape, gpu: Gpu, before: int, after: int, channels: bool = False, turned: bool = False) -> Chunks:
    """The states before each chunk, one after the other (``chunk_delta_h.py``, `chunk_gated_delta_rule_fwd_h`).

    Parameters
    ----------
    before, after : int
        Bytes per element of the state that is read before the first chunk and written after the last; 0: none.
    channels : bool
        Whether each channel has its own decay.
    turned : bool
        Whether the state is stored as [V, K], as in SGLang's cache: ``b_h1 += tl.trans(tl.dot(b_k, b_v))`` transposes
        each update through shared memory before it is added.
    """
    columns = WALK_COLUMNS
    key = Tensor("K decayed", "b h g c", s.d * s.e) if channels else Tensor("K", "b h c", s.d * s.e)
    decay = Tensor("g sums", "b h g c", s.d * FP32, by_tile=True) if channels else Tensor("g sums", "b h g c", FP32)
    tensors = [
        Tensor("W", "b h g c", s.d * s.e),
        Tensor("U", "b h g c x", columns * s.e),
        key,
        decay,
        Tensor("states", "b h g c x", columns * s.d * s.e, written=True, by_tile=True),
        Tensor("V new", "b h g c x", columns * s.e, written=True),
    ]
    if before:
        tensors.append(Tensor("state", "b h g x", columns * s.d * before))
    if after:
        tensors.append(Tensor("state", "b h g x", columns * s.d * after, written=True))
    moved = 2 * columns * s.d * TURNED_CONFLICTS if turned else 0
    work = Work(
        ((CHUNK, columns, s.d), (s.d, columns, CHUNK)),
        exps=s.d if channels else CHUNK + 1,
        fp32=2 * CHUNK * columns + columns * s.d + SHARED_ACCESS * moved,
        links=4 + (TURNED_LINKS * s.d // WIDE if turned else 0),
    )
    shared = 2 * CHUNK * (2 * s.d + columns) * s.e
    return Chunks(
        WALK,
        CHUNK,
        s.groups,
        tuple(tensors),
        work,
        columns=-(-s.dv // columns),
        serial=True,
        shared_memory_bytes=shared,
        path=path_of(gpu, CHUNK, 4),
    )


def output(s: Shape, gpu: Gpu, values: str = "V new", gates: bool = True) -> Chunks:
    """``O = e^g Q S + tril(Q K^T e^(g_i - g_j)) V`` (``chunk_o.py``, `chunk_fwd_kernel_o`)."""
    columns = OUTPUT_COLUMNS
    tensors = (
        *along("b h c", {"Q": s.d * s.e, "K": s.d * s.e}),
        Tensor("states", "b h g c x", columns * s.d * s.e, by_tile=True),
        Tensor(values, "b h g c x", columns * s.e),
        *([Tensor("g sums", "b h g c", FP32)] if gates else ()),
        Tensor("O", "b h g c x", columns * s.e, written=True),
    )
    products = ((CHUNK, columns, s.d), (CHUNK, CHUNK, s.d), (CHUNK, columns, CHUNK))
    exps = CHUNK + CHUNK**2 if gates else 0
    work = Work(products, exps=exps, fp32=2 * CHUNK**2 + 3 * CHUNK * columns, links=3)
    shared = (2 * CHUNK + columns) * s.d * s.e
    return Chunks(
        OUTPUT,
        CHUNK,
        s.groups,
        tensors,
        work,
        columns=-(-s.dv // columns),
        shared_memory_bytes=shared,
        registers=168,
        path=path_of(gpu, CHUNK, 4),
    )


def output_by_channels(
    name: str, s: Shape, gpu: Gpu, values: str, *, within_bytes: int, links: int, shared: int
) -> Chunks:
    """Outputs with a decay per channel of a key, after a kernel that has made Q K^T within the chunk.

    Parameters
    ----------
    values : str
        Name of the tensor V.
    within_bytes : int
        Bytes per element of Q K^T.
    links, shared : int
        As in :class:`Work`; bytes of shared memory.
    """
    tensors = (
        *along("b h g c", {"Q": s.d * s.e, "g sums": s.d * FP32}),
        Tensor("states", "b h g c x", OUTPUT_COLUMNS * s.d * s.e, by_tile=True),
        Tensor(values, "b h g c x", OUTPUT_COLUMNS * s.e),
        Tensor("A of Q", "b h g c", CHUNK * within_bytes),
        Tensor("O", "b h g c x", OUTPUT_COLUMNS * s.e, written=True),
    )
    products = ((CHUNK, OUTPUT_COLUMNS, s.d), (CHUNK, OUTPUT_COLUMNS, CHUNK))
    work = Work(products, exps=CHUNK * s.d, fp32=2 * CHUNK * s.d + CHUNK**2, links=links)
    return Chunks(
        name,
        CHUNK,
        s.groups,
        tensors,
        work,
        columns=-(-s.dv // OUTPUT_COLUMNS),
        shared_memory_bytes=shared,
        path=path_of(gpu, CHUNK, 4),
    )


WIDTHS = (64, 128, 256, 512)
"""Possible widths of a state; most kernels support only up to 256, as ``chunk_delta_h.py`` (`largest_head_dim`)."""
WHOLE = "delta_rule_fwd"


COLUMNS_A_BLOCK = f"chunks of {CHUNK}, {WALK_COLUMNS} columns of a state a block"
"""The tile of the kernels of :mod:`attnsim.models.implementations.linear.gated_delta`, in words."""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Variant of a chunked delta rule.

    Parameters
    ----------
    gates : int
        Bytes of a gate in the input.
    before, after : int
        Bytes per element of the state that is read at first and written at last; 0: none.
    unit : bool
        Whether separate kernels first scale Q and K to unit length.
    together : bool
        Whether one kernel makes and inverts A.
    turned : bool
        Whether the state is stored as [V, K].
    clears : bool
        Whether O is set to zero before it is written (``torch.zeros_like(v)`` of ``chunk_o.py``).
    """

    gates: int = 4
    before: int = 4
    after: int = 4
    unit: bool = True
    together: bool = False
    turned: bool = False
    clears: bool = False


def prefill(
    name: str,
    tile: str,
    kernels: Callable[[Shape, Gpu], Iterable[Chunks | Kernel]],
    peak: Callable[[Workload], int],
    widths: tuple[int, ...] = WIDTHS,
) -> Implementation:
    """Record of an implementation that takes whole sequences with these kernels."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w, widths)
        s = Shape.of(w)
        played = (
            one.kernel(s.sequences, s.tokens, w.dtype, s.e) if isinstance(one, Chunks) else one
            for one in kernels(s, gpu)
        )
        return Schedule(facts()[name]["runs"], name, tuple(played), tile, peak(w))

    return record(name, build, peak_bytes=peak)


def unit_length(s: Shape) -> tuple[Kernel, ...]:
    """Q and K divided by their lengths (``l2norm.py``, `l2norm_fwd`): two passes."""
    size = s.rows * s.key_heads * s.d
    return tuple(
        streaming(f"l2norm {x}", [Access(f"{x} raw", size * s.e), Access(x, size * s.e, True)], elements=size)
        for x in "QK"
    )


def zeroed(what: str, tensor: str, size: int, element_bytes: int) -> Kernel:
    """``torch.zeros`` for `size` elements."""
    return streaming(what, [Access(tensor, size * element_bytes, True)], elements=size, fp32_per_element=0)


def _chunked(name: str, rule: DeltaRule) -> Implementation:
    def kernels(s: Shape, gpu: Gpu) -> Iterator[Chunks | Kernel]:
        yield from unit_length(s) if rule.unit else ()
        yield sums(s, rule.gates)
        # No kernel writes the inverse's blocks above the diagonal.
        yield zeroed("zeros A", "A inverse", s.rows * s.heads * CHUNK, s.e)
        yield from (overlap_solve(s),) if rule.together else (overlap(s, gpu, rule.gates), *solve(s))
        yield updates(s, gpu, rule.gates)
        yield walk(s, gpu, rule.before, rule.after, turned=rule.turned)
        if rule.clears:
            yield zeroed("zeros O", "O", s.rows * s.heads * s.dv, s.e)
        yield output(s, gpu)

    return prefill(name, COLUMNS_A_BLOCK, kernels, chunked_bytes)


def peak_bytes(w: Workload) -> int:
    """Peak memory: inputs, outputs and the states."""
    return io_bytes(w) + state_bytes(w)


def chunked_bytes(w: Workload) -> int:
    """Peak memory of a chunked form: also A, W, U, V new and the state before every chunk."""
    s = Shape.of(w)
    rows = s.rows * s.heads * (4 * CHUNK + s.e * (CHUNK + s.d + 2 * s.dv))
    return peak_bytes(w) + rows + s.states * s.chunks(CHUNK) * s.d * s.dv * s.e


def _whole(s: Shape, gpu: Gpu) -> tuple[Chunks]:
    """All products of a chunk in one block, with a state of d x dv in registers; two warpgroups and one for copies.

    ``gdn_prefill`` of FlashInfer (``flat_kernel_delta_rule``): chunks of 64, a persistent block per head of a sequence.
    """
    c = CHUNK
    tensors = (
        *along("b h c x", {"Q": s.d * s.e, "K": s.d * s.e}),
        *along("b h g c x", {"V": s.dv * s.e, "g": 4, "beta": 4}),
        Tensor("O", "b h g c x", s.dv * s.e, written=True),
        Tensor("state", "b h g x", s.d * s.dv * 4),
        Tensor("state", "b h g x", s.d * s.dv * 4, written=True),
    )
    products = (
        (c, c, s.d),
        (c, c, s.d),
        (c, s.dv, s.d),
        (c, s.dv, s.d),
        (c, s.dv, c),
        (c, s.dv, c),
        (s.d, s.dv, c),
    )
    work = Work(products, exps=2 * c * c, fp32=6 * c * c + 2 * s.d * s.dv, links=c)
    shared = 2 * c * (2 * s.d + s.dv) * s.e + s.d * s.dv * s.e + 2 * c * c * s.e
    one = Chunks(
        WHOLE,
        c,
        s.groups,
        tensors,
        work,
        serial=True,
        warps=12,
        registers=168,
        shared_memory_bytes=shared,
        path="tcgen05" if gpu.features.tcgen05 else "wgmma",
    )
    return (one,)


def recurring(name: str, widths: tuple[int, ...] = WIDTHS, tokens: range | None = None, **more: Any) -> Implementation:
    """Record of a decoding kernel, with the fields of its recurrence in ``tiles.toml``, and `more`.

    With `tokens`, for drafts of these lengths.
    """
    how = Recurrence(**preset(name), **more)

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w, widths)
        if tokens is not None and w.seq_q not in tokens:
            raise InputError(
                f"{name} checks drafts of {tokens[0]} to {tokens[-1]} tokens: seq_q is {w.seq_q}; take another kernel"
            )
        whole, head = state_bytes(w, how.before), w.head_dim * w.head_dim_v * how.before
        note = f"state of {whole:,} bytes ({head:,} a head), read and written at each step, whatever the length"
        return Schedule(facts()[name]["runs"], name, (how.kernel(Shape.of(w), w.dtype),), how, peak_bytes(w), (note,))

    return record(name, build, peak_bytes=peak_bytes)


RECORDS = (
    _chunked("sglang.gdn-chunk", DeltaRule(together=True, turned=True, clears=True)),
    _chunked("vllm.gdn-chunk", DeltaRule(turned=True)),
    _chunked("tensorrt-llm.gdn-chunk", DeltaRule(gates=2, before=0, after=0, unit=False)),
    prefill("flashinfer.gdn-chunk", f"chunks of {CHUNK}, a state a block", _whole, peak_bytes, (128,)),
    recurring("fla.gdn-packed-decode"),
    recurring("tensorrt-llm.gdn-recurrent"),
)
