"""The blocks of a grid: classes of equal blocks, launch order, and shared tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.schedule.schedule import Launch, TensorUse
from attnsim.ptx.skeleton import GlobalAccesses, GridRecord

Access = tuple[str, str]
""""load" or "store", and the argument."""


@dataclass(frozen=True, eq=False, slots=True)
class Blocks:
    """The blocks of a grid in classes of equal behaviour.

    Parameters
    ----------
    of_block : ndarray of int ``[blocks]``
        Class of each block, in launch order.
    visits : ndarray of int ``[classes, instructions]``
        Lanes that reach each branch and each access to global memory.
    moved : tuple of mapping
        Bytes that a block of each class accesses, by :data:`Access`.
    """

    of_block: Ints
    visits: Ints
    moved: tuple[Mapping[Access, int], ...]

    @property
    def count(self) -> int:
        """Number of classes."""
        return len(self.moved)

    def first(self, number: int) -> int:
        """Return the first block of a class."""
        return int(np.argmax(self.of_block == number))


def blocks_of(record: GridRecord) -> Blocks:
    """Group blocks with equal numbers of visits of each instruction and equal bytes."""
    blocks = record.visits.shape[1]
    names = list(dict.fromkeys((one.direction, one.argument) for one in record.accesses))
    moved = np.zeros((len(names), blocks), np.int64)
    for one in record.accesses:
        np.add.at(moved[names.index((one.direction, one.argument))], one.blocks, one.sizes)
    rows = np.concatenate([record.visits, moved])
    used = rows.any(axis=1)
    _, firsts, inverse = np.unique(rows[used], axis=1, return_index=True, return_inverse=True)
    order = np.argsort(firsts)  # classes are numbered in the order in which they come
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    firsts = firsts[order]
    return Blocks(
        rank[inverse.reshape(-1)],
        record.visits[:, firsts].T,
        tuple({name: int(size) for name, size in zip(names, moved[:, at], strict=True) if size} for at in firsts),
    )


def launches(of_block: Ints) -> tuple[Launch, ...]:
    """Return the launch order; a repeating pattern of classes becomes one launch with a repeat count."""
    blocks = len(of_block)
    for length in range(1, blocks // 2 + 1):
        if blocks % length == 0 and np.array_equal(of_block[length:], of_block[:-length]):
            return (Launch(of_block[:length].astype(np.int64), blocks // length),)
    return (Launch(of_block.astype(np.int64)),)


def uses_of(accesses: Sequence[GlobalAccesses], sizes: Mapping[str, int]) -> tuple[TensorUse, ...]:
    """Return how blocks share the tensors: blocks that access common bytes share a piece.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes of each argument.
    """
    groups: dict[Access, list[GlobalAccesses]] = defaultdict(list)
    for one in accesses:
        groups[one.direction, one.argument].append(one)
    found = []
    for (direction, argument), parts in groups.items():
        blocks = np.concatenate([one.blocks for one in parts])
        starts = np.concatenate([one.starts for one in parts])
        bytes_ = np.concatenate([one.sizes for one in parts])
        found.append(_use(direction, argument, blocks, starts, bytes_, sizes[argument], ("load", argument) in groups))
    return tuple(found)


def _use(direction: str, argument: str, blocks: Ints, starts: Ints, bytes_: Ints, most: int, read: bool) -> TensorUse:
    places, index = np.unique(starts, return_inverse=True)
    held = np.zeros(len(places), np.int64)
    np.maximum.at(held, index, bytes_)
    unique = min(int(held.sum()), most)
    pairs = np.unique(np.stack([blocks, index]), axis=1)
    piece = _pieces(pairs, int(blocks.max()) + 1, len(places))[np.unique(pairs[0])]
    pieces, runs = len(np.unique(piece)), 1 + int(np.count_nonzero(np.diff(piece)))
    own = int(held[pairs[1]].sum())  # bytes of the pieces that blocks go over, each once a block
    passes = max(1.0, round(int(bytes_.sum()) / own, 3))
    return TensorUse(
        argument,
        unique,
        (1.0, runs / pieces, float(pieces), len(piece) / runs),
        passes_per_block=passes,
        written=direction == "store",
        in_place=direction == "store" and read,
    )


def _pieces(pairs: Ints, blocks: int, places: int) -> Ints:
    """Return the piece of each block: the lowest block that it shares bytes with, directly or through others."""
    label = np.arange(blocks)
    while True:
        lowest = np.full(places, blocks)
        np.minimum.at(lowest, pairs[1], label[pairs[0]])
        new = label.copy()
        np.minimum.at(new, pairs[0], lowest[pairs[1]])
        if np.array_equal(new, label):
            return label
        label = new
