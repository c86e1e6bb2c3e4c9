"""`attnsim kernels trace`: a kernel's schedule from its instructions, as a file for `attnsim predict --kernel`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnsim.cli import kernel_any, kernel_flags, options, outputs, progress, show
from attnsim.models.errors import InputError
from attnsim.models.llm import asked

if TYPE_CHECKING:
    from attnsim.models.schedule.lifted import LiftedCall

OTHERS = ("--entry", "--grid", "--block", "--arg", "--shared", "--arch", "--option", "--registers", "--like")
"""Flags of kernels that are not ours alone."""


def trace(
    *,
    context: typer.Context,
    name: kernel_flags.Name = "",
    ptx: kernel_flags.Ptx = None,
    cuda: kernel_flags.Cuda = None,
    triton: kernel_flags.Triton = "",
    entry: kernel_flags.Entry = "",
    grid: kernel_flags.Grid = "",
    block: kernel_flags.Block = "",
    arg: kernel_flags.Arg = [],  # noqa: B006 Typer copies it
    shared: kernel_flags.Shared = None,
    arch: kernel_flags.Arch = "",
    option: kernel_flags.Compiler = [],  # noqa: B006
    registers: Annotated[
        int | None, typer.Option(metavar="N", help="Of a thread; default: what ptxas reports.")
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose fitted latencies and rates to take; default: an open kernel's alike."),
    ] = None,
    counted: Annotated[
        bool,
        typer.Option("--counted/--fitted", help="Charge work by the PTX's instructions, or scores by fitted numbers."),
    ] = True,
    inputs: Annotated[
        str, typer.Option(metavar="KIND", help="zeros, or growing (scores) and the others of kernels run.")
    ] = "zeros",
    out: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="The kernel file.")] = None,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="ID", help="With NAME: whose tiles to take; default: an A100.")
    ] = "",
    batch: options.Batch = 1,
    heads: options.Heads = 2,
    kv_heads: options.KvHeads = None,
    seq: options.Seq = 1024,
    seq_kv: options.SeqKv = None,
    head_dim: options.HeadDim = 64,
    dtype: kernel_flags.Dtype = "bf16",
    causal: options.Causal = False,
    window: options.Reach = None,
    mask: kernel_flags.Mask = "",
    json: options.Json = False,
) -> None:
    """Find a kernel's schedule in its instructions: PTX, a CUDA file, Triton, or one of ours; no GPU is needed.

    Shapes and grid are those of the launch; the file is then predicted on any GPU.
    """
    from attnsim.kernels.adversarial import check_kind
    from attnsim.models.schedule.kernel_file import to_dict, write_kernels

    if inputs != "zeros":
        check_kind(inputs)
    if out is not None:
        outputs.check_output(out)
    kernel = kernel_any.Kernel(ptx, cuda, triton, entry, tuple(option), arch)
    own = ("--gpu", *kernel_flags.OWN_FLAGS)
    kernel_flags.refuse_mixed(context, name, kernel.given, own, OTHERS)
    with progress.busy("lifting"):
        if kernel.given:
            launch = kernel_any.Launch(grid, block, tuple(arg), shared, inputs, 0)
            found = _other(kernel, launch, registers, like, counted)
        else:
            question = dict(
                batch=batch, heads=heads, kv_heads=kv_heads, seq=seq, seq_kv=seq_kv, head_dim=head_dim, dtype=dtype,
                causal=causal, window=window, mask=mask or None,
            )  # fmt: skip
            found = _own(name, gpu, inputs, question, counted)
    if out is not None:
        write_kernels(out, found)
    if json:
        show.print_json([to_dict(found)])
    else:
        _print(found, out)


def _other(
    kernel: kernel_any.Kernel, launch: kernel_any.Launch, registers: int | None, like: str | None, counted: bool
) -> LiftedCall:
    from attnsim.kernels.foreign import launching
    from attnsim.kernels.lift.tracing import trace_kernel
    from attnsim.models.implementations.choose import find_implementation

    if like:
        find_implementation(like)
    ready = launching.prepare(
        ptx=kernel.ptx,
        cuda=kernel.cuda,
        triton=kernel.triton,
        entry=kernel.entry,
        arch=kernel.arch,
        options=kernel.options,
        grid=kernel_any.numbers(launch.grid, "--grid"),
        block=kernel_any.numbers(launch.block, "--block") if launch.block else None,
        arguments=launch.arguments,
        shared_memory_bytes=launch.shared,
        inputs=launch.inputs,
        seed=launch.seed,
    )
    source = str(kernel.ptx or kernel.cuda or kernel.triton)
    return trace_kernel(ready, source, launch.inputs, registers, like, counted=counted)


def _own(name: str, gpu: str, inputs: str, question: dict[str, Any], counted: bool) -> LiftedCall:
    from attnsim.kernels.catalog import find_operation
    from attnsim.kernels.cpu.faults import Fault
    from attnsim.kernels.lift.own import lift_operation

    operation = find_operation(name)
    if question["dtype"] not in ("fp16", "bf16"):
        raise InputError(f"--dtype {question['dtype']}: the kernels take fp16 and bf16")
    w = asked.workload(**question, passes=operation.passes)
    try:
        return lift_operation(operation, w, gpu or operation.example_gpu, inputs, counted=counted)
    except Fault as fault:
        raise InputError(str(fault)) from None


def _print(found: LiftedCall, out: Path | None) -> None:
    console = show.console()
    for one in found.kernels:
        origin = one.origin
        console.print(f"{origin.entry} from {origin.source}, sm_{origin.arch}, {origin.inputs} inputs")
    console.print("")
    console.print(str(found.schedule), soft_wrap=True)
    console.print("")
    rows = [
        {
            "kernel": one.kernel.name,
            "classes": len(one.kernel.repeats),
            "segments": len(one.kernel.segments),
            "requested MB": show.number(one.kernel.total("bytes") / 1e6, 4),
            "tensor GFLOP": show.number(one.kernel.total("flops") / 1e9, 4),
            "exps M": show.number(one.kernel.total("exps") / 1e6, 4),
            "FP32 a score": one.fp32_per_score or show.NOTHING,
        }
        for one in found.kernels
    ]
    show.print_rows(console, "Kernels", rows, whole=("kernel",))
    console.print(f"registers by {', '.join(dict.fromkeys(one.origin.resources for one in found.kernels))}")
    console.print(f"fitted latencies and rates: {found.like or 'none, priors'}")
    if out is not None:
        console.print(f"written: {out}", soft_wrap=True)
