"""Compares profilers' pipe utilisation with the share of the call that the replay keeps the unit busy."""

from __future__ import annotations

import csv
from typing import Any

from attnsim.models.calibrations.choose import choose
from attnsim.models.question.case_row import parse_row
from attnsim.validation.measured.datasets import row_of
from attnsim.validation.measured.sources import MEASUREMENTS


def shares_table() -> list[dict[str, Any]]:
    """Return the shares of ``measurements/shares.csv``, which no fitted number rests on.

    Returns
    -------
    list of dict
        ``gpu, implementation, profiler, measured, predicted, off``: shares of a call. `predicted` is the share of the
        busiest unit among those that the profiler's figure covers; `off` is predicted minus measured.
    """
    table = []
    with (MEASUREMENTS / "shares.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            row = row_of(parse_row(line))
            played = row.replay(choose(row.record, row.gpu).numbers)
            busy = [played.units_s().get(unit, 0.0) for unit in line["units"].split()]
            measured, predicted = float(line["share"]), max(busy) / played.time_s
            names = {"gpu": row.gpu.base_id, "implementation": row.record.name, "profiler": line["profiler"]}
            shares = {"measured": measured, "predicted": predicted, "off": predicted - measured}
            table.append(names | {name: round(share, 4) for name, share in shares.items()})
    return table
