"""Who works on shared memory, by number: the warps, tensor cores and copy engines that `ordering` tells apart."""

from __future__ import annotations

from mmap import mmap

import numpy as np
from numpy.typing import NDArray

from attnsim.ptx.lanes import Lanes, Meetings

MBARRIERS = 64
"""Most mbarriers of a block that are told apart."""


class Agents:
    """The agents of a cluster by number, in this order; every cluster of a batch has the same.

    Parameters
    ----------
    lanes : Lanes
    meetings : Meetings
        Who works on shared memory beside the warps.

    Attributes
    ----------
    per_block, cluster, warps : int
        Warps of a block, blocks of a cluster, warps of a cluster: the first agents, and the tensor cores of each
        warpgroup come behind them.
    stores, products, readers, count : int
        The first number of what stores in bulk for each warp and of the tensor cores that work for each warp, how many
        agents read, and how many there are with the copies of each mbarrier.
    own : ndarray of int ``[warps of the batch]``
        The agent that a warp is.
    """

    def __init__(self, lanes: Lanes, meetings: Meetings) -> None:
        self.per_block, self.cluster = lanes.warps_per_block, lanes.cluster
        self.warps = self.per_block * self.cluster
        self.stores = self.warps + -(-self.warps // 4)
        self.products = self.stores + self.warps * meetings.stores
        self.readers = self.products + self.warps * meetings.products
        self.count = self.readers + MBARRIERS * self.cluster
        self.own = np.arange(lanes.warps) % self.warps

    def no_reads(self, granules: int) -> NDArray[np.int32]:
        """Zeros ``[granules, readers]`` of which most are never touched; what is one agent's lies together.

        In pages of 4 KiB, where NumPy would ask for 2 MiB at a time.
        """
        pages = mmap(-1, 4 * self.readers * granules)
        found: NDArray[np.int32] = np.frombuffer(pages, np.int32).reshape(self.readers, granules).T
        return found

    def described(self, agent: int) -> str:
        """An agent in words."""
        if agent < self.warps:
            rank, warp = divmod(agent, self.per_block)
            return f"warp {warp}" + (f" of the cluster's block {rank}" if self.cluster > 1 else "")
        if agent < self.stores:
            return f"wgmma of warpgroup {agent - self.warps}"
        if agent < self.products:
            return f"a bulk store of warp {agent - self.stores}"
        return f"tcgen05.mma of warp {agent - self.products}" if agent < self.readers else "a bulk copy"
