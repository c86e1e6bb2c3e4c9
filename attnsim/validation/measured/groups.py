"""Groups of measured rows by shape: the held-out groups of fits, and even samples over strata."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.validation.measured.datasets import Row

SHORTEST = 512
"""Fewest tokens of prefill and training rows for fits; shorter rows time launches, not attention."""
BANDS = ((0, 1024), (1025, 4096), (4097, 1 << 30))
"""Bands of the larger of seq_q and seq_kv."""
FEW_HEADS = 64
"""Largest product of heads and batch that counts as few heads."""


def usable(row: Row) -> bool:
    """Return True if a fit may use the row."""
    return row.case.passes == "decode" or max(row.case.seq_q, row.case.seq_kv) >= SHORTEST


def groups(row: Row) -> dict[str, str]:
    """Return a row's group in each split: "band" (length and number of heads) and "head_dim"."""
    case = row.case
    length = max(case.seq_q, case.seq_kv)
    low = next(low for low, high in BANDS if low <= length <= high)
    heads = "few" if case.heads_q * case.batch <= FEW_HEADS else "many"
    return {"band": f"length {low}+, {heads} heads", "head_dim": f"head_dim {case.head_dim}"}


def strata(frame: pd.DataFrame) -> NDArray[np.int64]:
    """Return the stratum of each row of a table.

    Parameters
    ----------
    frame : pandas.DataFrame
        Has columns ``batch, heads_q, seq_q, seq_kv, head_dim`` and ``window`` (0 without one).

    Returns
    -------
    ndarray
        ``[rows, 4]``: band of lengths, 1 for many heads, head_dim (as in `groups`), 1 with a window.
    """
    band = np.searchsorted([high for _, high in BANDS], np.maximum(frame["seq_q"], frame["seq_kv"]))
    many = frame["heads_q"] * frame["batch"] > FEW_HEADS
    return np.stack([band, many, frame["head_dim"], frame["window"] > 0], axis=1).astype(np.int64)


def even_sample(stratum: NDArray[np.int64], size: int, seed: int) -> NDArray[np.bool_]:
    """Choose `size` rows: one of every stratum in turn.

    Parameters
    ----------
    stratum : ndarray
        ``[rows, ...]``, from `strata`.
    size : int
        Number of rows; all rows if there are fewer.
    seed : int
        Of the order within each stratum. Equal seeds give equal rows, and a larger sample contains a smaller one.

    Raises
    ------
    InputError
        If `size` is below 1.
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
