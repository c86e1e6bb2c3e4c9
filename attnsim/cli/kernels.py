"""`attnsim kernels`: our CUDA kernels and what they compile to; any kernel run, and its schedule from its PTX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import help, options, outputs, progress, show
from attnsim.cli.given import is_given
from attnsim.cli.options import flag, switch
from attnsim.cli.question_flags import asking
from attnsim.errors import InputError
from attnsim.kernels import cpu_device
from attnsim.kernels.catalog import OPERATIONS, Operation, find_operation
from attnsim.kernels.cpu_device import Count
from attnsim.kernels.gpu.cuda_device import CudaDevice, CudaError
from attnsim.kernels.resources import (
    ARCHITECTURES,
    GOLDEN,
    inspect_all,
    jobs,
    to_csv,
)
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.llm import asked
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.models.schedule.kernel_file import check_suffix, to_dict, write_kernels
from attnsim.ptx import compile_cache, outcome
from attnsim.ptx.faults import Fault
from attnsim.ptx.foreign import launching
from attnsim.ptx.foreign.arguments import load_named
from attnsim.ptx.foreign.launching import Ready
from attnsim.ptx.outcome import Difference, Outcome, check_kind
from attnsim.reports.kernels import (
    faults_of,
    foreign_run,
    kernel_record,
    kernels_list,
    resource_record,
    resources_table,
    run_record,
    run_tables,
    traced,
)
from attnsim.tables import written
from attnsim.writing import write_whole

app = help.Commands(help="List our CUDA kernels, compile them, or run one.", invoke_without_command=True)


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


@dataclass(frozen=True, kw_only=True)
class KernelFlags:
    """The kernel, and its launch where it is not one of ours."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="As in `attnsim kernels list`.")] = ""
    ptx: Annotated[Path | None, flag("FILE", "Another kernel in place of NAME: of PTX.")] = None
    cuda: Annotated[Path | None, flag("FILE", "Another kernel: of a CUDA file, by NVRTC.")] = None
    triton: Annotated[str, flag("WHERE:NAME", "Another kernel: a @triton.jit function of a file or module.")] = ""
    entry: Annotated[str, flag("NAME", "Of the PTX; default: the only entry point.")] = ""
    grid: Annotated[str, flag("X,Y,Z", "Blocks of another kernel.")] = ""
    block: Annotated[str, flag("X,Y,Z", "Threads of a block; default: what the kernel asks for.")] = ""
    arg: Annotated[list[str], flag("NAME=VALUE", "'Q=fp16[2,8,500,64]', 'O=fp16[64]:empty', 'N=500'; in order.")] = (
        field(default_factory=list)
    )
    shared: Annotated[int | None, options.count("Dynamic shared memory of a block.", None, low=0, metavar="BYTES")] = (
        None
    )
    arch: Annotated[str, flag("SM", "What --cuda and --triton compile for; default: 80.")] = ""
    option: Annotated[list[str], flag("TEXT", "For the compiler: '-DN=64', or for Triton 'num_warps=8'.")] = field(
        default_factory=list
    )

    @property
    def given(self) -> list[str]:
        """Flags that name a kernel that is not ours."""
        return [f"--{name}" for name in NAMING if getattr(self, name)]

    def ready(self, inputs: str, seed: int) -> Ready:
        """Read or compile a kernel that is not ours, and make its arguments."""
        return launching.prepare(
            ptx=self.ptx,
            cuda=self.cuda,
            triton=self.triton,
            entry=self.entry,
            arch=self.arch,
            options=self.option,
            grid=_numbers(self.grid, "--grid"),
            block=_numbers(self.block, "--block") if self.block else None,
            arguments=self.arg,
            shared_memory_bytes=self.shared,
            inputs=inputs,
            seed=seed,
        )

    def refuse_mixed(self, context: typer.Context, own: Sequence[str], others: Sequence[str]) -> None:
        """Refuse flags of our own operations beside another kernel, and the other way round.

        Parameters
        ----------
        context : typer.Context
        own, others : sequence of str
            The command's flags, beside those of all, for one of ours alone and for another kernel alone.
        """
        what = [*([self.name] if self.name else []), *self.given]
        if len(what) != 1:
            given_text = f"{' and '.join(what)} are given" if what else f"nothing to {context.command.name} is given"
            raise InputError(f"{given_text}; give one of NAME (attnsim kernels list), --ptx, --cuda and --triton")
        launching = (one.name for one in fields(self) if one.name not in ("name", *NAMING))
        refused = (*launching, *others) if self.name else (*(one.name for one in fields(OwnFlags)), *own)
        if wrong := [
            f"--{one.replace('_', '-')}" for one in context.params if one in refused and is_given(context, one)
        ]:
            raise InputError(
                f"{', '.join(wrong)}: not for {what[0]}; "
                f"only with {'--ptx, --cuda or --triton' if self.name else 'NAME'}"
            )


