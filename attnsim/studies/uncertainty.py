"""Rates the uncertainty of closed forms, so that replays can replace the uncertain ones.

A closed form knows how much work each unit has, but not when. It is good if one unit determines the time and the others
overlap with it. It is uncertain if

- the second longest of compute, L2 and HBM takes nearly as long as the longest (`BALANCED`): their overlap then
  matters, and only a replay shows it;
- the grid has few waves (`FEW_WAVES`): the last wave and the occupancy of the SMs then matter;
- launches and the fixed time of the call are a large part of the answer (`LAUNCH_SHARE`): in small calls, latencies
  that the closed form adds up may overlap.

Against the replay, on 256 points each of prefill, decode and unfused attention (A100 and H100 with bandwidth, SMs and
tensor rate scaled by 0.5 to 2; benchmarks/sweep_speed.py prints them): of the points without any of these marks, 74 to
81 % are within 10 % (67 % for unfused attention); of the other points, 24 to 27 % (85 %).
"""

from __future__ import annotations

import numpy as np

from attnsim.arrays import Floats
from attnsim.by_hand import by_hand
from attnsim.studies.closed_answers import Closed
from attnsim.studies.closed_form import BOUNDS

BALANCED = by_hand(0.6, "share of the longest of compute, L2 and HBM from which on the second is near it")
"""The errors of decode grow from 0.5 on, those of prefill hardly before 0.9."""
FEW_WAVES = by_hand(4.0, "waves below which the grid's edges count, except where keys are split to fill the chip")
LAUNCH_SHARE = by_hand(0.1, "share of launches and the call's fixed time from which on the call is small")


def uncertainty(closed: Closed) -> Floats:
    """Return the uncertainty of each closed form, ``[points]``; above 1, a replay should replace it."""
    found = closed.estimate
    parts = np.sort(np.stack([found.compute_s, *found.units_s[[BOUNDS.index("l2"), BOUNDS.index("hbm")]]]), axis=0)
    balance = parts[-2] / np.maximum(parts[-1], 1e-300)
    launches = found.units_s[BOUNDS.index("launch")] / found.time_s
    split = np.array([item.split for item in closed.plans], dtype=bool)[closed.which]
    waves = np.where(split, np.inf, found.waves)
    return np.asarray(np.maximum(np.maximum(balance / BALANCED, launches / LAUNCH_SHARE), FEW_WAVES / waves))
