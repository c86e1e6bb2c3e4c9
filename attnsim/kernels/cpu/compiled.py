"""The inner loops of the interpreter, compiled: what NumPy does in many passes over arrays, done in one.

Nothing is defined here. Each function does what the code does that calls it where numba is not installed, and
`tests/kernels/cpu/test_compiled.py` holds both to each other. Those that check return False where something is wrong or
unusual; the caller then goes the long way, which says what. All numbers that these functions read stand in this file:
numba compiles it anew when the file changes, and looks at no other.
"""

from __future__ import annotations

import numpy as np

from attnsim.models.jit import jit

WARP = 32
SEVERAL_READERS = np.uint32(64)
UNWRITTEN = np.uint32(0xFFFF_FFFF)
IN_FLIGHT = np.uint32(0xFFFF_FFFE)


@jit
def passes(addresses, index, shift, groups, phase_lanes):
    """Passes of an access through the banks, and phases that take at least one; see `banks`."""
    total, phases, start, end = 0, 0, 0, len(addresses)
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


@jit
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


@jit
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


@jit
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


@jit
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


@jit
def tags_issue(rows, granules, written):
    """Note that copies are under way."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            written[granule] = IN_FLIGHT


@jit
def to_float(bits, bf16):
    """A 16-bit float as the bits of a float32."""
    if bf16:
        return np.uint32(bits) << np.uint32(16)
    magnitude, sign = np.uint32(bits & 0x7FFF), np.uint32(bits & 0x8000) << np.uint32(16)
    if magnitude >= np.uint32(0x7C00):  # infinities and NaN
        return sign | np.uint32(0x7F80_0000) | (magnitude << np.uint32(13))
    if magnitude >= np.uint32(0x400):
        return sign | ((magnitude << np.uint32(13)) + np.uint32(0x3800_0000))
    if magnitude == np.uint32(0):
        return sign
    exponent = np.uint32(113)
    while magnitude < np.uint32(0x400):
        magnitude <<= np.uint32(1)
        exponent -= np.uint32(1)
    return sign | (exponent << np.uint32(23)) | ((magnitude & np.uint32(0x3FF)) << np.uint32(13))


@jit
def matrix_rows(file, registers, warps, blocks, steps, bf16, found):
    """Registers ``[matrices * steps * blocks]`` of some warps as bits of matrices ``[matrices, warps, rows, k]``."""
    for matrix in range(found.shape[0]):
        for warp in range(len(warps)):
            first = warps[warp] * WARP
            for step in range(steps):
                for block in range(blocks):
                    register = file[registers[(matrix * steps + step) * blocks + block]][first : first + WARP]
                    to = found[matrix, warp, block * 8 : block * 8 + 8, step * 8 : step * 8 + 8]
                    for row in range(8):
                        for quad in range(4):
                            bits = register[4 * row + quad]
                            to[row, 2 * quad] = to_float(bits & np.uint32(0xFFFF), bf16)
                            to[row, 2 * quad + 1] = to_float(bits >> np.uint32(16), bf16)


@jit
def add_products(products, file, before, after, warps):
    """Products ``[products, warps, 16, 8]`` and registers ``[products * 4]`` of C in f32, into those of D."""
    for i in range(products.shape[0]):
        for half in range(2):
            for pair in range(2):
                place = 4 * i + 2 * half + pair
                for warp in range(len(warps)):
                    first = warps[warp] * WARP
                    c, d = file[before[place]][first : first + WARP], file[after[place]][first : first + WARP]
                    product = products[i, warp, half * 8 : half * 8 + 8]
                    for row in range(8):
                        for quad in range(4):
                            d[4 * row + quad] = c[4 * row + quad] + product[row, 2 * quad + pair]


@jit
def matrices_to_lanes(rows, transposed, found):
    """What ldmatrix read, ``[instructions, warps, matrices, 8, 8]``, as ``[instructions * matrices, lanes, 2]``."""
    instructions, warps, matrices = rows.shape[:3]
    for i in range(instructions):
        for warp in range(warps):
            for matrix in range(matrices):
                of = rows[i, warp, matrix]
                to = found[i * matrices + matrix]
                for lane in range(WARP):
                    row, column = lane // 4, lane % 4 * 2
                    for pair in range(2):
                        value = of[column + pair, row] if transposed else of[row, column + pair]
                        to[warp * WARP + lane, pair] = value


@jit
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


@jit
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


@jit
def clocks_sign(rows, granules, agents, times, writer, written, by_atomic):
    """Note who has written, access by access."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            writer[granule] = agents[i]
            written[granule] = times[i]
            by_atomic[granule] = False


@jit
def clocks_signed(rows, granules, agents, writer):
    """Whether what was accessed is still noted as written by the same."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            if writer[granule] != agents[i]:
                return False
    return True


@jit
def clocks_note_read(rows, granules, agents, times, read):
    """Note who has read."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            read[granule, agents[i]] = times[i]


@jit
def clocks_read(rows, granules, who, known, read):
    """Whether the last reads of what is accessed are known to be over."""
    for i in range(len(rows)):
        clock = known[who[i], 0]
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            times = read[granule]
            for agent in range(len(times)):
                if times[agent] > clock[agent]:
                    return False
    return True


@jit
def pieces_to_floats(pieces, places, transposed, bf16, found):
    """Pieces of shared memory at ``[matrices, rows, 2]`` as the bits of ``[matrices, rows, 16]``.

    Transposed, they lie at ``[matrices, 16, rows / 8]``.
    """
    for matrix in range(places.shape[0]):
        for i in range(places.shape[1]):
            for j in range(places.shape[2]):
                piece = pieces[places[matrix, i, j]]
                for element in range(8):
                    value = to_float(piece[element], bf16)
                    if transposed:
                        found[matrix, j * 8 + element, i] = value
                    else:
                        found[matrix, i, j * 8 + element] = value


@jit
def accumulators_to_registers(values, found):
    """Accumulators ``[warpgroups, 64, n]`` as registers ``[n / 2, warpgroups, 128]``."""
    for group in range(values.shape[0]):
        for block in range(values.shape[2] // 8):
            for half in range(2):
                for pair in range(2):
                    register = found[4 * block + 2 * half + pair, group]
                    for lane in range(4 * WARP):
                        row = lane // WARP * 16 + half * 8 + lane % WARP // 4
                        register[lane] = values[group, row, 8 * block + lane % 4 * 2 + pair]
