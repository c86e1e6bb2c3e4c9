"""The density below which sparse attention beats dense flash, and the length from which an algorithm beats another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import groupby
from typing import Unpack

from attnsim.api.answer import Answer, played
from attnsim.api.answering import answer
from attnsim.api.asking import Calibrated, Conditions, Given, Question, ask, read_conditions, read_gpu
from attnsim.api.comparing.densities import (
    BLOCK,
    FEWER,
    PATTERNS,
    Against,
    Grown,
    check_masks,
    check_pattern,
    sparse_names,
)
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import unit_text
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import LARGEST, Workload
from attnsim.wording import number

FINER = by_hand(1.25, "tiles visited over pairs visible from which on a pattern is finer than the tile")
TENTH = 0.1
"""Density at which a speedup is told where nobody's own mask is."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The density at which a sparse kernel and dense flash take equally long.

    Parameters
    ----------
    at : Against
        The densest mask found under which the sparse kernel is not slower; the sparsest where it always is.
    density : float
        Visible pairs over those of dense attention: that mask's, 1 where even the densest pays, 0 where none does.
    density_low, density_high : float
        Those at which the low and the high end of the speedup's 90 % range is 1: below the first it pays nineteen times
        in twenty, above the second once in twenty.
    pattern : str
    block : int
        Tokens of a block of the pattern.
    tile_given : bool
        Whether the tile was asked for, rather than taken for this length.
    trust : str
        Whose numbers both times are made with.
    yours : Against, optional
        The answer under the mask that was asked about.
    points : tuple of Against
        The pattern at every density that was played, the sparsest first.
    """

    at: Against
    density: float
    density_low: float
    density_high: float
    pattern: str
    block: int
    tile_given: bool
    trust: str
    yours: Against | None = None
    points: tuple[Against, ...] = field(default=(), repr=False)

    @property
    def band(self) -> str:
        """The density with its range: "41 % (33-49)"."""
        low, high = (number(100 * one, 2) for one in (self.density_low, self.density_high))
        return f"{number(100 * self.density, 3)} % ({low}-{high})"

    @property
    def expected(self) -> Against:
        """The comparison under the mask that was asked about, else under the pattern at about a tenth of the pairs."""
        return self.yours or min(self.points, key=lambda point: abs(point.density - TENTH))

    def to_dict(self) -> dict[str, object]:
        """The break-even and the mask that was asked about, without the points, ready for JSON."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _NESTED}
        yours = None if self.yours is None else self.yours.to_dict()
        return {**self.at.to_dict(), **own, "yours": yours}


_NESTED = ("at", "yours", "points")


SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of the key blocks at which the curve is played whatever comes out."""
STEPS = 100
"""Densities told apart, or as many as there are blocks in a row if those are fewer."""


def breakeven(
    workload: Workload,
    gpu: Gpu | str,
    seqs: Sequence[int] = (4096, 16384, 65536),
    *,
    tiles: Sequence[str | tuple[int, int] | None] = (None,),
    pattern: str = "random",
    block: int = BLOCK,
    sparse: Sequence[str] = (),
    dense: str | None = None,
    cache: str = "warm",
    launch: str = "stream",
    calibration: Calibrated = None,
    done: Callable[[], None] = lambda: None,
) -> list[BreakEven]:
    """The density below which a sparse kernel beats dense flash attention, for each length, kernel and tile.

    A pattern of blocks grows from one block a row to all of them; the number of blocks at which the fast replays of
    both take equally long is bisected, and so are those at which an end of the speedup's 90 % range is 1.

    Parameters
    ----------
    workload : Workload
        Heads, widths and format; its lengths are not used. A full or causal mask is the band around the pattern. Any
        other mask is answered too, beside the pattern in the band that it lies in (`BreakEven.yours`).
    gpu : Gpu or str
    seqs : sequence of int
        Lengths, as many queries as keys.
    tiles : sequence of str, (int, int) or None
        Tiles of the sparse kernels, rows x keys; None is the one that a kernel takes for each mask. Where `sparse` is
        not given, a kernel is left out of a tile that it does not have and the other has.
    pattern : {"random", "window", "bigbird"}
        Which blocks: any; the nearest; three of window and two global, and beside them any.
    block : int
        Tokens of a block.
    sparse : sequence of str
        Sparse implementations, by default the best for the GPU and our own kernel.
    dense : str, optional
        Implementation to beat, by default the best for the GPU.
    cache, launch, calibration
        As for :func:`attnsim.predict`.
    done : callable
        Called after each length and tile.

    Raises
    ------
    InputError
        Bad input, in one line; also where a call does not fit the memory.

    Examples
    --------
    >>> row = breakeven(Workload(1, 16, 1, 128), "a100-sxm4-80gb", [2048])[0]
    >>> row.at.dense, 0.5 < row.density < 1, row.density_low < row.density
    ('flash-attn.2', True, True)
    """
    where = read_gpu(gpu)
    check_pattern(pattern)
    if not 1 <= block <= LARGEST["seq_kv"]:
        raise InputError(f"block is {shown(block)}; allowed: 1 to {LARGEST['seq_kv']} tokens")
    if seqs and block > min(seqs):
        raise InputError(f"block is {block} tokens, more than the {min(seqs)} of the sequence; a row needs one or more")
    plain = read_conditions(cache=cache, launch=launch, calibration=calibration)
    by_tile = [read_conditions(tile=tile, cache=cache, launch=launch, calibration=plain.own) for tile in tiles]
    band = Mask.causal() if workload.mask.is_causal else Mask.full()
    rows = []
    for seq in seqs:
        question = replace(workload, seq_q=seq, seq_kv=seq, mask=band)
        yours = None if workload.mask == band else workload.mask
        to_beat = played(answer(ask(question, where, "flash", dense, plain)), FEWER)
        first = PATTERNS[pattern](1, BLOCK, band)
        names = sparse_names(question, where, first, sparse or (None, "attnsim.sparse"))
        for conditions in by_tile:
            found, refused = [], []
            for name in names:
                try:
                    grown = Grown(question, where, name, conditions, pattern, block, to_beat)
                    found.append(_row(grown, yours, conditions))
                except InputError as error:
                    refused.append(error)
            done()
            if refused and (sparse or not (found and conditions.tile)):
                raise refused[-1]
            rows += found
    return rows


def _row(grown: Grown, yours: Mask | None, conditions: Conditions) -> BreakEven:
    """One kernel on one tile at one length."""
    most = grown.most
    shares = sorted({max(1, round(share * most)) for share in (1 / most, *SHARES)})
    check_masks(grown.question, [grown.mask(blocks) for blocks in shares])
    for blocks in shares:
        grown.at(blocks)
    crossing, low, high = (
        _last(holds, shares, max(1, most // STEPS))
        for holds in (
            lambda blocks: grown.at(blocks).sparse_s <= grown.at(blocks).dense_s,
            lambda blocks: grown.at(blocks).speedup.low >= 1,
            lambda blocks: grown.at(blocks).speedup.high >= 1,
        )
    )
    found = grown.at(crossing or 1)
    return BreakEven(
        at=found,
        density=found.density if crossing else 0.0,
        density_low=grown.at(low).density if low else 0.0,
        density_high=grown.at(high).density if high else 0.0,
        pattern=grown.pattern,
        block=grown.block,
        tile_given=conditions.tile is not None,
        trust="; ".join(_whose_numbers(one) for one in (grown.sparse(grown.mask(crossing or 1)), grown.dense)),
        yours=grown.under(yours) if yours is not None else None,
        points=tuple(grown.points[blocks] for blocks in sorted(grown.points)),
    )


def _last(holds: Callable[[int], bool], tried: Sequence[int], within: int) -> int | None:
    """The most blocks for which something holds, which holds up to some number; None where it never does."""
    failing = next((number for number, blocks in enumerate(tried) if not holds(blocks)), len(tried))
    if failing in (0, len(tried)):
        return tried[-1] if failing else None
    return bisected(holds, tried[failing - 1], tried[failing], within)


def _whose_numbers(found: Answer[Question]) -> str:
    """Whose numbers a time is made with, and how far it may be off where they are another's."""
    chosen, trust = found.run.chosen, found.trust
    if chosen.own:
        return f"{found.implementation}: its own numbers on {found.architecture}"
    return f"{chosen.reason}, 90 % range {trust.low:.2g} to {trust.high:.2g} of the time"


