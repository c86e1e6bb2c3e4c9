"""How near to its floor anybody has come: the best share of it that a measured call has reached on a chip.

``fastest.csv`` is written from the published measurements by ``benchmarks/fastest.py``. A share is a record, not a
limit: no answer and no range ends at it, but an answer well beyond it says so.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu

TABLE = Path(__file__).with_name("fastest.csv")
LEAST_ROWS = by_hand(20, "measured calls of a pass on a chip from which the nearest to its floor counts as a record")
BEYOND = by_hand(1.1, "times the best measured share of a floor beyond which an answer says that nobody was as fast")
COLUMNS = ("gpu", "pass", "share", "rows", "implementation", "source", "question")


@dataclass(frozen=True, slots=True)
class Fastest:
    """The measured call of a pass that has come nearest to its floor on a chip.

    Parameters
    ----------
    share : float
        Its floor over its time.
    rows : int
        Measured calls among which it is the nearest.
    implementation, source, question : str
        Whose kernel, the key of its source, and what was asked.
    """

    share: float
    rows: int
    implementation: str
    source: str
    question: str

    def remark(self, share: float) -> str:
        """What is said of an answer that reaches this share of its floor; "" where it is not beyond the record."""
        return f"{share:.2f} of its floor; nobody has been this fast: {self}" if share > BEYOND * self.share else ""

    def __str__(self) -> str:
        return f"the nearest of {self.rows} measured calls came to {self.share:.2f} ({self.implementation})"


@lru_cache(maxsize=1)
def _table() -> dict[tuple[str, str], Fastest]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {
            (row["gpu"], row["pass"]): Fastest(
                float(row["share"]), int(row["rows"]), row["implementation"], row["source"], row["question"]
            )
            for row in csv.DictReader(file)
        }


def fastest(gpu: Gpu, passes: str) -> Fastest | None:
    """The nearest of a pass on a chip; None on a changed GPU, and where too few were measured to be a record."""
    found = None if gpu.changes else _table().get((gpu.base_id, passes))
    return found if found and found.rows >= LEAST_ROWS else None
