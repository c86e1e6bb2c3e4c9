"""Kernels under masks of growing density: dense flash attention, and sparse ones that visit what the mask shows.

`Grown` plays one sparse kernel against the dense one, mask by mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Unpack

from attnsim.api.answer import Answer, Answers, Outcome, played
from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, Given, Question, ask, read_conditions, read_gpus
from attnsim.api.comparing.ratios import Ratio
from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import Gpu, changes_text
from attnsim.models.mask.block_patterns import Random
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.patterns import Tiles
from attnsim.models.mask.tile_counts import KEYS, ROWS, check_counting
from attnsim.models.question.workload import Workload

BLOCK = 64
"""Tokens of a block of the patterns where none is named: BigBird's."""

PATTERNS: dict[str, Callable[[int, int, Mask], Mask]] = {
    "random": lambda blocks, block, band: Mask(parts=(Random(blocks, block),)) & band,
    "window": lambda blocks, block, band: Mask.sliding_window(blocks * block, band.is_causal),
    "bigbird": lambda blocks, block, band: Mask.bigbird(block, random_blocks=blocks) & band,
}
"""Patterns that grow from one block of keys a row to all of them: how many blocks, their tokens, the band around."""


FEWER = "take fewer heads or keys"
"""The advice where a call does not fit the memory."""


@dataclass(frozen=True, slots=True)
class Against:
    """A sparse kernel against dense flash attention under one mask.

    Parameters
    ----------
    gpu : str
    changes : str
        Of the GPU, in one line.
    seq : int
    sparse, dense : str
        Implementations.
    tile : str
        Of the sparse kernel.
    mask : str
    density : float
        Visible pairs over those of dense attention.
    tiles, all_tiles : int
        Tiles of a head that are visited under the mask, and in dense attention.
    sparse_s, dense_s : float
        Times of the two.
    speedup : Ratio
        Dense over sparse time.
    busiest : str
        Busiest unit of the sparse kernel.
    """

    gpu: str
    changes: str
    seq: int
    sparse: str
    dense: str
    tile: str
    mask: str
    density: float
    tiles: int
    all_tiles: int
    sparse_s: float
    dense_s: float
    speedup: Ratio
    busiest: str

    @property
    def machine(self) -> str:
        """The GPU and its changes."""
        return f"{self.gpu} with {self.changes}" if self.changes else self.gpu

    @property
    def shape(self) -> str:
        """Rows x keys of the tile."""
        return self.tile.partition(",")[0]

    def to_dict(self) -> dict[str, object]:
        """The fields, the speedup as three numbers, ready for JSON."""
        found: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        return found | {"speedup": self.speedup.value, "low": self.speedup.low, "high": self.speedup.high}


