"""Compiled twin of :mod:`attnsim.simulator.engine`: the same events in the same order, on flat arrays.

A warpgroup is one row of integers and one leaf of a *winner tree*. Every node holds the earlier of the two nodes below
it, so the root holds the next due entry. Leaves are ordered as SimPy orders its heap: by time, then urgency, then the
number of the put. SimPy also queues a warpgroup's end, the end of all warpgroups of a block, and the wake-up of those
that wait for a load. Each of these uses the leaf of its warpgroup or slot, which has nothing else due at that time.

`engine.py` defines the replay; `tests/unit/test_twin.py` compares this file with it.
:mod:`attnsim.simulator.twin` makes the arrays and reads the results.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numba
import numpy as np

from attnsim.arrays import Ints
from attnsim.jit import jit

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise ImportError("NUMBA_DISABLE_JIT is set, nothing is compiled")  # as without numba: attnsim.simulator.players

# All constants that compiled code reads are in this file: numba recompiles it when the file changes, and checks no
# other. Kinds of operation are those of :mod:`attnsim.simulator.program`; a test compares them.
LOAD, WAIT, STORE, MMA, MMA_ASYNC, MMA_WAIT, VECTOR, DELAY, PREFETCH, MARK, END_OF_BLOCK = range(11)
# Columns of an operation.
KIND, TENSOR, ONE, TWO, ISSUE, PORT, L2, OWN_L2, HBM, OWN_HBM, LATENCY, SIZE = range(12)
# Columns of a warpgroup: its position in its block, its own time, its asynchronous MMAs, the load it waits for. Then,
# for each tensor, the loads it has waited for and the loads whose buffer it has freed, and last the ends of its MMAs.
STEP, END, LEFT, RUN, AT, SINCE, LAST_LOAD, ASLEEP, MMA_HEAD, MMA_TAIL = range(10)
FOR_TENSOR, FOR_TURN, FOR_ORDER, GROUP = range(10, 14)
# Columns of a block: its class (-1: none) and its number in launch order. Then, for each tensor,
# the loads issued, and the loads issued before the block began.
CLASS, NUMBER, BLOCK = range(3)
# Columns of a leaf: the event when it is due, and its slot.
EVENT, SLOT = range(2)
RESUME, BEGIN, ENDED, ALL_ENDED, WAKE = range(5)
# Columns of the replay as a whole; then bytes loaded of each tensor, and bytes stored.
NOW, PUTS, WAITS, TAKEN, DONE, LAUNCH, REPEAT, PLACE, WAITED, L2_FREE, HBM_FREE, WHOLE = range(12)

NEVER = np.int64(1) << np.int64(62)
NORMAL = np.int64(1) << np.int64(61)
LEAVES = np.int64(22)
LEAF = (np.int64(1) << LEAVES) - np.int64(1)


in_place = partial(jit, allocates=False)
"""Compiles a function that writes to the arrays it is given and allocates none."""


class Flat(NamedTuple):
    """A kernel's program and blocks as flat arrays."""

    ops: Ints  # [operations, 12], of all segments
    segments: Ints  # [segments + 1]: where each begins
    runs: Ints  # [runs, 2]: (segment, repeats) of every class
    classes: Ints  # [classes + 1]: where the runs of each begin
    order: Ints  # classes in launch order, of all launches
    launches: Ints  # [launches + 1]: where each begins
    times: Ints  # [launches]


class State(NamedTuple):
    """Mutable state of a replay; the columns are listed above."""

    due: Ints  # [nodes, 2]: time and key of the earlier of the two nodes below
    leaves: Ints  # [leaves, 2]
    groups: Ints  # [warpgroups, columns]
    blocks: Ints  # [2 x slots, columns]: the block that runs, and the one after it
    landing: Ints  # [2 x slots, tensors, ring]
    slots: Ints  # [slots, 3]: its SM, which of its two blocks runs, warpgroups that have not ended (-1: no block left)
    units: Ints  # [SMs, 4]: when tensor cores, vector lanes, port and schedulers will be free
    whole: Ints


