"""Compiled vector clocks for `ordering`: which agent has observed the completion of which other agent's work.

Functions that check return the place of the first violation.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.jit import jit

in_place = partial(jit, allocates=False)


@in_place
def clocks_read_by_wgmma(places, groups, numbers, warps, granules, known, writer, written, read, reading):
    """Check and note reads by wgmma against the clocks of `ordering`; returns False and notes nothing on a violation.

    Places are ordered by product, then by warpgroup.
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
def clocks_written(rows, granules, known, warps, generic, writer, written, by_atomic, unwritten, atomic):
    """Return two granules of an access whose last write is not known to be complete, -1 for none.

    Access i is checked against the clock ``known[warps[i]]``. The second granule is the first one whose write is
    complete by the clock ``generic[warps[i]]`` (a fence is missing), the first is any other. Unwritten granules are
    allowed with `unwritten`, granules written by an atomic with `atomic`.
    """
    bad, unfenced = -1, -1
    for i in range(len(rows)):
        for part in range(granules):
            granule = rows[i] * granules + part
            by, when = writer[granule], written[granule]
            if when <= known[warps[i], by] or (unwritten and by == -1) or (atomic and by_atomic[granule]):
                continue
            if when <= generic[warps[i], by]:
                unfenced = i * granules + part if unfenced < 0 else unfenced
            elif bad < 0:
                bad = i * granules + part
    return bad, unfenced


@in_place
def clocks_sign(rows, granules, agents, times, writer, written, by_atomic):
    """Note the writer and time of each access."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            writer[granule] = agents[i]
            written[granule] = times[i]
            by_atomic[granule] = False


@in_place
def clocks_taken(rows, granules, by, when, writer, written):
    """Note that the writes ``rows[i]`` were all made by one writer at one time."""
    for i in range(len(rows)):
        for row in rows[i]:
            for granule in range(row * granules, (row + 1) * granules):
                writer[granule], written[granule] = by[i], when[i]


@in_place
def clocks_signed(rows, granules, agents, writer):
    """Return the first granule that another agent has written since, -1 for none."""
    for i in range(len(rows)):
        for part in range(granules):
            if writer[rows[i] * granules + part] != agents[i]:
                return i * granules + part
    return -1


@in_place
def clocks_note_read(rows, granules, agents, times, read):
    """Note the reader and time of each access."""
    for i in range(len(rows)):
        for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
            read[granule, agents[i]] = times[i]


@in_place
def clocks_read(rows, granules, agents, warps, known, read):
    """Return the first granule whose read by one of `agents` is not known to be complete (-1: none), and that agent."""
    first, reader = len(rows) * granules, -1
    for agent in agents:
        late = 0
        for i in range(len(rows)):
            over = known[warps[i], 0, agent]
            for granule in range(rows[i] * granules, (rows[i] + 1) * granules):
                late += read[granule, agent] > over
        for position in range(first if late else 0):
            i, part = position // granules, position % granules
            if read[rows[i] * granules + part, agent] > known[warps[i], 0, agent]:
                first, reader = position, agent
                break
    return first if reader >= 0 else -1, reader


@in_place
def clocks_merged(clock, known, warps, per_block, publish):
    """Merge the warps' vector clocks into the clocks of their blocks (`publish`), or the reverse."""
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
    """True if the vector clocks of all these warps include the clocks of their blocks."""
    late = 0
    for warp in warps:
        for agent in range(known.shape[2]):
            late += clock[warp // per_block, 0, agent] > known[warp, 0, agent]
    return late == 0
