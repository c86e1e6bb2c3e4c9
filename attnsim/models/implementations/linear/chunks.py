"""Kernels that process sequences in chunks: a block per chunk, or a block that walks all chunks of its head in order.

A block's transfers are declared as tensors along axes, its arithmetic per chunk as :class:`Work`. The last chunk of a
sequence transfers its rows only, but multiplies whole tiles.

Sizes of a question of the family, and the checks of its kernels.

Decoding: a block holds some columns of a head's state in registers and processes the new tokens one by one.

The time is independent of earlier tokens: their state is read once and written once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from attnsim.arrays import Ints
from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, along, declared
from attnsim.models.schedule.operation import Nest, TileOp, loop, once
from attnsim.models.schedule.schedule import Kernel, Path

LINK_CLKS = by_hand(30, "clocks of one link of a chain of dependent instructions, such as a row of a substitution")
REGISTERS = by_hand(128, "registers a thread of a compiled kernel whose tiles are small: Triton does not print them")


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of a block for a chunk.

    Parameters
    ----------
    products : tuple of (int, int, int)
        m, n, k of each product of tiles, of 16-bit operands.
    exps, fp32 : int
        Exponentials, and FP32-lane instructions.
    links : int
        Dependent instructions whose latency nothing hides: rows of a substitution, tokens of a recurrence.
    """

    products: tuple[tuple[int, int, int], ...] = ()
    exps: int = 0
    fp32: int = 0
    links: int = 0

    @property
    def flops(self) -> int:
        """FLOPs of the products."""
        return sum(2 * m * n * k for m, n, k in self.products)

    def operations(self, element_bytes: int) -> tuple[TileOp, ...]:
        """Tile operations; both operands of each product are read from shared memory once."""
        out = []
        for (m, n, k), same in groupby(self.products):
            times = len(list(same))
            name = f"{m} x {n} x {k}" if times == 1 else f"{times} of {m} x {n} x {k}"
            operands = (m + n) * k * element_bytes
            out.append(TileOp("mma", name, flops=times * 2 * m * n * k, smem_bytes=times * operands))
        if self.exps or self.fp32:
            out.append(TileOp("vector", "gates", exps=self.exps, fp32=self.fp32))
        chain = [TileOp("delay", "chain", clks=self.links * LINK_CLKS)] if self.links else []
        return (*out, *chain, TileOp("delay", waits="step"))


