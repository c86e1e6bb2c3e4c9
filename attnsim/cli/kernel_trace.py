"""`attnsim kernels trace`: a kernel's schedule from its instructions, as a file for `attnsim predict --kernel`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from attnsim import wording
from attnsim.cli import options, outputs, progress, show
from attnsim.cli.kernel_flags import KernelFlags, OwnFlags
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.kernels.catalog import find_operation
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.models.schedule.kernel_file import check_suffix, to_dict, write_kernels
from attnsim.ptx.faults import Fault
from attnsim.ptx.outcome import check_kind
from attnsim.tables import Block, Table, Unfolded, written


@asking(arg=[], option=[], seq=1024)
def trace(
    *,
    context: typer.Context,
    kernel: KernelFlags,
    registers: Annotated[int | None, options.count("Of a thread; default: what ptxas reports.", None, high=255)] = None,
    like: Annotated[
        str | None, flag("NAME", "Whose fitted latencies to take; default: an open kernel's alike.")
    ] = None,
    counted: Annotated[
        bool,
        switch(
            "Charge work by its own instructions, or by FlashAttention's of its path.",
            "--counted/--fitted",
        ),
    ] = True,
    inputs: Annotated[str, flag("KIND", "zeros, or growing (scores) and the others of kernels run.")] = "zeros",
    out: Annotated[Path | None, flag("FILE.yaml", "The kernel file.")] = None,
    gpu: Annotated[str, flag("ID", "With NAME: whose tiles to take; default: an A100.")] = "",
    own: OwnFlags,
    json: options.Json = False,
) -> None:
    """Find a kernel's schedule in its instructions: PTX, a CUDA file, Triton, or one of ours; no GPU is needed.

    Shapes and grid are those of the launch; the file is then predicted on any GPU.
    """
    if inputs != "zeros":
        check_kind(inputs)
    if out is not None:
        check_suffix(out)
        outputs.check_output(out)
    kernel.refuse_mixed(context, own=("gpu",), others=("registers", "like"))
    with progress.interpreting("finding the schedule"):
        found = _lifted(kernel, gpu, inputs, registers, like, own, counted)
    if out is not None:
        write_kernels(out, found)
    show.give(json, [to_dict(found)], chain(_blocks(found), written([out])))


def _lifted(
    kernel: KernelFlags, gpu: str, inputs: str, registers: int | None, like: str | None, flags: OwnFlags, counted: bool
) -> LiftedCall:
    from attnsim.kernels.lift import own, tracing

    if kernel.given:
        if like:
            find_implementation(like)
        source = str(kernel.ptx or kernel.cuda or kernel.triton)
        return tracing.trace_kernel(kernel.ready(inputs, 0), source, inputs, registers, like, counted=counted)
    operation = find_operation(kernel.name)
    where, question = gpu or operation.example_gpu, flags.workload(operation)
    try:
        return own.lift_operation(operation, question, where, inputs, counted=counted)
    except Fault as fault:
        raise InputError(str(fault)) from None


def _blocks(found: LiftedCall) -> Iterator[Block]:
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
