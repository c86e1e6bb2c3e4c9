"""A few held-out rows of every kind of measurement, by a rule that looks at no error: what a picture can wait for.

All rows are some thousand predictions, more than a minute; a picture is asked for in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mechanisms import ALGORITHMS
from attnsim.validation.fitting.held_out import HeldOut, held_out_predictions
from attnsim.validation.measured.datasets import Row, published_rows
from attnsim.validation.measured.own_tables import own_rows

DENSE = "dense"
PASSES = {"decode": "decode", "fwd": "forward"}
"""What a line calls a pass; the others are training."""


def group_of(implementation: str) -> str:
    """What kind of attention an implementation runs: "dense", "sparse", "linear" or "sharing"."""
    runs = IMPLEMENTATIONS[implementation].runs
    return ALGORITHMS[runs].group if runs in ALGORITHMS else DENSE


def line_of(row: Row) -> str:
    """The line of a row: whose kernels, what kind where it is not dense, and which pass, "vllm linear, decode"."""
    group = group_of(row.record.name)
    kind = "" if group == DENSE else f" {group}"
    return f"{row.record.library}{kind}, {PASSES.get(row.case.passes, 'training')}"


def sampled(each: int) -> list[HeldOut]:
    """Published rows and our own, at most so many of a line, predicted by every fold that did not see them.

    The rows of a line are put in order of their measured time, cut into `each` equal parts, and the one in the middle
    of each part is taken.
    """
    lines: dict[str, list[Row]] = {}
    for row in (*published_rows(), *own_rows()):
        lines.setdefault(line_of(row), []).append(row)
    return held_out_predictions([row for rows in lines.values() for row in _spaced(rows, each)])


def _spaced(rows: Sequence[Row], each: int) -> Iterable[Row]:
    ordered = sorted(rows, key=lambda row: row.measured_s)
    if len(ordered) <= each:
        return ordered
    ends = np.linspace(0, len(ordered), each + 1)
    return [ordered[int((begin + end) / 2)] for begin, end in pairwise(ends)]
