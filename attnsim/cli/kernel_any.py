"""`attnsim kernels run --ptx`, `--cuda`, `--triton`: a kernel that is not ours, its counts and its outputs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attnsim.cli import progress, show
from attnsim.cli.kernel_flags import KernelFlags
from attnsim.errors import InputError

if TYPE_CHECKING:
    from attnsim.ptx.foreign.run import PtxRun
    from attnsim.ptx.outcome import Difference

FAILED = 1
"""Exit code where the command ran and what it checked is not as it should be."""


def run(
    kernel: KernelFlags, inputs: str, seed: int, check: str, tolerance: float | None, out: Path | None, json: bool
) -> None:
    """Run it, compare its outputs if asked to, and print."""
    from attnsim.ptx import outcome
    from attnsim.ptx.faults import Fault
    from attnsim.ptx.foreign import launching
    from attnsim.ptx.foreign.arguments import load_named

    if tolerance is not None and not check:
        raise InputError("--tolerance is for --check WHERE:NAME, which is not given")
    reference = load_named(check) if check else None
    ready = kernel.ready(inputs, seed)
    before = outcome.values_of(ready.arguments)
    about = {**ready.described(), "inputs": inputs, "seed": seed}
    try:
        with progress.busy("interpreting"):
            ran = ready.run()
    except Fault as fault:  # a bug of the kernel, which is what the interpreter is there to find
        if json:
            show.print_json([{**about, "faults": launching.faults_of(fault)}])
        _fail("\n".join(launching.faults_in_words(fault)))
    differences: list[Difference] = []
    allowed = outcome.tolerance_of(ready.arguments) if tolerance is None else tolerance
    if reference is not None:
        differences = outcome.differences(ran.outputs, outcome.expected_of(reference, before, ran.outputs))
    if out is not None:
        launching.save(out, ran.outputs)
    if json:
        show.print_json([{**about, **launching.answer(ran, differences, allowed)}])
    else:
        _print(ran, about, differences, allowed, out)
    off = [one for one in differences if one.max_rel > allowed]
    wrong = [f"{one.output} is off by {one.max_rel:.1e}, allowed {allowed:.1e}" for one in off]
    if wrong:
        _fail(f"{ran.entry}: {'; '.join(wrong)}")


def _fail(message: str) -> None:
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(FAILED)


def _print(
    ran: PtxRun, about: Mapping[str, Any], found: Sequence[Difference], allowed: float, kept: Path | None
) -> None:
    from attnsim.ptx.counters import PIPES
    from attnsim.ptx.foreign.launching import summary_of

    console = show.console()
    shapes = f"grid {_by(ran.grid)}, block {_by(ran.block)}, {ran.shared_memory_bytes:,} B of dynamic shared memory"
    console.print(f"{ran.entry} in the interpreter\n{shapes}, {about['inputs']} inputs, seed {about['seed']}\n")
    outputs = [{"output": name, **summary_of(array)} for name, array in ran.outputs.items()]
    if outputs:
        show.print_rows(console, "Outputs", outputs)
    else:
        console.print("the kernel stored to none of its arguments\n")
    if found:
        rows = [
            {
                "output": one.output,
                "max abs": f"{one.max_abs:.1e}",
                "max rel": f"{one.max_rel:.1e}",
                "allowed": f"{allowed:.1e}",
                "": "ok" if one.max_rel <= allowed else "WRONG",
            }
            for one in found
        ]
        show.print_rows(console, "Difference from the reference; relative to its largest value", rows)
    traffic = [
        {
            "argument": one.argument,
            "": one.way,
            "requested B": f"{one.requested_bytes:,}",
            "sectors": f"{one.sectors:,}",
            "sectors x 32 B": f"{one.sector_bytes:,}",
        }
        for one in ran.traffic()
    ]
    if traffic:
        title = "Global memory by argument: what threads request (L1), and the sectors that hold it (L2)"
        show.print_rows(console, title, traffic, right=("requested B", "sectors", "sectors x 32 B"))
    counts = [{"what": name.replace("_", " "), "count": f"{count:,}"} for name, count in ran.counts().items()]
    show.print_rows(console, "Counts", counts, right=("count",))
    pipes = [
        {"pipe": pipe, "warp instructions": f"{count:,}", "of it": PIPES[pipe]} for pipe, count in ran.pipes.items()
    ]
    show.print_rows(console, "Instructions of the PTX by pipe", pipes, right=("warp instructions",))
    console.print("no race, missing wait, bad access or read of unwritten shared memory in this run")
    if kept is not None:
        console.print(f"outputs: {kept}", soft_wrap=True)


def _by(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))