@dataclass(frozen=True, eq=False)
class Grown:
    """A sparse kernel under a pattern of so many blocks a row, each played once.

    Parameters
    ----------
    question : Workload
        Its mask is the band around the pattern.
    gpu : Gpu
    name : str
        The sparse implementation.
    conditions : Conditions
    pattern : str
        A name of `PATTERNS`.
    block : int
        Tokens of a block.
    dense : Answer
        Of `question`.
    points : dict of int to Against
        By the number of blocks.
    """

    question: Workload
    gpu: Gpu
    name: str
    conditions: Conditions
    pattern: str
    block: int
    dense: Answer[Question]
    points: dict[int, Against] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """Blocks of a row of the whole band."""
        return -(-self.question.seq_kv // self.block)

    def at(self, blocks: int) -> Against:
        """Under so many blocks a row; all of them are the whole band."""
        if blocks not in self.points:
            self.points[blocks] = self.under(self.mask(blocks))
        return self.points[blocks]

    def mask(self, blocks: int) -> Mask:
        """The mask of so many blocks a row."""
        return grown_mask(self.pattern, blocks, self.block, self.question)

    def sparse(self, mask: Mask) -> Answer[Question]:
        """The sparse kernel's answer under a mask."""
        asked = ask(replace(self.question, mask=mask), self.gpu, "sparse", self.name, self.conditions)
        return played(answer(asked), FEWER)

    def under(self, mask: Mask) -> Against:
        """The kernel under a mask, against the dense one."""
        found, w = self.sparse(mask), replace(self.question, mask=mask)
        ratio = found.speedup_over(self.dense)
        assert ratio is not None  # both fit
        tile: Any = found.run.schedule.tile  # rows x keys, as every sparse kernel has one
        visits, every = (
            int(one.tile_counts(w.seq_q, w.seq_kv, tile.rows, tile.keys).visits.sum())
            for one in (found.workload.mask, self.question.mask)
        )
        return Against(
            gpu=self.gpu.id,
            changes=changes_text(self.gpu.changes),
            seq=w.seq_q,
            sparse=found.implementation,
            dense=self.dense.implementation,
            tile=found.tile,
            mask=str(w.mask),
            density=w.visible_pairs / self.question.visible_pairs,
            tiles=visits,
            all_tiles=every,
            sparse_s=found.time_s,
            dense_s=self.dense.time_s,
            speedup=ratio,
            busiest=found.busiest,
        )


def grown_mask(pattern: str, blocks: int, block: int, question: Workload) -> Mask:
    """The pattern of so many blocks a row within the question's band; all of them are the band."""
    band, most = question.mask, -(-question.seq_kv // block)
    return band if blocks == most else PATTERNS[pattern](blocks, block, band)


def sparse_names(question: Workload, gpu: Gpu, mask: Mask, asked: Iterable[str | None]) -> list[str]:
    """The sparse implementations that are asked for, each once; None is the best under the mask."""
    patterned = replace(question, mask=mask)
    return list(dict.fromkeys(ask(patterned, gpu, "sparse", name).record.name for name in asked))


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that nobody knows.

    Raises
    ------
    InputError
        Naming the nearest.
    """
    if pattern not in PATTERNS:
        raise InputError(f"pattern is {shown(pattern)}; {nearest(str(pattern), PATTERNS)}; all: {', '.join(PATTERNS)}")


def check_masks(w: Workload, masks: Sequence[Mask]) -> None:
    """Refuse masks whose tiles take too long to count, all of them together.

    Raises
    ------
    InputError
        When they take too long.
    """
    check_counting((mask.parts for mask in masks), Tiles(ROWS, KEYS, w.seq_q, w.seq_kv))


SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Shares of the key blocks of a row."""
USUAL = ("attnsim.sparse", "gather")
"""Beside the best sparse kernel for a GPU: our own, and gathering blocks for batched GEMMs."""


def densities(
    workload: Workload,
    gpu: Gpu | str | Sequence[Gpu | str],
    *,
    pattern: str = "random",
    block: int = BLOCK,
    sparse: Sequence[str] = (),
    dense: str | None = None,
    shares: Sequence[float] = SHARES,
    done: Callable[[], None] = lambda: None,
    **given: Unpack[Given],
) -> Answers:
    """Predict sparse kernels under a pattern of growing density, and dense flash attention beside them.

    Parameters
    ----------
    workload : Workload
        A full or causal mask is the band around the pattern, and what the dense kernel runs.
    gpu : Gpu, str, or a sequence of them
    pattern : {"random", "window", "bigbird"}
        As for :func:`attnsim.breakeven`.
    block : int
        Tokens of a block.
    sparse : sequence of str
        Sparse implementations; by default the best for the GPU, our own and `transformers.gather`.
    dense : str, optional
        The dense implementation, by default the best for the GPU.
    shares : sequence of float
        Of the key blocks of a row, above 0 and up to 1.
    done : callable
        Called after each GPU.
    given
        Conditions as for :func:`attnsim.predict`.

    Returns
    -------
    Answers
        Of each GPU the dense kernel once, then each sparse kernel from the sparsest mask to the densest.

    Raises
    ------
    InputError
        Bad input, in one line: a pattern, block or share that is not allowed.

    Examples
    --------
    >>> found = densities(Workload(1, 16, 4096, 64), "a100-sxm4-80gb", shares=[0.1, 1.0])
    >>> [one.implementation for one in found]
    ['flash-attn.2', 'attnsim.sparse', 'attnsim.sparse', 'transformers.gather', 'transformers.gather']
    """
    machines = read_gpus(gpu)
    check_pattern(pattern)
    band, blocks = Mask.causal() if workload.mask.is_causal else Mask.full(), -(-workload.seq_kv // block)
    if workload.mask != band:
        raise InputError(f"mask is '{workload.mask}'; allowed: full or causal, the pattern grows within it")
    if not 1 <= block <= workload.seq_kv:
        raise InputError(f"block is {block} tokens; allowed: 1 to the {workload.seq_kv} of the sequence")
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError("a share of the blocks is not above 0 and up to 1; give some such as 0.01, 0.1, 1")
    counts = sorted({max(1, round(share * blocks)) for share in shares})
    masks = [grown_mask(pattern, count, block, workload) for count in counts]
    check_masks(workload, masks)
    conditions = read_conditions(**given)
    found: list[Outcome] = []
    for machine in machines:
        found.append(answer(ask(workload, machine, "flash", dense, conditions)))
        found += [
            answer(ask(replace(workload, mask=mask), machine, "sparse", name, conditions))
            for name in sparse_names(workload, machine, masks[0], sparse or (None, *USUAL))
            for mask in masks
        ]
        done()
    return Answers(found)
