"""The inner loops of the interpreter, compiled: what NumPy does in many passes over arrays, done in one.

Those that check return False where something is wrong or unusual; the caller then goes the long way, in NumPy, which
says what. All numbers that these functions read stand in this file: numba compiles it anew when the file changes, and
looks at no other.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.models.jit import jit

in_place = partial(jit, allocates=False)

WARP = 32
BANKS_BYTES = 128
SEVERAL_READERS = np.uint32(64)
UNWRITTEN = np.uint32(0xFFFF_FFFF)
IN_FLIGHT = np.uint32(0xFFFF_FFFE)


@in_place
def addresses(file, state, numbers, rows, offsets, index, found):
    """Sums of registers and offsets ``[operands * active]``; see `registers` for what a register's state says."""
    active = len(index)
    for i in range(len(rows)):
        base, first = file[rows[i]], i * active
        for j in range(active):
            found[first + j] = np.int64(base[0 if state[numbers[i]] else index[j]]) + offsets[i]


@jit
def passes(addresses, index, width):
    """Passes of an access through the banks of shared memory, and phases that take at least one.

    Model: 32 banks of 4 bytes; a pass serves each bank once, and any number of lanes that want the same word. Accesses
    of 8 bytes go by half warps and of 16 bytes by quarter warps, ``ldmatrix`` by matrices (eight rows of 16 bytes).
    Source: NVIDIA, "Volta: Architecture and Performance Optimization" (GTC 2018, S81006), and CUDA C++ Programming
    Guide, compute capability 5.x and newer, "Shared Memory". Hardware may merge half or quarter warps that want the
    same words; counts of conflicts here are then too high.
    """
    groups, shift = min(BANKS_BYTES // width, WARP), 2
    while width > 1 << shift:
        shift += 1
    phase_lanes, total, phases, start, end = groups, 0, 0, 0, len(addresses)
    words = np.empty(phase_lanes, np.int64)
    while start < end:
        # To where the phase ends: lanes ascend, and a phase begins at a multiple of its lanes.
        last, stop, taken = index[start] | (phase_lanes - 1), start, 0
        clear = True
        while stop < end and index[stop] <= last:
            bank = 1 << ((addresses[stop] >> shift) & (groups - 1))
            clear = clear and taken & bank == 0
            taken |= bank
            stop += 1
        worst = 1
        if not clear:
            count, worst = 0, 0
            for lane in range(start, stop):
                word = addresses[lane] >> shift
                new, same_bank = True, 1
                for other in range(count):
                    if words[other] == word:
                        new = False
                        break
                    if (words[other] ^ word) & (groups - 1) == 0:
                        same_bank += 1
                if new:
                    words[count] = word
                    count += 1
                    worst = max(worst, same_bank)
        total += worst
        phases += 1
        start = stop
    return total, phases


@jit
def place(addresses, index, width, starts, size, found):
    """Check an access to shared memory, find its rows, and count its passes and phases.

    Lanes find their block's memory, of `size` bytes, at `starts`. Where one is misaligned or outside of it: -1.
    """
    period, base, shift, bits = len(starts), 0, 0, 0
    while width > 1 << shift:
        shift += 1
    for i in range(len(addresses)):
        address = addresses[i]
        bits |= address & (width - 1)
        if address < 0 or address > size - width:
            return -1, 0
        while index[i] - base >= period:  # the next instruction's lanes
            base += period
        found[i] = (address + starts[index[i] - base]) >> shift
    if bits:
        return -1, 0
    return passes(addresses, index, width)


@in_place
def locate(addresses, width, bounds, which):
    """In which array ``[arrays, 2]`` of global memory each access lies, else -1; that of the first, and if of all.

    Returned is -1 where any lies in none.
    """
    one, alike, inside = -1, True, True
    for i in range(len(addresses)):
        address = addresses[i]  # to which nothing is added: it may be the largest there is
        if one < 0 or address < bounds[one, 0] or address > bounds[one, 1] - width:
            one = -1
            for array in range(len(bounds)):
                if bounds[array, 0] <= address <= bounds[array, 1] - width:
                    one = array
                    break
        which[i] = one
        alike = alike and one == which[0]
        inside = inside and one >= 0
    return which[0] if inside else -1, alike


@jit
def sectors(addresses, index, size):
    """Sectors that each warp touches, summed; see `memory`."""
    total, start, end, shift = 0, 0, len(addresses), 0
    while size > 1 << shift:
        shift += 1
    touched = np.empty(WARP, np.int64)
    while start < end:
        last, stop, count = index[start] | (WARP - 1), start, 0
        while stop < end and index[stop] <= last:
            sector = addresses[stop] >> shift
            new = True
            for other in range(count - 1, -1, -1):
                if touched[other] == sector:
                    new = False
                    break
            if new:
                touched[count] = sector
                count += 1
            stop += 1
        total += count
        start = stop
    return total


@in_place
def tags_read(rows, index, granules, floors, warps, synced, lanes, written, read, author):
    """Check and note a load by the tags of `hazards`; what is noted before it returns False may be noted again."""
    period, base = len(floors), 0
    for i in range(len(rows)):
        while index[i] - base >= period:  # the next instruction's lanes
            base += period
        lane = index[i] - base
        floor = floors[lane]
        mine, since, me = floor | warps[lane], synced[lane], synced[lane] | lanes[lane]
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            tag = written[granule]
            if tag >= floor:
                if tag != mine:
                    return False
                by = author[granule]
                if by >= since and by != me:
                    return False
            before = read[granule]
            if before != mine:
                read[granule] = floor + SEVERAL_READERS if before >= floor else mine
    return True


@in_place
def tags_write(rows, index, granules, floors, warps, synced, lanes, written, read, author):
    """Check and note a store; False before any tag has changed, or where two warps store to one granule at once."""
    period, base = len(floors), 0
    for i in range(len(rows)):
        while index[i] - base >= period:
            base += period
        lane = index[i] - base
        floor, mine = floors[lane], floors[lane] | warps[lane]
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            tag, last = written[granule], read[granule]
            other = tag >= floor and tag != mine
            if (other and tag != UNWRITTEN) or (last >= floor and last != mine):
                return False
    tags_land(rows, index, granules, floors, warps, synced, lanes, written, author)
    base = 0
    for i in range(len(rows)):
        while index[i] - base >= period:
            base += period
        lane = index[i] - base
        mine = floors[lane] | warps[lane]
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            if written[granule] != mine:
                return False
    return True


@in_place
def tags_land(rows, index, granules, floors, warps, synced, lanes, written, author):
    """Note who has written."""
    period, base = len(floors), 0
    for i in range(len(rows)):
        while index[i] - base >= period:
            base += period
        lane = index[i] - base
        mine, me = floors[lane] | warps[lane], synced[lane] | lanes[lane]
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            written[granule] = mine
            author[granule] = me


@in_place
def tags_issue(rows, granules, written):
    """Note that copies are under way."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            written[granule] = IN_FLIGHT


@in_place
def repeats(rows, instructions, seen):
    """Whether several instructions name one row; `seen` is zero, and is zero again."""
    each, found = len(rows) // instructions, False
    for i in range(len(rows)):
        if seen[rows[i]] not in (0, i // each + 1):
            found = True
        seen[rows[i]] = i // each + 1
    for row in rows:
        seen[row] = 0
    return found


@in_place
def clocks_read_by_wgmma(places, groups, numbers, warps, granules, known, writer, written, read):
    """Check and note what wgmma read by the clocks of `ordering`; nothing is noted where it returns False."""
    for i in range(len(groups)):
        first = groups[i] * 4
        for piece in range(places.shape[1]):
            for granule in range(places[i, piece] * granules, (places[i, piece] + 1) * granules):
                by, when = writer[granule], written[granule]
                for warp in range(first, first + 4):
                    if when > known[warp, 1, by]:
                        return False
    for i in range(len(groups)):
        agent = warps + groups[i] * 4 % warps // 4
        for piece in range(places.shape[1]):
            for granule in range(places[i, piece] * granules, (places[i, piece] + 1) * granules):
                read[granule, agent] = numbers[i]
    return True


@in_place
def clocks_written(rows, granules, known, who, writer, written, unwritten):
    """Whether the last writes of what is accessed are known to be over, by the clocks of `ordering`.

    Access i goes by the clock ``known[who[i]]``. What nobody has written is fine where `unwritten`.
    """
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            by = writer[granule]
            if written[granule] > known[who[i], by] and not (unwritten and by == -1):
                return False
    return True


@in_place
def clocks_sign(rows, granules, agents, times, writer, written, by_atomic):
    """Note who has written, access by access."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            writer[granule] = agents[i]
            written[granule] = times[i]
            by_atomic[granule] = False


@in_place
def clocks_signed(rows, granules, agents, writer):
    """Whether what was accessed is still noted as written by the same."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            if writer[granule] != agents[i]:
                return False
    return True


@in_place
def clocks_note_read(rows, granules, agents, times, read):
    """Note who has read."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            read[granule, agents[i]] = times[i]


@in_place
def clocks_read(rows, granules, who, known, read):
    """Whether the last reads of what is accessed are known to be over."""
    late = 0
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            for agent in range(read.shape[1]):
                late += read[granule, agent] > known[who[i], 0, agent]
        if late:
            return False
    return True


@in_place
def clocks_published(clock, known, warps, per_block):
    """Add what these warps know to clocks of their blocks."""
    for warp in warps:
        for plane in range(2):
            for agent in range(known.shape[2]):
                told = clock[warp // per_block, plane, agent]
                clock[warp // per_block, plane, agent] = max(told, known[warp, plane, agent])


@in_place
def clocks_acquired(clock, known, warps, per_block):
    """Add clocks of their blocks to what these warps know."""
    for warp in warps:
        for plane in range(2):
            for agent in range(known.shape[2]):
                told = clock[warp // per_block, plane, agent]
                known[warp, plane, agent] = max(told, known[warp, plane, agent])


@in_place
def clocks_known(clock, known, warps, per_block):
    """Whether all these warps know what clocks of their blocks say."""
    late = 0
    for warp in warps:
        for agent in range(known.shape[2]):
            late += clock[warp // per_block, 0, agent] > known[warp, 0, agent]
    return late == 0
