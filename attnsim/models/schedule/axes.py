"""Declaration of a kernel: named axes cut into tiles, tensors as projections of those axes, and the work of a block.

With ``axes = {"b": Axis(batch), "h": Axis(heads_kv), "g": Axis(group), "i": Axis(queries, 128), "j": Axis(keys, 64)}``
and the grid ``"b h g i"`` (slowest first), ``Tensor("K", "b h j", bytes)`` says that the blocks of a group and of all
its row tiles read the same K. The classes of blocks, their launch order, and how blocks share each tensor are derived
from the declaration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.schedule.operation import Nest, TileOp
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch, TensorUse


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a kernel, cut into tiles.

    Parameters
    ----------
    size : int or tuple of int
        Elements. If sequence lengths differ: one number for each group of sequences of equal length, in the order of
        :attr:`~attnsim.models.question.workload.Workload.parts`. The batch is then the number of sequences in each
        group.
    tile : int
        Elements of a tile.
    cuts : str
        Axes of which each position along this one has its own range (split-KV), such as ``"j"``.
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
        """Number of tiles of `tile` elements; one number if there is one length, otherwise one for each group."""
        size = self.size if isinstance(self.size, tuple) else (self.size,)
        return -(-(size[0] if len(size) == 1 else np.array(size, dtype=np.int64)) // tile)

    @property
    def tiles(self) -> int:
        """Tiles of an axis of one size."""
        return int(_listed(self.count(self.tile))[0])

    @property
    def short(self) -> int:
        """Elements missing from the last tile of an axis of one size."""
        return self.tiles * self.tile - int(_listed(self.count())[0])

    @property
    def missing(self) -> Ints:
        """Elements missing from each tile of an axis of one size, shape ``[tiles]``."""
        return np.where(np.arange(self.tiles) == self.tiles - 1, self.short, 0)


class Seen(NamedTuple):
    """The part of a tensor's last axis that blocks touch, if not every block touches all of it.

    Parameters
    ----------
    along : str
        The axis of the grid whose blocks touch a part only.
    elements : int or ndarray of int
        Elements that any block touches.
    near : float or ndarray of float
        Mean number of neighbouring blocks that touch an element (a window).
    later : float
        How often later blocks return to it (a list of tiles).
    """

    along: str
    elements: Any
    near: Any = 1.0
    later: float = 1.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a projection of a kernel's axes.

    Parameters
    ----------
    axes : str
        The axes that its elements vary along, ``"b h j"``.
    bytes : int
        Bytes of one element of those axes, such as a row of K.
    by_tile : bool
        Whether `bytes` is per tile instead of per element.
    times : float
        How often a block reads or writes its part.
    just_written, in_place : bool
        As in :class:`TensorUse`.
    scattered : int
        As in :class:`TensorUse`.
    seen : Seen, optional
        Default: all blocks touch all of it.
    """

    name: str
    axes: str
    bytes: int
    written: bool = False
    by_tile: bool = False
    times: float = 1.0
    just_written: bool = False
    in_place: bool = False
    scattered: int = 0
    seen: Seen | None = None

    def load(self, n: int = 1) -> TileOp:
        """Start a copy of `n` elements from global memory."""
        return TileOp("load", self.name, bytes=n * self.bytes)

    def wait(self) -> TileOp:
        """Wait for the oldest copy under way."""
        return TileOp("wait", self.name)

    def store(self, n: int = 1) -> TileOp:
        """Write `n` elements to global memory."""
        return TileOp("store", self.name, bytes=n * self.bytes)

    def use(self, axes: Mapping[str, Axis], grid: str) -> TensorUse:
        """Derive how the blocks of a `grid`, slowest axis first, share this tensor."""
        own = self.axes.split()
        sizes = {a: axes[a].count(axes[a].tile if self.by_tile else 1) for a in own}
        if self.seen is not None:
            sizes[own[-1]] = self.seen.elements
        each = np.atleast_1d(self.bytes * math.prod(sizes.values()))
        blocks, first = [1.0], True
        for a in grid.split():
            n, shared = axes[a].count(axes[a].tile), {a, *axes[a].cuts.split()}.isdisjoint(own)
            runs: list[tuple[Any, bool]] = [(n, shared)]
            if shared and self.seen is not None and a == self.seen.along:
                _, _, near, later = self.seen
                runs = [(later, True), (np.maximum(1, n / (near * later)), False), (near, True)]
            for count, alike in runs:
                if alike == len(blocks) % 2:
                    blocks.append(1.0)
                blocks[-1] *= _over_groups(count, each, first)
            first &= np.size(n) == 1
        how = self.written, self.in_place, self.just_written, self.scattered
        return TensorUse(self.name, int(each.sum()), tuple(blocks), self.times, *how)


def along(axes: str, sizes: Mapping[str, int], **alike: Any) -> tuple[Tensor, ...]:
    """Tensors along the same axes, by their bytes; `alike` are further fields of :class:`Tensor`."""
    return tuple(Tensor(name, axes, size, **alike) for name, size in sizes.items())


def _listed(numbers: float | Ints) -> list[Any]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else [numbers]


def _over_groups(counts: Any, weights: Ints, first: bool) -> float:
    """Positions along an axis whose count differs by group of sequences: their sum if `first`, otherwise their mean."""
    if np.size(counts) == 1 or first:
        return float(np.sum(counts))
    return float(np.average(counts, weights=np.broadcast_to(np.maximum(1, weights), counts.shape)))


def uses_of(tensors: Iterable[Tensor], axes: Mapping[str, Axis], grid: str) -> tuple[TensorUse, ...]:
    """Derive how the blocks of a kernel share its tensors; the larger use of a tensor that is declared twice."""
    uses: dict[tuple[str, bool], TensorUse] = {}
    for tensor in tensors:
        use, key = tensor.use(axes, grid), (tensor.name, tensor.written)
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
    each: int = 1,
    **resources: Any,
) -> Kernel:
    """Build a kernel from its declaration.

    Parameters
    ----------
    grid : str
        The axes of the grid, slowest first.
    facts : mapping of str to ndarray
        Quantities in which blocks differ, over the grid's innermost axes except the last `each` blocks: arrays that
        broadcast. Empty if all blocks are alike.
    body : callable
        ``body(**facts)`` of the distinct blocks returns the :data:`Nest` of one block.
    each : int
        Number of neighbouring blocks that are alike: the product of the innermost axes that no fact varies along.
    **resources
        Fields of :class:`Kernel`. `launches` is given if the order is not the grid's; it may be a function that returns
        them for the classes in the shape of the facts.
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
    return Kernel.of(nest, name=name, uses=uses_of(tensors, axes, grid), **resources)
