"""`attnsim kernels run`: one operation of ours, on the CPU with its counts or on the GPU, or any other kernel."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.cli import asked, kernel_any, options, progress, show
from attnsim.models.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnsim.kernels.catalog import Operation
    from attnsim.kernels.comparison import Count
    from attnsim.kernels.outcome import Outcome
    from attnsim.models.question.workload import Workload

OWN_FLAGS = tuple(
    f"--{name}"
    for name in (
        "cpu",
        "gpu",
        "batch",
        "heads",
        "kv-heads",
        "seq",
        "seq-kv",
        "head-dim",
        "dtype",
        "causal",
        "window",
        "mask",
    )
)
"""Of our own operations alone."""


def run(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As in `attnsim kernels list`.")] = "",
    ptx: Annotated[Path | None, typer.Option(metavar="FILE", help="Another kernel in place of NAME: of PTX.")] = None,
    cuda: Annotated[Path | None, typer.Option(metavar="FILE", help="Another kernel: of a CUDA file, by NVRTC.")] = None,
    triton: Annotated[
        str, typer.Option(metavar="WHERE:NAME", help="Another kernel: a @triton.jit function of a file or module.")
    ] = "",
    entry: Annotated[str, typer.Option(metavar="NAME", help="Of the PTX; default: the only entry point.")] = "",
    grid: Annotated[str, typer.Option(metavar="X,Y,Z", help="Blocks of another kernel.")] = "",
    block: Annotated[
        str, typer.Option(metavar="X,Y,Z", help="Threads of a block; default: what the kernel asks for.")
    ] = "",
    arg: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUE", help="'Q=fp16[2,8,500,64]', 'O=fp16[64]:empty', 'N=500'; in order."),
    ] = [],  # noqa: B006 Typer copies it
    shared: Annotated[int | None, typer.Option(metavar="BYTES", help="Dynamic shared memory of a block.")] = None,
    arch: Annotated[str, typer.Option(metavar="SM", help="What --cuda and --triton compile for; default: 80.")] = "",
    option: Annotated[
        list[str], typer.Option(metavar="TEXT", help="For the compiler: '-DN=64', or for Triton 'num_warps=8'.")
    ] = [],  # noqa: B006
    check: Annotated[
        str, typer.Option(metavar="WHERE:NAME", help="A function that gets the inputs by name; outputs are compared.")
    ] = "",
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Of --check, over the largest value; default: by the formats.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Keep the outputs of another kernel.")] = None,
    inputs: Annotated[
        str, typer.Option(metavar="KIND", help="normal, growing (scores), outlier, equal or nan.")
    ] = "normal",
    cpu: Annotated[bool, typer.Option("--cpu", help="In the interpreter, every access counted.")] = False,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="ID", help="With --cpu: whose tiles and limits to take; default: an A100.")
    ] = "",
    batch: options.Batch = 1,
    heads: options.Heads = 2,
    kv_heads: options.KvHeads = None,
    seq: options.Seq = 128,
    seq_kv: options.SeqKv = None,
    head_dim: options.HeadDim = 64,
    dtype: Annotated[str, typer.Option(help="fp16 or bf16.")] = "bf16",
    causal: options.Causal = False,
    window: options.Reach = None,
    mask: Annotated[
        str, typer.Option("--mask", metavar="TEXT", help="A pattern such as 'causal, window 512, global 16'.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    json: options.Json = False,
) -> None:
    """Run one operation on random inputs against float64; with --cpu, count what its kernels did.

    With --ptx, --cuda or --triton run any other kernel in the interpreter.
    """
    from attnsim.kernels.adversarial import check_kind
    from attnsim.kernels.catalog import find_operation

    check_kind(inputs)
    kernel = kernel_any.Kernel(ptx, cuda, triton, entry, tuple(option), arch)
    _refuse_mixed(context, name, kernel.given)
    if kernel.given:
        launch = kernel_any.Launch(grid, block, tuple(arg), shared, inputs, seed)
        kernel_any.run(kernel, launch, check, tolerance, out, json)
        return
    operation = find_operation(name)
    if dtype not in ("fp16", "bf16"):
        raise InputError(f"--dtype {dtype}: the kernels take fp16 and bf16")
    question = asked.workload(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq=seq,
        seq_kv=seq_kv,
        head_dim=head_dim,
        dtype=dtype,
        causal=causal,
        window=window,
        mask=mask or None,
        passes=operation.passes,
    )
    where, outcome, counts = (
        _on_cpu(operation, question, gpu, seed, inputs) if cpu else _on_gpu(operation, question, seed, inputs)
    )
    faults = _faults(outcome, operation.tolerance(dtype), counts)
    if json:
        show.print_json([_answer(operation, question, where, seed, outcome, counts) | {"inputs": inputs}])
    else:
        _print_run(operation, question, where, outcome, counts)
    if faults:
        sys.stdout.flush()
        print(f"error: {operation.name} on {where}: {'; '.join(faults)}", file=sys.stderr)
        raise typer.Exit(kernel_any.FAILED)


def _refuse_mixed(context: typer.Context, name: str, given: Sequence[str]) -> None:
    """Refuse flags of our own operations beside another kernel, and the other way round.

    Raises
    ------
    InputError
    """
    flags = [
        f"--{one.replace('_', '-')}"
        for one in context.params
        if getattr(context.get_parameter_source(one), "name", "") == "COMMANDLINE"
    ]
    what = [*([name] if name else []), *given]
    if len(what) != 1:
        told = f"{' and '.join(what)} are given" if what else "nothing to run is given"
        raise InputError(f"{told}; give one of NAME (attnsim kernels list), --ptx, --cuda and --triton")
    others = kernel_any.FLAGS if name else OWN_FLAGS
    if wrong := [flag for flag in flags if flag in others]:
        raise InputError(
            f"{', '.join(wrong)}: not for {what[0]}; only with {'--ptx, --cuda or --triton' if name else 'NAME'}"
        )


def _on_cpu(
    operation: Operation, question: Workload, gpu: str, seed: int, inputs: str
) -> tuple[str, Outcome, list[Count]]:
    from attnsim.kernels.comparison import compare
    from attnsim.kernels.cpu.device import CpuDevice
    from attnsim.kernels.cpu.faults import Fault

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
            "error": f"{error:.1e}",
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
