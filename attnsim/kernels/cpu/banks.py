"""Shared-memory banks: how many passes a warp's access takes.

Model: 32 banks of 4 bytes; a pass serves each bank once, and any number of lanes that want the same word. Accesses of
8 bytes go by half warps and of 16 bytes by quarter warps, ``ldmatrix`` by matrices (eight rows of 16 bytes). Source:
NVIDIA, "Volta: Architecture and Performance Optimization" (GTC 2018, S81006), and CUDA C++ Programming Guide, compute
capability 5.x and newer, "Shared Memory". Hardware may merge half or quarter warps that want the same words; counts
of conflicts here are then too high.
"""

from __future__ import annotations

import numpy as np

from attnsim.kernels.cpu.lanes import WARP, Mask, Values
from attnsim.kernels.cpu.loops import compiled

BANK_BYTES = 4
ROW_BYTES = 128


def passes(addresses: Values, width: int, mask: Mask) -> tuple[int, int]:
    """Passes of one access by all active lanes, and how many of them are due to conflicts.

    Parameters
    ----------
    addresses : ndarray ``[active]``
        Byte addresses in the block's shared memory, multiples of `width`.
    width : int
        Bytes per lane: 1, 2, 4, 8 or 16.
    mask : Mask
    """
    unit = max(width, BANK_BYTES)
    groups = ROW_BYTES // unit
    phase_lanes = min(groups, WARP)
    words = addresses >> (unit.bit_length() - 1)
    fast = compiled()
    if fast:
        total, phases = fast.passes(addresses, mask.index, unit.bit_length() - 1, groups, phase_lanes)
        return total, total - phases
    if mask.in_whole(phase_lanes):
        hits = np.left_shift(1, words & (groups - 1)).reshape(-1, phase_lanes)
        if (np.bitwise_or.reduce(hits, axis=1) == (1 << groups) - 1).all():
            return len(hits), 0
    if len(words) == 0:
        return 0, 0
    # In each phase as many passes as different words fall on one bank.
    phases = mask.index // phase_lanes
    first = phases[0]
    key = np.sort((phases - first) << 32 | words)
    key = key[np.concatenate(([True], key[1:] != key[:-1]))]
    bank = (key >> 32) * groups + (key & (groups - 1))
    per_bank = np.bincount(bank, minlength=(int(phases[-1] - first) + 1) * groups).reshape(-1, groups)
    worst = per_bank.max(axis=1)
    total = int(worst.sum())
    return total, total - int(np.count_nonzero(worst))