def verdict(rows: Sequence[BreakEven]) -> list[str]:
    """Whether to write a sparse kernel, what to expect of it, and what its tile asks of the pattern.

    Parameters
    ----------
    rows : sequence of BreakEven
        As :func:`attnsim.api.comparing.breakeven.breakeven` returns them.

    Returns
    -------
    list of str
        A paragraph a GPU and length.
    """
    return [
        f"{gpu}, {seq:,} tokens: {_paragraph(list(some))}"
        for (gpu, seq), some in groupby(rows, key=lambda row: (row.at.machine, row.at.seq))
    ]


def _paragraph(rows: Sequence[BreakEven]) -> str:
    best = max(rows, key=lambda row: row.expected.speedup.value if row.yours else row.density)
    called = f"{best.at.sparse} is called as {find_implementation(best.at.sparse).calls[-1]}."
    return " ".join(filter(None, (_when(best), _what(best, rows), _tiles(rows), called)))


def _when(best: BreakEven) -> str:
    whose = f"as {best.at.sparse} runs it on tiles of {best.at.shape}"
    if best.density == 0:
        return f"sparse attention does not pay, not even one block of {best.block} keys a row ({whose})."
    low, high = (number(100 * one, 2) for one in (best.density_low, best.density_high))
    sure = [f"below {low} % nineteen times in twenty"] if best.density_low < 1 else []
    sure += [f"above {high} % once in twenty"] if best.density_high < 1 else []
    until = f"below {number(100 * best.density, 2)} % of the pairs" if best.density < 1 else "at every density"
    doubt = f" ({', '.join(sure)})" if sure else ""
    return f"sparse attention pays {until}, {whose}{doubt}."


def _what(best: BreakEven, rows: Sequence[BreakEven]) -> str:
    point = best.expected
    share = f"{number(100 * point.density, 3)} %"
    others = [f"{row.expected.speedup} as {row.at.sparse} on {row.at.shape}" for row in rows if row is not best]
    against = f", against {'; '.join(others)}" if others else ""
    gain = point.speedup
    text = f"expect {gain} over {best.at.dense}, busiest {unit_text(point.busiest)}{against}."
    if best.yours is None:
        return f"At {share} of the pairs {text}"
    worth = "It pays" if gain.low >= 1 else "It may pay" if gain.high > 1 else "It does not pay"
    return f"Your mask shows {share}. {worth}: {text}"


def _tiles(rows: Sequence[BreakEven]) -> str:
    """Tiles visited for a pattern that is finer than them, and a remedy; empty where none is."""
    found = []
    for row in rows:
        point = row.expected
        visited = point.tiles / point.all_tiles
        if visited > FINER * point.density:
            found.append(f"{row.at.sparse} {number(100 * visited, 3)} % of its tiles of {point.shape}")
    if not found:
        return ""
    better = "better are blocks as large as a tile (--block) or smaller tiles (--tile)"
    return f"Visited for them: {', '.join(found)}; {better}."


