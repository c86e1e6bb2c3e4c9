"""`attnsim kernels run`: one operation of ours, on the CPU with its counts or on the GPU, or any other kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim import wording
from attnsim.cli import on_gpu, options, progress, show
from attnsim.cli.kernel_flags import KernelFlags, OwnFlags
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.kernels import cpu_device
from attnsim.kernels.catalog import Operation, find_operation
from attnsim.kernels.cpu_device import Count
from attnsim.kernels.gpu.cuda_device import CudaDevice, CudaError
from attnsim.models.question.workload import Workload
from attnsim.ptx import outcome
from attnsim.ptx.counters import PIPES
from attnsim.ptx.faults import Fault
from attnsim.ptx.foreign import launching
from attnsim.ptx.foreign.arguments import load_named
from attnsim.ptx.foreign.launching import summary_of
from attnsim.ptx.foreign.run import PtxRun
from attnsim.ptx.outcome import Difference, Outcome, check_kind
from attnsim.tables import Block, Table, Unfolded, texts


def _run_any(
    kernel: KernelFlags, inputs: str, seed: int, check: str, tolerance: float | None, out: Path | None, json: bool
) -> None:
    """Run a kernel that is not ours, compare its outputs if asked to, and print."""
    if tolerance is not None and not check:
        raise InputError("--tolerance is for --check WHERE:NAME, which is not given")
    reference = load_named(check) if check else None
    ready = kernel.ready(inputs, seed)
    before = outcome.values_of(ready.arguments)
    about = {**ready.described(), "inputs": inputs, "seed": seed}
    try:
        with progress.interpreting(f"{ready.entry or 'the kernel'} in the interpreter"):
            ran = ready.run()
    except Fault as fault:  # a bug of the kernel, which is what the interpreter is there to find
        if json:
            show.print_json([{**about, "faults": launching.faults_of(fault)}])
        on_gpu.fail("\n".join(launching.faults_in_words(fault)))
    differences: list[Difference] = []
    allowed = outcome.tolerance_of(ready.arguments) if tolerance is None else tolerance
    if reference is not None:
        differences = outcome.differences(ran.outputs, outcome.expected_of(reference, before, ran.outputs))
    if out is not None:
        launching.save(out, ran.outputs)
    record = {**about, **launching.answer(ran, differences, allowed)}
    show.give(json, [record], _ran(ran, inputs, seed, differences, allowed, out))
    off = [one for one in differences if one.max_rel > allowed]
    if off:
        wrong = (f"{one.output} is off by {one.max_rel:.1e}, allowed {allowed:.1e}" for one in off)
        on_gpu.fail(f"{ran.entry}: {'; '.join(wrong)}")


def _ran(
    ran: PtxRun, inputs: str, seed: int, found: Sequence[Difference], allowed: float, kept: Path | None
) -> Iterator[Block]:
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


@asking(arg=[], option=[])
def run(
    *,
    context: typer.Context,
    kernel: KernelFlags,
    check: Annotated[str, flag("WHERE:NAME", "A function that gets the inputs by name; outputs are compared.")] = "",
    tolerance: Annotated[
        float | None, options.amount("Of --check, over the largest value; default: by the formats.")
    ] = None,
    out: Annotated[Path | None, flag("FILE.npz", "Keep the outputs of another kernel.")] = None,
    inputs: Annotated[str, flag("KIND", "normal, growing (scores), outlier, equal or nan.")] = "normal",
    cpu: Annotated[bool, switch("In the interpreter, every access counted.", "--cpu")] = False,
    gpu: Annotated[str, flag("ID", "With --cpu: whose tiles and limits to take; default: an A100.")] = "",
    own: OwnFlags,
    seed: Annotated[int, options.count("Of the random inputs.", None, low=0)] = 0,
    json: options.Json = False,
) -> None:
    """Run one operation on random inputs against float64; with --cpu, count what its kernels did.

    With --ptx, --cuda or --triton run any other kernel in the interpreter.
    """
    check_kind(inputs)
    kernel.refuse_mixed(context, own=("cpu", "gpu"), others=("check", "tolerance", "out"))
    if kernel.given:
        _run_any(kernel, inputs, seed, check, tolerance, out, json)
        return
    operation = find_operation(kernel.name)
    question = own.workload(operation)
    where, outcome, counts = (
        _on_cpu(operation, question, gpu, seed, inputs) if cpu else _on_gpu(operation, question, seed, inputs)
    )
    faults = _faults(outcome, operation.tolerance(question.dtype), counts)
    record = _answer(operation, question, where, seed, outcome, counts) | {"inputs": inputs}
    show.give(json, [record], _blocks(operation, question, where, outcome, counts))
    if faults:
        on_gpu.fail(f"{operation.name} on {where}: {'; '.join(faults)}")


def _on_cpu(
    operation: Operation, question: Workload, gpu: str, seed: int, inputs: str
) -> tuple[str, Outcome, list[Count]]:
    device = cpu_device.CpuDevice(gpu or operation.example_gpu)
    schedule = operation.schedule(question, device.gpu)
    blocks = sum(kernel.blocks for kernel in schedule.kernels)
    # A fault is a bug of the kernel, which is what the interpreter is there to find.
    with on_gpu.told(Fault), progress.interpreting(f"{operation.name} of {blocks:,} blocks in the interpreter"):
        outcome = operation.exercise(device, question, seed, inputs)
    return f"the interpreter, tiles of {device.gpu.id}", outcome, cpu_device.compare(device.launches, schedule)


def _on_gpu(operation: Operation, question: Workload, seed: int, inputs: str) -> tuple[str, Outcome, list[Count]]:
    try:
        device = CudaDevice(poison=True, synchronous=True)
    except InputError as error:
        raise InputError(f"{str(error).partition(', or run on the CPU')[0]}; or add --cpu") from None
    with on_gpu.told(CudaError):
        outcome = operation.exercise(device, question, seed, inputs)
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
        "counts": [{**asdict(one), "agrees": one.agrees} for one in counts],
    }


def _blocks(
    operation: Operation, question: Workload, where: str, outcome: Outcome, counts: Sequence[Count]
) -> Iterator[Block]:
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
        yield ("blocks and bytes must agree; FLOPs and exponentials the schedule charges by the tile")