@dataclass(frozen=True, slots=True)
class Chunks:
    """A kernel over chunks.

    Its axes are the sequences ``b``, the heads of Q and K ``h``, the heads of V that share one of them ``g``, the
    tokens ``c`` in chunks, and its columns ``x``. A tensor along ``c`` moves with each chunk. A tensor along ``b``
    without ``c`` is read before the first chunk of a sequence or written after the last. A tensor along neither is read
    by every block.

    Parameters
    ----------
    chunk : int
        Rows of a chunk.
    heads : (int, int)
        Heads of Q and K, and neighbouring heads that share one: blocks side by side on a sequence's chunk.
    columns : int or mapping of str to int
        Blocks that share the columns of a head's output; several axes by name, slowest first.
    serial : bool
        Whether a block walks all chunks of its sequence, with the state in registers.
    warps, registers, shared_memory_bytes : int
        Resources of a block.
    path : str
        Instructions of the products.
    ahead : bool
        Whether a serial block prefetches the next chunk before it computes one.
    in_flight_bytes : int
        Most bytes of a tensor that a block has in flight; 0: a chunk's.
    alone : bool
        Whether threads are independent, so that a block has no prologue and no epilogue.
    row_tiles : int
        Neighbouring chunks that are the row tiles of a larger chunk, along ``C``.
    """

    name: str
    chunk: int
    heads: tuple[int, int]
    tensors: tuple[Tensor, ...]
    work: Work
    columns: int | Mapping[str, int] = 1
    serial: bool = False
    warps: int = 4
    registers: int = REGISTERS
    shared_memory_bytes: int = 0
    path: Path = "simt"
    ahead: bool = True
    in_flight_bytes: int = 0
    alone: bool = False
    row_tiles: int = 1

    def kernel(self, sequences: int, tokens: int, dtype: str, element_bytes: int = 2) -> Kernel:
        """The kernel for `sequences` sequences of equal length."""
        columns = {"x": self.columns} if isinstance(self.columns, int) else self.columns
        axes = {
            "b": Axis(sequences),
            "h": Axis(self.heads[0]),
            "g": Axis(self.heads[1]),
            "c": Axis(tokens, self.chunk, cuts="C"),
            "C": Axis(tokens, self.chunk * self.row_tiles),
            **{name: Axis(n) for name, n in columns.items()},
        }
        c, work = axes["c"], self.work.operations(element_bytes)
        at = np.arange(c.tiles)
        facts = {"first": at == 0, "last": at == c.tiles - 1, "missing": c.missing}
        if self.serial:
            facts = {"missing": c.missing[-1:]}
        return declared(
            self.name,
            axes,
            " ".join(["b h g", *["c"][self.serial :], *columns]),
            self._shared(),
            facts,
            partial(self._walked, c.tiles, work) if self.serial else partial(self._spread, work),
            each=1 if self.serial else math.prod(columns.values()),
            threads=32 * self.warps,
            registers_per_thread=self.registers,
            path=self.path,
            buffers=(("tiles", self.shared_memory_bytes),) if self.shared_memory_bytes else (),
            dtype=dtype,
            in_flight_bytes=self.in_flight_bytes,
            step="chunk",
        )

    def _shared(self) -> list[Tensor]:
        """The tensors; those that are both read and written are marked as in place."""
        both = {one.name for one in self.tensors if one.written} & {one.name for one in self.tensors if not one.written}
        return [replace(one, in_place=one.name in both) for one in self.tensors]

    @property
    def _ends(self) -> list[Tensor]:
        """Tensors that are transferred once per sequence."""
        return [one for one in self.tensors if "b" in one.axes.split() and not _along_chunks(one)]

    def _moved(self, written: bool, missing: int = 0, ends: bool = False) -> tuple[TileOp, ...]:
        """Loads or stores of a chunk that lacks `missing` rows; with `ends`, those of a whole sequence."""
        rows = self.chunk - missing
        return tuple(
            (one.store if written else one.load)(1 if ends or one.by_tile else rows)
            for one in self.tensors
            if one.written == written and (one in self._ends if ends else _along_chunks(one))
        )

    @property
    def _begin(self) -> tuple[TileOp, ...]:
        """Beginning of a block: loads that every block makes."""
        constants = (one.load() for one in self.tensors if "b" not in one.axes.split())
        return (*([] if self.alone else [TileOp("delay", waits="block")]), *constants)

    @property
    def _end(self) -> tuple[TileOp, ...]:
        return () if self.alone else (TileOp("delay", waits="block"),)

    def _walked(self, chunks: int, work: tuple[TileOp, ...], missing: Ints) -> Nest:
        """A block that walks all chunks of its sequence in order: the state, then each chunk, the next in flight."""
        short = int(missing[0])
        whole_chunks = chunks - (short > 0)

        def turn(load_next: bool = False, next_whole: bool = True, whole: bool = True) -> Iterator[TileOp]:
            loads = self._moved(False, 0 if whole else short)
            yield from () if self.ahead else loads
            yield from waits(loads)
            yield from self._moved(False, 0 if next_whole else short) if load_next else ()
            yield from (*work, *self._moved(True, 0 if whole else short))

        flags: dict[str, Any] = {"load_next": chunks - 1} if self.ahead else {}
        if short:
            flags |= {"next_whole": whole_chunks - 1} if self.ahead else {}
            flags |= {"whole": whole_chunks}
        state = (*self._begin, *self._moved(False, ends=True))
        first = self._moved(False, 0 if whole_chunks else short) if self.ahead else ()
        return [
            *once("state", (*state, *waits(state))),
            *once("first chunk's loads", first, int(self.ahead)),
            *loop("chunk", np.array([chunks]), turn, **flags),
            *once("end", (*self._moved(True, ends=True), *self._end)),
        ]

    def _spread(self, work: tuple[TileOp, ...], first: Ints, last: Ints, missing: Ints) -> Nest:
        """A block for each chunk: at the beginning of a sequence, within it, or at its end."""
        nest: Nest = []
        for number, (begins, ends, short) in enumerate(
            zip(first.tolist(), last.tolist(), missing.tolist(), strict=True)
        ):
            before = self._moved(False, ends=True) if begins else ()
            after = self._moved(True, ends=True) if ends else ()
            loads = (*before, *self._moved(False, short))
            ops = (*self._begin, *loads, *waits((*self._begin, *loads)), *work, *self._moved(True, short))
            name = "last chunk" if ends else "first chunk" if begins else "chunk"
            nest += once(name, (*ops, *after, *self._end), np.arange(len(first)) == number)
        return nest


def _along_chunks(tensor: Tensor) -> bool:
    return not {"c", "C"}.isdisjoint(tensor.axes.split())


