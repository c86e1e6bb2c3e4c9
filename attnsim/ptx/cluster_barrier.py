"""``barrier.cluster``: all threads of the blocks of a cluster meet."""

from __future__ import annotations

from attnsim.ptx.clusters import Clusters
from attnsim.ptx.faults import Deadlock, Fault
from attnsim.ptx.flow import Control, Flow, Go, suspended
from attnsim.ptx.lanes import Mask
from attnsim.ptx.machine import Machine, unsupported
from attnsim.ptx.syntax import Instruction


def cluster_barrier(instruction: Instruction, machine: Machine) -> Control:
    """``barrier.cluster.arrive`` and ``wait``, of which every thread that has not exited does both in turn.

    Without ``.relaxed``: what a thread did before it arrives is seen by all that have waited.
    """
    if instruction.guard or "relaxed" in instruction.modifiers:
        raise unsupported(instruction)
    clusters = machine.unit(Clusters)
    if "arrive" in instruction.modifiers:

        def arrive(run: Flow, position: int, mask: Mask) -> Go:
            clusters.arrive(mask)
            return position + 1, mask

        return arrive
    if "wait" not in instruction.modifiers:
        raise unsupported(instruction)

    def fault(mask: Mask) -> Fault:
        return Deadlock(f"{clusters.missing(mask)}; no thread can go on, and no copy is under way", mask.lane(0))

    return suspended(clusters.over, fault, clusters.go_on)
