"""Kinds of shape among measured rows: the groups that a fit leaves out whole, and even samples over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnsim.errors import InputError
from attnsim.validation.measured.datasets import Row

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

SHORTEST = 512
"""Fewest tokens of a prefill or training row that is fitted on; shorter rows time launches, not attention."""
BANDS = ((0, 1024), (1025, 4096), (4097, 1 << 30))
"""Bands of the longer of seq_q and seq_kv."""
FEW_HEADS = 64
"""Largest heads times batch that counts as few heads."""


def usable(row: Row) -> bool:
    """Whether a row may be fitted on."""
    return row.case.passes == "decode" or max(row.case.seq_q, row.case.seq_kv) >= SHORTEST


def groups(row: Row) -> dict[str, str]:
    """The group that a row belongs to in each split: "band" (length and number of heads) and "head_dim"."""
    case = row.case
    length = max(case.seq_q, case.seq_kv)
    low = next(low for low, high in BANDS if low <= length <= high)
    heads = "few" if case.heads_q * case.batch <= FEW_HEADS else "many"
    return {"band": f"length {low}+, {heads} heads", "head_dim": f"head_dim {case.head_dim}"}


def strata(frame: pd.DataFrame) -> NDArray[np.int64]:
    """The stratum of each row of a table.

    Parameters
    ----------
    frame : pandas.DataFrame
        With columns ``batch, heads_q, seq_q, seq_kv, head_dim`` and ``window`` (0 without one).

    Returns
    -------
    ndarray
        ``[rows, 4]``: band of lengths, many heads or few, head_dim (as in `groups`), and whether there is a window.
    """
    band = np.searchsorted([high for _, high in BANDS], np.maximum(frame["seq_q"], frame["seq_kv"]))
    many = frame["heads_q"] * frame["batch"] > FEW_HEADS
    return np.stack([band, many, frame["head_dim"], frame["window"] > 0], axis=1).astype(np.int64)


def even_sample(stratum: NDArray[np.int64], size: int, seed: int) -> NDArray[np.bool_]:
    """Choose `size` rows: one of every stratum in turn until there are enough.

    Parameters
    ----------
    stratum : ndarray
        ``[rows, ...]`` as `strata` gives it.
    size : int
        All rows are chosen when there are fewer.
    seed : int
        Of the order within each stratum. The same seed gives the same rows, and a larger sample contains a smaller one.

    Raises
    ------
    InputError
        When `size` is below 1.
    """
    if size < 1:
        raise InputError(f"sample is {size}; allowed: 1 or more rows")
    chosen = np.zeros(len(stratum), dtype=np.bool_)
    if len(stratum) == 0:
        return chosen
    _, code, sizes = np.unique(stratum, axis=0, return_inverse=True, return_counts=True)
    order = np.lexsort((np.random.default_rng(seed).random(len(code)), code))
    turn = np.empty(len(code), dtype=np.int64)  # place of a row in the random order of its stratum
    turn[order] = np.arange(len(code)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    chosen[np.lexsort((code, turn))[:size]] = True
    return chosen
