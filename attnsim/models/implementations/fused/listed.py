"""What forward kernels share that walk a list of the key tiles which a mask shows them."""

from __future__ import annotations

from typing import Any

from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Override


def listed_keys(w: Workload, counts: TileCounts, blocks: int, running: int) -> dict[str, Any]:
    """How blocks that run at the same time share K and V: fields of :class:`~attnsim.models.schedule.axes.Tensor`.

    A visit to a key tile that the row tile before visits too finds it in the L2. One that has no such neighbour (a
    random block, a stride) reads it anew, and hits only if everything in between fits.

    Parameters
    ----------
    w : Workload
    counts : TileCounts
        Of one head.
    blocks : int
        Consecutive blocks of a head of K and V; 0 where those of all heads are launched in turn.
    running : int
        Blocks that run at the same time.
    """
    touched, heads = counts.touched_keys, w.batch * w.heads_kv
    active = min(heads, -(-running // blocks)) if blocks else heads
    together = Override(
        "blocks that run at the same time walk their lists together", sharers=max(1.0, running / active)
    )
    passes = counts.fresh * counts.tiles.keys / touched if touched else 1.0
    return {"seen": (touched, 1.0), "times": max(1.0, passes), "override": together}


def all_at_once(running: int) -> Override:
    """How blocks share what tells them their tiles: those that run read all of it, and it is not read again."""
    return Override("what tells blocks their tiles stays in the L2", sharers=running)


def busy_rows(w: Workload, counts: TileCounts) -> int:
    """Rows of a head in row tiles that visit anything."""
    busy = counts.visits > 0
    short = -w.seq_q % counts.tiles.rows
    return int(busy.sum()) * counts.tiles.rows - (short if busy[-1] else 0)
