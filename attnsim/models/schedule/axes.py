"""A kernel declared once: named axes in tiles, tensors as projections of those axes, and what a block does.

With ``axes = {"b": Axis(batch), "h": Axis(heads_kv), "g": Axis(group), "i": Axis(queries, 128), "j": Axis(keys, 64)}``
and the grid ``"b h g i"`` (slowest first), ``Tensor("K", "b h j", bytes)`` says that the blocks of a group and of all
its row tiles read the same K. From such a declaration follow the classes of blocks, their launch order, and how blocks
share each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.schedule.nest import Nest
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, TensorUse

Rule = Literal["byte", "tile", "run"]
"""Which blocks share a piece of a tensor; a piece has all of the tensor's tiled axes and one place along the others.

``byte``: the blocks that touch each byte. ``tile``: they too, of pieces that are no larger than what a block touches.
``run``: the blocks from the first to the last in launch order that touch the same bytes; `rounds` is how often each
byte is met again.
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a kernel, cut into tiles.

    Parameters
    ----------
    size : int or tuple of int
        Elements; one number for each group of sequences of equal length where lengths differ, in the order of
        :attr:`~attnsim.models.question.workload.Workload.parts`. The batch is then the number of sequences in each.
    tile : int
        Elements of a tile.
    cuts : str
        The axes of which each place along this one has a range of its own (split-KV), ``"j"``.
    """

    size: int | tuple[int, ...]
    tile: int = 1
    cuts: str = ""

    @property
    def sizes(self) -> Ints:
        """Elements of each group of sequences, shape ``[groups]`` or ``[1]``."""
        return np.atleast_1d(np.asarray(self.size, dtype=np.int64))

    @property
    def tiles_of(self) -> Ints:
        """Tiles of each group of sequences, shape ``[groups]`` or ``[1]``."""
        return np.asarray(-(-self.sizes // self.tile), dtype=np.int64)

    def count(self, tile: int = 1) -> int | Ints:
        """Tiles of so many elements; one number where there is one length."""
        size = self.size if isinstance(self.size, tuple) else (self.size,)
        return -(-(size[0] if len(size) == 1 else np.array(size, dtype=np.int64)) // tile)

    @property
    def tiles(self) -> int:
        """Tiles of an axis of one size."""
        return int(_listed(self.count(self.tile))[0])

    @property
    def short(self) -> int:
        """By how many elements the last tile is shorter than a whole one, of an axis of one size."""
        return self.tiles * self.tile - int(_listed(self.count())[0])

    @property
    def missing(self) -> Ints:
        """By how many elements each tile is shorter than a whole one, shape ``[tiles]``, of an axis of one size."""
        return np.where(np.arange(self.tiles) == self.tiles - 1, self.short, 0)


@dataclass(frozen=True, slots=True)
class Override:
    """What a kernel is known to do with a tensor in place of what its axes say; fields as in :class:`TensorUse`.

    Parameters
    ----------
    reason : str
        Why the axes do not say it.
    """

    reason: str
    sharers: float | None = None
    passes_per_block: float | None = None
    apart_bytes: int | None = None
    rounds: float | None = None
    scattered: int | None = None

    def applied(self, use: TensorUse) -> TensorUse:
        """The use with the fields that are given."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "reason"}
        return replace(use, **{name: value for name, value in fields.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a projection of a kernel's axes.

    Parameters
    ----------
    name : str
    axes : str
        The axes that its elements vary along, ``"b h j"``.
    bytes : int
        Of one element of those axes: a row of K.
    written : bool
    by_tile : bool
        Whether `bytes` is of a tile rather than of an element.
    times : float
        How often a block goes over its part.
    just_written, in_place : bool
        As in :class:`TensorUse`.
    seen : tuple of (int or ndarray, float or ndarray), optional
        Of the tiled axis, the elements that any block touches, and how many blocks along the grid's own tiled axis
        touch each of them in the mean (a window). Default: all of them, by all blocks.
    override : Override, optional
    """

    name: str
    axes: str
    bytes: int
    written: bool = False
    by_tile: bool = False
    times: float = 1.0
    just_written: bool = False
    in_place: bool = False
    seen: tuple[Any, Any] | None = None
    override: Override | None = None

    def load(self, n: int = 1) -> TileOp:
        """Start a copy of `n` elements from global memory."""
        return TileOp("load", self.name, bytes=n * self.bytes)

    def wait(self) -> TileOp:
        """Wait for the oldest copy under way."""
        return TileOp("wait", self.name)

    def store(self, n: int = 1) -> TileOp:
        """Write `n` elements to global memory."""
        return TileOp("store", self.name, bytes=n * self.bytes)

    def use(self, axes: Mapping[str, Axis], grid: str, rule: Rule = "byte") -> TensorUse:
        """How the blocks of a `grid`, slowest axis first, share this tensor."""
        outer, own = grid.split(), set(self.axes.split())
        tiles = {a: axes[a].count(axes[a].tile) for a in own.union(outer)}
        shared = [a for a in outer if not own & {a, *axes[a].cuts.split()} and max(_listed(tiles[a])) > 1]
        sharers = touches = math.prod(tiles[a] for a in shared)
        rounds = math.inf
        tiled = {a for a in own if axes[a].tile > 1 or a not in outer}
        if rule == "run":
            run = outer[outer.index(shared[0]) :] if shared else []
            tiled = own.difference(outer) | own.intersection(run)
            sharers = math.prod(tiles[a] for a in run)
            rounds = float(_listed(touches)[0]) if _listed(sharers) != _listed(touches) else math.inf
        elif rule == "tile":
            tiled = own.difference(outer)
        sizes = {a: tiles[a] if self.by_tile else axes[a].count() for a in own}
        if self.seen is not None:
            (part,) = (a for a in tiled if axes[a].tile > 1)
            sizes[part], mean = self.seen
            sharers = mean * math.prod(tiles[a] for a in shared if axes[a].tile == 1)
        of_groups = self.bytes * math.prod(sizes.values())
        if isinstance(sharers, np.ndarray) and not isinstance(of_groups, np.ndarray):
            sharers = sharers.sum()  # the sequences of all groups share it
        each, by = _listed(of_groups), _listed(sharers)
        total, pieces = int(sum(each)), sum(_listed(math.prod(tiles[a] for a in own - tiled)))
        mean = sum(n * s for n, s in zip(each, by * (len(each) // len(by)), strict=True)) / max(1, total)
        use = TensorUse(
            self.name,
            total // max(1, pieces),
            pieces,
            mean if len(each) > 1 else float(by[0]),
            self.times,
            self.written,
            in_place=self.in_place,
            just_written=self.just_written,
            all_bytes=total if len(each) > 1 or total % max(1, pieces) else 0,
            rounds=rounds,
        )
        return self.override.applied(use) if self.override else use


def _listed(numbers: float | Ints) -> list[Any]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else [numbers]


def uses_of(
    tensors: Iterable[Tensor], axes: Mapping[str, Axis], grid: str, rule: Rule = "byte"
) -> tuple[TensorUse, ...]:
    """How the blocks of a kernel share its tensors; of one that is declared twice, the larger use."""
    uses: dict[tuple[str, bool], TensorUse] = {}
    for tensor in tensors:
        use, key = tensor.use(axes, grid, rule), (tensor.name, tensor.written)
        uses[key] = max(uses.get(key, use), use, key=lambda one: one.unique_bytes)
    return tuple(uses.values())


def declared(
    name: str,
    axes: Mapping[str, Axis],
    grid: str,
    tensors: Iterable[Tensor],
    facts: Mapping[str, Ints],
    body: Callable[..., Iterable[Any]],
    *,
    rule: Rule = "byte",
    each: int = 1,
    **resources: Any,
) -> Kernel:
    """A kernel from its declaration.

    Parameters
    ----------
    name : str
    axes : mapping of str to Axis
    grid : str
        The axes of the grid, slowest first.
    tensors : iterable of Tensor
    facts : mapping of str to ndarray
        What the blocks differ in, over the grid's innermost axes but the last `each` blocks: arrays that broadcast;
        empty where all blocks are alike.
    body : callable
        ``body(**facts)`` of the different blocks gives the :data:`Nest` of one.
    rule : str
    each : int
        Blocks next to each other that are alike: the grid's innermost axes that no fact varies along.
    **resources
        Fields of :class:`Kernel`; `launches` where the order is not the grid's, or a function that gives them of the
        classes in the shape of the facts.
    """
    alike = np.broadcast_arrays(*facts.values()) or [np.zeros(1, dtype=np.int64)]
    columns, inverse = classes(*(fact.reshape(-1) for fact in alike))
    nest: Nest = list(body(**dict(zip(facts, columns, strict=bool(facts)))))
    if callable(order := resources.get("launches")):
        resources["launches"] = order(inverse.reshape(alike[0].shape))
    elif order is None:
        blocks = math.prod(axes[a].tiles for a in grid.split())
        once = Launch(inverse, blocks // (inverse.size * each), each)
        resources["launches"] = (Launch.alike(blocks) if inverse.max() == 0 else once,)
    return Kernel.of(nest, name=name, uses=uses_of(tensors, axes, grid, rule), **resources)
