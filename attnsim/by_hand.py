"""Constants chosen by hand: no datasheet and no public source states them, and no fit determines them.

Each is declared in its module, at module level, as ``NAME = by_hand(value, "what it is, and why so much")``.
`attnsim accuracy` lists them with the fitted numbers (:mod:`attnsim.validation.checking.accuracy`).
"""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def by_hand(value: T, meaning: str) -> T:
    """`value`, declared as chosen by hand; `meaning` is a literal that a person reads."""
    del meaning  # read from the source, so that to declare one costs nothing and needs no register
    return value
