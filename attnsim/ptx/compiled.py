"""Compiled inner loops of the interpreter: one pass where NumPy would take many over the same arrays.

A check returns False (or -1) if something is wrong or unusual; the caller then repeats it in NumPy and reports the
fault. All constants that these functions read are in this file, since numba recompiles when this file changes and
watches no other.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.jit import jit

in_place = partial(jit, allocates=False)

WARP = 32
BANKS_BYTES = 128
SEVERAL_READERS = np.uint32(64)
EPOCH, SYNCED = ~np.uint32(0x7F), ~np.uint32(0x1F)
"""Masks: a tag without its warp (its epoch), and an author without its lane."""
UNWRITTEN = np.uint32(0xFFFF_FFFF)
IN_FLIGHT = np.uint32(0xFFFF_FFFE)
ATOMIC = np.uint32(32)
"""Added to a warp: its last write was an atomic."""
SEVERAL_ATOMICS = np.uint32(65)


@in_place
def addresses(file, state, numbers, rows, offsets, index, found):
    """Sums of registers and offsets ``[operands * active]``; see `registers` for what a register's state says."""
    active = len(index)
    for i in range(len(rows)):
        base, sums, offset = file[rows[i]], found[i * active : (i + 1) * active], offsets[i]
        if state[numbers[i]]:
            sums[:] = np.int64(base[0]) + offset
            continue
        for j in range(active):
            sums[j] = np.int64(base[np.int64(np.uint32(index[j]))]) + offset


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
    total, phases, start, end = 0, 0, 0, len(addresses)
    words = np.empty(groups, np.int64)
    while start < end:
        # To where the phase ends: lanes ascend, and a phase begins at a multiple of its lanes.
        last, stop, taken = index[start] | (groups - 1), start + groups, 0
        if stop > end or index[stop - 1] != last:
            stop = start
            while stop < end and index[stop] <= last:
                stop += 1
        for lane in range(start, stop):
            taken |= 1 << ((addresses[lane] >> shift) & (groups - 1))
        worst = 1
        if taken != (1 << groups) - 1:  # not each its own bank
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
    period, base, shift, bits, low, high = len(starts), 0, 0, 0, np.int64(0), np.int64(0)
    while width > 1 << shift:
        shift += 1
    for address in addresses:
        bits |= address & (width - 1)
        low, high = min(low, address), max(high, address)
    if bits or low < 0 or high > size - width:
        return -1, 0
    for i in range(len(addresses)):
        while index[i] - base >= period:  # the next instruction's lanes
            base += period
        found[i] = (addresses[i] + starts[np.int64(np.uint32(index[i] - base))]) >> shift
    return passes(addresses, index, width)


@in_place
def locate(addresses, width, bounds, which, rows):
    """Find the array of global memory ``[arrays, 2]`` that each access lies in, -1 for none.

    Returns the array of the first access, or -1 if any access lies in none, and whether all lie in that array.
    `rows` are filled if all accesses lie in one array.
    """
    shift = 0
    while width > 1 << shift:
        shift += 1
    one, one_tensor, inside = -1, True, True
    for i in range(len(addresses)):
        address = addresses[i]  # to which nothing is added: it may be the largest there is
        if one < 0 or address < bounds[one, 0] or address > bounds[one, 1] - width:
            one = -1
            for array in range(len(bounds)):
                if bounds[array, 0] <= address <= bounds[array, 1] - width:
                    one = array
                    break
        which[i] = one
        one_tensor = one_tensor and one == which[0]
        inside = inside and one >= 0
    if inside and one_tensor:
        for i in range(len(addresses)):
            rows[i] = (addresses[i] - bounds[which[0], 0]) >> shift
    return which[0] if inside else -1, one_tensor


@jit
def sectors(addresses, index, size):
    """32-byte sectors touched, summed over warps; see `memory`."""
    total, start, end, shift = 0, 0, len(addresses), 0
    while size > 1 << shift:
        shift += 1
    touched = np.empty(WARP, np.int64)
    while start < end:
        last, stop, count, highest = index[start] | (WARP - 1), start, 0, np.int64(-1)
        while stop < end and index[stop] <= last:
            sector = addresses[stop] >> shift
            new = True
            if sector <= highest:
                for other in range(count - 1, -1, -1):
                    if touched[other] == sector:
                        new = False
                        break
            if new:
                touched[count] = sector
                count += 1
                highest = max(highest, sector)
            stop += 1
        total += count
        start = stop
    return total


