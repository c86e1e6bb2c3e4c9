"""The books of `ordering`, compiled: who knows which work of whom to be over.

Those that check return False where something is wrong; see `compiled`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.jit import jit

in_place = partial(jit, allocates=False)


@in_place
def clocks_read_by_wgmma(places, groups, numbers, warps, granules, known, writer, written, read, reading):
    """Check and note what wgmma read by the clocks of `ordering`; nothing is noted where it returns False.

    Places are those of a product of each group, then those of the next product of each.
    """
    for i in range(len(places)):
        first, last, latest = groups[i % len(groups)] * 4, writer[0], np.int32(-1)
        for piece in range(places.shape[1]):
            for granule in range(places[i, piece] * granules, (places[i, piece] + 1) * granules):
                by, when = writer[granule], written[granule]
                if by == last and when <= latest:  # as the one before
                    continue
                last, latest = by, when
                for warp in range(first, first + 4):
                    if when > known[warp, 1, by]:
                        return False
    for i in range(len(places)):
        agent, number = warps + groups[i % len(groups)] * 4 % warps // 4, numbers[i % len(groups)]
        reading[agent] = True
        for piece in range(places.shape[1]):
            for granule in range(places[i, piece] * granules, (places[i, piece] + 1) * granules):
                read[granule, agent] = number
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
def clocks_taken(rows, granules, by, when, writer, written):
    """Note that accesses ``rows[i]`` were all by one writer at one time."""
    for i in range(len(rows)):
        for row in rows[i]:
            for granule in range(row * granules, (row + 1) * granules):
                writer[granule], written[granule] = by[i], when[i]


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
def clocks_read(rows, granules, agents, who, known, read):
    """Whether the last reads of what is accessed, by these agents, are known to be over."""
    for agent in agents:
        late = 0
        for i in range(len(rows)):
            over = known[who[i], 0, agent]
            for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
                late += read[granule, agent] > over
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
