"""A kernel's loop nest compiled for one GPU: every operation with its cost in whole picoseconds.

Result of a replay, by either engine.

Preparation of a kernel for the replay: resident blocks per SM, bytes through L2 and HBM, unit costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise, repeat
from typing import Literal, NamedTuple

import numpy as np

from attnsim.arrays import Bools, Floats, Ints
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.instructions import with_borrowed_counts
from attnsim.models.schedule.occupancy import Occupancy, occupancy
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.memory import Traffic, traffic
from attnsim.simulator.unit_costs import UnitCosts, unit_costs

LOAD, WAIT, STORE, MMA, MMA_ASYNC, MMA_WAIT, VECTOR, DELAY, PREFETCH, MARK = range(10)
KIND, TENSOR, ONE, TWO, ISSUE, PORT, L2, OWN_L2, HBM, OWN_HBM, LATENCY, SIZE = range(12)
"""Columns of a table of operations."""
FREE = {"load": LOAD, "store": STORE, "wait": WAIT, "mma_wait": MMA_WAIT, "prefetch": PREFETCH}
"""Operations that hold no unit of the SM; the costs of a copy are in its own columns."""


class Copy(NamedTuple):
    """A load or store: picoseconds at each level, and bytes.

    Parameters
    ----------
    port : int
        Picoseconds on the SM's own port to the L2.
    l2, hbm : int
        Picoseconds for which L2 and HBM are held, for the SM itself and for the SMs that are not played.
    own_l2, own_hbm : int
        The SM's own part of `l2` and `hbm`.
    latency : int
        Latency of a load; 0 for a store, as nothing waits for one. For vector work: its remaining time on the warps'
        own path.
    size : int
        Bytes requested of global memory.
    """

    port: int = 0
    l2: int = 0
    own_l2: int = 0
    hbm: int = 0
    own_hbm: int = 0
    latency: int = 0
    size: int = 0


Step = tuple[int, int, int, int, int, Copy]
"""(operation, tensor, picoseconds on its own unit, picoseconds taken from the other unit, picoseconds for which its
instructions hold the schedulers, copy); see :func:`compile_op`.
"""


Runs = Sequence[tuple[int, int]]
"""(segment, repeats) of one thread block, in program order."""


@dataclass(frozen=True, eq=False)
class Program:
    """Compiled segments of a kernel.

    Parameters
    ----------
    table : ndarray of int, shape [operations, 12]
        Each distinct operation once, in the columns of a `Step` with those of its copy.
    levels : ndarray of float, shape [operations, 2]
        Picoseconds, not rounded, for which a copy holds the L2 and HBM if every SM is played.
    index : ndarray of int, shape [steps]
        The operation of each step, segment by segment.
    begins : ndarray of int, shape [segments + 1]
        First step of each segment.
    tensors : tuple of str
        Names behind the tensor numbers.
    warpgroups : int
        Warpgroups per block.
    marks : int
        Kinds of `MARK` among the steps; each records the time that its warpgroup has spent since the last mark.
    """

    table: Ints
    levels: Floats
    index: Ints
    begins: Ints
    tensors: tuple[str, ...]
    warpgroups: int
    marks: int = 0

    @cached_property
    def segments(self) -> tuple[tuple[Step, ...], ...]:
        """The steps of each segment, as SimPy plays them."""
        known: list[Step] = [
            (kind, tensor, one, two, issue, Copy(*copy)) for kind, tensor, one, two, issue, *copy in self.table.tolist()
        ]
        steps, bounds = [known[number] for number in self.index.tolist()], self.begins.tolist()
        return tuple(tuple(steps[begin:end]) for begin, end in pairwise(bounds))

    def shared_by(self, sms: float) -> Program:
        """Copy of the program in which each transfer holds L2 and HBM for `sms` SMs of the chip."""
        table, held = self.table.copy(), np.rint(self.levels * sms)
        table[:, [L2, HBM]] = held
        table[:, [OWN_L2, OWN_HBM]] = np.floor(held / sms)
        return replace(self, table=table)

    def delayed(self, factor: float) -> Program:
        """Copy of the program with the latencies of loads multiplied by `factor`."""
        table = self.table.copy()
        loads = table[:, KIND] == LOAD
        table[loads, LATENCY] = np.rint(table[loads, LATENCY] * factor)
        return replace(self, table=table)

    def in_halves(self) -> Program:
        """Copy of the program with each segment twice, for each half of its loop; each iteration is timed."""
        marks, sizes = 2 * (len(self.begins) - 1), np.repeat(np.diff(self.begins), 2)
        mark = np.zeros((marks, self.table.shape[1]), np.int64)
        mark[:, KIND], mark[:, TENSOR] = MARK, np.arange(marks)
        begins = np.concatenate([[0], (sizes + 1).cumsum()])
        index = np.empty(begins[-1], np.int64)
        at_mark = np.zeros(len(index), bool)
        at_mark[begins[1:] - 1] = True
        index[at_mark] = np.arange(len(self.table), len(self.table) + marks)
        first = np.repeat(self.begins[:-1], 2)
        index[~at_mark] = self.index[np.arange(sizes.sum()) + np.repeat(first - (sizes.cumsum() - sizes), sizes)]
        table, levels = np.concatenate([self.table, mark]), np.concatenate([self.levels, np.zeros((marks, 2))])
        return replace(self, table=table, levels=levels, index=index, begins=begins, marks=marks)

    @cached_property
    def _times(self) -> Floats:
        """Picoseconds of each segment, [segments, 8]: three that :meth:`work` reads, then those of units and memory."""
        kind, one, two = self.table[:, KIND], self.table[:, ONE], self.table[:, TWO]
        tensor, vector, delay = (kind == MMA) | (kind == MMA_ASYNC), kind == VECTOR, kind == DELAY
        units = one * tensor + two * vector, two * tensor + one * vector, self.table[:, ISSUE]
        memory = self.table[:, L2], self.table[:, HBM]
        waits = one * delay + self.table[:, LATENCY] * vector
        return self._summed(one * (tensor | vector), self.table[:, PORT], waits, *units, *memory)

    def work(self) -> Floats:
        """Picoseconds that a warpgroup with an SM to itself needs for each segment, shape [segments]."""
        computing, copying, waiting = self._times[:, :3].T
        return np.asarray(np.maximum(computing, copying) + waiting)

    def unit_times(self) -> Floats:
        """Picoseconds for which each segment holds an SM's tensor cores, vector lanes, schedulers: [segments, 3]."""
        return self._times[:, 3:6]

    def memory_times(self) -> Floats:
        """Picoseconds for which the transfers of each segment hold the L2 and HBM, shape [segments, 2]."""
        return self._times[:, 6:]

    def _summed(self, *times: Ints) -> Floats:
        """Sum times of operations over the steps of each segment, one column per argument: [segments, columns]."""
        until = np.zeros((len(self.index) + 1, len(times)), np.int64)
        np.stack(times, axis=1)[self.index].cumsum(axis=0, out=until[1:])
        return (until[self.begins[1:]] - until[self.begins[:-1]]).astype(float)

    def balanced(self) -> Bools:
        """Return whether each segment starts as many loads of each tensor as it waits for: its loop may be cut."""
        kind, tensor = self.table[:, KIND], self.table[:, TENSOR]
        change = (kind == LOAD) * 1 - (kind == WAIT)
        over = self._summed(*(change * (tensor == number) for number in range(len(self.tensors))))
        return np.asarray((over == 0).all(axis=1))

    def block(self, runs: Runs) -> Iterable[Step]:
        """The steps of a thread block in program order, as an iterable that can be traversed repeatedly."""
        return _Walk(self.segments, runs)


