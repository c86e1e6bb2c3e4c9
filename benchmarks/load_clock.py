"""The SM clock that strangers' rows imply, by GPU and source: what `clock.free` of a GPU's file rests on.

A card that is not cold, in a room that is not NVIDIA's, runs below its boost clock. Of each source that states no clock
the rows are taken that the clock decides (half of it makes them 1.6 times as slow or slower) and on which no number was
fitted. The clock implied is the one at which the median of predicted over measured time is 1.

    python benchmarks/load_clock.py
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.validation.measured.datasets import Row, grouped, predict_all, published_cases, row_of
from attnsim.validation.measured.sources import sources

ROOMS = ("NVIDIA AIConfigurator", "NVIDIA cuDNN")
"""Laboratories of cold chips: their rows are taken at boost."""
SHARES = np.linspace(0.6, 1.05, 10)
"""Clocks tried, over the boost clock."""
DECIDED = 1.6
LONG_S = 100e-6
"""Shorter calls are launches and latencies."""


def strangers() -> list[Row]:
    """Rows of sources that state no clock and are nobody's cold chip, on which no number of theirs rests."""
    found = []
    for case in published_cases("fit", "choose", "test", "strangers"):
        source = sources()[case.source]
        if source.laboratory in ROOMS or case.clock_mhz or (case.time_s or 0) < LONG_S:
            continue
        row = row_of(case)
        own = calibrations().get((row.record.name, row.gpu.architecture))
        if own is not None and row.case.source not in own.sources:
            found.append(row)
    return found


def logs_at(rows: Sequence[Row], share: float) -> np.ndarray:
    """log(predicted / measured) of rows at a share of the boost clock."""
    there = [
        Row(row.case, row.workload, row.gpu.with_values({"clock.free": share * row.gpu.clock.boost_hz}), row.record)
        for row in rows
    ]
    times = predict_all([(row, choose(row.record, row.gpu).numbers) for row in there])
    return np.log([time / row.measured_s for row, time in zip(there, times, strict=True)])


def main() -> None:
    rows = strangers()
    logs = np.array([logs_at(rows, share) for share in SHARES])
    slope = (logs[0] - logs[-1]) / np.log(SHARES[-1] / SHARES[0])
    decided = np.flatnonzero(slope > np.log(DECIDED) / np.log(2))
    for gpu, mine in grouped(decided, lambda at: rows[at].gpu.base_id).items():
        by_source = grouped(mine, lambda at: (sources()[rows[at].case.source].laboratory, rows[at].record.name))
        boost_mhz, implied = rows[mine[0]].gpu.clock.boost_hz / 1e6, []
        for (laboratory, name), some in by_source.items():
            over = np.median(logs[:, some], axis=1)
            implied.append(float(np.interp(0, over[::-1], SHARES[::-1])))
            told = f"{implied[-1]:.3f} of boost, {implied[-1] * boost_mhz:.0f} MHz"
            print(f"{gpu:16} {laboratory:22} {name:22} {len(some):3} rows {told}")
        print(f"{gpu:16} median {median(implied):.3f}")


if __name__ == "__main__":
    main()