@in_place
def tags_read(rows, index, granules, tags, authors, written, read, author):
    """Check and note a load by the tags of `hazards`.

    Returned are two granules of the access, -1 for none: the first that another warp has written, and the first that
    another lane of the warp has written with no ``__syncwarp`` since.
    """
    period, base, bad, apart = len(tags), 0, -1, -1
    for i in range(len(rows)):
        while index[i] - base >= period:  # the next instruction's lanes
            base += period
        lane = np.int64(np.uint32(index[i] - base))  # which says that it is not negative
        mine, me, first = tags[lane], authors[lane], np.int64(np.uint32(rows[i])) * granules
        floor = mine & EPOCH
        for part in range(granules):
            before, tag = read[first + part], written[first + part]
            read[first + part] = floor + SEVERAL_READERS if before >= floor and before != mine else mine
            if tag >= floor:
                by = author[first + part]
                if tag == mine:
                    if apart < 0 and by >= me & SYNCED and by != me:
                        apart = i * granules + part
                elif bad < 0 and tag != mine + ATOMIC:
                    bad = i * granules + part
    return bad, apart


@in_place
def tags_checked(rows, index, granules, tags, written, read, atomic):
    """Check a store or an atomic; returns two granules, -1 for none.

    The first was written by another warp since the barrier, the second was read by one.
    A store may touch unwritten granules; an atomic may follow atomics of other warps.
    """
    period, base, bad, late = len(tags), 0, -1, -1
    for i in range(len(rows)):
        while index[i] - base >= period:
            base += period
        mine, first = tags[np.int64(np.uint32(index[i] - base))], np.int64(np.uint32(rows[i])) * granules
        floor = mine & EPOCH
        for part in range(granules):
            tag, last = written[first + part], read[first + part]
            if bad < 0 and tag >= floor and tag != mine:
                if atomic:
                    fine = floor + ATOMIC <= tag <= floor + SEVERAL_ATOMICS
                else:
                    fine = tag == UNWRITTEN or tag == mine + ATOMIC
                if not fine:
                    bad = i * granules + part
            if late < 0 and last >= floor and last != mine:
                late = i * granules + part
    return bad, late


@in_place
def tags_write(rows, index, granules, tags, authors, written, author):
    """Note a store; returns a granule that two warps store to at once, -1 for none."""
    period, base, alone = len(tags), 0, True
    for i in range(len(rows)):
        while index[i] - base >= period:
            base += period
        lane = np.int64(np.uint32(index[i] - base))
        mine, first = tags[lane], np.int64(np.uint32(rows[i])) * granules
        for granule in range(first, first + granules):
            tag = written[granule]
            other = tag >= mine & EPOCH and tag != mine  # of another warp, as of now
            alone = alone and (not other or tag == UNWRITTEN)
            written[granule], author[granule] = mine, authors[lane]
    base = 0
    for i in range(0 if alone else len(rows)):
        while index[i] - base >= period:
            base += period
        mine, first = tags[np.int64(np.uint32(index[i] - base))], np.int64(np.uint32(rows[i])) * granules
        for part in range(granules):
            if written[first + part] != mine:
                return i * granules + part
    return -1


@in_place
def tags_atomic(rows, index, granules, tags, written):
    """Note an atomic."""
    period, base = len(tags), 0
    for i in range(len(rows)):
        while index[i] - base >= period:
            base += period
        mine, first = tags[np.int64(np.uint32(index[i] - base))], np.int64(np.uint32(rows[i])) * granules
        floor = mine & EPOCH
        for granule in range(first, first + granules):
            tag = written[granule]
            others = floor + ATOMIC <= tag <= floor + SEVERAL_ATOMICS and tag != mine + ATOMIC
            written[granule] = floor + SEVERAL_ATOMICS if others else mine + ATOMIC


@in_place
def tags_issue(rows, granules, written):
    """Note that copies are under way."""
    for part in range(granules):
        for row in rows:
            written[np.int64(np.uint32(row)) * granules + part] = IN_FLIGHT


@in_place
def put_pieces(pieces, rows, values):
    """Store values ``[copies, rows, 8]`` to rows ``[copies, rows]`` of shared memory."""
    for copy in range(len(rows)):
        for i in range(rows.shape[1]):
            piece = pieces[rows[copy, i]]
            for word in range(values.shape[2]):
                piece[word] = values[copy, i, word]


@in_place
def repeats(rows, instructions, seen):
    """True if several instructions name the same row; `seen` must be all zero, and is so again on return."""
    each, found = len(rows) // instructions, False
    for one in range(instructions):
        for row in rows[one * each : (one + 1) * each]:
            found = found or (seen[row] != 0 and seen[row] != one + 1)
            seen[row] = one + 1
    for row in rows:
        seen[row] = 0
    return found
