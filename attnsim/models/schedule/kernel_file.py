"""File format of kernels lifted from their instructions; ``attnsim kernels trace`` writes it.

The file holds the fields of :class:`~attnsim.models.schedule.schedule.Kernel` and the kernel's origin. With it the
kernel is predicted on any GPU without the interpreter, the compiler or the kernel itself.

Checks of kernel files: numbers within bounds, fields that belong to their operation, no wait that never ends.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
import yaml

from attnsim.errors import InputError
from attnsim.files import read_typed, read_yaml
from attnsim.models.schedule.instructions import Lifted, LiftedCall, Origin
from attnsim.models.schedule.operation import AMOUNTS, Kind, Segment, TileOp, Waits
from attnsim.models.schedule.schedule import Kernel, Launch, TensorUse
from attnsim.models.schedule.schedule import Path as InstructionPath
from attnsim.writing import write_whole

MOST = 10**15
"""Largest number: more bytes than any GPU has; the sum of some thousand such numbers still fits 64 bits."""
MOST_BLOCKS = 2**31 - 1
"""Largest grid in x that CUDA allows."""

_WORK = frozenset(AMOUNTS) - {"bytes", "flops", "clks"}
_USES: Mapping[str, frozenset[str]] = {
    "load": frozenset(("bytes",)),
    "store": frozenset(("bytes",)),
    "mma": _WORK | {"flops"},
    "mma_async": _WORK | {"flops"},
    "vector": _WORK,
    "delay": frozenset(("clks", "share", "waits")),
}
"""Amounts that each kind of operation uses; other kinds use none."""


def check_number(what: str, value: float, least: float = 0, most: float = MOST) -> None:
    """Refuse a number that is out of its bounds, or NaN."""
    if not least <= value <= most:  # nor NaN
        bounds = f"{least:g} or more" if most == MOST and value < least else f"{least:g} to {most:g}"
        raise InputError(f"{what} is {value}; allowed: {bounds}")


def read_op(given: Mapping[str, Any], segment: str) -> TileOp:
    """Read an operation of a file.

    Raises
    ------
    InputError
        If the kind is unknown, or a field is unknown, missing or of the wrong type.
    """
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in get_args(Kind):
        raise InputError(f"segment {segment}: kind {kind!r}; allowed: {', '.join(get_args(Kind))}")
    allowed = ("kind", "tensor", *(name for name in TileOp._fields if name in _USES.get(kind, ())))
    for name, value in given.items():
        if name not in allowed:
            raise InputError(f"segment {segment}: {name!r} of {kind}; allowed: {', '.join(allowed)}")
        if name in ("kind", "tensor", "waits"):
            if not isinstance(value, str):
                raise InputError(f"segment {segment}: {name} of {kind} is {value!r}; give a name")
            continue
        wanted = (int, float) if name == "share" else int
        whole = "a number" if name == "share" else "a whole number"
        if not isinstance(value, wanted) or isinstance(value, bool) or not 0 <= value <= MOST:
            raise InputError(f"segment {segment}: {name} of {kind} is {value!r}; give {whole} of 0 or more")
    if given.get("waits", "") not in get_args(Waits):
        known = ", ".join(get_args(Waits)[1:])
        raise InputError(f"segment {segment}: waits of {kind} is {given['waits']!r}; allowed: {known}, or none")
    return TileOp(**given)


def check_uses(kernel: Kernel) -> None:
    """Refuse a copied tensor without a use, a tensor with two uses, or one of no size."""
    known: set[tuple[bool, str]] = set()
    for use in kernel.uses:
        _check_use(use, f"{kernel.name}: {use.tensor or 'a tensor'} in uses")
        if (use.written, use.tensor) in known:
            raise InputError(f"{kernel.name}: uses: {use.tensor} is there twice; keep one")
        known.add((use.written, use.tensor))
    for op in (op for segment in kernel.segments for op in segment.ops if op.kind in ("load", "store")):
        if (op.kind == "store", op.tensor) not in known:
            raise InputError(f"{kernel.name}: {op.kind} of {op.tensor!r}, which uses do not name")


def _check_use(use: TensorUse, what: str) -> None:
    check_number(f"{what}: scattered", use.scattered)
    for name, value in (("unique_bytes", use.unique_bytes), ("passes_per_block", use.passes_per_block)):
        check_number(f"{what}: {name}", value, 1)
    for value in use.blocks:
        check_number(f"{what}: blocks", value, 1)
    if not use.blocks:
        raise InputError(f"{what}: blocks is empty; give how many have parts of their own, and how many share each")


def check_waits(kernel: Kernel, number: int) -> None:
    """Refuse a block class that waits for a copy or product that it never starts."""
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


FORMAT = 2
HEADER = """\
# A kernel as attnsim plays it, written by attnsim kernels trace; attnsim predict --kernel reads it.
# segments: what a block does, in order; a line is an operation on a tile. repeats: how often a block of each class runs
# each segment. launches: [class, blocks] in launch order, so many times over. uses: how blocks share the tensors,
# blocks the grid by turns, slowest first: how many have parts of their own, how many share each.
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
    is_backward: bool
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