SHORTEST, LONGEST = 64, 1 << 20
"""Lengths between which a crossover is looked for where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """The length at which one algorithm overtakes another as sequences grow.

    Parameters
    ----------
    slower, faster : str
        The algorithms: `faster` wins in long sequences.
    gpu : str
    seq : int or None
        Shortest length from which `faster` is the faster one, to within `step`: the shortest asked for where it always
        is, None where it is not even at the longest.
    time_s : float or None
        Time of `faster` there.
    seq_by_flops : int or None
        The same with useful FLOPs in place of times.
    """

    slower: str
    faster: str
    gpu: str
    seq: int | None
    time_s: float | None
    seq_by_flops: int | None


def crossover(
    slower: str,
    faster: str,
    question: Workload,
    gpu: Gpu | str,
    *,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
    step: int = 64,
    **given: Unpack[Given],
) -> Crossover:
    """The length from which `faster` beats `slower`, by the fast replay.

    Lengths are halved from the longest that fits the GPU's memory with `faster` until it is no longer faster, then
    bisected; where whole waves make times cross more than once, the crossing found is the last one on the halved
    lengths. An algorithm that does not fit loses.

    Parameters
    ----------
    slower, faster : str
        Algorithms, as for `predict`; ``NAME@N`` included, and ``NAME/IMPLEMENTATION`` for one that is not the default.
    question : Workload
        Its lengths are replaced, those of the keys alone where it decodes; its mask applies to what plays it.
    gpu : Gpu or str
    shortest, longest : int
        Lengths to look between.
    step : int
        Lengths are multiples of it.
    tiles, tile, mode, cache, launch, budget, progress, calibration
        As for `predict`.

    Raises
    ------
    InputError
        When an algorithm does not run the question, or the lengths are none.

    Examples
    --------
    >>> question = Workload(batch=1, heads_q=16, seq_q=1, head_dim=64)
    >>> found = crossover("flash", "linear", question, "a100-sxm4-80gb")
    >>> found.seq_by_flops
    64
    """
    if not 1 <= step <= shortest < longest <= LARGEST["seq_q"]:
        raise InputError(
            f"lengths are {shortest} to {longest} in steps of {step}; allowed: 1 <= step <= shortest < longest <= "
            f"{LARGEST['seq_q']}"
        )
    where, conditions = read_gpu(gpu), read_conditions(**given)

    def asked(name: str, seq: int) -> Question:
        algorithm, _, implementation = name.partition("/")
        w = at_length(question, seq)
        return ask(w, where, algorithm, implementation or None, conditions, in_comparison=True)

    @cache
    def time_s(name: str, seq: int) -> float:
        found = answer(asked(name, seq)).time_s
        return math.inf if found is None else found

    def wins(seq: int) -> bool:
        return time_s(faster, seq) < time_s(slower, seq)

    def costs_less(seq: int) -> bool:
        return useful_flops(faster, seq) <= useful_flops(slower, seq)

    mechanisms = {name: asked(name, longest).mechanism for name in (slower, faster)}

    def useful_flops(name: str, seq: int) -> int:
        return mechanisms[name].useful(mechanisms[name].in_comparison(at_length(question, seq))).flops

    fitting = longest
    while fitting // 2 >= shortest and math.isinf(time_s(faster, fitting)):
        fitting //= 2
    seq = _first(wins, shortest, fitting, step)
    return Crossover(
        slower,
        faster,
        where.id,
        seq,
        None if seq is None else time_s(faster, seq),
        _first(costs_less, 1, longest, 1),
    )


def at_length(question: Workload, seq: int) -> Workload:
    """The question with so many tokens: queries and keys, or keys alone where it decodes."""
    return replace(question, seq_kv=seq) if question.passes == "decode" else replace(question, seq_q=seq, seq_kv=seq)


def _first(holds: Callable[[int], bool], shortest: int, longest: int, step: int) -> int | None:
    """The smallest multiple of `step` from which on `holds` is true, found by halving and bisection."""
    low, high = -(-shortest // step), longest // step
    if not holds(high * step):
        return None
    while high > low and holds(max(low, high // 2) * step):
        high = max(low, high // 2)
    if high == low:
        return low * step
    return step * bisected(lambda place: holds(place * step), high, max(low, high // 2))


def bisected(holds: Callable[[int], bool], true: int, false: int, within: int = 1) -> int:
    """A number for which `holds`, at most `within` from one for which it does not, between one of each kind."""
    while abs(true - false) > within:
        middle = (true + false) // 2
        true, false = (middle, false) if holds(middle) else (true, middle)
    return true
