"""Predictions side by side: a list that becomes a frame, and a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from attnsim.api.prediction import Prediction
from attnsim.wording import html_table

if TYPE_CHECKING:
    import pandas as pd


class Predictions(list[Prediction]):
    """A list of predictions, as :func:`attnsim.compare` gives it.

    Examples
    --------
    >>> import attnsim
    >>> found = attnsim.compare(attnsim.Workload(heads=8, seq="1k", head_dim=64), "l4")
    >>> list(found.to_frame()["algorithm"])
    ['naive', 'flash']
    """

    def __init__(self, found: Iterable[Prediction] = ()) -> None:
        super().__init__(found)

    def to_frame(self) -> pd.DataFrame:
        """A row a prediction, the columns of :meth:`Prediction.row`."""
        import pandas as pd

        return pd.DataFrame([one.row() for one in self])

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"

    def _repr_html_(self) -> str:
        questions = dict.fromkeys(str(one.workload.without_window()) for one in self)
        return html_table("; ".join(questions), [one.shown() for one in self])
