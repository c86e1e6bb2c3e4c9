"""A kernel's loop nest compiled for one GPU: every operation with its cost in whole picoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from attnsim.models.arrays import Bools, Floats
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.unit_costs import UnitCosts

LOAD, WAIT, STORE, MMA, MMA_ASYNC, MMA_WAIT, VECTOR, DELAY, PREFETCH, MARK = range(10)


class Copy(NamedTuple):
    """A load or store: picoseconds at each level, and bytes.

    Parameters
    ----------
    port : int
        On the SM's own port to the L2.
    l2, hbm : int
        For which L2 and HBM are held, for the SM itself and for those that are not played.
    own_l2, own_hbm : int
        The part of it that is the SM's own.
    latency : int
        Of a load; a store has none that anybody waits for.
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


NO_COPY = Copy()

Step = tuple[int, int, int, int, int, Copy]
"""(operation, tensor, picoseconds that it takes, picoseconds that it takes from the other unit, picoseconds for which
its instructions hold the schedulers, copy); see :func:`compile_op`."""


Runs = Sequence[tuple[int, int]]
"""(segment, repeats) of one thread block, in program order."""


@dataclass(frozen=True, slots=True)
class Program:
    """Compiled segments of a kernel.

    Parameters
    ----------
    segments : tuple of tuples of Step
        One tuple of steps per segment.
    tensors : tuple of str
        Names behind the tensor numbers.
    warpgroups : int
        Warpgroups that run every block side by side.
    marks : int
        Kinds of `MARK` among the steps; each notes the time that its warpgroup has spent since the last.
    """

    segments: tuple[tuple[Step, ...], ...]
    tensors: tuple[str, ...]
    warpgroups: int
    marks: int = 0

    def delayed(self, factor: float) -> Program:
        """The same with latencies of loads so many times as long."""

        def later(step: Step) -> Step:
            return (*step[:5], step[5]._replace(latency=round(step[5].latency * factor)))

        return replace(self, segments=tuple(tuple(map(later, steps)) for steps in self.segments))

    def in_halves(self) -> Program:
        """Each segment twice, for the first turns of its loop and the second; the time of every turn is noted."""
        segments = tuple(
            (*steps, (MARK, 2 * number + half, 0, 0, 0, NO_COPY))
            for number, steps in enumerate(self.segments)
            for half in (0, 1)
        )
        return replace(self, segments=segments, marks=len(segments))

    def work(self) -> Floats:
        """Picoseconds that a warpgroup with an SM to itself needs for each segment, shape [segments]."""
        held = np.zeros((len(self.segments), PREFETCH + 1))
        for row, steps in zip(held, self.segments, strict=True):
            for kind, _, one, _, _, copy in steps:
                row[kind] += one + copy.port
        tensor_and_vector = held[:, [MMA, MMA_ASYNC, VECTOR]].sum(axis=1)
        work: Floats = np.maximum(tensor_and_vector, held[:, [LOAD, STORE]].sum(axis=1)) + held[:, DELAY]
        return work

    def unit_times(self) -> Floats:
        """Picoseconds for which each segment holds an SM's tensor cores, vector lanes, schedulers: [segments, 3]."""
        rows = []
        for steps in self.segments:
            tensor = vector = issued = 0
            for kind, _, one, two, issue, _ in steps:
                issued += issue
                if kind in (MMA, MMA_ASYNC):
                    tensor, vector = tensor + one, vector + two
                elif kind == VECTOR:
                    tensor, vector = tensor + two, vector + one
            rows.append((tensor, vector, issued))
        return np.array(rows, float)

    def memory_times(self) -> Floats:
        """Picoseconds for which the transfers of each segment hold the L2 and HBM, shape [segments, 2]."""
        return np.array(
            [[sum([step[5].l2 for step in steps]), sum([step[5].hbm for step in steps])] for steps in self.segments],
            float,
        )

    def balanced(self) -> Bools:
        """Which segments start as many loads of each tensor as they wait for, so that they may be run less often."""

        def tensors(steps: tuple[Step, ...], kind: int) -> list[int]:
            return sorted([step[1] for step in steps if step[0] == kind])

        return np.array([tensors(steps, LOAD) == tensors(steps, WAIT) for steps in self.segments])

    def block(self, runs: Runs) -> Iterable[Step]:
        """The steps of a thread block, in program order, to be gone through as often as wanted."""
        return _Walk(self.segments, runs)


@dataclass(frozen=True, slots=True)
class _Walk:
    """The steps of a thread block, never written out."""

    segments: tuple[tuple[Step, ...], ...]
    runs: Runs

    def __iter__(self) -> Iterator[Step]:
        return chain.from_iterable(chain.from_iterable([repeat(self.segments[segment], n) for segment, n in self.runs]))