NAMING = ("ptx", "cuda", "triton")
"""Flags that name a kernel that is not ours."""


@dataclass(frozen=True, kw_only=True)
class OwnFlags:
    """The question that an operation of ours runs."""

    batch: options.Batch = 1
    heads: options.Heads = 2
    kv_heads: options.KvHeads = None
    seq: options.Seq = 128
    seq_kv: options.SeqKv = None
    head_dim: options.HeadDim = 64
    dtype: Annotated[str, flag(None, "fp16 or bf16.")] = "bf16"
    causal: options.Causal = False
    window: options.Reach = None
    mask: Annotated[str, flag("TEXT", "A pattern such as 'causal, window 512, global 16'.")] = ""
    sinks: options.Sinks = False
    softcap: options.Softcap = None

    def workload(self, operation: Operation) -> Workload:
        """The question."""
        if self.dtype not in ("fp16", "bf16"):
            raise InputError(f"--dtype {self.dtype}: the kernels take fp16 and bf16")
        return asked.workload(**asdict(self) | {"mask": self.mask or None, "passes": operation.passes})


def _numbers(text: str, flag: str) -> list[int]:
    """One to three whole numbers of a flag."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{flag} is {text!r}; give one to three whole numbers, as {flag} 4,8") from None


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
        progress.fail("\n".join(launching.faults_in_words(fault)))
    differences: list[Difference] = []
    allowed = outcome.tolerance_of(ready.arguments) if tolerance is None else tolerance
    if reference is not None:
        differences = outcome.differences(ran.outputs, outcome.expected_of(reference, before, ran.outputs))
    if out is not None:
        launching.save(out, ran.outputs)
    record = {**about, **launching.answer(ran, differences, allowed)}
    show.give(json, [record], foreign_run(ran, inputs, seed, differences, allowed, out))
    off = [one for one in differences if one.max_rel > allowed]
    if off:
        wrong = (f"{one.output} is off by {one.max_rel:.1e}, allowed {allowed:.1e}" for one in off)
        progress.fail(f"{ran.entry}: {'; '.join(wrong)}")


@app.command("run", example="attnsim kernels run flash --cpu")
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
    faults = faults_of(outcome, operation.tolerance(question.dtype), counts)
    record = run_record(operation, question, where, seed, outcome, counts) | {"inputs": inputs}
    show.give(json, [record], run_tables(operation, question, where, outcome, counts))
    if faults:
        progress.fail(f"{operation.name} on {where}: {'; '.join(faults)}")


def _on_cpu(
    operation: Operation, question: Workload, gpu: str, seed: int, inputs: str
) -> tuple[str, Outcome, list[Count]]:
    device = cpu_device.CpuDevice(gpu or operation.example_gpu)
    schedule = operation.schedule(question, device.gpu)
    blocks = sum(kernel.blocks for kernel in schedule.kernels)
    # A fault is a bug of the kernel, which is what the interpreter is there to find.
    with progress.gpu_errors(Fault), progress.interpreting(f"{operation.name} of {blocks:,} blocks in the interpreter"):
        outcome = operation.exercise(device, question, seed, inputs)
    return f"the interpreter, tiles of {device.gpu.id}", outcome, cpu_device.compare(device.launches, schedule)


def _on_gpu(operation: Operation, question: Workload, seed: int, inputs: str) -> tuple[str, Outcome, list[Count]]:
    try:
        device = CudaDevice(poison=True, synchronous=True)
    except InputError as error:
        raise InputError(f"{str(error).partition(', or run on the CPU')[0]}; or add --cpu") from None
    with progress.gpu_errors(CudaError):
        outcome = operation.exercise(device, question, seed, inputs)
    return device.gpu.id, outcome, []


@app.command("trace", example="attnsim kernels trace flash --seq 2048 --out flash.yaml")
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
    show.give(json, [to_dict(found)], chain(traced(found), written([out])))


def _lifted(
    kernel: KernelFlags, gpu: str, inputs: str, registers: int | None, like: str | None, flags: OwnFlags, counted: bool
) -> LiftedCall:
    from attnsim.kernels.lift import tracing

    if kernel.given:
        if like:
            find_implementation(like)
        source = str(kernel.ptx or kernel.cuda or kernel.triton)
        return tracing.trace_kernel(kernel.ready(inputs, 0), source, inputs, registers, like, counted=counted)
    operation = find_operation(kernel.name)
    where, question = gpu or operation.example_gpu, flags.workload(operation)
    try:
        return tracing.lift_operation(operation, question, where, inputs, counted=counted)
    except Fault as fault:
        raise InputError(str(fault)) from None
