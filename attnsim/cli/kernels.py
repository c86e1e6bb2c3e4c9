"""`attnsim kernels`: our CUDA kernels and what they compile to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Any

import typer

from attnsim.cli import help, kernel_run, options, progress, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation, find_operation
from attnsim.kernels.resources import (
    ARCHITECTURES,
    GOLDEN,
    ResourceRow,
    inspect_all,
    jobs,
    resident_blocks,
    runs_on,
    to_csv,
)
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.ptx import compile_cache
from attnsim.tables import Block, Table, written
from attnsim.writing import write_whole

app = help.Commands(help="List our CUDA kernels, compile them, or run one.", invoke_without_command=True)
app.command("run", example="attnsim kernels run flash --cpu")(kernel_run.run)
app.command("trace", example="attnsim kernels trace flash --seq 2048 --out flash.yaml")(kernel_run.trace)


@app.callback()
def kernels(context: typer.Context, json: options.Json = False) -> None:
    """List our CUDA kernels, or compile them, or run one."""
    if context.invoked_subcommand is None:
        list_kernels(json)
    elif json:
        raise InputError("--json comes after the command: attnsim kernels list --json")


@app.command("list", example="attnsim kernels list")
def list_kernels(json: options.Json = False) -> None:
    """List the operations that have kernels."""
    show.give(json, map(_record, OPERATIONS.values()), _list())


def _list() -> Iterator[Block]:
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


def _record(operation: Operation) -> dict[str, Any]:
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


@app.command("check", example="attnsim kernels check")
def check(
    kernel: Annotated[list[str], flag("NAME", "Operations; repeat it or use commas. Default: all.")] = [],  # noqa: B006 Typer copies it
    arch: Annotated[list[str], flag("SM", "80, 86, 89, 90, 90a, 100; default: all.")] = [],  # noqa: B006
    write: Annotated[bool, switch("Write the table that the simulator reads.", "--write")] = False,
    json: options.Json = False,
) -> None:
    """Compile every kernel for every architecture and show what it takes."""
    chosen = [find_operation(name) for name in options.words(kernel, "--kernel")] if kernel else [*OPERATIONS.values()]
    wanted = [name.removeprefix("sm_") for name in options.words(arch, "--arch")] if arch else list(ARCHITECTURES)
    for name in wanted:
        if name not in ARCHITECTURES:
            raise InputError(f"--arch {name} is not known; allowed: {', '.join(ARCHITECTURES)}")
    if write and (kernel or arch):
        raise InputError("--write writes the whole table; leave out --kernel and --arch")
    work = jobs(chosen, wanted)
    if not work:
        raise InputError(f"no kernel of {', '.join(kernel)} is meant for {', '.join(wanted)}; leave out --arch")
    with progress.steps("compiling", len(work)) as step:
        rows = inspect_all(work, lambda job: step())
    compile_cache.prune()
    if write:
        write_whole(GOLDEN, to_csv(rows))

    gpus = [load_gpu(name) for name in builtin_gpu_ids()]
    records = (_with_blocks(row, gpus) for row in rows)
    show.give(json, records, chain(_resources(rows, gpus), written([GOLDEN] if write else [])))
    slow = [row for row in rows if row.spill_bytes or row.stack_bytes]
    if slow:
        worst = max(slow, key=lambda row: row.spill_bytes + row.stack_bytes)
        progress.fail(
            f"{len(slow)} of {len(rows)} compilations use local memory, the most {worst.kernel} on "
            f"sm_{worst.arch}: {worst.spill_bytes} bytes a thread spilled, {worst.stack_bytes} on the stack; take a "
            "smaller tile, or index its register arrays by constants"
        )


def _with_blocks(row: ResourceRow, gpus: Sequence[Gpu]) -> dict[str, Any]:
    blocks = {gpu.id: resident_blocks(row, gpu) for gpu in gpus if runs_on(row, gpu)}
    return {**dataclasses.asdict(row), "blocks_per_sm": blocks}


def _resources(rows: Sequence[ResourceRow], gpus: Sequence[Gpu]) -> Iterator[Block]:
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