class Record(NamedTuple):
    """Results recorded for every block."""

    ends: Ints  # [blocks], in order of end
    order: Ints  # [blocks]: their numbers
    rows: Ints  # [blocks]: row of each in `spent`
    spent: Ints  # [rows, marks]


@in_place
def place(index):
    """`index`, declared non-negative so that compiled code skips the check for negative indices."""
    return np.int64(np.uint32(index))


@in_place
def put(due, leaf, time, urgency, puts):
    """Make a leaf due; return whether it is the next due entry."""
    node = leaf + len(due) // 2
    key = urgency | (puts << LEAVES) | leaf
    mine = key
    due[node, 0] = time
    due[node, 1] = key
    while node > 1:
        other = node ^ 1
        that = due[other, 0]
        if that < time or (that == time and due[other, 1] < key):
            time, key = that, due[other, 1]
        node >>= 1
        due[node, 0] = time
        due[node, 1] = key
    return key == mine


@jit
def outstanding(flat, tensors):
    """Most loads of each tensor that a block has issued and not yet waited for; last, its asynchronous MMAs."""
    segments = len(flat.segments) - 1
    turn, peak = np.zeros((segments, tensors + 1), np.int64), np.zeros((segments, tensors + 1), np.int64)
    for segment in range(segments):
        for step in range(flat.segments[segment], flat.segments[segment + 1]):
            kind = flat.ops[step, KIND]
            column = flat.ops[step, TENSOR] if kind == LOAD or kind == WAIT else tensors
            turn[segment, column] += kind == LOAD or kind == MMA_ASYNC
            turn[segment, column] -= kind == WAIT or kind == MMA_WAIT
            peak[segment, column] = max(peak[segment, column], turn[segment, column])
    most = np.ones(tensors + 1, np.int64)
    for column in range(tensors + 1):
        for block_class in range(len(flat.classes) - 1):
            level = 0
            for run in range(flat.classes[block_class], flat.classes[block_class + 1]):
                segment, turns = flat.runs[run, 0], flat.runs[run, 1]
                change = turn[segment, column]
                most[column] = max(most[column], level + peak[segment, column] + max(change, 0) * (turns - 1))
                level += change * turns
    return most


