"""One fit as a least-squares problem: rows, free numbers, and residuals of log time in unit coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.by_hand import by_hand
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS, RATES, ImplementationNumbers, Number, Numbers
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.validation.measured.datasets import Row

NOISE = 0.05
"""Residual of a good fit, against which priors are weighed."""
DOUBT = by_hand(0.25, "standard deviation of a prior in unit coordinates: a quarter of the range that is possible")

Key = tuple[str, str]
"""A free number: the implementation it belongs to ("" for a rate of the GPU), and its name."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows to fit on, the numbers that are free, and the values of all others.

    Parameters
    ----------
    rows : tuple of Row
    keys : tuple of (str, str)
        The free numbers; coordinates are in this order.
    implementations : mapping of str to ImplementationNumbers
        Values of the numbers that are not free.
    rates : mapping of str to float
        Shares of a GPU's figures that are not 1 (:data:`attnsim.models.calibrations.numbers.RATES`).
    """

    rows: tuple[Row, ...]
    keys: tuple[Key, ...]
    implementations: Mapping[str, ImplementationNumbers]
    rates: Mapping[str, float] = field(default_factory=dict)

    def definition(self, key: Key) -> Number:
        """Meaning, prior and bounds of a free number."""
        return IMPLEMENTATION_NUMBERS[key[1]] if key[0] else RATES[key[1]]

    def priors(self) -> NDArray[np.float64]:
        """Unit coordinates of the priors, ``[keys]``."""
        return np.array([self.definition(key).coordinate(self.definition(key).prior) for key in self.keys])

    def doubts(self) -> NDArray[np.float64]:
        """Standard deviations of the priors in unit coordinates, ``[keys]``."""
        return np.full(len(self.keys), DOUBT)

    def with_values(self, values: Mapping[Key, float]) -> Problem:
        """The problem with other values of some numbers."""
        records, rates = dict(self.implementations), dict(self.rates)
        for (owner, name), value in values.items():
            if owner:
                records[owner] = replace(records[owner], **{name: value})
            else:
                rates[name] = value
        return replace(self, implementations=records, rates=rates)

    def held(self, keys: Sequence[Key], *, at_prior: bool = True) -> Problem:
        """The problem with these numbers no longer free: at their priors, or at their lowest values."""
        definitions = {key: self.definition(key) for key in keys}
        held = self.with_values({key: one.prior if at_prior else one.low for key, one in definitions.items()})
        return replace(held, keys=tuple(key for key in self.keys if key not in keys))

    def numbers(self, units: NDArray[np.float64]) -> dict[str, Numbers]:
        """Numbers by implementation at unit coordinates ``[keys]``, with the counted instructions that go with them."""
        pairs = zip(self.keys, units.tolist(), strict=True)
        there = self.with_values({key: self.definition(key).value(unit) for key, unit in pairs})
        rates: dict[str, Any] = {**there.rates}
        return {
            name: Numbers(record, counts=IMPLEMENTATIONS[name].counts, **rates)
            for name, record in there.implementations.items()
        }

    def residuals(self, units: NDArray[np.float64], owner: str = "") -> NDArray[np.float64]:
        """log(predicted / measured) of each row, ``[rows]``; with an owner, NaN for the rows of others."""
        numbers = self.numbers(units)
        return np.array(
            [
                math.log(row.predict_s(numbers[row.record.name]) / row.measured_s)
                if owner in ("", row.record.name)
                else math.nan
                for row in self.rows
            ]
        )

    def pulled(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """The residuals, then the pull of each prior, ``[rows + keys]``."""
        return np.concatenate([self.residuals(units), NOISE / self.doubts() * (units - self.priors())])

    def jacobian(self, units: NDArray[np.float64], step: float) -> NDArray[np.float64]:
        """Finite differences of `pulled`, ``[rows + keys, keys]``; a number of one implementation moves only its rows.

        `step` is that of a unit coordinate.
        """
        base = self.residuals(units)
        columns = [np.zeros((len(self.rows), 0))]
        for index, (owner, _) in enumerate(self.keys):
            change = step if units[index] + step <= 1 else -step
            moved = units.copy()
            moved[index] += change
            there = self.residuals(moved, owner)
            columns.append(np.where(np.isnan(there), 0.0, (there - base) / change)[:, None])
        return np.concatenate([np.concatenate(columns, axis=1), np.diag(NOISE / self.doubts())])
