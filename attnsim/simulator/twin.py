"""The compiled twin of the engine: a kernel's program and blocks as flat arrays, and the play of them.

Nothing is defined here. `engine.py` says what a replay is, and `tests/unit/test_twin.py` holds this file and
:mod:`attnsim.simulator.compiled` to it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter

import numpy as np

from attnsim.models.arrays import Ints
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.compiled import (
    BEGIN,
    BLOCK,
    DONE,
    GROUP,
    HBM_FREE,
    L2_FREE,
    LAUNCH,
    LEAVES,
    NEVER,
    NOW,
    PUTS,
    SIZE,
    SLOT,
    WAITED,
    WHOLE,
    Flat,
    Record,
    State,
    advance,
    jit,  # noqa: F401 (used by players.faster)
)
from attnsim.simulator.played import Played
from attnsim.simulator.program import LOAD, MARK, MMA_ASYNC, MMA_WAIT, WAIT, Program

COPY = attrgetter("port", "l2", "own_l2", "hbm", "own_hbm", "latency", "size")
"""Columns of an operation that stand in its copy."""
CHANGE = np.zeros(MARK + 1, np.int64)
"""What each kind of operation changes of the loads, or asynchronous MMAs, that are outstanding."""
CHANGE[[LOAD, MMA_ASYNC]], CHANGE[[WAIT, MMA_WAIT]] = 1, -1
AT_ONCE = 1 << 22
"""Times that warpgroups wake up between two calls of who watches the play: some tenths of a second."""


def play(
    kernel: Kernel, program: Program, sms: int, slots_per_sm: int, told: Callable[[int], None] | None = None
) -> Played:
    """Replay the blocks of `kernel`; parameters and answer are those of :func:`attnsim.simulator.players.by_simpy`.

    `told` is called now and then with the number of blocks that have ended.
    """
    flat = _flat(kernel, program)
    state, record = _begun(flat, kernel.blocks, program, sms, slots_per_sm)
    while not advance(flat, state, record, program.warpgroups, AT_ONCE):
        if told is not None:
            told(int(state.whole[DONE]))
    whole = state.whole
    if whole[LAUNCH] < len(flat.times) or (state.slots[:-1, 2] >= 0).any():
        raise RuntimeError("a thread block waits for a load that its loop nest never starts")
    time = max(whole[NOW], whole[L2_FREE], whole[HBM_FREE], state.units[:, 2].max())
    loaded, stored = whole[WHOLE:].reshape(2, -1).tolist()
    return Played(int(time), record.ends, record.order, int(whole[WAITED]), tuple(loaded), tuple(stored), record.spent)


def _flat(kernel: Kernel, program: Program) -> Flat:
    ops = [(*step[:4], *COPY(step[4])) for steps in program.segments for step in steps]
    table = kernel.repeats.reshape(len(kernel.repeats), -1)
    classes, places = np.nonzero(table > 0)
    runs = np.stack([places % len(program.segments), table[classes, places]], axis=1)
    return Flat(
        np.array(ops, dtype=np.int64).reshape(-1, SIZE + 1),
        _begins([len(steps) for steps in program.segments]),
        runs,
        np.searchsorted(classes, np.arange(len(table) + 1)),
        np.concatenate([launch.classes for launch in kernel.launches]),
        _begins([len(launch.classes) for launch in kernel.launches]),
        np.array([launch.times for launch in kernel.launches], dtype=np.int64),
    )


def _begins(sizes: list[int]) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _begun(flat: Flat, blocks: int, program: Program, sms: int, slots_per_sm: int) -> tuple[State, Record]:
    """A machine on which every slot is about to take its first block."""
    members, tensors, slots = program.warpgroups, len(program.tensors), sms * slots_per_sm
    *loads, mmas = _outstanding(flat, tensors).tolist()
    ring, depth = (1 << (most - 1).bit_length() for most in (max(loads, default=1), mmas))
    groups, number = slots * members, np.arange(slots)
    size = groups + (slots + 1 if members > 1 else 0)
    taking = number + (groups if members > 1 else 0)  # the leaf of each slot
    leaves = np.zeros((size, 2), np.int64)
    leaves[:, SLOT] = slots
    leaves[:groups, SLOT] = np.arange(groups) // members
    leaves[taking] = np.stack([np.full(slots, BEGIN), number], axis=1)
    node = 1 << (size - 1).bit_length()
    due = np.full((2 * node, 2), NEVER)
    due[node + taking] = np.stack([np.zeros(slots, np.int64), number << LEAVES | taking], axis=1)
    while node > 1:
        node //= 2
        due[node : 2 * node] = due[2 * node : 4 * node].reshape(node, 2, 2).min(axis=1)
    state = State(
        due,
        leaves,
        np.zeros((groups, GROUP + 2 * tensors + depth), np.int64),
        np.full((2 * slots + 2, BLOCK + 2 * tensors), -1),
        np.zeros((2 * slots, tensors, ring), np.int64),
        np.zeros((slots + 1, 3), np.int64),
        np.zeros((sms, 3), np.int64),
        np.zeros(WHOLE + 2 * tensors, np.int64),
    )
    state.slots[:slots, 0] = number % sms
    state.whole[PUTS] = slots
    ends, order = np.zeros((2, blocks), np.int64)
    return state, Record(ends, order, np.zeros((blocks, program.marks), np.int64))


def _outstanding(flat: Flat, tensors: int) -> Ints:
    """Most loads of each tensor that a block has issued and not waited for; last, asynchronous MMAs likewise."""
    kind, tensor = flat.ops[:, :2].T
    change = np.zeros((len(kind) + 1, tensors + 1), np.int64)
    column = np.where(np.isin(kind, (LOAD, WAIT)), tensor, tensors)
    change[np.arange(1, len(change)), column] = CHANGE[kind]
    level = change.cumsum(axis=0)
    peak = np.array([(level[first : last + 1] - level[first]).max(axis=0) for first, last in pairwise(flat.segments)])
    segment, turns = flat.runs[:, 0], flat.runs[:, 1:]
    turn = np.diff(level[flat.segments], axis=0)[segment]
    after = (turn * turns).cumsum(axis=0)
    before = after - turn * turns
    begun = np.repeat(flat.classes[:-1], np.diff(flat.classes))  # the first run of the class of each
    most = before - before[begun] + peak[segment] + np.maximum(turn, 0) * (turns - 1)
    return np.asarray(most.max(axis=0, initial=1))