def check_suffix(path: Path) -> None:
    """Refuse a file name that does not end with .yaml or .yml."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(f"{path}: end the name with .yaml")


def write_kernels(path: Path, kernels: LiftedCall) -> None:
    """Write a kernel file atomically: whole or not at all.

    Raises
    ------
    InputError
        If the file name does not end with .yaml, or the file cannot be written.
    """
    check_suffix(path)
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


def digest_of(kernels: LiftedCall) -> str:
    """SHA-256 of the content of a kernel file, independent of its layout and comments."""
    return hashlib.sha256(json.dumps(to_dict(kernels), sort_keys=True).encode()).hexdigest()


class _Dumper(yaml.SafeDumper):
    """YAML dumper without references: two equal lists are written twice."""

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
        "shared_memory_bytes": kernel.shared_memory_bytes,
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
        "uses": [_use(use) for use in kernel.uses],
    }


_SCALARS = ("threads", "registers_per_thread", "warpgroups", "path", "dtype", "is_backward")


def _use(use: TensorUse) -> dict[str, Any]:
    """Fields of a use that differ from their defaults, and its blocks."""
    changed = {one.name: value for one in fields(use) if (value := getattr(use, one.name)) != one.default}
    return changed | {"blocks": list(use.blocks)}


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
    written = read_yaml(path, "kernel")
    if isinstance(written, dict) and (form := written.get("format", FORMAT)) != FORMAT:
        raise InputError(f"{path.name}: format {form}; this version reads {FORMAT}: trace the kernel again")
    found = read_typed(path, "kernel", _File)
    if not found.kernels:
        raise InputError(f"{path.name}: no kernels; give a file that attnsim kernels trace wrote")
    try:
        check_number("memory_bytes", found.memory_bytes)
        kernels = tuple(_lifted(one) for one in found.kernels)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    return LiftedCall(kernels, found.like, found.memory_bytes)


def _lifted(one: _Kernel) -> Lifted:
    for name, least in (("threads", 1), ("registers_per_thread", 1), ("warpgroups", 1), ("shared_memory_bytes", 0)):
        check_number(f"{one.name}: {name}", getattr(one, name), least)
    check_number(f"{one.name}: fp32_per_score", one.fp32_per_score)
    if one.warpgroups > one.threads:
        raise InputError(f"{one.name}: warpgroups is {one.warpgroups}; allowed: up to its {one.threads} threads")
    for count in (count for part in one.segments for count in part.instructions.values()):
        check_number(f"{one.name}: instructions", count)
    segments = tuple(Segment(part.name, tuple(read_op(op, part.name) for op in part.ops)) for part in one.segments)
    if not one.repeats or any(len(row) != len(segments) for row in one.repeats):
        raise InputError(f"{one.name}: repeats: give each class a count for each of the {len(segments)} segments")
    for turns in (turns for row in one.repeats for turns in row):
        check_number(f"{one.name}: repeats", turns)
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
    runs = float(kernel.class_counts.astype(float) @ repeats.sum(axis=1, dtype=float)) * kernel.warpgroups
    if runs > MOST:
        raise InputError(f"{one.name}: its blocks run {runs:.3g} segments; allowed: up to {MOST:.3g}")
    if not any(count and part.ops for count, part in zip(kernel.executions.tolist(), segments, strict=True)):
        raise InputError(f"{one.name}: no block that is launched runs an operation; give ops, and repeats of 1 or more")
    check_uses(kernel)
    for number in range(len(repeats)):
        check_waits(kernel, number)
    return Lifted(kernel, one.origin, tuple(part.instructions for part in one.segments), one.fp32_per_score)


def _launch(launch: _Launch, classes: int, kernel: str) -> Launch:
    check_number(f"{kernel}: launches: times", launch.times, 1)
    if not launch.classes:
        raise InputError(f"{kernel}: launches: give classes")
    for number, blocks in launch.classes:
        if not 0 <= number < classes or blocks < 1:
            raise InputError(f"{kernel}: launches: [{number}, {blocks}]; classes are 0 to {classes - 1}, blocks from 1")
    check_number(
        f"{kernel}: launches: blocks", launch.times * sum(blocks for _, blocks in launch.classes), 1, MOST_BLOCKS
    )
    numbers, blocks_ = zip(*launch.classes, strict=True)
    return Launch(np.repeat(np.array(numbers, np.int64), blocks_), launch.times)
