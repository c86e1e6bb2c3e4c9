"""A kernel that was lifted from its instructions, as a file: ``attnsim kernels trace`` writes it.

The file holds what :class:`~attnsim.models.schedule.schedule.Kernel` holds and where it comes from, so that it is
predicted on any GPU without the interpreter, the compiler or the kernel itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml

from attnsim.models.errors import InputError
from attnsim.models.files import read_typed
from attnsim.models.schedule.lifted import Lifted, LiftedCall, Origin
from attnsim.models.schedule.operation import Kind, Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.schedule import Path as InstructionPath
from attnsim.models.schedule.uses import TensorUse
from attnsim.models.writing import write_whole

FORMAT = 1
HEADER = """\
# A kernel as attnsim plays it, written by attnsim kernels trace; attnsim predict --kernel reads it.
# segments: what a block does, in order; a line is an operation on a tile. repeats: how often a block of each class runs
# each segment. launches: [class, blocks] in launch order, so many times over. uses: how blocks share the tensors.
# instructions: warp instructions of the PTX by pipe in one run of a segment. like: whose fitted latencies and rates are
# taken; an empty name takes the priors.
"""


@dataclass(frozen=True, slots=True)
class _Segment:
    name: str
    ops: tuple[dict[str, str | int | float], ...]
    instructions: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Launch:
    classes: tuple[tuple[int, int], ...]
    times: int


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    origin: Origin
    threads: int
    registers_per_thread: int
    shared_memory_bytes: int
    warpgroups: int
    path: InstructionPath
    dtype: str
    fp32_per_score: float
    segments: tuple[_Segment, ...]
    repeats: tuple[tuple[int, ...], ...]
    launches: tuple[_Launch, ...]
    uses: tuple[TensorUse, ...]


@dataclass(frozen=True, slots=True)
class _File:
    format: int
    like: str
    memory_bytes: int
    kernels: tuple[_Kernel, ...]


def write_kernels(path: Path, kernels: LiftedCall) -> None:
    """Write a kernel file, whole or not at all.

    Raises
    ------
    InputError
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{path}: end the name with .yaml")
    text = yaml.dump(to_dict(kernels), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=118)
    write_whole(path, HEADER + text)


def to_dict(kernels: LiftedCall) -> dict[str, Any]:
    """A kernel file's content in plain types."""
    return {
        "format": FORMAT,
        "like": kernels.like,
        "memory_bytes": kernels.memory_bytes,
        "kernels": [_plain(one) for one in kernels.kernels],
    }