def waits(ops: Iterable[TileOp]) -> list[TileOp]:
    """A wait for each load."""
    return [TileOp("wait", op.tensor) for op in ops if op.kind == "load"]


def path_of(gpu: Gpu, rows: int, warps: int) -> Path:
    """Instructions of ``tl.dot`` in Triton (``AccelerateMatmul.cpp``): wgmma or tcgen05 from 64 rows and four warps."""
    if rows < 64 or warps < 4:
        return "mma_sync"
    return "tcgen05" if gpu.features.tcgen05 else "wgmma" if gpu.features.wgmma else "mma_sync"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a call. Heads of Q and K are shared by `group` consecutive heads of V, each with its own state.

    Parameters
    ----------
    sequences, tokens : int
        Sequences, and tokens per sequence that the call processes.
    heads, key_heads : int
        Heads of V and the states; heads of Q and K.
    d, dv : int
        Width of Q and K, and of V.
    e : int
        Bytes of an element.
    """

    sequences: int
    tokens: int
    heads: int
    key_heads: int
    d: int
    dv: int
    e: int

    @classmethod
    def of(cls, w: Workload) -> Shape:
        """Sizes of a workload: `heads_q` are the heads of V, `heads_kv` those of Q and K."""
        return cls(w.batch, w.seq_q, w.heads_q, w.heads_kv, w.head_dim, w.head_dim_v, w.element_bytes)

    @property
    def group(self) -> int:
        """Heads of V for each of Q and K."""
        return self.heads // self.key_heads

    @property
    def groups(self) -> tuple[int, int]:
        """Heads of Q and K, and the heads of V for each."""
        return self.key_heads, self.group

    @property
    def rows(self) -> int:
        """Tokens of all sequences."""
        return self.sequences * self.tokens

    @property
    def states(self) -> int:
        """States: one for each head of each sequence."""
        return self.sequences * self.heads

    def chunks(self, chunk: int) -> int:
        """Chunks of a sequence."""
        return -(-self.tokens // chunk)


def check_takes(name: str, w: Workload, widths: tuple[int, ...]) -> None:
    """Refuse questions that a recurrence cannot answer, and widths that the kernels are not compiled for."""
    mask = w.mask.within(w.seq_q, w.seq_kv)
    if not mask.is_band or mask.is_windowed or w.dropout or not (mask.is_causal or w.seq_q == 1):
        raise InputError(
            f"{name} walks a sequence from its first token to its last: the mask is {w.mask}"
            f"{', with dropout' if w.dropout else ''}; allowed: causal, without window, patterns and dropout"
        )
    if w.passes == "fwd" and w.seq_q != w.seq_kv:
        raise InputError(
            f"{name} takes in whole sequences: seq_q is {w.seq_q}, seq_kv {w.seq_kv}; make them equal, or take pass "
            "decode, which begins with the state of the tokens before"
        )
    if w.seq_q > w.seq_kv:
        raise InputError(
            f"{name}: seq_q is {w.seq_q}, seq_kv {w.seq_kv}; the last tokens are a part of the sequence, take seq_q 1 "
            "to seq_kv"
        )
    for what, width in (("head_dim", w.head_dim), ("head_dim_v", w.head_dim_v)):
        if width not in widths:
            raise InputError(f"{name} has no kernels of {what} {width}; allowed: {', '.join(map(str, widths))}")
    if w.latent is not None:
        raise InputError(f"{name} keeps a state, not a latent ({w.latent}); leave --latent out")


def state_bytes(w: Workload, element_bytes: int = 4) -> int:
    """Bytes of the states of all sequences, independent of their length."""
    return w.batch * w.heads_q * w.head_dim * w.head_dim_v * element_bytes


def io_bytes(w: Workload) -> int:
    """Bytes of Q, K and V of the processed tokens, their output, and gates of fp32."""
    keys = 2 * w.heads_kv * w.head_dim * w.element_bytes
    values = w.heads_q * w.head_dim_v * (w.element_bytes + w.output_bytes)
    return w.batch * w.seq_q * (keys + values + 8 * w.heads_q)


RECURRENT = "fused_recurrent"
TAPS = 4
"""Tokens that the short convolution spans in every model of the family."""
LANES_SUM = 5
"""Shuffles of a sum over the lanes of a warp."""
SHUFFLE = 4
"""FP32-lane instructions in the time of one lane's shuffle: 32 lanes per clock and SM against 128 (CUDA C++ Programming
Guide, "Arithmetic Instructions")."""
PREPARED = by_hand(
    LANES_SUM + 8, "links before a token's state: the sum of squares of Q and K, and the gate's functions"
)
TAKEN = by_hand(2 * LANES_SUM + 4, "links of a token in the state: decay, k S and its sum, the update, q S and its sum")


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Decoding by one implementation.

    Parameters
    ----------
    columns : int
        Columns of the state per block (BV).
    narrower : tuple of (int, int)
        (states, columns): columns per block in calls of at most so many states.
    registers : int
        Registers per thread if the compiler is given them; 0: the state's and 40 more.
    before, after : int
        Bytes per element of the state as it is read and as it is written; 0 if it is not written.
    gates : int
        Bytes of a gate.
    channels : bool
        Whether every channel of a key has a decay.
    delta : bool
        Whether there is a delta rule.
    kept : int
        Bytes per element of the states that are written after every token, for drafts that may be rejected. For these
        kernels, whose tokens are sequential, the links and shuffles of a token are counted.
    turns : int
        Sequential parts of a block's columns, each with all tokens, from shared memory.
    ahead : bool
        Whether the next token's Q, K and V are prefetched.
    fused : bool
        Whether the preceding short convolution and the following gated norm are in the same kernel.
    """

    columns: int
    warps: int
    narrower: tuple[tuple[int, int], ...] = ()
    registers: int = 0
    before: int = 4
    after: int = 4
    gates: int = 4
    channels: bool = False
    delta: bool = True
    kept: int = 0
    turns: int = 1
    ahead: bool = False
    fused: bool = False

    def __str__(self) -> str:
        return f"{self.columns} columns of a state, {self.warps} warp{'s' * (self.warps > 1)}"

    def width(self, s: Shape) -> int:
        """Columns per block in a call."""
        return min(next((few for states, few in self.narrower if s.states <= states), self.columns), s.dv)

    def kernel(self, s: Shape, dtype: str) -> Kernel:
        """The kernel for a call."""
        columns = self.width(s)
        tensors = [
            *along("b h c", {"Q": s.d * s.e, "K": s.d * s.e}),
            Tensor("V", "b h g c x", columns * s.e),
            *along("b h g c", {"g": s.d * self.gates if self.channels else self.gates, "beta": self.gates}),
            Tensor("O", "b h g c x", columns * s.e, written=True),
            Tensor("state", "b h g x", columns * s.d * self.before),
        ]
        if self.after:
            tensors.append(Tensor("state", "b h g x", columns * s.d * self.after, written=True))
        if self.kept:
            tensors.append(Tensor("kept states", "b h g c x", columns * s.d * self.kept, written=True))
        if self.fused:
            before = (TAPS - 1) * (2 * s.d + s.dv) * s.e
            kept = Tensor("kept taps' tokens", "b h g c", before, written=True)
            tensors += [
                Tensor("taps' tokens", "b h g", before),
                kept if self.kept else Tensor("taps' tokens", "b h g", before, written=True),
                Tensor("output gate", "b h g c x", columns * s.e),
            ]
        held = 40 + columns * s.d // (32 * self.warps * self.turns)
        one = Chunks(
            RECURRENT,
            1,
            s.groups,
            tuple(tensors),
            self._work(s, columns),
            columns=-(-s.dv // columns),
            serial=True,
            ahead=self.ahead,
            warps=self.warps,
            registers=self.registers or min(232, held),
            shared_memory_bytes=self._shared(s) if self.turns > 1 else 0,
        )
        return one.kernel(s.sequences, s.tokens, dtype, s.e)

    def _work(self, s: Shape, columns: int) -> Work:
        """Arithmetic of a block per token.

        Decay, k S and its sum, the update, q S and its sum are one instruction each per element. For drafts, whose
        tokens are sequential, more is counted: all links, the shuffles of both sums of each column, and the schedulers
        of its SM that a block of fewer than four warps leaves idle.
        """
        exps = s.d if self.channels else 1
        each = (6 if self.delta else 4) * columns * s.d
        if not self.kept:
            return Work(exps=exps, fp32=each, links=8 if self.delta else 4)
        shuffles = 2 * LANES_SUM * columns
        alone = each * (1 / (32 * self.warps) - 1 / (32 * 4)) if self.warps < 4 else 0.0
        links = PREPARED + self.turns * TAKEN + round(alone / LINK_CLKS)
        return Work(exps=exps, fp32=each + 32 * SHUFFLE * shuffles, links=links)

    def _shared(self, s: Shape) -> int:
        """Bytes of Q, K, decays, V and outputs of all tokens, the taps of K and V, and two parts of the state."""
        rows = s.tokens * (3 * s.d + 2 * s.dv) + TAPS * (s.d + s.dv)
        return 4 * (rows + 2 * s.d * s.dv // self.turns)