@jit
def begin(state, members):
    """Let every slot take its first block at once."""
    due, leaves, groups, slots, several = state.due, state.leaves, state.groups, state.slots, members > 1
    for slot in range(len(slots)):
        slots[slot, 0] = slot % len(state.units)
        leaves[slot * members : (slot + 1) * members, SLOT] = slot
        leaf = len(groups) + slot if several else slot
        leaves[leaf, EVENT] = BEGIN
        leaves[leaf, SLOT] = slot
        due[len(due) // 2 + leaf, 0] = 0
        due[len(due) // 2 + leaf, 1] = slot << LEAVES | leaf
    for node in range(len(due) // 2 - 1, 0, -1):
        due[node] = due[2 * node + (due[2 * node + 1, 0] < due[2 * node, 0])]
    state.whole[PUTS] = len(slots)


@in_place
def transfer(now, ops, step, units, sm, whole, moved):
    """Book a transfer; return the time at which its last byte has arrived."""
    whole[WHOLE + moved] += ops[step, SIZE]
    through = max(units[sm, 2], now) + ops[step, PORT]
    units[sm, 2] = through
    if ops[step, L2]:
        begin = max(whole[L2_FREE], now)
        whole[L2_FREE] = begin + ops[step, L2]
        through = max(through, begin + (ops[step, OWN_L2] if now else ops[step, L2]))
    if ops[step, HBM]:
        begin = max(whole[HBM_FREE], now)
        whole[HBM_FREE] = begin + ops[step, HBM]
        through = max(through, begin + (ops[step, OWN_HBM] if now else ops[step, HBM]))
    return through + ops[step, LATENCY]


@in_place
def take(flat, whole, blocks, row):
    """Fill a row with the next block of the queue if it is empty; return whether the row holds a block."""
    if blocks[row, CLASS] >= 0:
        return True
    blocks[row, :] = 0
    blocks[row, CLASS] = -1
    launch = whole[LAUNCH]
    if launch == len(flat.times):
        return False
    blocks[row, CLASS] = flat.order[whole[PLACE]]
    blocks[row, NUMBER] = whole[TAKEN]
    whole[TAKEN] += 1
    whole[PLACE] += 1
    if whole[PLACE] == flat.launches[launch + 1]:
        whole[REPEAT] += 1
        if whole[REPEAT] == flat.times[launch]:
            whole[LAUNCH] += 1
            whole[REPEAT] = 0
        else:
            whole[PLACE] = flat.launches[launch]
    return True


@in_place
def end_block(now, record, blocks, row, slots, slot, whole):
    """Record the end of the block in a row; return the row of the block after it."""
    record.ends[whole[DONE]] = now
    record.order[whole[DONE]] = blocks[row, NUMBER]
    whole[DONE] += 1
    blocks[row, CLASS] = -1
    slots[slot, 1] ^= 1
    return row ^ 1


@in_place
def start(now, flat, groups, own, block_class):
    """Set a warpgroup to the first run of its block."""
    groups[own, :] = 0
    groups[own, RUN] = flat.classes[block_class] - 1
    groups[own, AT] = groups[own, SINCE] = now
    groups[own, LAST_LOAD] = groups[own, FOR_TENSOR] = -1


@in_place
def fetch(now, flat, blocks, landing, row, units, sm, whole):
    """Issue the loads at the beginning of a block before the block itself begins."""
    tensors, ring = landing.shape[1], landing.shape[2] - 1
    for run in range(flat.classes[blocks[row, CLASS]], flat.classes[blocks[row, CLASS] + 1]):
        segment = flat.runs[run, 0]
        for _ in range(flat.runs[run, 1]):
            for step in range(flat.segments[segment], flat.segments[segment + 1]):
                kind, tensor = flat.ops[step, KIND], flat.ops[step, TENSOR]
                if kind == LOAD:
                    turn = blocks[row, BLOCK + tensor]
                    landing[row, tensor, turn & ring] = transfer(now, flat.ops, step, units, sm, whole, tensor)
                    blocks[row, BLOCK + tensor] = turn + 1
                    blocks[row, BLOCK + tensors + tensor] += 1
                elif kind != DELAY and kind != MARK:
                    return


@in_place
def all_have(groups, first, members, column, turn):
    """Return whether all warpgroups of a block have freed the buffer of a column's tensor at least `turn` times."""
    for group in range(first, first + members):  # noqa: SIM110 (numba has no generators in its functions)
        if groups[group, column] < turn:
            return False
    return True


@in_place
def longest_waiting(groups, first, members, tensor, turn):
    """Return the warpgroup of a block that has waited longest for a tensor's load; -1 if none waits."""
    found = -1
    for group in range(first, first + members):
        if groups[group, FOR_TENSOR] == tensor and groups[group, FOR_TURN] == turn:
            if found < 0 or groups[group, FOR_ORDER] < groups[found, FOR_ORDER]:
                found = group
    return found


@in_place
def advance(flat, state, record, members, most):
    """Process at most `most` wake-ups of warpgroups; return whether nothing is due any more."""
    due, leaves, groups, blocks, landing, slots, units, whole = state
    ops, tensors = flat.ops, landing.shape[1]
    freed, mmas = GROUP + tensors, GROUP + 2 * tensors
    ring, depth = place(landing.shape[2] - 1), place(groups.shape[1] - mmas - 1)
    several = members > 1
    puts = whole[PUTS]
    waking_tensor, waking_turn, waking_first = np.int64(-1), np.int64(0), np.int64(0)
    while most > 0 or waking_tensor >= 0:
        most -= 1
        own = np.int64(-1)
        if waking_tensor >= 0:  # one event wakes several warpgroups, in the order in which they began to wait
            own = np.int64(longest_waiting(groups, waking_first, members, waking_tensor, waking_turn))
            if own < 0:
                waking_tensor = np.int64(-1)
        woken, now = own >= 0, whole[NOW]
        if not woken:
            now = due[1, 0]
            if now == NEVER:
                whole[PUTS] = puts
                return True
            whole[NOW] = now
            own = due[1, 1] & LEAF
        slot = place(leaves[own, SLOT])
        first = slot * members
        row = place(2 * slot + slots[slot, 1])
        if not woken and leaves[own, EVENT] != RESUME:
            what = leaves[own, EVENT]
            put(due, own, NEVER, NORMAL, puts)
            if what == WAKE:
                leaves[own, EVENT] = RESUME
                waking_tensor, waking_turn, waking_first = groups[own, FOR_TENSOR], groups[own, FOR_TURN], first
                continue
            if what == ENDED:
                slots[slot, 2] -= 1
                if slots[slot, 2] == 0:
                    puts += 1
                    leaf = len(groups) + slot
                    leaves[leaf, EVENT] = ALL_ENDED
                    put(due, leaf, now, NORMAL, puts)
                continue
            if what == ALL_ENDED:
                row = end_block(now, record, blocks, row, slots, slot, whole)
            if not take(flat, whole, blocks, row):
                slots[slot, 2] = -1
                continue
            if several:
                slots[slot, 2] = members
                for group in range(first, first + members):
                    start(now, flat, groups, group, blocks[row, CLASS])  # before any runs: others look at its columns
                    puts += 1
                    leaves[group, EVENT] = RESUME
                    put(due, group, now, 0, puts)
                continue
            start(now, flat, groups, own, blocks[row, CLASS])
            leaves[own, EVENT] = RESUME
        sm = place(slots[slot, 0])
        step, end, at = groups[own, STEP], groups[own, END], groups[own, AT]
        if woken:
            landed = max(landing[row, waking_tensor, waking_turn & ring], now)
            whole[WAITED] += landed - at
            at = landed
            groups[own, FOR_TENSOR] = -1
            groups[own, GROUP + waking_tensor] += 1
            step += 1
        while True:
            if step < end:
                step = place(step)
                kind, tensor = ops[step, KIND], place(ops[step, TENSOR])
            elif groups[own, LEFT] > 0:
                groups[own, LEFT] -= 1
                step = flat.segments[flat.runs[groups[own, RUN], 0]]
                continue
            elif groups[own, RUN] + 1 < flat.classes[blocks[row, CLASS] + 1]:
                groups[own, RUN] += 1
                segment = flat.runs[groups[own, RUN], 0]
                groups[own, LEFT] = flat.runs[groups[own, RUN], 1] - 1
                step, end = flat.segments[segment], flat.segments[segment + 1]
                continue
            else:
                kind, tensor = END_OF_BLOCK, 0
            turn, landed, known = np.int64(0), np.int64(0), True
            if kind == WAIT:
                turn = groups[own, GROUP + tensor]
                known = turn < blocks[row, BLOCK + tensor]
                landed = landing[row, tensor, turn & ring]
                if known and landed <= at:
                    groups[own, GROUP + tensor] = turn + 1
                    step += 1
                    continue
            elif kind == DELAY:
                at += ops[step, ONE]
                step += 1
                continue
            elif kind == MMA_WAIT:
                at = max(at, groups[own, mmas + (groups[own, MMA_HEAD] & depth)])
                groups[own, MMA_HEAD] += 1
                step += 1
                continue
            elif kind == MARK:
                record.spent[record.rows[blocks[row, NUMBER]], tensor] += at - groups[own, SINCE]
                groups[own, SINCE] = at
                step += 1
                continue
            elif kind == LOAD and groups[own, freed + tensor] < blocks[row, BLOCK + tensors + tensor]:
                groups[own, freed + tensor] += 1
                step += 1
                continue
            if at > now:
                puts += 1
                if not put(due, own, at, NORMAL, puts) or waking_tensor >= 0:  # all woken warpgroups resume first
                    break
                now = at
                whole[NOW] = now
            if kind == MMA or kind == MMA_ASYNC:
                units[sm, 0] = max(units[sm, 0], now) + ops[step, ONE]
                units[sm, 1] = max(units[sm, 1], now) + ops[step, TWO]
                done = units[sm, 0]
                if ops[step, ISSUE]:
                    units[sm, 3] = max(units[sm, 3], now) + ops[step, ISSUE]
                    done = max(done, units[sm, 3])
                if kind == MMA:
                    at = done
                else:
                    groups[own, mmas + (groups[own, MMA_TAIL] & depth)] = done
                    groups[own, MMA_TAIL] += 1
            elif kind == VECTOR:
                units[sm, 1] = max(units[sm, 1], now) + ops[step, ONE]
                units[sm, 0] = max(units[sm, 0], now) + ops[step, TWO]
                at = units[sm, 1]
                if ops[step, ISSUE]:
                    units[sm, 3] = max(units[sm, 3], now) + ops[step, ISSUE]
                    at = max(at, units[sm, 3])
                at += ops[step, LATENCY]
            elif kind == WAIT:
                if not known:
                    groups[own, FOR_TENSOR] = tensor
                    groups[own, FOR_TURN] = turn
                    groups[own, FOR_ORDER] = whole[WAITS]
                    whole[WAITS] += 1
                    put(due, own, NEVER, NORMAL, puts)
                    break
                groups[own, GROUP + tensor] = turn + 1
                whole[WAITED] += landed - at
                at = landed
            elif kind == LOAD:
                if not groups[own, ASLEEP]:
                    turn = groups[own, freed + tensor] + 1
                    groups[own, freed + tensor] = turn
                    if several and not all_have(groups, first, members, freed + tensor, turn):
                        step += 1
                        continue
                    if now == groups[own, LAST_LOAD]:  # copies of one instant take turns with those of other SMs
                        puts += 1
                        groups[own, ASLEEP] = 1
                        if not put(due, own, now, NORMAL, puts) or waking_tensor >= 0:
                            break
                groups[own, ASLEEP] = 0
                groups[own, LAST_LOAD] = now
                turn = blocks[row, BLOCK + tensor]
                landing[row, tensor, turn & ring] = transfer(now, ops, step, units, sm, whole, tensor)
                blocks[row, BLOCK + tensor] = turn + 1
                if several:
                    waiting = longest_waiting(groups, first, members, tensor, turn)
                    if waiting >= 0:
                        puts += 1
                        leaves[waiting, EVENT] = WAKE
                        put(due, waiting, now, NORMAL, puts)
            elif kind == STORE:
                turn = groups[own, freed + tensor] + 1
                groups[own, freed + tensor] = turn
                if not several or all_have(groups, first, members, freed + tensor, turn):
                    transfer(now, ops, step, units, sm, whole, tensors + tensor)
            elif kind == PREFETCH:
                other = row ^ 1
                if blocks[other, CLASS] < 0 and take(flat, whole, blocks, other):
                    fetch(now, flat, blocks, landing, other, units, sm, whole)
            elif several:
                puts += 1
                leaves[own, EVENT] = ENDED
                put(due, own, now, NORMAL, puts)
                break
            else:
                row = end_block(now, record, blocks, row, slots, slot, whole)
                if not take(flat, whole, blocks, row):
                    put(due, own, NEVER, NORMAL, puts)
                    slots[slot, 2] = -1
                    break
                start(now, flat, groups, own, blocks[row, CLASS])
                step, end, at = groups[own, STEP], groups[own, END], now
                continue
            step += 1
        groups[own, STEP] = step
        groups[own, END] = end
        groups[own, AT] = at
    whole[PUTS] = puts
    return False