class _Dumper(yaml.SafeDumper):
    """Writes no references: two equal lists are written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _plain(one: Lifted) -> dict[str, Any]:
    kernel = one.kernel
    origin = {**asdict(one.origin), "grid": list(one.origin.grid), "block": list(one.origin.block)}
    counted = one.instructions or ({},) * len(kernel.segments)
    return {
        "name": kernel.name,
        "origin": {**origin, "arguments": dict(one.origin.arguments)},
        **{name: getattr(kernel, name) for name in _SCALARS},
        "fp32_per_score": one.fp32_per_score,
        "segments": [
            {"name": segment.name, "ops": [_op(op) for op in segment.ops], "instructions": dict(counts)}
            for segment, counts in zip(kernel.segments, counted, strict=True)
        ],
        "repeats": kernel.turns.tolist(),
        "launches": [
            {
                "classes": [[int(number), len(list(run))] for number, run in groupby(launch.classes.tolist())],
                "times": launch.times,
            }
            for launch in kernel.launches
        ],
        "uses": [asdict(use) for use in kernel.uses],
    }


_SCALARS = ("threads", "registers_per_thread", "shared_memory_bytes", "warpgroups", "path", "dtype")


def _op(op: TileOp) -> dict[str, Any]:
    defaults = TileOp._field_defaults
    return {"kind": op.kind} | {
        name: value for name, value in op._asdict().items() if name != "kind" and value != defaults[name]
    }


def read_kernels(path: Path) -> LiftedCall:
    """Read a kernel file.

    Raises
    ------
    InputError
        One line with the place in the file and what is wrong.
    """
    found = read_typed(path, "kernel", _File)
    if found.format != FORMAT:
        raise InputError(f"{path.name}: format {found.format}; this version reads {FORMAT}: trace the kernel again")
    if not found.kernels:
        raise InputError(f"{path.name}: no kernels; give a file that attnsim kernels trace wrote")
    try:
        kernels = tuple(_lifted(one) for one in found.kernels)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    return LiftedCall(kernels, found.like, found.memory_bytes)


def _lifted(one: _Kernel) -> Lifted:
    for name in ("threads", "registers_per_thread", "warpgroups"):
        if getattr(one, name) < 1:
            raise InputError(f"{one.name}: {name} is {getattr(one, name)}; allowed: 1 or more")
    segments = tuple(Segment(part.name, tuple(_read_op(op, part.name) for op in part.ops)) for part in one.segments)
    if not one.repeats or any(len(row) != len(segments) or min(row, default=-1) < 0 for row in one.repeats):
        raise InputError(f"{one.name}: repeats: give each class one count of 0 or more for each of {len(segments)}")
    repeats = np.array(one.repeats, np.int64)
    kernel = Kernel(
        name=one.name,
        segments=segments,
        repeats=repeats[:, None, :],
        launches=tuple(_launch(launch, len(repeats), one.name) for launch in one.launches),
        uses=one.uses,
        buffers=(("shared memory", one.shared_memory_bytes),),
        **{name: getattr(one, name) for name in _SCALARS},
    )
    if not kernel.launches:
        raise InputError(f"{one.name}: launches: give one or more")
    for number in range(len(repeats)):
        _check_waits(kernel, number)
    return Lifted(kernel, one.origin, tuple(part.instructions for part in one.segments), one.fp32_per_score)


def _launch(launch: _Launch, classes: int, kernel: str) -> Launch:
    if launch.times < 1 or not launch.classes:
        raise InputError(f"{kernel}: launches: give classes, and times of 1 or more")
    for number, blocks in launch.classes:
        if not 0 <= number < classes or blocks < 1:
            raise InputError(f"{kernel}: launches: [{number}, {blocks}]; classes are 0 to {classes - 1}, blocks from 1")
    numbers, blocks_ = zip(*launch.classes, strict=True)
    return Launch(np.repeat(np.array(numbers, np.int64), blocks_), launch.times)


def _read_op(given: Mapping[str, Any], segment: str) -> TileOp:
    kind = given.get("kind")
    if kind not in get_args(Kind):
        raise InputError(f"segment {segment}: kind {kind!r}; allowed: {', '.join(get_args(Kind))}")
    for name, value in given.items():
        if name not in TileOp._fields:
            raise InputError(f"segment {segment}: {name!r} of {kind}; allowed: {', '.join(TileOp._fields)}")
        wanted = str if name in ("kind", "tensor") else (int, float) if name == "share" else int
        if not isinstance(value, wanted) or isinstance(value, bool) or (not isinstance(value, str) and value < 0):
            raise InputError(f"segment {segment}: {name} of {kind} is {value!r}; give a whole number of 0 or more")
    return TileOp(**given)


def _check_waits(kernel: Kernel, number: int) -> None:
    """Refuse a class that waits for what it never starts: it would wait for ever."""
    started: Counter[tuple[str, str]] = Counter()
    for segment, times in kernel.runs(number):
        lowest, change = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for what, by in _starts(kernel.segments[segment].ops):
            change[what] += by
            lowest[what] = min(lowest[what], change[what])
        for what, least in lowest.items():
            if started[what] + min(0, (times - 1) * change[what]) + least < 0:
                name = kernel.segments[segment].name
                raise InputError(f"{kernel.name}: segment {name} waits for a {' '.join(what)} that was not started")
        for what, by in change.items():
            started[what] += times * by


def _starts(ops: Sequence[TileOp]) -> Iterator[tuple[tuple[str, str], int]]:
    for op in ops:
        if op.kind in ("load", "wait"):
            yield ("load of", op.tensor), 1 if op.kind == "load" else -1
        elif op.kind in ("mma_async", "mma_wait"):
            yield ("product", ""), 1 if op.kind == "mma_async" else -1
