"""`attnsim kernels`: our CUDA kernels and what they compile to."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import typer

from attnsim.cli import help, kernel_run, options, progress, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, find_operation
from attnsim.kernels.resources import (
    ARCHITECTURES,
    GOLDEN,
    inspect_all,
    jobs,
    to_csv,
)
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.ptx import compile_cache
from attnsim.reports.kernels import kernel_record, kernels_list, resource_record, resources_table
from attnsim.tables import written
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
    show.give(json, map(kernel_record, OPERATIONS.values()), kernels_list())


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
    records = (resource_record(row, gpus) for row in rows)
    show.give(json, records, chain(resources_table(rows, gpus), written([GOLDEN] if write else [])))
    slow = [row for row in rows if row.spill_bytes or row.stack_bytes]
    if slow:
        worst = max(slow, key=lambda row: row.spill_bytes + row.stack_bytes)
        progress.fail(
            f"{len(slow)} of {len(rows)} compilations use local memory, the most {worst.kernel} on "
            f"sm_{worst.arch}: {worst.spill_bytes} bytes a thread spilled, {worst.stack_bytes} on the stack; take a "
            "smaller tile, or index its register arrays by constants"
        )
