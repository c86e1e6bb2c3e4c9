"""Where sparse attention begins to pay: the density below which it beats dense flash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, ask, read_conditions, read_gpu
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


def _window(blocks: int, band: Mask) -> Mask:
    return Mask.sliding_window(blocks * BLOCK, band.is_causal)


def _random(blocks: int, band: Mask) -> Mask:
    return Mask(parts=(Random(blocks, BLOCK),)) & band


def _bigbird(blocks: int, band: Mask) -> Mask:
    return Mask.bigbird(BLOCK, random_blocks=blocks) & band


PATTERNS: dict[str, Callable[[int, Mask], Mask]] = {"random": _random, "window": _window, "bigbird": _bigbird}
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
            rows.append(_Search(question, where, conditions, pattern, to_beat).row())
            done()
    return rows


class _Search:
    """One row: the most blocks for which sparse is not slower."""

    def __init__(self, question: Workload, gpu: Gpu, conditions: Conditions, pattern: str, dense: Prediction) -> None:
        self.question, self.gpu, self.conditions, self.pattern, self.dense = question, gpu, conditions, pattern, dense
        self.target = _time(dense)
        self.most = -(-question.seq_kv // BLOCK)
        self.answers: dict[int, Prediction] = {}

    def answer(self, blocks: int) -> Prediction:
        """The sparse kernel with so many blocks a row."""
        if blocks not in self.answers:
            band = self.question.mask
            w = replace(self.question, mask=band if blocks == self.most else PATTERNS[self.pattern](blocks, band))
            self.answers[blocks] = answer(ask(w, self.gpu, "sparse", "fused", self.conditions))
        return self.answers[blocks]

    def pays(self, blocks: int) -> bool:
        """Whether that is not slower than dense."""
        return _time(self.answer(blocks)) <= self.target

    def row(self) -> BreakEven:
        """Bisect, between one block a row and all of them."""
        low, high = 1, self.most
        if not self.pays(low):
            return self._found(low, pays=False)
        if self.pays(high):
            return self._found(high, pays=True)
        while high - low > max(1, self.most // STEPS):
            middle = (low + high) // 2
            low, high = (middle, high) if self.pays(middle) else (low, middle)
        return self._found(low, pays=True)

    def _found(self, blocks: int, *, pays: bool) -> BreakEven:
        found = self.answer(blocks)
        counts = counts_of(found.workload, choose_tile(found.workload, self.gpu, self.conditions.tile))
        density = found.workload.visible_pairs / self.question.visible_pairs if pays else 0.0
        return BreakEven(
            gpu=self.gpu.id,
            seq=self.question.seq_q,
            tile=found.tile,
            tile_given=self.conditions.tile is not None,
            pattern=self.pattern,
            mask=str(found.workload.mask),
            density=density,
            tiles=int(counts.visits.sum()),
            all_tiles=counts.tiles.row_tiles * counts.tiles.key_tiles,
            sparse_s=_time(found),
            dense_s=self.target,
            sparse=found.implementation,
            dense=self.dense.implementation,
            trust="; ".join((_whose_numbers(found, self.gpu), _whose_numbers(self.dense, self.gpu))),
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