@dataclass(frozen=True, slots=True)
class _Walk:
    """The steps of a thread block, generated on the fly."""

    segments: tuple[tuple[Step, ...], ...]
    runs: Runs

    def __iter__(self) -> Iterator[Step]:
        return chain.from_iterable(chain.from_iterable([repeat(self.segments[segment], n) for segment, n in self.runs]))


def compile_kernel(kernel: Kernel, costs: UnitCosts, misses: Mapping[tuple[bool, str], float]) -> Program:
    """Compile `kernel` for a machine on which every SM is played.

    A copy uses its SM's port, the shared L2 and the shared HBM. A load has a latency. If its bytes exceed what may be
    in flight at a time, further latencies are added (Little's law).

    Parameters
    ----------
    misses : mapping of (bool, str) to float
        Share of each tensor's requested bytes that HBM has to serve, by (whether written, tensor).
    """
    ops, index, begins = kernel.steps
    number = {name: index for index, name in enumerate(dict.fromkeys([op.tensor for op in ops]))}
    table = np.zeros((len(ops), SIZE + 1), np.int64)
    table[:, :PORT] = [compile_op(op, costs, number[op.tensor]) for op in ops]
    own_path = [_own_path(op, costs) for op in ops]
    loads, size = table[:, KIND] == LOAD, np.array([op.bytes for op in ops], np.int64)
    miss = np.array([misses.get((op.kind == "store", op.tensor), 1.0) for op in ops])
    latency = costs.l2_latency + miss * (costs.hbm_latency - costs.l2_latency)
    if kernel.in_flight_bytes:
        latency = np.maximum(1.0, size / kernel.in_flight_bytes) * (costs.l2_latency + latency)
    latency = np.where(loads, latency, own_path)
    table[:, PORT], table[:, LATENCY], table[:, SIZE] = np.rint(size * costs.port_byte), np.rint(latency), size
    levels = np.array([size * np.where(loads, costs.l2 / kernel.multicast, costs.l2_write), size * miss * costs.hbm]).T
    return Program(table, levels, index, begins, tuple(number), kernel.warpgroups).shared_by(1.0)


