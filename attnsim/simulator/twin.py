"""Entry to the compiled twin of the engine: converts a kernel's program and blocks to flat arrays and plays them.

`engine.py` defines the replay; `tests/unit/test_twin.py` compares this file and :mod:`attnsim.simulator.compiled` with
it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np

from attnsim.arrays import Ints
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.compiled import (
    BLOCK,
    DONE,
    GROUP,
    HBM_FREE,
    L2_FREE,
    LAUNCH,
    NEVER,
    NOW,
    WAITED,
    WHOLE,
    Flat,
    Record,
    State,
    advance,
    begin,
    outstanding,
)
from attnsim.simulator.program import Played, Program

AT_ONCE = 1 << 22
"""Wake-ups of warpgroups between two progress reports: some tenths of a second."""


def play(
    kernel: Kernel,
    program: Program,
    sms: int,
    slots_per_sm: int,
    progress: Callable[[int], None] | None = None,
    rows: Ints | None = None,
) -> Played:
    """Replay the blocks of `kernel`; parameters and answer are those of :func:`attnsim.simulator.players.by_simpy`.

    `progress` is called now and then with the number of blocks that have ended.
    """
    flat = _flat(kernel, program)
    rows = np.arange(kernel.blocks) if rows is None else rows
    state, record = _begun(flat, rows, program, sms, slots_per_sm)
    while not advance(flat, state, record, program.warpgroups, AT_ONCE):
        if progress is not None:
            progress(int(state.whole[DONE]))
    whole = state.whole
    if whole[LAUNCH] < len(flat.times) or (state.slots[:, 2] >= 0).any():
        raise RuntimeError("a thread block waits for a load that its loop nest never starts")
    time = max(whole[NOW], whole[L2_FREE], whole[HBM_FREE], state.units[:, 2].max(), 1)
    loaded, stored = whole[WHOLE:].reshape(2, -1).tolist()
    return Played(int(time), record.ends, record.order, int(whole[WAITED]), tuple(loaded), tuple(stored), record.spent)


def _flat(kernel: Kernel, program: Program) -> Flat:
    classes, segments, repeats = kernel.runs_of
    runs = np.empty((len(classes), 2), np.int64)
    runs[:, 0], runs[:, 1] = segments, repeats
    launches = kernel.launches
    return Flat(
        program.table[program.index],
        program.begins,
        runs,
        classes.searchsorted(np.arange(len(kernel.repeats) + 1)),
        launches[0].classes if len(launches) == 1 else np.concatenate([one.classes for one in launches]),
        np.array([0, *accumulate(map(len, launches))]),
        np.array([launch.times for launch in launches]),
    )


def _begun(flat: Flat, rows: Ints, program: Program, sms: int, slots_per_sm: int) -> tuple[State, Record]:
    """Initial state: every slot is about to take its first block."""
    members, tensors, slots = program.warpgroups, len(program.tensors), sms * slots_per_sm
    *loads, mmas = outstanding(flat, tensors).tolist()
    ring, depth = (1 << (most - 1).bit_length() for most in (max(loads, default=1), mmas))
    groups = slots * members
    size = groups + (slots if members > 1 else 0)
    state = State(
        np.full((2 << (size - 1).bit_length(), 2), NEVER),
        np.zeros((size, 2), np.int64),
        np.zeros((groups, GROUP + 2 * tensors + depth), np.int64),
        np.full((2 * slots, BLOCK + 2 * tensors), -1),
        np.zeros((2 * slots, tensors, ring), np.int64),
        np.zeros((slots, 3), np.int64),
        np.zeros((sms, 4), np.int64),
        np.zeros(WHOLE + 2 * tensors, np.int64),
    )
    begin(state, members)
    ends, order = np.zeros((2, len(rows)), np.int64)
    return state, Record(ends, order, rows, np.zeros((rows.max() + 1, program.marks), np.int64))
