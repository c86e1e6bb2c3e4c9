"""Gated DeltaNet (arXiv 2412.06464) as serving frameworks run it: prefill by chunks, decoding by recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

WIDTHS = (64, 128, 256, 512)
"""Possible widths of a state; most kernels support only up to 256, as ``chunk_delta_h.py`` (`largest_head_dim`)."""
WHOLE = "delta_rule_fwd"


COLUMNS_A_BLOCK = f"chunks of {delta.CHUNK}, {delta.WALK_COLUMNS} columns of a state a block"
"""The tile of the kernels of :mod:`attnsim.models.implementations.linear.delta`, in words."""


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
    algorithm: str,
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
        return Schedule(algorithm, name, tuple(played), tile, peak(w))

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
        yield delta.sums(s, rule.gates)
        # No kernel writes the inverse's blocks above the diagonal.
        yield zeroed("zeros A", "A inverse", s.rows * s.heads * delta.CHUNK, s.e)
        yield from (delta.overlap_solve(s),) if rule.together else (delta.overlap(s, gpu, rule.gates), *delta.solve(s))
        yield delta.updates(s, gpu, rule.gates)
        yield delta.walk(s, gpu, rule.before, rule.after, turned=rule.turned)
        if rule.clears:
            yield zeroed("zeros O", "O", s.rows * s.heads * s.dv, s.e)
        yield delta.output(s, gpu)

    return prefill(name, "gdn", COLUMNS_A_BLOCK, kernels, chunked_bytes)


def peak_bytes(w: Workload) -> int:
    """Peak memory: inputs, outputs and the states."""
    return io_bytes(w) + state_bytes(w)


def chunked_bytes(w: Workload) -> int:
    """Peak memory of a chunked form: also A, W, U, V new and the state before every chunk."""
    s = Shape.of(w)
    rows = s.rows * s.heads * (4 * delta.CHUNK + s.e * (delta.CHUNK + s.d + 2 * s.dv))
    return peak_bytes(w) + rows + s.states * s.chunks(delta.CHUNK) * s.d * s.dv * s.e


def _whole(s: Shape, gpu: Gpu) -> tuple[Chunks]:
    """All products of a chunk in one block, with a state of d x dv in registers; two warpgroups and one for copies.

    ``gdn_prefill`` of FlashInfer (``flat_kernel_delta_rule``): chunks of 64, a persistent block per head of a sequence.
    """
    c = delta.CHUNK
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


def recurring(
    name: str, algorithm: str, how: Recurrence, widths: tuple[int, ...] = WIDTHS, tokens: range | None = None
) -> Implementation:
    """Record of a decoding kernel; with `tokens`, for drafts of these lengths."""

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
    _chunked("sglang.gdn-chunk", DeltaRule(together=True, turned=True, clears=True)),
    _chunked("vllm.gdn-chunk", DeltaRule(turned=True)),
    _chunked("tensorrt-llm.gdn-chunk", DeltaRule(gates=2, before=0, after=0, unit=False)),
    prefill("flashinfer.gdn-chunk", "gdn", f"chunks of {delta.CHUNK}, a state a block", _whole, peak_bytes, (128,)),
    recurring("fla.gdn-packed-decode", "gdn", Recurrence(columns=32, warps=1, gates=2)),
    recurring("tensorrt-llm.gdn-recurrent", "gdn", Recurrence(columns=8, warps=1, before=2, gates=2)),
)