def compile_op(op: TileOp, costs: UnitCosts, tensor: int) -> tuple[int, int, int, int, int]:
    """One operation as (kind, tensor, costs) without its copy.

    - An MMA holds the tensor unit for its FLOPs. No operation is shorter than its bytes take on the slowest pipe.
    - Where products stall vector work, each unit also loses a share of the other's time. For vector work that share is
      of the instructions on all pipes.
    - Counted instructions of both units hold the SM's schedulers. No counted operation is shorter than its instructions
      take on their busiest pipe.
    """
    issue = round(op.issues * costs.issue)
    match op.kind:
        case "mma" | "mma_async":
            busy = max(op.flops * costs.tensor, _on_pipes(op, costs), _counted(op, costs))
            kind = MMA if op.kind == "mma" else MMA_ASYNC
            return (kind, tensor, round(busy), round(busy * costs.stall), issue)
        case "vector":
            every = sum(_lanes(op, costs))
            busy = _counted(op, costs) if op.issues else every
            on_pipes = _on_pipes(op, costs)
            return (VECTOR, tensor, round(max(busy, on_pipes)), round(max(every, on_pipes) * costs.stall), issue)
        case "delay":
            named = {"step": costs.step, "block": op.share * costs.block / 2, "write": costs.write}
            return (DELAY, tensor, round(named.get(op.waits, 0.0) + op.clks * costs.clk), 0, 0)
        case _:
            return (FREE[op.kind], tensor, 0, 0, 0)


def _own_path(op: TileOp, costs: UnitCosts) -> float:
    """Picoseconds by which a warpgroup's counted vector work outlasts its time on the busiest pipe."""
    if op.kind != "vector" or not op.issues:
        return 0.0
    return max(0.0, costs.own_path * sum(_lanes(op, costs)) - max(_counted(op, costs), _on_pipes(op, costs)))


def _counted(op: TileOp, costs: UnitCosts) -> float:
    """Picoseconds for which a counted operation holds the schedulers or its busiest pipe; 0 if not counted."""
    return max(op.issues * costs.issue, *_lanes(op, costs)) if op.issues else 0.0


def _lanes(op: TileOp, costs: UnitCosts) -> tuple[float, ...]:
    """Picoseconds of an operation's instructions on each pipe behind the schedulers."""
    return op.exps * costs.exp, op.fp32 * costs.fp32, op.int32 * costs.int32, op.load_stores * costs.load_store


def _on_pipes(op: TileOp, costs: UnitCosts) -> float:
    """Picoseconds for which an operation holds the busiest of the pipes in `costs.pipes`."""
    return max([float(getattr(op, amount)) * cost for amount, cost in costs.pipes.items()], default=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Result of replaying blocks on some SMs.

    Parameters
    ----------
    time : int
        Picoseconds from the first block's start until the last byte was stored; 1 if the blocks do nothing.
    ends : ndarray of int, shape [blocks]
        End of each block in picoseconds, in ascending order.
    order : ndarray of int, shape [blocks]
        Launch numbers of these blocks.
    waited : int
        Picoseconds that warpgroups waited for data, summed over SMs.
    loaded, stored : tuple of int
        Bytes by tensor.
    spent : ndarray of int, shape [rows, marks]
        Picoseconds that the warpgroups of the blocks of each row spent before each kind of mark.
    """

    time: int
    ends: Ints
    order: Ints
    waited: int
    loaded: tuple[int, ...]
    stored: tuple[int, ...]
    spent: Ints


Cache = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel ready to be played.

    Parameters
    ----------
    fit : Occupancy
        Blocks that share an SM.
    rows : tuple of Traffic
        Bytes of each tensor through the L2 and from or to HBM.
    costs : UnitCosts
        Picoseconds per unit of work.
    """

    kernel: Kernel
    fit: Occupancy
    rows: tuple[Traffic, ...]
    costs: UnitCosts

    def compiled(self) -> Program:
        """Compile the kernel's program, with the costs that hold if every SM is played."""
        misses = {(row.written, row.tensor): row.hbm_bytes / row.l2_bytes for row in self.rows}
        return compile_kernel(self.kernel, self.costs, misses)


def prepare(schedule: Schedule, gpu: Gpu, numbers: Numbers, cache: Cache) -> tuple[Prepared, ...]:
    """The kernels of `schedule` on `gpu`, in launch order.

    Parameters
    ----------
    numbers : Numbers
        Fitted numbers of the implementation and the GPU.
    cache : {"cold", "warm"}
        Whether the L2 is flushed before the call or holds what the same call left there.

    Raises
    ------
    InputError
        When a block does not fit an SM.
    """
    kernels = tuple(with_borrowed_counts(kernel, numbers.counts, gpu) for kernel in schedule.kernels)
    fits = [occupancy(kernel, gpu) for kernel in kernels]
    running = tuple(
        min(kernel.blocks, gpu.sm.count * fit.blocks_per_sm) for kernel, fit in zip(kernels, fits, strict=True)
    )
    moved = traffic(kernels, running, gpu, cache == "warm")
    return tuple(
        Prepared(kernel, fit, rows, unit_costs(kernel, gpu, numbers))
        for kernel, fit, rows in zip(kernels, fits, moved, strict=True)
    )
