"""Closed forms of the kernels of :mod:`attnsim.models.implementations.linear`: bytes and products by shape.

A kernel over chunks of c tokens asks for a row's bytes once a block that reads it, whatever is in its last chunk, and
multiplies whole tiles: ``ceil(N / c)`` of them a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnsim.models.closed_forms.form import Form, Moved, load, store, transfer
from attnsim.models.implementations.linear import delta
from attnsim.models.implementations.linear.convolution import BEFORE, FORWARD, UPDATE, ConvolutionTile, channels_of
from attnsim.models.implementations.linear.gated_delta import WHOLE, DeltaTile, WholeTile
from attnsim.models.implementations.linear.recurrence import TAPS, Recurrence
from attnsim.models.implementations.linear.shape import Shape
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

C = delta.CHUNK
Products = Iterable[tuple[int, int, int]]


def product_work(products: Products, times: int, e: int) -> dict[str, int]:
    """FLOPs and operand reads of so many blocks' products of (m, n, k)."""
    sizes = list(products)
    return {
        "flops": times * sum(2 * m * n * k for m, n, k in sizes),
        "smem_bytes": times * sum((m + n) * k * e for m, n, k in sizes),
    }


@dataclass(frozen=True, slots=True)
class Counts:
    """A question's rows of values and of keys, and its chunks of values' heads.

    Parameters
    ----------
    s : Shape
    rows, key_rows : int
        Tokens times heads of V, and of Q and K.
    chunks : int
        Of all heads of V.
    """

    s: Shape
    rows: int
    key_rows: int
    chunks: int

    @classmethod
    def of(cls, s: Shape, chunk: int) -> Counts:
        """Of a call with chunks of so many tokens."""
        return cls(s, s.rows * s.heads, s.rows * s.key_heads, s.states * s.chunks(chunk))

    def keys(self, tensor: str, readers: int = 1) -> Moved:
        """Q or K as so many blocks of every head of V read it."""
        each = self.s.d * self.s.e
        return load(tensor, self.rows * each * readers, self.key_rows * each)


def chunked_delta(w: Workload, schedule: Schedule, tile: DeltaTile) -> list[Form]:
    """The kernels of a chunked gated delta rule: of the schedule only their names are used."""
    s = Shape.of(w)
    forms: dict[str, Callable[[], Form]] = {
        "l2norm Q": lambda: unit("Q", s),
        "l2norm K": lambda: unit("K", s),
        delta.SUMS: lambda: _sums(s, tile.gates),
        "zeros A": lambda: transfer("zeros A", [], [("A inverse", s.rows * s.heads * C * s.e)]),
        "zeros O": lambda: transfer("zeros O", [], [("O", s.rows * s.heads * s.dv * s.e)]),
        delta.OVERLAP: lambda: _overlap(s, tile.gates),
        delta.SOLVE: lambda: _solve(s),
        delta.MERGE: lambda: _merge(s),
        delta.OVERLAP_SOLVE: lambda: _overlap_solve(s),
        delta.UPDATES: lambda: updates(s, tile.gates),
        delta.WALK: lambda: walk(s, tile.before, tile.after),
        delta.OUTPUT: lambda: _output(s),
    }
    return [forms[kernel.name]() for kernel in schedule.kernels]


def unit(x: str, s: Shape) -> Form:
    """Q or K brought to unit length."""
    size = s.rows * s.key_heads * s.d * s.e
    return transfer(f"l2norm {x}", [(f"{x} raw", size)], [(x, size)])


def _sums(s: Shape, gates: int) -> Form:
    rows = s.rows * s.heads
    return transfer(delta.SUMS, [("g", rows * gates)], [("g sums", rows * 4)])


def _overlap(s: Shape, gates: int) -> Form:
    n = Counts.of(s, C)
    moved = (n.keys("K"), load("beta", n.rows * gates), load("g sums", n.rows * 4), store("A", n.rows * C * 4))
    return Form(delta.OVERLAP, moved, exponentials=n.chunks * C * C, **product_work([(C, C, s.d)], n.chunks, s.e))


def _solve(s: Shape) -> Form:
    size = s.rows * s.heads * delta.BLOCK * 4
    return Form(delta.SOLVE, (load("A", size), store("A diagonal", size)))


def _merge(s: Shape) -> Form:
    n, b = Counts.of(s, C), delta.BLOCK
    moved = (
        load("A", n.chunks * 6 * b * b * 4),
        load("A diagonal", n.rows * b * 4),
        store("A inverse", n.rows * C * s.e),
    )
    return Form(delta.MERGE, moved, **product_work([(b, b, b)] * 32, n.chunks, s.e))


