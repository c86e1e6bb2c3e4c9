"""Gated DeltaNet (arXiv 2412.06464) as serving frameworks run it: prefill by chunks, decoding by recurrence."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation, TileRequest, record
from attnsim.models.implementations.linear import delta
from attnsim.models.implementations.linear.chunks import Chunks, Work
from attnsim.models.implementations.linear.recurrence import Recurrence
from attnsim.models.implementations.linear.shape import Shape, check_takes, io_bytes, state_bytes
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Tensor
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule

WIDTHS = (64, 128, 256)
"""Widths that ``chunk_delta_h.py`` has states for (K at most 256)."""
WHOLE = "delta_rule_fwd"


@dataclass(frozen=True, slots=True)
class DeltaTile:
    """How a chunked delta rule is run.

    Parameters
    ----------
    gates : int
        Bytes of a gate as it comes in.
    before, after : int
        Bytes of an element of the state that is read at first and written at last; 0: none.
    unit : bool
        Whether Q and K are brought to unit length first, in kernels of their own.
    together : bool
        Whether A is made and inverted in one kernel.
    turned : bool
        Whether the state lies as [V, K].
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

    def __str__(self) -> str:
        return f"chunks of {delta.CHUNK}, {delta.WALK_COLUMNS} columns of a state a block"


@dataclass(frozen=True, slots=True)
class WholeTile:
    """One kernel for all of it: a block takes a head of a sequence, in chunks of so many tokens."""

    chunk: int

    def __str__(self) -> str:
        return f"chunks of {self.chunk}, a state a block"


FLASHINFER = WholeTile(64)
"""``gdn_prefill`` of FlashInfer (``flat_kernel_delta_rule``): chunks of 64, a persistent block a head of a sequence."""


def unit_length(s: Shape, dtype: str) -> tuple[Kernel, ...]:
    """Q and K divided by their lengths (``l2norm.py``, `l2norm_fwd`): two passes."""
    size = s.rows * s.key_heads * s.d
    return tuple(
        streaming(f"l2norm {x}", [Access(f"{x} raw", size * s.e), Access(x, size * s.e, True)], elements=size)
        for x in "QK"
    )


def zeroed(what: str, tensor: str, size: int, element_bytes: int) -> Kernel:
    """``torch.zeros`` for so many elements."""
    return streaming(what, [Access(tensor, size * element_bytes, True)], elements=size, fp32_per_element=0)


def _chunked(name: str, tile: DeltaTile) -> Implementation:
    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w, WIDTHS)
        s = Shape.of(w)
        solved = (delta.overlap_solve(s),) if tile.together else (delta.overlap(s, gpu, tile.gates), *delta.solve(s))
        parts = (
            *solved, delta.updates(s, gpu, tile.gates),
            delta.walk(s, gpu, tile.before, tile.after, turned=tile.turned), delta.output(s, gpu),
        )  # fmt: skip
        played = [one.kernel(s.sequences, s.tokens, w.dtype, s.e) for one in (delta.sums(s, tile.gates), *parts)]
        # Of the inverse no kernel writes the blocks above the diagonal.
        inverse = zeroed("zeros A", "A inverse", s.rows * s.heads * delta.CHUNK, s.e)
        cleared = (zeroed("zeros O", "O", s.rows * s.heads * s.dv, s.e),) if tile.clears else ()
        kernels = (
            *(unit_length(s, w.dtype) if tile.unit else ()), played[0], inverse, *played[1:-1], *cleared, played[-1],
        )  # fmt: skip
        return Schedule("gdn", name, kernels, tile, peak_bytes(w) + scratch_bytes(w))

    return record(name, build, peak_bytes=lambda w: peak_bytes(w) + scratch_bytes(w))


def peak_bytes(w: Workload) -> int:
    """Inputs, outputs and the states."""
    return io_bytes(w) + state_bytes(w)


def scratch_bytes(w: Workload) -> int:
    """A, W, U, V new and the state before every chunk."""
    s = Shape.of(w)
    rows = s.rows * s.heads * (4 * delta.CHUNK + s.e * (delta.CHUNK + s.d + 2 * s.dv))
    return rows + s.states * s.chunks(delta.CHUNK) * s.d * s.dv * s.e


def _whole(name: str, tile: WholeTile) -> Implementation:
    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w, (128,))
        one = whole(Shape.of(w), tile, gpu).kernel(w.batch, w.seq_q, w.dtype, w.element_bytes)
        return Schedule("gdn", name, (one,), tile, peak_bytes(w))

    return record(name, build, peak_bytes=peak_bytes)


def whole(s: Shape, tile: WholeTile, gpu: Gpu) -> Chunks:
    """All products of a chunk in one block, with a state of d x dv in registers; two warpgroups and one for copies."""
    c = tile.chunk
    tensors = (
        Tensor("Q", "b h c x", s.d * s.e),
        Tensor("K", "b h c x", s.d * s.e),
        Tensor("V", "b h g c x", s.dv * s.e),
        Tensor("g", "b h g c x", 4),
        Tensor("beta", "b h g c x", 4),
        Tensor("O", "b h g c x", s.dv * s.e, written=True),
        Tensor("state", "b h g x", s.d * s.dv * 4),
        Tensor("state", "b h g x", s.d * s.dv * 4, written=True),
    )
    products = (
        (c, c, s.d), (c, c, s.d), (c, s.dv, s.d), (c, s.dv, s.d), (c, s.dv, c), (c, s.dv, c), (s.d, s.dv, c),
    )  # fmt: skip
    work = Work(products, exps=2 * c * c, fp32=6 * c * c + 2 * s.d * s.dv, links=c)
    shared = 2 * c * (2 * s.d + s.dv) * s.e + s.d * s.dv * s.e + 2 * c * c * s.e
    path = "tcgen05" if gpu.features.tcgen05 else "wgmma"
    return Chunks(
        WHOLE, c, s.groups, tensors, work, serial=True, warps=12, registers=168, shared_memory_bytes=shared,
        path="tcgen05" if path == "tcgen05" else "wgmma",
    )  # fmt: skip


def recurring(
    name: str, algorithm: str, how: Recurrence, widths: tuple[int, ...] = WIDTHS, tokens: range | None = None
) -> Implementation:
    """The record of a decoding kernel, of one for drafts of so many tokens."""

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w, widths)
        if tokens is not None and w.seq_q not in tokens:
            raise InputError(
                f"{name} checks drafts of {tokens[0]} to {tokens[-1]} tokens: seq_q is {w.seq_q}; take another kernel"
            )
        whole, head = state_bytes(w, how.before), w.head_dim * w.head_dim_v * how.before
        note = f"state of {whole:,} bytes ({head:,} a head), read and written at each step, whatever the length"
        return Schedule(algorithm, name, (how.kernel(Shape.of(w), w.dtype),), how, peak_bytes(w), (note,))

    return record(name, build, peak_bytes=peak_bytes)


RECORDS = (
    _chunked("sglang.gdn-chunk", DeltaTile(together=True, turned=True, clears=True)),
    _chunked("vllm.gdn-chunk", DeltaTile(turned=True)),
    _chunked("tensorrt-llm.gdn-chunk", DeltaTile(gates=2, before=0, after=0, unit=False)),
    _whole("flashinfer.gdn-chunk", FLASHINFER),
    recurring("fla.gdn-packed-decode", "gdn", Recurrence(columns=32, warps=1, gates=2)),
    recurring("tensorrt-llm.gdn-recurrent", "gdn", Recurrence(columns=8, warps=1, before=2, gates=2)),
)
