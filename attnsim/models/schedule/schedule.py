"""The tile program of a kernel: the work of a thread block, and the launch order of the blocks.

A :class:`Schedule` is a sequence of :class:`Kernel`. The blocks of a kernel all run the same loop nest (a tuple of
:class:`Segment`) and differ only in how often they run each segment, so a kernel of a million blocks is one small
matrix of repeat counts. It has three readers: a schedule sums itself up, :mod:`attnsim.simulator` plays it, and the
CUDA kernels are launched with the same tile and grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.operation import AMOUNTS, Nest, Segment, TileOp, amounts, loop_nest
from attnsim.models.schedule.splits import UNCUT, Splits


@dataclass(frozen=True, slots=True)
class TensorUse:
    """How the blocks of a kernel share a tensor: input of the L2 model, which decides whether re-reads hit.

    Parameters
    ----------
    tensor : str
        Name, the same in all kernels of a schedule.
    unique_bytes : int
        Compulsory traffic: every byte once.
    blocks : tuple of float
        Factors of the grid, slowest axis first, alternating between blocks with their own part of the tensor and blocks
        that share a part. ``(64, 16)``: each of 64 parts is touched by 16 successive blocks; ``(1, 16, 64)``: by every
        64th block.
    passes_per_block : float
        Times a block reads or writes its part (FlashAttention-1 re-reads Q once per block of keys).
    written : bool
        Whether the tensor is an output.
    in_place : bool
        For a tensor that the kernel both reads and writes: whether it reads the previous content, rather than its own
        output.
    just_written : bool
        True if the kernel re-reads this tensor immediately after writing it (L2 hit). On the written side: the data
        never reaches HBM.
    scattered : int
        0 if blocks walk the tensor together. 1 if they read scattered parts, so that a re-read hits with the share that
        the L2 holds. 2 if those parts grow along the sequence, as for causal queries.
    """

    tensor: str
    unique_bytes: int
    blocks: tuple[float, ...]
    passes_per_block: float = 1.0
    written: bool = False
    in_place: bool = False
    just_written: bool = False
    scattered: int = 0

    def fetched(self, running: float, lost: Callable[[float], float] = lambda span: 1.0) -> float:
        """How often each byte is fetched from beyond the L2 if `running` successive blocks share what they touch.

        Axes are taken from the fastest to the slowest: blocks that share a part need one fetch while they are within
        reach of one another. `lost` returns the share of fetched data that is evicted after so many blocks.
        """
        span, times = 1.0, 1.0
        for place, n in reversed([*enumerate(self.blocks)]):
            if place % 2:
                again = n if span >= running else max(1.0, n * span / running)
                times *= 1 + (again - 1) * lost(max(span, running))
            span *= n
        return times


@dataclass(frozen=True, eq=False)
class Launch:
    """A run of thread blocks in launch order.

    Parameters
    ----------
    rows : ndarray of int, shape [rows] or [rows, blocks]
        Block classes.
    times : int
        Repetitions of the whole run.
    each : int
        Repetitions of each row. A grid of a million blocks is held, counted and looked up by its rows.
    """

    rows: NDArray[np.int64]
    times: int = 1
    each: int = 1

    @classmethod
    def alike(cls, blocks: int, block_class: int = 0) -> Launch:
        """Launch of `blocks` blocks of one class."""
        return cls(np.array([block_class], dtype=np.int64), blocks)

    def __len__(self) -> int:
        """Blocks of one repetition."""
        return self.rows.size * self.each

    @cached_property
    def classes(self) -> NDArray[np.int64]:
        """The class of each block of one repetition."""
        return (self.rows if self.each == 1 else np.repeat(self.rows, self.each, axis=0)).reshape(-1)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Blocks of each class in one repetition, up to the highest class."""
        return np.bincount(self.rows.reshape(-1)) * self.each

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Classes of the blocks at the given positions, over all repetitions."""
        rows = self.rows.reshape(len(self.rows), -1)
        width = rows.shape[1]
        return rows[places % len(self) // (width * self.each), places % width]

    def same(self, other: Launch) -> bool:
        """Return whether `other` launches the same blocks in the same order."""
        if self.each == other.each and self.rows.shape == other.rows.shape:
            return self.times == other.times and np.array_equal(self.rows, other.rows)
        return self.times == other.times and np.array_equal(self.classes, other.classes)


Buffers = tuple[tuple[str, int], ...]
"""Names of buffers and their bytes."""


def bytes_of(buffers: Buffers) -> int:
    """Shared memory of a block that has these buffers."""
    return sum(size for _, size in buffers)


def check_shared_memory(what: str, buffers: Buffers, gpu: Gpu, nearest: str = "") -> None:
    """Refuse a block whose buffers exceed the shared memory a block may have.

    Raises
    ------
    InputError
        Naming the buffers, the limit and, if given, the nearest tile that fits.
    """
    needed, limit = bytes_of(buffers), gpu.sm.shared_memory_per_block_bytes
    if needed <= limit:
        return
    parts = ", ".join(f"{name} {size / 1024:g}" for name, size in buffers)
    raise InputError(
        f"Shared memory: {what} needs {needed / 1024:g} KiB ({parts}), {gpu.id} has "
        f"{limit / 1024:g} KiB per block; {nearest or 'take a smaller tile or fewer stages'}"
    )


__all__ = ["Kernel", "Launch", "Path", "Role", "Schedule"]

Path = Literal["mma_sync", "wgmma", "tcgen05", "simt"]
Role = Literal["attention", "sum of parts", ""]
"""Role of a kernel in its schedule: the forward pass of attention; or the sum of partial results of a split-K GEMM."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel launch.

    Parameters
    ----------
    name : str
        Short form of the name that a profiler shows.
    threads, registers_per_thread : int
        Resources of a block; with its shared memory they decide how many blocks are resident on an SM.
    segments : tuple of Segment
        The loop nest, in program order.
    repeats : ndarray of int, shape [classes, outer, segments]
        How often a block of each class runs each segment in each iteration of its outer loop (one iteration in all but
        FlashAttention-1).
    launches : tuple of Launch
        Blocks in launch order.
    uses : tuple of TensorUse
        Sharing of the tensors, for the L2 model.
    warpgroups : int
        Groups of warps that each run the loop nest on their own rows.
    in_step : int
        Number of warpgroups in lockstep that each modelled warpgroup stands for: its operations are the sum of theirs.
    path : str
        Instruction path of the tensor work.
    max_blocks_per_sm : int or None
        A bound from ``__launch_bounds__`` or from a persistent grid.
    persistent : bool
        Whether resident blocks fetch tiles from a queue; the launch is then one wave.
    buffers : tuple of (str, int)
        Shared-memory buffers of a block and their bytes.
    dtype : str
        Tensor-core input format.
    is_backward : bool
        Whether its steps are those of a backward pass, which may have their own latency.
    multicast : int
        Blocks of a cluster that share one read of K and V from the L2.
    in_flight_bytes : int
        Most bytes of one tensor that a block has in flight, for threads that load into registers and wait until the
        data has arrived. 0: no limit, as for copies to shared memory.
    step : str
        Name of one iteration of the inner loop.
    launched_early : bool
        Whether it is launched while the kernel before it drains (programmatic dependent launch), so that no launch is
        waited for.
    """

    name: str
    threads: int
    registers_per_thread: int
    segments: tuple[Segment, ...]
    repeats: NDArray[np.int64]
    launches: tuple[Launch, ...]
    uses: tuple[TensorUse, ...]
    warpgroups: int = 1
    in_step: int = 1
    path: Path = "simt"
    max_blocks_per_sm: int | None = None
    persistent: bool = False
    buffers: Buffers = ()
    dtype: str = "bf16"
    multicast: int = 1
    in_flight_bytes: int = 0
    is_backward: bool = False
    step: str = "step"
    role: Role = ""
    launched_early: bool = False

    @classmethod
    def of(cls, nest: Nest, **fields: Any) -> Kernel:
        """Build a kernel whose blocks run `nest`, with its other fields."""
        segments, repeats = loop_nest(nest)
        return cls(segments=segments, repeats=repeats, **fields)

    def joined(self) -> Kernel:
        """The kernel without classes that have no block, and with one class for all blocks that run the same."""
        number = _joined(self.segments, self.repeats, self.class_counts > 0)
        if number is None:
            return self
        kept = np.unique(number, return_index=True)[1][1 if number.min() < 0 else 0 :]
        launches = tuple(Launch(number[one.rows], one.times, one.each) for one in self.launches)
        return replace(self, repeats=self.repeats[kept], launches=launches)

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        """Number of blocks of each class."""
        counts = np.zeros(len(self.repeats), dtype=np.int64)
        alike: dict[int, list[NDArray[np.int64]]] = {}
        for launch in self.launches:
            alike.setdefault(launch.times * launch.each, []).append(launch.rows.reshape(-1))
        for times, classes in alike.items():
            counts += np.bincount(np.concatenate(classes), minlength=len(counts)) * times
        return counts

    @cached_property
    def blocks(self) -> int:
        """Number of thread blocks (of work tiles, if persistent)."""
        return sum(len(launch) * launch.times for launch in self.launches)

    @cached_property
    def shared_memory_bytes(self) -> int:
        """Shared memory of a block: the sum of its buffers."""
        return bytes_of(self.buffers)

    @cached_property
    def turns(self) -> NDArray[np.int64]:
        """Total executions of each segment by a block of each class, shape ``[classes, segments]``."""
        return np.asarray(self.repeats.sum(axis=1) if self.repeats.shape[1] > 1 else self.repeats[:, 0])

    @cached_property
    def runs_of(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Class, segment and repeats of each run, class by class and in program order."""
        table = self.repeats.reshape(len(self.repeats), -1)
        classes, places = np.nonzero(table > 0)
        return classes, places % self.repeats.shape[2], table[classes, places]

    @cached_property
    def executions(self) -> NDArray[np.int64]:
        """How often each segment runs over the whole grid, shape ``[segments]``."""
        return np.asarray(self.class_counts @ self.turns)

    @cached_property
    def steps(self) -> tuple[tuple[TileOp, ...], NDArray[np.int64], NDArray[np.int64]]:
        """Distinct operations; the index of each step's operation among them; and the first step of each segment."""
        known: dict[TileOp, int] = {}
        index = [known.setdefault(op, len(known)) for segment in self.segments for op in segment.ops]
        begins = np.cumsum([0, *(len(segment.ops) for segment in self.segments)])
        return tuple(known), np.array(index, dtype=np.int64), begins

    @cached_property
    def _times(self) -> list[int]:
        """How often a warpgroup runs each operation of `steps` over the whole grid."""
        ops, index, begins = self.steps
        times = np.zeros(len(ops), dtype=np.int64)
        np.add.at(times, index, np.repeat(self.executions, np.diff(begins)))
        return times.tolist()

    def by_class(
        self, per_turn: NDArray[np.float64], per_run: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Sum over the segments of a block of each class, per iteration and per run: shape ``[classes]``."""
        count, outer, segments = self.repeats.shape
        per_run = np.zeros(len(per_turn)) if per_run is None else per_run
        if outer * segments < count:  # the same sums in the same order, all classes at once
            found = np.zeros(count)
            for turn in range(outer):
                for segment in range(segments):
                    repeats = self.repeats[:, turn, segment]
                    found += repeats * per_turn[segment] + (repeats > 0) * per_run[segment]
            return found
        classes, runs, turns = self.runs_of
        return np.bincount(classes, turns * per_turn[runs] + per_run[runs], count).astype(float)

    def has_blocks_of(self, other: Kernel) -> bool:
        """Return whether this kernel launches the same blocks in the same order as `other`."""
        return self is other or (
            len(self.launches) == len(other.launches)
            and np.array_equal(self.repeats, other.repeats)
            and all(one.same(two) for one, two in zip(self.launches, other.launches, strict=True))
        )

    def total(self, quantity: str) -> int:
        """Sum of one of the `AMOUNTS` over the whole grid (copies once a block, the rest per warpgroup)."""
        return self._totals[quantity]

    @cached_property
    def _totals(self) -> dict[str, int]:
        sums = [0] * len(AMOUNTS)
        for n, op in zip(self._times, self.steps[0], strict=True):
            times = n if op.bytes else n * self.warpgroups
            for index, amount in enumerate(amounts(op)):
                if amount:
                    sums[index] += times * amount
        return dict(zip(AMOUNTS, sums, strict=True))

    def requested(self) -> Mapping[tuple[str, str], int]:
        """Bytes requested of global memory by ("load" or "store", tensor)."""
        return self._requested

    @cached_property
    def _requested(self) -> dict[tuple[str, str], int]:
        out: dict[tuple[str, str], int] = {}
        for n, op in zip(self._times, self.steps[0], strict=True):
            if op.bytes and n:
                key = (op.kind, op.tensor)
                out[key] = out.get(key, 0) + n * op.bytes
        return out

    @cached_property
    def counted(self) -> bool:
        """Whether its instructions are counted by pipe (:class:`~attnsim.models.schedule.operation.TileOp`)."""
        return self.total("issues") > 0

    def runs(self, block_class: int) -> list[tuple[int, int]]:
        """The (segment index, repeats) of a block of a class, in program order, without empty ones."""
        return [(segment, int(n)) for turn in self.repeats[block_class] for segment, n in enumerate(turn) if n > 0]


def _joined(segments: tuple[Segment, ...], repeats: Ints, launched: NDArray[np.bool_]) -> Ints | None:
    """New number of each class, -1 for classes without blocks; None if all classes differ and have blocks."""
    known: dict[tuple[TileOp, ...], int] = {}
    index = [known.setdefault(segment.ops, len(known)) for segment in segments]
    plain = len(known) == len(segments)
    numbers: dict[object, int] = {}
    out = np.full(len(repeats), -1)
    for one in np.flatnonzero(launched).tolist():
        key: object = repeats[one].tobytes() if plain else _walk(index, repeats[one])
        out[one] = numbers.setdefault(key, len(numbers))
    return None if len(numbers) == len(repeats) else out


def _walk(index: list[int], turns: Ints) -> tuple[tuple[int, int], ...]:
    """Runs of a block as (segment, repeats); equal neighbours are merged."""
    walk: list[tuple[int, int]] = []
    for turn in turns.tolist():
        for stretch, n in zip(index, turn, strict=True):
            if n:
                walk.append((stretch, n + walk.pop()[1]) if walk and walk[-1][0] == stretch else (stretch, n))
    return tuple(walk)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The kernels that compute a workload, as one implementation launches them.

    Parameters
    ----------
    algorithm, implementation : str
        Names in the registries.
    kernels : tuple of Kernel
        In launch order.
    tile : object
        The tile, a frozen value; its text is ``128 x 64, 4 warps``.
    peak_memory_bytes : int
        Inputs, outputs and scratch that are alive together.
    notes : tuple of str
        Assumptions that a reader has to know.
    host_s : float
        Seconds that the CPU needs to launch the kernels from Python: the shortest time of back-to-back calls.
    is_eager : bool
        Whether Python calls each operation, in any stream.
    useful_flops : int or None
        Matrix FLOPs on data, without those on rows of zeros and masked pairs; None if all executed FLOPs are on data.
    """

    algorithm: str
    implementation: str
    kernels: tuple[Kernel, ...]
    tile: object
    peak_memory_bytes: int
    notes: tuple[str, ...] = ()
    splits: Splits = UNCUT
    host_s: float = 0.0
    is_eager: bool = False
    useful_flops: int | None = None

    def __post_init__(self) -> None:
        """Merge classes of blocks that run the same; replays of a reduced grid rely on it."""
        object.__setattr__(self, "kernels", tuple(kernel.joined() for kernel in self.kernels))

    @property
    def tile_text(self) -> str:
        """Tile and splits in words, ``128 x 64, 4 warps, 2 splits``."""
        return ", ".join(filter(None, (str(self.tile), str(self.splits))))

    @property
    def main(self) -> Kernel:
        """The kernel with most matrix FLOPs."""
        return max(self.kernels, key=lambda kernel: kernel.total("flops"))

    def total(self, quantity: str) -> int:
        """Sum of one of the `AMOUNTS` over all kernels."""
        return sum(kernel.total(quantity) for kernel in self.kernels)

    @cached_property  # a replay asks for it once a kernel
    def useful_share(self) -> float:
        """Share of the executed matrix FLOPs that are on data, at most 1."""
        flops = self.total("flops")
        return 1.0 if self.useful_flops is None or flops <= self.useful_flops else self.useful_flops / flops

    def requested(self) -> dict[tuple[str, str, str], int]:
        """Bytes requested of global memory by (kernel, "load" or "store", tensor)."""
        return {(kernel.name, *key): n for kernel in self.kernels for key, n in kernel.requested().items()}

    def compulsory(self) -> dict[tuple[str, str, str], int]:
        """HBM bytes with perfect reuse, by the same keys: each input read once, each output written once.

        Of a tensor that an earlier kernel wrote in part, such as a cache that new tokens are put into, only the rest is
        read. The sum is a lower bound of a replay with a cold cache.
        """
        out: dict[tuple[str, str, str], int] = {}
        known: set[str] = set()
        written: set[str] = set()
        put: dict[str, int] = {}
        for kernel in self.kernels:
            own = {use.tensor: 0 for use in kernel.uses if use.written}
            for use in kernel.uses:
                key = "store" if use.written else "load", use.tensor
                size = min(use.unique_bytes, kernel.requested().get(key, 0))
                done = written if use.written else known if use.in_place else known | own.keys()
                left = size if use.written else size - put.get(use.tensor, 0)
                if left > 0 and use.tensor not in done and not use.just_written:
                    out[kernel.name, *key] = left
                if use.written:
                    own[use.tensor] = max(size, put.get(use.tensor, 0))
            put |= own
            written |= {tensor for _, kind, tensor in out if kind == "store"}
            known |= {use.tensor for use in kernel.uses} - own.keys()
        return out

    def __str__(self) -> str:
        lines = [f"{self.algorithm} as {self.implementation} runs it, tile {self.tile_text}"]
        for kernel in self.kernels:
            lines += ["", *_loop_nest(kernel)]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def _loop_nest(kernel: Kernel) -> Iterator[str]:
    longest = int(np.argmax(kernel.repeats.sum(axis=(1, 2))))
    yield (
        f"kernel {kernel.name}: {kernel.blocks:,} blocks of {kernel.threads} threads, "
        f"{kernel.shared_memory_bytes / 1024:g} KiB shared memory, {kernel.registers_per_thread} registers a thread"
    )
    turns = kernel.repeats.shape[1]
    indent = "  "
    if turns > 1:
        yield f"  for outer in range({turns}):"
        indent = "    "
    for segment, n in zip(kernel.segments, kernel.repeats[longest, turns // 2], strict=True):
        if n == 0:
            continue
        yield f"{indent}{segment.name}:" if n == 1 else f"{indent}for {segment.name} in range({n}):"
        for op in segment.ops:
            yield f"{indent}  {op}"


def edited(kernel: Kernel, edit: Callable[[TileOp], TileOp]) -> Kernel:
    """The kernel with `edit` applied to every operation."""
    return replace(kernel, segments=tuple(replace(one, ops=tuple(map(edit, one.ops))) for one in kernel.segments))


def in_step(kernel: Kernel) -> Kernel:
    """The kernel with all its warps in lockstep, as Triton compiles a loop with asynchronous copies.

    Every step begins with a barrier of the whole block (``cp.async.wait_group`` and ``bar.sync``, `MembarAnalysis` of
    Triton's ``lib/Analysis/Membar.cpp``), so no warpgroup multiplies while another computes its softmax.
    """
    groups, per_block = kernel.warpgroups, ("bytes", "clks")

    def whole(op: TileOp) -> TileOp:
        amounts = {name: getattr(op, name) * groups for name in AMOUNTS if name not in per_block}
        return op if op.bytes else op._replace(**amounts)  # copies are per block and stay

    return replace(edited(kernel, whole), warpgroups=1, in_step=groups)


def renamed(kernel: Kernel, names: Mapping[str, str]) -> Kernel:
    """The kernel with other names for the tensors that it reads and writes; an MMA has the name of its output."""

    def named(op: TileOp) -> TileOp:
        moves = op.kind in ("load", "wait", "store")
        return op._replace(tensor=names.get(op.tensor, op.tensor)) if moves else op

    uses = tuple(replace(use, tensor=names.get(use.tensor, use.tensor)) for use in kernel.uses)
    return replace(edited(kernel, named), uses=uses)
