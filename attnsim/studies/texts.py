"""A column of texts of which few differ: a code a point, and what the codes stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Texts:
    """Texts of some points, all empty at first.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count: int) -> None:
        self.codes = np.zeros(count, dtype=np.int64)
        self.values = [""]
        self._code_of = {"": 0}

    def code(self, text: str) -> int:
        """Code of a text, a new one if it is new."""
        if text not in self._code_of:
            self._code_of[text] = len(self.values)
            self.values.append(text)
        return self._code_of[text]

    def put(self, rows: Any, text: str) -> None:
        """Give some points a text."""
        self.codes[rows] = self.code(text)

    @property
    def empty(self) -> NDArray[np.bool_]:
        """Which points have none."""
        return np.asarray(self.codes == 0)
