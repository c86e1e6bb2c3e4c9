"""Prepares kernels from command-line text, and returns the results of a run as plain records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.bounds import check_cost
from attnsim.errors import InputError
from attnsim.ptx.counters import decode
from attnsim.ptx.faults import Fault
from attnsim.ptx.foreign.arguments import load_named, parse_arguments
from attnsim.ptx.foreign.compilers import compile_kernel, compile_triton, source_text
from attnsim.ptx.foreign.run import PtxRun, check_grid, find_entry, run_ptx
from attnsim.ptx.outcome import Difference
from attnsim.ptx.run import sizes
from attnsim.writing import writing

ARCH = "80"
"""The default architecture, which every newer GPU runs."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A kernel with everything that a run needs."""

    ptx: str
    entry: str | None
    grid: Sequence[int]
    block: Sequence[int] | None
    arguments: Mapping[str, Any]
    shared_memory_bytes: int

    def run(self) -> PtxRun:
        """Run the kernel; see :func:`attnsim.ptx.foreign.run.run_ptx`."""
        return run_ptx(**{one.name: getattr(self, one.name) for one in fields(self)})

    def described(self) -> dict[str, Any]:
        """Describe the launch, ready for JSON."""
        arguments = {
            name: f"{given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else str(given)
            for name, given in self.arguments.items()
        }
        return {"entry": self.entry, "grid": list(self.grid), "arguments": arguments}


def prepare(
    *,
    ptx: Path | None,
    cuda: Path | None,
    triton: str,
    entry: str,
    arch: str,
    options: Sequence[str],
    grid: Sequence[int],
    block: Sequence[int] | None,
    arguments: Sequence[str],
    shared_memory_bytes: int | None,
    inputs: str,
    seed: int,
) -> Ready:
    """Read or compile the kernel, and make its arguments.

    Parameters
    ----------
    triton : str
        ``FILE.py:NAME`` or ``MODULE:NAME``; exactly one of the three sources is given.
    entry, arch : str
        "" for the default.
    options : sequence of str
        For NVRTC, or ``NAME=NUMBER`` for Triton.
    grid, block : sequence of int
        Sizes in x, y and z; without `block`, the kernel's own requirement.
    arguments : sequence of str
        As :meth:`attnsim.ptx.foreign.arguments.Argument.parse` reads them.
    inputs : str
        Kind of inputs for arrays without a content.
    seed : int
        Of the random inputs.

    Raises
    ------
    InputError
        If flags contradict each other, or the kernel or an argument cannot be read.
    """
    if ptx and (arch or options):
        raise InputError("--arch and --option are for compilers; a PTX file is compiled already")
    if triton and (entry or block or shared_memory_bytes is not None):
        raise InputError("--entry, --block and --shared: Triton says itself what they are; leave them out")
    random = np.random.default_rng(seed)
    parsed = parse_arguments(arguments)
    memory_bytes = sum(one.memory_bytes for one in parsed)
    check_cost(f"arrays of {', '.join(one.name for one in parsed)}", memory_bytes=memory_bytes)
    values = {one.name: one.value(inputs, random) for one in parsed}
    if triton:
        chosen = _triton_options(options)
        blocks = sizes(grid, "grid")
        check_grid(blocks)
        built, launched = compile_triton(load_named(triton), values, arch or ARCH, chosen)
        filled = built.with_scratch(launched, math.prod(blocks))
        return Ready(built.ptx, built.entry, grid, (built.threads,), filled, built.shared_memory_bytes)
    if ptx:
        text = source_text(ptx, "PTX")
    else:
        text, entry = compile_kernel(cuda or Path(), arch or ARCH, options, entry)
    return Ready(text, find_entry(text, entry or None).name, grid, block, values, shared_memory_bytes or 0)


def _triton_options(options: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    switches = {"true": True, "false": False}
    for text in options:
        name, equals, given = text.partition("=")
        value = given.strip().lower()
        if not equals or not (value.isdecimal() or value in switches):
            raise InputError(f"--option {text!r}: for Triton give NAME=NUMBER, as num_warps=8, or NAME=true")
        found[name.strip()] = switches[value] if value in switches else int(value)
    return found


def summary_of(array: NDArray[Any]) -> dict[str, Any]:
    """Summarise an output: shape, format, smallest, mean and largest finite value, number of non-finite values."""
    values = decode(array) if array.dtype.kind == "f" or array.dtype == np.uint16 else array.astype(np.float64)
    finite = values[np.isfinite(values)]
    some = finite if finite.size else np.zeros(1)
    return {
        "shape": list(array.shape),
        "format": "bf16" if array.dtype == np.uint16 else str(array.dtype),
        "min": float(some.min()),
        "mean": float(some.mean()),
        "max": float(some.max()),
        "NaN": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
    }


def faults_of(fault: Fault) -> list[dict[str, Any]]:
    """Return a fault and the others of its run, ready for JSON."""
    return [
        {"kind": type(one).__name__, "where": one.place, "line": one.line, "what": one.what, "times": one.times}
        for one in (fault, *fault.others)
    ]


def faults_in_words(fault: Fault) -> list[str]:
    """Return a fault and the others of its run as lines of text, in the order in which they were found."""
    lines = [
        f"{one.place}: {one.what}{f' ({one.times} times)' if one.times > 1 else ''}" for one in (fault, *fault.others)
    ]
    return lines + [f"and {fault.left_out} more at other instructions"] * bool(fault.left_out)


def answer(ran: PtxRun, found: Sequence[Difference], allowed: float) -> dict[str, Any]:
    """Return the results of a run, ready for JSON."""
    return {
        "entry": ran.entry,
        "grid": list(ran.grid),
        "block": list(ran.block),
        "shared_memory_bytes": ran.shared_memory_bytes,
        "outputs": [{"output": name, **summary_of(array)} for name, array in ran.outputs.items()],
        "global_memory": [{**asdict(one), "sector_bytes": one.sector_bytes} for one in ran.traffic()],
        "counts": ran.counts(),
        "warp_instructions_by_pipe": dict(ran.pipes),
        "faults": [],
        "differences": [
            {name: value if name == "output" or math.isfinite(value) else None for name, value in asdict(one).items()}
            | {"allowed": allowed, "ok": one.max_rel <= allowed}
            for one in found
        ],
    }


def save(path: Path, outputs: Mapping[str, NDArray[Any]]) -> None:
    """Write outputs to an ``.npz`` file, completely or not at all; raises InputError for another ending."""
    if path.suffix != ".npz":
        raise InputError(f"--out {path}: give a name that ends in .npz")
    with writing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **dict[str, Any](outputs))
