"""Where sparse attention begins to pay: the density below which it beats dense flash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache as cache_of_calls

from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, ask, read_conditions, read_gpu
from attnsim.api.crossover import bisected
from attnsim.api.prediction import Prediction
from attnsim.models.calibrations.choose import choose
from attnsim.models.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.own.sparse_tiles import choose_tile, counts_of
from attnsim.models.mask.block_patterns import Random
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

BLOCK = 64
"""Tokens of a block of the patterns: BigBird's, and the smallest tile of the kernel."""
STEPS = 100
"""Densities told apart, or as many as there are blocks in a row if those are fewer."""


PATTERNS: dict[str, Callable[[int, Mask], Mask]] = {
    "random": lambda blocks, band: Mask(parts=(Random(blocks, BLOCK),)) & band,
    "window": lambda blocks, band: Mask.sliding_window(blocks * BLOCK, band.is_causal),
    "bigbird": lambda blocks, band: Mask.bigbird(BLOCK, random_blocks=blocks) & band,
}
"""Patterns that grow from one block of keys a row to all of them: how many blocks, and the band around them."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The density at which a sparse kernel and dense flash take equally long.

    Parameters
    ----------
    gpu : str
    seq : int
    tile : str
        Of the sparse kernel.
    tile_given : bool
        Whether it was asked for, rather than taken for this length.
    pattern : str
    mask : str
        The densest mask found under which the sparse kernel is not slower; the sparsest where it always is.
    density : float
        Visible pairs over those of dense attention: that mask's, 1 where even the densest pays, 0 where none does.
    tiles, all_tiles : int
        Tiles of a head that are visited under the mask, and all.
    sparse_s, dense_s : float
        Times of the two.
    sparse, dense : str
        Implementations.
    trust : str
        Whose numbers both times are made with.
    """

    gpu: str
    seq: int
    tile: str
    tile_given: bool
    pattern: str
    mask: str
    density: float
    tiles: int
    all_tiles: int
    sparse_s: float
    dense_s: float
    sparse: str
    dense: str
    trust: str

    def to_dict(self) -> dict[str, object]:
        """The fields, ready for JSON."""
        return asdict(self)


def breakeven(
    workload: Workload,
    gpu: Gpu | str,
    seqs: Sequence[int] = (4096, 16384, 65536),
    *,
    tiles: Sequence[str | tuple[int, int] | None] = (None,),
    pattern: str = "random",
    dense: str | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[BreakEven]:
    """The density below which the fused sparse kernel beats dense flash attention, for each length and tile.

    A pattern of blocks of 64 tokens grows from one block a row to all of them; the number of blocks at which the fast
    replays of both take equally long is bisected.

    Parameters
    ----------
    workload : Workload
        Heads, widths and format; its mask is the band around the pattern, full or causal, and its lengths are not used.
    gpu : Gpu or str
    seqs : sequence of int
        Lengths, as many queries as keys.
    tiles : sequence of str, (int, int) or None
        Tiles of the sparse kernel, rows x keys; None is the one that the operation takes for each mask.
    pattern : {"random", "window", "bigbird"}
        Which blocks: any; the nearest; three of window and two global, and beside them any.
    dense : str, optional
        Implementation to beat, by default the best for the GPU.
    done : callable
        Called after each answer.

    Raises
    ------
    InputError

    Examples
    --------
    >>> row = breakeven(Workload(1, 16, 1, 128), "a100-sxm4-80gb", [2048])[0]
    >>> row.dense, 0.5 < row.density < 1
    ('flash-attn.2', True)
    """
    where, band = read_gpu(gpu), workload.mask
    if band not in (Mask.full(), Mask.causal()):
        raise InputError(f"breakeven is asked for with the mask {band}; allowed: full, causal (the pattern is grown)")
    if pattern not in PATTERNS:
        raise InputError(f"pattern is {shown(pattern)}; {nearest(str(pattern), PATTERNS)}; all: {', '.join(PATTERNS)}")
    ways = [read_conditions(tile=tile) for tile in tiles]
    rows = []
    for seq in seqs:
        question = replace(workload, seq_q=seq, seq_kv=seq)
        to_beat = answer(ask(question, where, "flash", dense))
        for conditions in ways:
            rows.append(_row(question, where, conditions, pattern, to_beat))
            done()
    return rows


def _row(question: Workload, gpu: Gpu, conditions: Conditions, pattern: str, dense: Prediction) -> BreakEven:
    """The most blocks a row for which sparse is not slower."""
    band, most, target = question.mask, -(-question.seq_kv // BLOCK), _time(dense)

    @cache_of_calls
    def sparse(blocks: int) -> Prediction:
        w = replace(question, mask=band if blocks == most else PATTERNS[pattern](blocks, band))
        return answer(ask(w, gpu, "sparse", "fused", conditions))

    def pays(blocks: int) -> bool:
        return _time(sparse(blocks)) <= target

    blocks, ever = 1, pays(1)
    if ever:
        blocks = most if pays(most) else bisected(pays, 1, most, max(1, most // STEPS))
    found = sparse(blocks)
    counts = counts_of(found.workload, choose_tile(found.workload, gpu, conditions.tile))
    return BreakEven(
        gpu=gpu.id,
        seq=question.seq_q,
        tile=found.tile,
        tile_given=conditions.tile is not None,
        pattern=pattern,
        mask=str(found.workload.mask),
        density=found.workload.visible_pairs / question.visible_pairs if ever else 0.0,
        tiles=int(counts.visits.sum()),
        all_tiles=counts.tiles.row_tiles * counts.tiles.key_tiles,
        sparse_s=_time(found),
        dense_s=target,
        sparse=found.implementation,
        dense=dense.implementation,
        trust="; ".join((_whose_numbers(found, gpu), _whose_numbers(dense, gpu))),
    )


def _whose_numbers(found: Prediction, gpu: Gpu) -> str:
    """Whose numbers a time is made with, and how far it may be off where they are another's."""
    chosen, trust = choose(find_implementation(found.implementation), gpu), found.trust
    if chosen.own:
        return f"{found.implementation}: its own numbers on {gpu.architecture}"
    return f"{chosen.reason}, 90 % range {trust.low:.2g} to {trust.high:.2g} of the time"


def _time(found: Prediction) -> float:
    if found.time_s is None:
        raise InputError(f"{found.implementation} on {found.gpu}: {'; '.join(found.notes)}; take fewer heads or keys")
    return found.time_s
