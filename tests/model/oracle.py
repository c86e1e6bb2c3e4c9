"""Attention counted by brute force: every block, every tile, every pair of query and key that the mask shows.

The oracle is told sizes, tile, splits and the mask as booleans. It shares nothing with the builders of schedules: no
row tiles, no classes of blocks, no loops with predicates, no declaration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress, pairwise, product

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Attention:
    """A kernel of attention as the oracle is told it.

    Parameters
    ----------
    seen : ndarray of bool, shape [queries, keys]
        What a query of one head sees.
    tile : (int, int)
        Rows and keys.
    widths : (int, int, int, int)
        head_dim and head_dim_v, and what products pad them to.
    pack : int
        Query heads of a group that lie in the rows of a tile.
    splits : int
        Ranges of key tiles.
    ranges_of : {"all", "seen", "even"}
        Equal shares of all key tiles, of those that a row tile sees, or the most even shares of what it sees.
    outside : {"rows", "keys"}
        What a block holds: rows (the forward pass) or keys (the backward pass).
    gaps : bool
        Whether a block leaves out tiles between those that it visits.
    rescaled : (int, int)
        Exponentials that rescale a row, at its first tile and at each further one.
    """

    batch: int
    heads_kv: int
    group: int
    seen: NDArray[np.bool_]
    tile: tuple[int, int]
    widths: tuple[int, int, int, int]
    pack: int = 1
    splits: int = 1
    ranges_of: str = "all"
    outside: str = "rows"
    gaps: bool = False
    rescaled: tuple[int, int] = (1, 1)
    element: int = 2


@dataclass
class Count:
    """What the blocks of a kernel ask for: bytes by ("load" or "store", tensor), work, and the blocks by both."""

    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    flops: int = 0
    exps: int = 0
    blocks: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add_block(self, moved: Counter[tuple[str, str]], flops: int, exps: int) -> None:
        """Count one block."""
        self.moved += moved
        self.flops += flops
        self.exps += exps
        self.blocks[moved.total(), flops] += 1


def count(a: Attention) -> Count:
    """Count the kernel."""
    found = Count()
    heads = a.batch * a.heads_kv * (a.group // a.pack)
    for _ in range(heads):
        for block in _row_blocks(a) if a.outside == "rows" else _key_blocks(a):
            found.add_block(*block)
    return found


Block = tuple[Counter[tuple[str, str]], int, int]


def _row_blocks(a: Attention) -> Iterator[Block]:
    (m, n), (d, dv, dp, dvp), e = a.tile, a.widths, a.element
    seen = np.repeat(a.seen, a.pack, axis=0)
    for i in range(0, len(seen), m):
        rows = min(m, len(seen) - i)
        for part in _ranges(_visited(seen[i : i + rows], n, a.gaps), -(-seen.shape[1] // n), a):
            moved: Counter[tuple[str, str]] = Counter()
            flops = exps = 0
            if part or a.ranges_of == "even":
                moved["load", "Q"] += rows * d * e
            for number, j in enumerate(part):
                keys = min(n, seen.shape[1] - j * n)
                moved["load", "K"] += keys * d * e
                moved["load", "V"] += keys * dv * e
                flops += 2 * m * n * (dp + dvp)
                exps += m * n + m * a.rescaled[number > 0]
            moved["store", "O"] += rows * dv * (4 if a.splits > 1 else e)
            moved["store", "LSE"] += rows * 4
            yield moved, flops, exps


def _key_blocks(a: Attention) -> Iterator[Block]:
    (m, n), (d, dv, dp, dvp), e = a.tile, a.widths, a.element
    queries, all_keys = a.seen.shape
    for j in range(0, all_keys, n):
        keys = min(n, all_keys - j)
        moved: Counter[tuple[str, str]] = Counter()
        flops = exps = 0
        visits = _visited(a.seen[:, j : j + n].T, m, a.gaps)
        if visits:
            moved["load", "K"] += keys * d * e
            moved["load", "V"] += keys * dv * e
        moved["store", "dK"] += keys * d * e
        moved["store", "dV"] += keys * dv * e
        for i in visits:
            rows = min(m, queries - i * m)
            moved["load", "Q"] += rows * d * e
            moved["load", "dO"] += rows * dv * e
            moved["load", "LSE"] += rows * 4
            moved["load", "D"] += rows * 4
            moved["store", "dQ accum"] += m * dp * 4
            flops += 2 * m * n * (3 * dp + 2 * dvp)
            exps += m * n
        yield moved, flops, exps


def _visited(seen: NDArray[np.bool_], size: int, gaps: bool) -> list[int]:
    """Tiles of so many columns in which any row sees any column; without `gaps` all from the first to the last."""
    tiles = [j for j in range(-(-seen.shape[1] // size)) if seen[:, j * size : (j + 1) * size].any()]
    return tiles if gaps or not tiles else list(range(tiles[0], tiles[-1] + 1))


def _ranges(visited: list[int], key_tiles: int, a: Attention) -> list[list[int]]:
    if a.splits == 1:
        return [visited]
    begin, end = (0, key_tiles) if a.ranges_of == "all" or not visited else (visited[0], visited[-1] + 1)
    if a.ranges_of == "even":
        cuts = [begin + (end - begin) * s // a.splits for s in range(a.splits + 1)]
    else:
        cuts = [begin + -(-(end - begin) // a.splits) * s for s in range(a.splits + 1)]
    return [[j for j in visited if low <= j < high] for low, high in pairwise(cuts)]


def count_gemm(batch: int, shape: tuple[int, int, int], tile: tuple[int, int, int]) -> Count:
    """C[m, n] = A[m, k] B[k, n] of 16 bits: every tile of C, every step of k."""
    (m, n, k), (tm, tn, tk), found = shape, tile, Count()
    for _, i, j in product(range(batch), range(0, m, tm), range(0, n, tn)):
        rows, columns = min(tm, m - i), min(tn, n - j)
        moved: Counter[tuple[str, str]] = Counter()
        flops = 0
        for at in range(0, k, tk):
            depth = min(tk, k - at)
            moved["load", "A"] += rows * depth * 2
            moved["load", "B"] += depth * columns * 2
            flops += 2 * tm * tn * tk
        moved["store", "C"] += rows * columns * 2
        found.add_block(moved, flops, 0)
    return found


def fetches(places: tuple[int, ...], own: tuple[bool, ...], running: int) -> float:
    """How often each part of a tensor is fetched by blocks in the order of a grid, slowest axis first.

    Parameters
    ----------
    places, own : tuple
        Of each axis of the grid, how many there are, and whether each has a part of its own.
    running : int
        Blocks in a row that share what they touch; the next ones find nothing of it.
    """
    touched = [tuple(compress(place, own)) for place in product(*map(range, places))]
    return sum(len(set(touched[n : n + running])) for n in range(0, len(touched), running)) / len(set(touched))