def compile_kernel(
    kernel: Kernel,
    costs: UnitCosts,
    misses: Mapping[tuple[bool, str], float],
    sharers: float,
    alone: Program | None = None,
) -> Program:
    """Compile `kernel` for a machine.

    Parameters
    ----------
    kernel : Kernel
    costs : UnitCosts
    misses : mapping of (bool, str) to float
        Share of each tensor's requested bytes that HBM has to serve, by (whether written, tensor).
    sharers : float
        SMs of the chip for each that is played, for which its transfers hold L2 and HBM: 1 when every SM is played.
    alone : Program, optional
        The program for an SM that shares with nobody, if it is known: only copies differ from it.
    """
    if alone is not None and sharers == 1.0:
        return alone

    known_steps: dict[TileOp, Step] = {}  # segments of many sizes have most of their operations in common

    def compiled(op: TileOp, tensor: int) -> Step:
        step = known_steps.get(op)
        if step is None:
            miss = misses.get((op.kind == "store", op.tensor), 1.0)
            step = compile_op(op, costs, miss, sharers, tensor, kernel.multicast, kernel.in_flight_bytes)
            known_steps[op] = step
        return step

    if alone is not None:
        segments = tuple(
            tuple(
                [one if one[5] is NO_COPY else compiled(op, one[1]) for op, one in zip(segment.ops, known, strict=True)]
            )
            for segment, known in zip(kernel.segments, alone.segments, strict=True)
        )
        return Program(segments, alone.tensors, alone.warpgroups)
    names = tuple(dict.fromkeys([op.tensor for segment in kernel.segments for op in segment.ops]))
    number = {name: index for index, name in enumerate(names)}
    segments = tuple(tuple([compiled(op, number[op.tensor]) for op in segment.ops]) for segment in kernel.segments)
    return Program(segments, names, kernel.warpgroups)


def compile_op(
    op: TileOp, costs: UnitCosts, miss: float, sharers: float, tensor: int, multicast: int = 1, in_flight: int = 0
) -> Step:
    """One operation as (kind, tensor, costs).

    A load or store costs its SM's port, the shared L2 and the shared HBM, and a load has a latency: once, or as often
    as it has to wait before all its bytes have been in flight (Little's law). An MMA holds the
    tensor unit for its FLOPs and for the exposed part of its operand reads; no operation is shorter than its bytes
    take on the slowest pipe. Meanwhile the vector units advance at ``1 - interference`` of their speed, and the other
    way round. Counted instructions of both hold the SM's schedulers, and no counted operation is shorter than its
    instructions take on the pipe that they need longest. What they take from the tensor unit, which reads the same
    registers, goes by the instructions of all pipes.
    """
    match op.kind:
        case "load" | "store":
            loads = op.kind == "load"
            l2 = round(op.bytes * costs.l2 * sharers / (multicast if loads else 1))
            latency = costs.l2_latency + miss * (costs.hbm_latency - costs.l2_latency)
            if in_flight:
                latency = max(1.0, op.bytes / in_flight) * (costs.l2_latency + latency)
            hbm = round(op.bytes * miss * costs.hbm * sharers)
            copy = Copy(
                port=round(op.bytes * costs.port_byte),
                l2=l2,
                own_l2=int(l2 / sharers),
                hbm=hbm,
                own_hbm=int(hbm / sharers),
                latency=round(latency) if loads else 0,
                size=op.bytes,
            )
            return (LOAD if loads else STORE, tensor, 0, 0, 0, copy)
        case "mma" | "mma_async":
            exposed = costs.smem_exposed * (op.smem_bytes * costs.pipes["smem_bytes"])
            busy = max(op.flops * costs.tensor + exposed, _on_pipes(op, costs))
            kind = MMA if op.kind == "mma" else MMA_ASYNC
            busy = max(busy, _counted(op, costs))
            issue = round(op.issues * costs.issue)
            return (kind, tensor, round(busy), round(busy * costs.interference), issue, NO_COPY)
        case "vector":
            if op.issues:
                busy, disturbs = _counted(op, costs), sum(_lanes(op, costs))
            else:
                lanes = (op.scores * costs.softmax_instructions + op.fp32) * costs.fp32
                busy = disturbs = op.exps * costs.exp + lanes + op.int32 * (costs.extra * costs.int32)
            on_pipes = _on_pipes(op, costs)
            busy, disturbs = max(busy, on_pipes), max(disturbs, on_pipes)
            issue = round(op.issues * costs.issue)
            return (VECTOR, tensor, round(busy), round(disturbs * costs.interference), issue, NO_COPY)
        case "delay":
            named = {
                "step": costs.step,
                "block": op.share * costs.block / 2,
                "extra": op.clks * costs.clk * (costs.extra - 1),
            }
            return (DELAY, tensor, round(named.get(op.tensor, 0.0) + op.clks * costs.clk), 0, 0, NO_COPY)
        case "wait":
            return (WAIT, tensor, 0, 0, 0, NO_COPY)
        case "prefetch":
            return (PREFETCH, tensor, 0, 0, 0, NO_COPY)
        case "mma_wait":
            return (MMA_WAIT, tensor, 0, 0, 0, NO_COPY)


def _counted(op: TileOp, costs: UnitCosts) -> float:
    """Picoseconds for which a counted operation holds the busiest of the pipes behind the schedulers, or those."""
    return max(op.issues * costs.issue, *_lanes(op, costs)) if op.issues else 0.0


def _lanes(op: TileOp, costs: UnitCosts) -> tuple[float, ...]:
    """Picoseconds of an operation's instructions on each pipe behind the schedulers."""
    return op.exps * costs.exp, op.fp32 * costs.fp32, op.int32 * costs.int32, op.load_stores * costs.load_store


def _on_pipes(op: TileOp, costs: UnitCosts) -> float:
    """Picoseconds for which an operation holds the pipe that it needs longest."""
    return max([float(getattr(op, amount)) * cost for amount, cost in costs.pipes.items()], default=0.0)