def _overlap_solve(s: Shape) -> Form:
    n, b = Counts.of(s, C), delta.BLOCK
    moved = (
        n.keys("K"), load("beta", n.rows * 4), load("g sums", n.rows * 4),
        store("A inverse", n.rows * 10 * b * b * s.e // C),
    )  # fmt: skip
    work = product_work([(b, b, s.d)] * 10 + [(b, b, b)] * 32, n.chunks, s.e)
    return Form(delta.OVERLAP_SOLVE, moved, exponentials=n.chunks * 10 * b * b, **work)


def updates(s: Shape, gates: int, channels: bool = False) -> Form:
    """W and U of all chunks, and the decayed K where channels have decays."""
    n = Counts.of(s, C)
    moved = [
        load("A inverse", n.rows * C * s.e), load("beta", n.rows * gates), load("V", n.rows * s.dv * s.e),
        n.keys("K"), load("g sums", n.rows * 4 * (s.d if channels else 1)),
        store("U", n.rows * s.dv * s.e), store("W", n.rows * s.d * s.e),
    ]  # fmt: skip
    if channels:
        moved.append(store("K decayed", n.rows * s.d * s.e))
    tiles = -(-s.dv // 64) + -(-s.d // 64)
    exps = n.chunks * C * (2 * s.d if channels else 1)
    return Form(delta.UPDATES, tuple(moved), exponentials=exps, **product_work([(C, 64, C)] * tiles, n.chunks, s.e))


def walk(s: Shape, before: int, after: int, channels: bool = False) -> Form:
    """Every column block of a state reads W, K and the decays again."""
    n, width = Counts.of(s, C), delta.WALK_COLUMNS
    blocks = -(-s.dv // width)
    decays, key_bytes = (n.chunks * s.d * 4 if channels else n.rows * 4), n.rows * s.d * s.e
    state = s.states * s.d * width * blocks
    moved = [
        load("W", key_bytes * blocks, key_bytes),
        load("U", n.rows * width * blocks * s.e),
        load("K decayed", key_bytes * blocks, key_bytes) if channels else n.keys("K", blocks),
        load("g sums", decays * blocks, decays),
        store("states", n.chunks * s.d * width * blocks * s.e),
        store("V new", n.rows * width * blocks * s.e),
    ]
    if before:
        moved.append(load("state", state * before))
    if after:
        moved.append(store("state", state * after))
    work = product_work([(C, width, s.d), (s.d, width, C)], n.chunks * blocks, s.e)
    exps = n.chunks * blocks * (s.d if channels else C + 1)
    return Form(delta.WALK, tuple(moved), exponentials=exps, **work)


def _output(s: Shape) -> Form:
    n, width = Counts.of(s, C), delta.OUTPUT_COLUMNS
    blocks = -(-s.dv // width)
    moved = (
        n.keys("Q", blocks), n.keys("K", blocks), load("states", n.chunks * s.d * width * blocks * s.e),
        load("V new", n.rows * width * blocks * s.e), load("g sums", n.rows * 4 * blocks, n.rows * 4),
        store("O", n.rows * width * blocks * s.e),
    )  # fmt: skip
    work = product_work([(C, width, s.d), (C, C, s.d), (C, width, C)], n.chunks * blocks, s.e)
    return Form(delta.OUTPUT, moved, exponentials=n.chunks * blocks * C * (C + 1), **work)


def whole_delta(w: Workload, schedule: Schedule, tile: WholeTile) -> list[Form]:
    """One kernel: every tensor once, but Q and K once a head of V, and seven products a chunk."""
    s, c = Shape.of(w), tile.chunk
    n, state = Counts.of(s, c), w.batch * w.heads_q * w.head_dim * w.head_dim_v * 4
    moved = (
        n.keys("Q"), n.keys("K"), load("V", n.rows * s.dv * s.e), load("g", n.rows * 4), load("beta", n.rows * 4),
        store("O", n.rows * s.dv * s.e), load("state", state), store("state", state),
    )  # fmt: skip
    sizes = [(c, c, s.d)] * 2 + [(c, s.dv, s.d)] * 2 + [(c, s.dv, c)] * 2 + [(s.d, s.dv, c)]
    return [Form(WHOLE, moved, exponentials=n.chunks * 2 * c * c, **product_work(sizes, n.chunks, s.e))]


def recurrent(w: Workload, schedule: Schedule, tile: Recurrence) -> list[Form]:
    """A decoding step: the state in and out, and the new tokens."""
    s = Shape.of(w)
    width = tile.width(s)
    blocks = -(-s.dv // width)
    n, gate = Counts.of(s, 1), (s.d if tile.channels else 1) * tile.gates
    padded = blocks * width
    state = s.states * s.d * padded
    moved = [
        n.keys("Q", blocks), n.keys("K", blocks), load("V", n.rows * padded * s.e),
        load("g", n.rows * gate * blocks, n.rows * gate),
        load("beta", n.rows * tile.gates * blocks, n.rows * tile.gates),
        store("O", n.rows * padded * s.e), load("state", state * tile.before),
    ]  # fmt: skip
    if tile.after:
        moved.append(store("state", state * tile.after))
    if tile.kept:
        moved.append(store("kept states", n.rows * s.d * padded * tile.kept))
    if tile.around:
        tokens = s.states * (TAPS - 1) * (2 * s.d + s.dv) * s.e
        name, kept = ("kept taps' tokens", tokens * s.tokens) if tile.kept else ("taps' tokens", tokens)
        moved += [load("taps' tokens", tokens * blocks, tokens), store(name, kept * blocks, kept)]
        moved.append(load("output gate", n.rows * padded * s.e))
    exps = n.rows * blocks * (s.d if tile.channels else 1)
    return [Form(schedule.kernels[0].name, tuple(moved), exponentials=exps)]


def convolution(w: Workload, schedule: Schedule, tile: ConvolutionTile) -> list[Form]:
    """X in and Y out, the taps of every block, the tokens before it again, and those that the next call begins with."""
    row = channels_of(w) * w.element_bytes
    x, before, taps = w.batch * w.seq_q * row, w.batch * BEFORE * row, TAPS * row
    kept = store("last tokens", before)
    if w.passes == "decode":
        exps = w.batch * w.seq_q * channels_of(w)
        state = load("last tokens", before)
        moved = (load("X", x), state, load("taps", w.batch * taps, taps), store("Y", x), kept)
        return [Form(UPDATE, moved, exponentials=exps)]
    chunks = -(-w.seq_q // tile.tokens)
    exps = w.batch * chunks * tile.tokens * channels_of(w)
    blocks, again = (w.batch, 0) if tile.walks else (w.batch * chunks, before * chunks)
    read = (load("X", x + again, x), load("taps", blocks * taps, taps))
    return [Form(FORWARD, (*read, store("Y", x), kept), exponentials=exps)]
