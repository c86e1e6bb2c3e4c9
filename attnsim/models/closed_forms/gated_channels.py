"""Closed forms of the kernels of :mod:`attnsim.models.implementations.linear.kda`: a decay for every channel."""

from __future__ import annotations

from collections.abc import Callable

from attnsim.models.closed_forms.form import Form, load, store, transfer
from attnsim.models.closed_forms.gated import Counts, product_work, unit, updates, walk
from attnsim.models.implementations.linear import delta, kda
from attnsim.models.implementations.linear.shape import Shape
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

C, B = delta.CHUNK, delta.BLOCK


def chunked(w: Workload, schedule: Schedule, tile: kda.KdaTile) -> list[Form]:
    """The kernels in Triton: of the schedule only their names are used."""
    s = Shape.of(w)
    forms: dict[str, Callable[[], Form]] = {
        "l2norm Q": lambda: unit("Q", s),
        "l2norm K": lambda: unit("K", s),
        kda.GATES: lambda: _gates(s),
        kda.DIAGONAL: lambda: _diagonal(s),
        kda.BELOW: lambda: _below(s),
        delta.UPDATES: lambda: updates(s, s.e, channels=True),
        delta.WALK: lambda: walk(s, 4, 4, channels=True),
        kda.OUTPUT: lambda: _output(s),
    }
    return [forms[kernel.name]() for kernel in schedule.kernels]


def _gates(s: Shape) -> Form:
    n = Counts.of(s, C)
    return transfer(kda.GATES, [("g", n.rows * s.d * s.e)], [("g sums", n.rows * s.d * 4)], n.chunks * C * s.d)


def _diagonal(s: Shape) -> Form:
    n = Counts.of(s, B)
    moved = (
        load("Q", n.rows * s.d * s.e), load("K", n.rows * s.d * s.e), load("g sums", n.rows * s.d * 4),
        load("beta", n.rows * s.e), store("A of Q", n.rows * B * s.e), store("A diagonal", n.rows * B * 4),
    )  # fmt: skip
    return Form(kda.DIAGONAL, moved, exponentials=n.chunks * B * B * s.d)


def _below(s: Shape) -> Form:
    n = Counts.of(s, C)
    moved = (
        load("Q", n.rows * s.d * s.e), load("K", n.rows * s.d * s.e), load("g sums", n.rows * s.d * 4),
        load("beta", n.rows * s.e), load("A diagonal", n.rows * B * 4),
        store("A of Q", n.chunks * 6 * B * B * s.e), store("A inverse", n.chunks * 10 * B * B * s.e),
    )  # fmt: skip
    work = product_work([(B, B, s.d)] * 24 + [(B, B, B)] * 32, n.chunks, s.e)
    return Form(kda.BELOW, moved, exponentials=n.chunks * 13 * B * s.d, **work)


def _output(s: Shape) -> Form:
    n, width = Counts.of(s, C), delta.OUTPUT_COLUMNS
    blocks = -(-s.dv // width)
    q, g, a = n.rows * s.d * s.e, n.rows * s.d * 4, n.rows * C * s.e
    moved = (
        load("Q", q * blocks, q), load("g sums", g * blocks, g),
        load("states", n.chunks * s.d * width * blocks * s.e), load("V new", n.rows * width * blocks * s.e),
        load("A of Q", a * blocks, a), store("O", n.rows * width * blocks * s.e),
    )  # fmt: skip
    work = product_work([(C, width, s.d), (C, width, C)], n.chunks * blocks, s.e)
    return Form(kda.OUTPUT, moved, exponentials=n.chunks * blocks * C * s.d, **work)


def flash(w: Workload, schedule: Schedule, tile: kda.FlashKdaTile) -> list[Form]:
    """FlashKDA's two kernels."""
    s = Shape.of(w)
    n = Counts.of(s, B)
    wide, narrow, total = n.rows * s.d * s.e, n.rows * B * s.e, n.chunks * s.d * 4
    decayed, small = ("K decayed", "Q decayed", "K restored"), ("A inverse", "A of Q")
    state = s.states * s.d * s.dv * 4
    beta = load("beta", n.rows * s.e)
    prepare = (
        *(load(x, wide) for x in "QKg"), beta, *(store(x, wide) for x in decayed),
        *(store(x, narrow) for x in small), store("g total", total),
    )  # fmt: skip
    recur = (
        load("V", n.rows * s.dv * s.e), beta, *(load(x, wide) for x in decayed), *(load(x, narrow) for x in small),
        load("g total", total), store("O", n.rows * s.dv * s.e), load("state", state), store("state", state),
    )  # fmt: skip
    first = product_work([(B, B, s.d)] * 2 + [(B, B, B)] * 6, n.chunks, s.e)
    second = product_work([(B, s.dv, s.d)] * 2 + [(B, s.dv, B)] * 2 + [(s.d, s.dv, B)], n.chunks, s.e)
    return [
        Form(kda.PREPARE, prepare, exponentials=n.chunks * 4 * B * s.d, **first),
        Form(kda.RECUR, recur, **second),
    ]
