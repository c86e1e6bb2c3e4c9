"""Kernels for people: ours and what they compile to, what a run counted, and what a kernel file says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnsim import wording
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.cpu_device import Count
from attnsim.kernels.resources import (
    ResourceRow,
    resident_blocks,
    runs_on,
)
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.ptx.counters import PIPES
from attnsim.ptx.foreign.launching import summary_of
from attnsim.ptx.foreign.run import PtxRun
from attnsim.ptx.outcome import Difference, Outcome
from attnsim.tables import Block, Table, Unfolded, texts


def kernels_list() -> Iterator[Block]:
    """A line for each operation that has kernels."""
    rows = [
        {
            "name": one.name,
            "pass": one.passes,
            "head_dim": [str(width) for width in one.head_dims],
            "what it is": one.description + ("; experimental: not yet run on a GPU" if one.experimental else ""),
        }
        for one in OPERATIONS.values()
    ]
    yield Table("Kernels", rows)
    yield "attnsim kernels check: registers, spills, shared memory and resident blocks of each"
    yield "attnsim kernels run NAME --cpu: one of them in the interpreter, its counts beside the schedule's"
    yield "attnsim kernels trace NAME --out FILE: its schedule from its PTX, for attnsim predict --kernel FILE"


def kernel_record(operation: Operation) -> dict[str, Any]:
    """An operation as plain types, with its kernels."""
    return {
        "name": operation.name,
        "implementation": operation.implementation,
        "description": operation.description,
        "pass": operation.passes,
        "head_dims": list(operation.head_dims),
        "experimental": operation.experimental,
        "kernels": [
            {
                "kernel": variant.label,
                "source": variant.source,
                "constants": dict(variant.defines),
                "threads": variant.threads,
                "shared_memory_bytes": variant.shared_memory_bytes,
                "compute_capability": list(variant.compute_capability),
            }
            for variant in operation.variants()
        ],
    }


def resource_record(row: ResourceRow, gpus: Sequence[Gpu]) -> dict[str, Any]:
    """A compilation as plain types, with the blocks that an SM of each GPU holds."""
    blocks = {gpu.id: resident_blocks(row, gpu) for gpu in gpus if runs_on(row, gpu)}
    return {**dataclasses.asdict(row), "blocks_per_sm": blocks}


def resources_table(rows: Sequence[ResourceRow], gpus: Sequence[Gpu]) -> Iterator[Block]:
    """One line for each kernel, and another for architectures on which it takes something else."""
    lines: dict[tuple[Any, ...], list[str]] = {}
    for row in rows:
        taken = (row.registers, row.spill_bytes, row.stack_bytes, row.shared_memory_bytes, row.threads)
        for gpu in gpus:
            if runs_on(row, gpu):
                older = row.arch.isdigit() and int(row.arch) < gpu.compute_capability_number
                name = f"{gpu.compute_capability_number}*" if older else row.arch
                names = lines.setdefault((row.kernel, *taken, resident_blocks(row, gpu)), [])
                if name not in names:
                    names.append(name)
    order = list(dict.fromkeys(name for names in lines.values() for name in names))
    order.sort(key=lambda name: int(name.rstrip("a*")))
    table = [
        {
            "kernel": kernel,
            "sm": _runs(names, order),
            "regs": registers,
            "spill": spill,
            "stack": stack,
            "smem": shared / 1024,
            "threads": threads,
            "blocks/SM": str(blocks or "none"),
        }
        for (kernel, registers, spill, stack, shared, threads, blocks), names in lines.items()
    ]
    yield Table("", table, right=("blocks/SM",), whole=("kernel",))
    named: dict[str, list[str]] = {}
    for gpu in gpus:
        for arch in dict.fromkeys(row.arch for row in rows if runs_on(row, gpu)):
            number = f"{gpu.compute_capability_number}"
            as_compiled = "" if number == arch.rstrip("a") else f"* (as compiled for sm_{arch})"
            named.setdefault(f"sm_{number if as_compiled else arch}{as_compiled}", []).append(gpu.id)
    for arch, names in sorted(named.items(), key=lambda item: (len(item[0]), item[0])):
        yield f"{arch}: {', '.join(names)}"
    slow = sum(row.spill_bytes + row.stack_bytes > 0 for row in rows)
    yield f"{len(rows)} compilations of {len({row.kernel for row in rows})} kernels, {slow} with local memory"
    yield "spill, stack: bytes a thread; smem: KiB a block; blocks/SM: resident blocks, none if not one fits"


def _runs(names: list[str], order: list[str]) -> str:
    """Architectures in short: "80 to 90, 120*"."""
    runs: list[list[str]] = []
    for name in order:
        if name in names:
            if runs and order.index(runs[-1][-1]) + 1 == order.index(name):
                runs[-1].append(name)
            else:
                runs.append([name])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def foreign_run(
    ran: PtxRun, inputs: str, seed: int, found: Sequence[Difference], allowed: float, kept: Path | None
) -> Iterator[Block]:
    """A run of a kernel that is not ours: outputs, differences, traffic and counts."""
    shapes = f"grid {_by(ran.grid)}, block {_by(ran.block)}, {ran.shared_memory_bytes:,} B of dynamic shared memory"
    yield f"{ran.entry} in the interpreter\n{shapes}, {inputs} inputs, seed {seed}\n"
    if ran.outputs:
        yield Table("Outputs", [{"output": name, **summary_of(array)} for name, array in ran.outputs.items()])
    else:
        yield "the kernel stored to none of its arguments\n"
    if found:
        formats = dict.fromkeys(("max_abs", "max_rel", "allowed"), "{:.1e}".format)
        rows = [{**asdict(one), "allowed": allowed, "": "ok" if one.max_rel <= allowed else "WRONG"} for one in found]
        heads = {"output": "output", "max_abs": "max abs", "max_rel": "max rel", "allowed": "allowed", "": ""}
        title = "Difference from the reference; relative to its largest value"
        yield Table(title, texts(rows, formats, heads))
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
        yield Table(title, traffic, right=("requested B", "sectors", "sectors x 32 B"))
    counts = [{"what": name.replace("_", " "), "count": f"{count:,}"} for name, count in ran.counts().items()]
    yield Table("Counts", counts, right=("count",))
    pipes = [
        {"pipe": pipe, "warp instructions": f"{count:,}", "of it": PIPES[pipe]} for pipe, count in ran.pipes.items()
    ]
    yield Table("Instructions of the PTX by pipe", pipes, right=("warp instructions",))
    yield "no race, missing wait, bad access or read of unwritten shared memory in this run"
    if kept is not None:
        yield Unfolded(f"outputs: {kept}")


def _by(sizes: Iterable[int]) -> str:
    return " x ".join(map(str, sizes))


ROUNDED = 1e-6
"""Relative differences below it are those of float32, whose last digits differ between processors."""


def faults_of(outcome: Outcome, allowed: float, counts: Sequence[Count]) -> list[str]:
    """Outputs that are off, and counts that must agree with the schedule and do not."""
    wrong = [
        f"{name} is off by {error:.1e}, allowed {allowed:.1e}"
        for name, error in outcome.errors().items()
        if error > allowed
    ]
    differing = [
        f"{one.kernel} {one.quantity} is {one.counted:,}, in the schedule {one.planned:,}"
        for one in counts
        if one.must_agree and one.agrees is False
    ]
    return wrong + differing


def run_record(
    operation: Operation, question: Workload, where: str, seed: int, outcome: Outcome, counts: Sequence[Count]
) -> dict[str, Any]:
    """A run of one of our kernels as plain types."""
    errors = {name: error if error < float("inf") else None for name, error in outcome.errors().items()}
    return {
        "kernel": operation.name,
        "implementation": operation.implementation,
        "workload": str(question),
        "where": where,
        "seed": seed,
        "errors": errors,
        "tolerance": operation.tolerance(question.dtype),
        "counts": [{**asdict(one), "agrees": one.agrees} for one in counts],
    }


def run_tables(
    operation: Operation, question: Workload, where: str, outcome: Outcome, counts: Sequence[Count]
) -> Iterator[Block]:
    """A run of one of our kernels: errors of its outputs, and its counts beside the schedule's."""
    allowed = operation.tolerance(question.dtype)
    yield f"{operation.name} on {where}\n{question}\n"
    errors = [
        {
            "output": name,
            "error": f"{error:.1e}" if error >= ROUNDED else f"< {ROUNDED:.0e}",
            "allowed": f"{allowed:.1e}",
            "": "ok" if error <= allowed else "WRONG",
        }
        for name, error in outcome.errors().items()
    ]
    yield Table("Largest difference from float64 over the largest value", errors)
    if not counts:
        return
    rows = [
        {
            "kernel": one.kernel,
            "quantity": one.quantity,
            "unit": one.unit,
            "counted": f"{one.counted:,}",
            "schedule": wording.NOTHING if one.planned is None else f"{one.planned:,}",
            "": {None: "", True: "=", False: "differs"}[one.agrees],
        }
        for one in counts
        if one.counted or one.planned or one.quantity == "bank conflicts"
    ]
    title = "Counted by the interpreter, and in the schedule that the simulator plays"
    yield Table(title, rows, right=("counted", "schedule"))
    if any(one.agrees is False and not one.must_agree for one in counts):
        yield "blocks and bytes must agree; FLOPs and exponentials the schedule charges by the tile"


def traced(found: LiftedCall) -> Iterator[Block]:
    """A schedule that was found in a kernel's instructions."""
    for one in (one.origin for one in found.kernels):
        yield f"{one.entry} from {one.source}, sm_{one.arch}, {one.inputs} inputs"
    yield Unfolded(f"\n{found.schedule}\n")
    rows = [
        {
            "kernel": one.kernel.name,
            "classes": len(one.kernel.repeats),
            "segments": len(one.kernel.segments),
            "requested MB": wording.number(one.kernel.total("bytes") / 1e6, 4),
            "tensor GFLOP": wording.number(one.kernel.total("flops") / 1e9, 4),
            "exps M": wording.number(one.kernel.total("exps") / 1e6, 4),
            "FP32 a score": one.fp32_per_score or wording.NOTHING,
        }
        for one in found.kernels
    ]
    yield Table("Kernels", rows, whole=("kernel",))
    yield f"registers by {', '.join(dict.fromkeys(one.origin.resources for one in found.kernels))}"
    yield f"fitted latencies: {found.like or 'none, priors'}"
