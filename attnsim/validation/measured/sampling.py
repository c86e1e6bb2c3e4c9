"""Few rows of many, evenly from every kind of shape: the same every time, and nested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnsim.models.errors import InputError
from attnsim.validation.fitting.fit import BANDS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

FEW_HEADS = 64
"""Most heads times batch that `attnsim.validation.fitting.fit.groups` calls few."""


def strata(frame: pd.DataFrame) -> NDArray[np.int64]:
    """The stratum of each row.

    Parameters
    ----------
    frame : pandas.DataFrame
        With columns ``batch, heads_q, seq_q, seq_kv, head_dim`` and ``window`` (0 without one).

    Returns
    -------
    ndarray
        ``[rows, 4]``: band of lengths, many heads or few, head_dim (the groups of
        `attnsim.validation.fitting.fit.groups`), and whether there is a window.
    """
    band = np.searchsorted([high for _, high in BANDS], np.maximum(frame["seq_q"], frame["seq_kv"]))
    many = frame["heads_q"] * frame["batch"] > FEW_HEADS
    return np.stack([band, many, frame["head_dim"], frame["window"] > 0], axis=1).astype(np.int64)


def even_sample(stratum: NDArray[np.int64], size: int, seed: int) -> NDArray[np.bool_]:
    """Choose `size` rows, one of every stratum in turn until they suffice.

    Parameters
    ----------
    stratum : ndarray
        ``[rows, ...]`` as `strata` gives it.
    size : int
        All rows when there are fewer.
    seed : int
        Of the order within the strata. The same seed gives the same rows, and more of them contain fewer.

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
