"""Closed forms of the kernels of :mod:`attnsim.models.implementations.linear.fla` and of Mamba-2's beside it."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.closed_forms import gated
from attnsim.models.closed_forms.form import Form, load, store, transfer
from attnsim.models.closed_forms.gated import Counts, product_work
from attnsim.models.implementations.linear import delta, fla, ssd
from attnsim.models.implementations.linear.gated_delta import DeltaTile
from attnsim.models.implementations.linear.shape import Shape
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

C, T = delta.CHUNK, fla.TILE


def by_states(w: Workload, schedule: Schedule, tile: fla.StatesTile) -> list[Form]:
    """States and outputs; with a decay a channel its sums and the products within chunks too."""
    s = Shape.of(w)
    if tile.gates >= 0:
        return [_states(s, tile), _outputs(s, tile)]
    n = Counts.of(s, C)
    sums = transfer(fla.SUMS, [("g", n.rows * s.d * s.e)], [("g sums", n.rows * s.d * 4)])
    within = (
        load("Q", n.rows * s.d * s.e), n.keys("K"), load("g sums", n.rows * s.d * 4), store("A of Q", n.rows * C * 4),
    )  # fmt: skip
    work = product_work([(C, C, s.d)] * 2, n.chunks, s.e)
    return [
        sums,
        _states(s, tile),
        Form(fla.WITHIN, within, exponentials=n.chunks * 4 * C * s.d, **work),
        _channel_outputs(s),
    ]


def _states(s: Shape, tile: fla.StatesTile) -> Form:
    n, across, down = Counts.of(s, C), s.dv // T, s.d // T
    tiles = across * down
    moved = [
        n.keys("K", across),
        load("V", n.rows * s.dv * s.e * down, n.rows * s.dv * s.e),
        store("states", n.chunks * T * T * tiles * s.e),
    ]
    if tile.gates > 0:
        moved.append(load("g sums", n.rows * 4 * tiles, n.rows * 4))
    if tile.gates < 0:
        moved.append(load("g sums", n.rows * s.d * 4 * across, n.rows * s.d * 4))
    if tile.normalises:
        moved.append(store("key sums", n.chunks * T * 4 * tiles))
    exps = n.chunks * tiles * C * (T if tile.gates < 0 else 1) if tile.gates else 0
    return Form(fla.STATES, tuple(moved), exponentials=exps, **product_work([(T, T, C)], n.chunks * tiles, s.e))


def _outputs(s: Shape, tile: fla.StatesTile) -> Form:
    n, width = Counts.of(s, C), delta.OUTPUT_COLUMNS
    blocks = -(-s.dv // width)
    wide = n.rows * width * blocks * s.e
    moved = [
        n.keys("Q", blocks), n.keys("K", blocks), load("states", n.chunks * s.d * width * blocks * s.e),
        load("V", wide), store("O", wide),
    ]  # fmt: skip
    if tile.gates:
        moved.append(load("g sums", n.rows * 4 * blocks, n.rows * 4))
    if tile.normalises:
        moved.append(load("key sums", n.chunks * s.d * 4 * blocks, n.chunks * s.d * 4))
    work = product_work([(C, width, s.d), (C, C, s.d), (C, width, C)], n.chunks * blocks, s.e)
    exps = n.chunks * blocks * C * (C + 1) if tile.gates else 0
    return Form(fla.OUTPUTS, tuple(moved), exponentials=exps, **work)


def _channel_outputs(s: Shape) -> Form:
    n, width = Counts.of(s, C), delta.OUTPUT_COLUMNS
    blocks = -(-s.dv // width)
    q, g, a, wide = n.rows * s.d * s.e, n.rows * s.d * 4, n.rows * C * 4, n.rows * width * blocks * s.e
    moved = (
        load("Q", q * blocks, q), load("g sums", g * blocks, g),
        load("states", n.chunks * s.d * width * blocks * s.e), load("V", wide), load("A of Q", a * blocks, a),
        store("O", wide),
    )  # fmt: skip
    work = product_work([(C, width, s.d), (C, width, C)], n.chunks * blocks, s.e)
    return Form(fla.OUTPUTS, moved, exponentials=n.chunks * blocks * C * s.d, **work)


def delta_net(w: Workload, schedule: Schedule, tile: fla.DeltaNetTile) -> list[Form]:
    """Gated DeltaNet's kernels with neither decays nor exponentials."""
    gates = DeltaTile(gates=w.element_bytes, before=0, after=0, unit=False)
    forms = gated.chunked_delta(w, schedule, gates)
    return [
        replace(one, moved=tuple(item for item in one.moved if item.tensor != "g sums"), exponentials=0)
        for one in forms
    ]


def mamba(w: Workload, schedule: Schedule, tile: ssd.SsdTile) -> list[Form]:
    """The five kernels of chunks of 256."""
    s, length, t = Shape.of(w), ssd.CHUNK, ssd.TILE
    n, fine = Counts.of(s, length), Counts.of(s, t)
    across, down = -(-s.dv // t), s.d // t
    tiles, keys, per = across * down, ssd.keys_seen(), length // t
    passing = -(-s.d * s.dv // ssd.STEP) * ssd.STEP
    pairs = s.sequences * s.key_heads * s.chunks(length) * per * per
    own = (
        load("V", n.rows * t * across * down * s.e, n.rows * t * across * s.e),
        n.keys("K", across),
        load("g sums", n.rows * 4 * tiles, n.rows * 4), load("steps", n.rows * 4 * tiles, n.rows * 4),
        store("own states", n.chunks * t * t * tiles * 4),
    )  # fmt: skip
    handed = (
        load("own states", n.chunks * passing * 4),
        load("g sums", n.chunks * 4 * passing // ssd.STEP, n.chunks * 4),
        store("states", n.chunks * passing * s.e), store("state", s.states * passing * 4),
    )  # fmt: skip
    rows = pairs * t * s.d * s.e
    scan = (
        fine.keys("Q", across),
        load("states", fine.chunks * s.d * t * across * s.e, fine.chunks * s.d * t * across * s.e // per),
        load("Q K^T", fine.chunks * t * keys * across * 4, fine.chunks * t * keys * 4 // s.group),
        load("V", fine.chunks * t * keys * across * s.e),
        load("g sums", n.rows * 4 * across, n.rows * 4),
        load("steps", fine.chunks * keys * 4 * across, fine.chunks * keys * 4),
        store("O", n.rows * t * across * s.e),
    )  # fmt: skip
    outputs = product_work([(t, t, s.d), (t, t, keys)], fine.chunks * across, s.e)
    return [
        transfer(ssd.STEPS, [("dt", n.rows * s.e)], [("g sums", n.rows * 4), ("steps", n.rows * 4)], n.chunks * length),
        Form(
            ssd.OWN, own, exponentials=n.chunks * tiles * length,
            **product_work([(t, t, length)], n.chunks * tiles, s.e),
        ),
        Form(ssd.PASSING, handed, exponentials=n.chunks * passing // ssd.STEP),
        Form(
            ssd.PRODUCTS,
            (load("Q", rows, rows // per), load("K", rows, rows // per), store("Q K^T", pairs * t * t * 4)),
            **product_work([(t, t, s.d)], pairs, s.e),
        ),
        Form(ssd.SCAN, scan, exponentials=fine.chunks * across * t * (1 + keys), **outputs),
    ]  # fmt: skip
