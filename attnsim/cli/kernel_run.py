"""`attnsim kernels run`: one operation of ours, on the CPU with its counts or on the GPU, or any other kernel."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.cli import kernel_any, options, progress, show
from attnsim.cli.kernel_flags import KernelFlags, OwnFlags
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnsim.kernels.catalog import Operation
    from attnsim.kernels.comparison import Count
    from attnsim.models.question.workload import Workload
    from attnsim.ptx.outcome import Outcome

ROUNDED = 1e-6
"""Relative differences below it are those of float32, whose last digits differ between processors."""


@asking(arg=[], option=[])
def run(
    *,
    context: typer.Context,
    kernel: KernelFlags,
    check: Annotated[
        str, typer.Option(metavar="WHERE:NAME", help="A function that gets the inputs by name; outputs are compared.")
    ] = "",
    tolerance: Annotated[
        float | None, options.amount("Of --check, over the largest value; default: by the formats.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Keep the outputs of another kernel.")] = None,
    inputs: Annotated[
        str, typer.Option(metavar="KIND", help="normal, growing (scores), outlier, equal or nan.")
    ] = "normal",
    cpu: Annotated[bool, typer.Option("--cpu", help="In the interpreter, every access counted.")] = False,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="ID", help="With --cpu: whose tiles and limits to take; default: an A100.")
    ] = "",
    own: OwnFlags,
    seed: Annotated[int, options.count("Of the random inputs.", None, low=0)] = 0,
    json: options.Json = False,
) -> None:
    """Run one operation on random inputs against float64; with --cpu, count what its kernels did.

    With --ptx, --cuda or --triton run any other kernel in the interpreter.
    """
    from attnsim.kernels.catalog import find_operation
    from attnsim.ptx.adversarial import check_kind

    check_kind(inputs)
    kernel.refuse_mixed(context, own=("cpu", "gpu"), others=("check", "tolerance", "out"))
    if kernel.given:
        kernel_any.run(kernel, inputs, seed, check, tolerance, out, json)
        return
    operation = find_operation(kernel.name)
    question = own.workload(operation)
    where, outcome, counts = (
        _on_cpu(operation, question, gpu, seed, inputs) if cpu else _on_gpu(operation, question, seed, inputs)
    )
    faults = _faults(outcome, operation.tolerance(question.dtype), counts)
    if json:
        show.print_json([_answer(operation, question, where, seed, outcome, counts) | {"inputs": inputs}])
    else:
        _print_run(operation, question, where, outcome, counts)
    if faults:
        sys.stdout.flush()
        print(f"error: {operation.name} on {where}: {'; '.join(faults)}", file=sys.stderr)
        raise typer.Exit(kernel_any.FAILED)


def _on_cpu(
    operation: Operation, question: Workload, gpu: str, seed: int, inputs: str
) -> tuple[str, Outcome, list[Count]]:
    from attnsim.kernels.comparison import compare
    from attnsim.kernels.cpu_device import CpuDevice
    from attnsim.ptx.faults import Fault

    device = CpuDevice(gpu or operation.example_gpu)
    schedule = operation.schedule(question, device.gpu)
    blocks = sum(kernel.blocks for kernel in schedule.kernels)
    try:
        with progress.busy(f"interpreting {blocks} blocks"):
            outcome = operation.exercise(device, question, seed, inputs)
    except Fault as fault:  # a bug of the kernel, which is what the interpreter is there to find
        print(f"error: {fault}", file=sys.stderr)
        raise typer.Exit(kernel_any.FAILED) from None
    return f"the interpreter, tiles of {device.gpu.id}", outcome, compare(device.launches, schedule)


def _on_gpu(operation: Operation, question: Workload, seed: int, inputs: str) -> tuple[str, Outcome, list[Count]]:
    from attnsim.kernels.gpu.cuda_device import CudaDevice, CudaError

    try:
        device = CudaDevice(poison=True, synchronous=True)
    except InputError as error:
        raise InputError(f"{str(error).partition(', or run on the CPU')[0]}; or add --cpu") from None
    try:
        outcome = operation.exercise(device, question, seed, inputs)
    except CudaError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(kernel_any.FAILED) from None
    return device.gpu.id, outcome, []


def _faults(outcome: Outcome, allowed: float, counts: Sequence[Count]) -> list[str]:
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


def _answer(
    operation: Operation, question: Workload, where: str, seed: int, outcome: Outcome, counts: Sequence[Count]
) -> dict[str, Any]:
    errors = {name: error if error < float("inf") else None for name, error in outcome.errors().items()}
    return {
        "kernel": operation.name,
        "implementation": operation.implementation,
        "workload": str(question),
        "where": where,
        "seed": seed,
        "errors": errors,
        "tolerance": operation.tolerance(question.dtype),
        "counts": [{**dataclasses.asdict(one), "agrees": one.agrees} for one in counts],
    }


def _print_run(operation: Operation, question: Workload, where: str, outcome: Outcome, counts: Sequence[Count]) -> None:
    out = show.console()
    allowed = operation.tolerance(question.dtype)
    out.print(f"{operation.name} on {where}\n{question}\n")
    errors = [
        {
            "output": name,
            "error": f"{error:.1e}" if error >= ROUNDED else f"< {ROUNDED:.0e}",
            "allowed": f"{allowed:.1e}",
            "": "ok" if error <= allowed else "WRONG",
        }
        for name, error in outcome.errors().items()
    ]
    show.print_rows(out, "Largest difference from float64 over the largest value", errors)
    if not counts:
        return
    rows = [
        {
            "kernel": one.kernel,
            "quantity": one.quantity,
            "unit": one.unit,
            "counted": f"{one.counted:,}",
            "schedule": show.NOTHING if one.planned is None else f"{one.planned:,}",
            "": {None: "", True: "=", False: "differs"}[one.agrees],
        }
        for one in counts
        if one.counted or one.planned or one.quantity == "bank conflicts"
    ]
    title = "Counted by the interpreter, and in the schedule that the simulator plays"
    show.print_rows(out, title, rows, right=("counted", "schedule"))
    if any(one.agrees is False and not one.must_agree for one in counts):
        out.print("blocks and bytes must agree; FLOPs and exponentials the schedule charges by the tile")
