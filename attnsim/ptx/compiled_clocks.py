"""The books of `ordering`, compiled: who knows which work of whom to be over.

Those that check say where something is wrong.
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
def clocks_written(rows, granules, known, who, told, writer, written, by_atomic, unwritten, atomic):
    """Granules of an access whose last write is not known to be over, by the clocks of `ordering`; -1 for none.

    Access i goes by the clock ``known[who[i]]``. The second granule is the first whose write is over by
    ``told[who[i]]``, the first is any other. What nobody has written is fine where `unwritten`, what an atomic has
    where `atomic`.
    """
    bad, unfenced = -1, -1
    for i in range(len(rows)):
        for part in range(granules):
            granule = rows[i] * granules + part
            by, when = writer[granule], written[granule]
            if when <= known[who[i], by] or (unwritten and by == -1) or (atomic and by_atomic[granule]):
                continue
            if when <= told[who[i], by]:
                unfenced = i * granules + part if unfenced < 0 else unfenced
            elif bad < 0:
                bad = i * granules + part
    return bad, unfenced


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
    """The first granule of an access that is noted as written by another since; -1 for none."""
    for i in range(len(rows)):
        for part in range(granules):
            if writer[rows[i] * granules + part] != agents[i]:
                return i * granules + part
    return -1


@in_place
def clocks_note_read(rows, granules, agents, times, read):
    """Note who has read."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            read[granule, agents[i]] = times[i]


@in_place
def clocks_read(rows, granules, agents, who, known, read):
    """The first granule of an access that one of these agents is not known to have read, -1 for none; and the agent."""
    first, reader = len(rows) * granules, -1
    for agent in agents:
        late = 0
        for i in range(len(rows)):
            over = known[who[i], 0, agent]
            for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
                late += read[granule, agent] > over
        for position in range(first if late else 0):
            i, part = position // granules, position % granules
            if read[rows[i] * granules + part, agent] > known[who[i], 0, agent]:
                first, reader = position, agent
                break
    return first if reader >= 0 else -1, reader


@in_place
def clocks_told(clock, known, warps, per_block, publish):
    """Add what these warps know to clocks of their blocks; or else those to what they know."""
    for warp in warps:
        for plane in range(2):
            for agent in range(known.shape[2]):
                latest = max(clock[warp // per_block, plane, agent], known[warp, plane, agent])
                if publish:
                    clock[warp // per_block, plane, agent] = latest
                else:
                    known[warp, plane, agent] = latest


@in_place
def clocks_known(clock, known, warps, per_block):
    """Whether all these warps know what clocks of their blocks say."""
    late = 0
    for warp in warps:
        for agent in range(known.shape[2]):
            late += clock[warp // per_block, 0, agent] > known[warp, 0, agent]
    return late == 0
