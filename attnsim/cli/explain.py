"""`attnsim explain`: one algorithm on one GPU, from its loop nest to what would have to change for it to be faster."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from attnsim import wording
from attnsim.api.answer import Outcome
from attnsim.api.asking import read_conditions
from attnsim.api.bounds import fastest
from attnsim.api.comparing.splitting import split as shared_out
from attnsim.api.explaining import Explanation, KernelFit, one_launch
from attnsim.api.explaining import explain as explained
from attnsim.cli import fit_tables, given, lifted, options, progress, question_flags, show, split
from attnsim.cli.predictions import check_window
from attnsim.cli.question_flags import OF_THE_CALL, ConditionFlags, QuestionFlags, asking
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.reports.sentences import anew_sentences, bound_sentences, timed_text
from attnsim.wording import clock_text

WITHOUT_RANGE = (
    "Speedups of levers have no 90 % range; predict with --set, --tile or --implementation prints the range of one."
)


@asking()
def explain(
    *,
    context: typer.Context,
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help="A name that attnsim algorithms lists.")] = "",
    gpu: options.OneGpu = "",
    kernel: lifted.File = None,
    implementation: options.ImplementationName = None,
    flags: QuestionFlags,
    changes: options.Changes = [],  # noqa: B006 Typer copies it
    split_changes: split.Flag = False,
    tile: options.Tile = None,
    how: ConditionFlags,
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Explain an algorithm: loop nest, what limits it, bytes by tensor and level, what bounds it.

    Without --model, --heads, --seq and --head-dim its own example is taken.
    """
    if kernel is not None:
        given.refuse(context, "corrects implementations that are known, not a --kernel file", ("calibration",))
        lifted.explain(context, kernel, gpu, changes, verbose, json, how.with_l2(flags.l2))
        return
    if not algorithm:
        raise InputError("nothing to explain is given; give a name (attnsim algorithms lists them) or --kernel FILE")
    if split_changes:
        split.check(changes)
    question = flags.workload() if any(given.is_given(context, name) for name in OF_THE_CALL) else None

    if question is not None:
        check_window(question, [algorithm], flags.window)
    machine, asked = question_flags.changed(load_gpu(gpu), changes), how.with_l2(flags.l2)
    with progress.plays() as report:
        found = explained(
            question, machine, algorithm, implementation=implementation, tile=tile, progress=report, **asked
        )
    call, parts = found.prediction, None
    if split_changes:
        parts = shared_out(
            call.workload, machine, call.algorithm, implementation=call.implementation, tile=tile, **asked
        )
    conditions = read_conditions(mode=how.mode, cache=flags.l2, launch=how.launch)
    one = one_launch(call.workload, machine, conditions)
    if json:
        more = {"split": parts.to_dict()} if parts else {}
        show.print_json([found.to_dict() | more | ({"one_launch": one.to_dict()} if one else {})])
        return
    out = show.console()
    _print(out, found, machine, flags.title, verbose)
    if one:
        out.print("")
        show.print_rows(out, "Prefill and decodes: one launch, two streams, one after the other", one.shown())
        out.print(one.sentence)
    if parts:
        out.print("")
        split.print_split(out, parts, split.of_call(parts.changed))


def _print(out: Console, found: Explanation, gpu: Gpu, model: str, verbose: bool) -> None:
    asked = found.prediction
    out.print(f"{model}{asked.workload}\n{gpu.id}{''.join(f', {change}' for change in asked.changes)}\n")
    out.print(f"{found.loop_nest}\n")
    longest = max(found.kernels, key=lambda kernel: kernel.time_s)
    fit_tables.print_kernels(out, found.kernels)
    show.print_rows(out, f"A block of {longest.kernel} against an SM", _limits(longest, gpu))
    show.print_rows(
        out,
        "Bytes, MB: compulsory (with perfect reuse), asked of the L2, passed on to HBM",
        [
            {
                "kernel": row.kernel,
                "tensor": row.tensor,
                "": row.direction,
                "compulsory": wording.number(row.compulsory_bytes / 1e6, 4),
                "L2": wording.number(row.l2_bytes / 1e6, 4),
                "HBM": wording.number(row.hbm_bytes / 1e6, 4),
            }
            for row in found.tensors
        ],
        right=("compulsory", "L2", "HBM"),
        whole=("kernel", "tensor"),
    )
    show.print_rows(
        out,
        f"Counts (useful FLOPs {found.useful_flops:,}; HBM bytes with perfect reuse {found.compulsory_bytes:,})",
        [{"": row.quantity, "count": f"{row.counted:,}"} for row in found.counts],
        right=("count",),
    )
    if asked.floor_s and asked.time_s:
        times = wording.times_text(asked.time_s / asked.floor_s)
        out.print(f"Floor: {wording.time_text(asked.floor_s)}, which no schedule undercuts; the call takes {times}.")
        if nearest := fastest(gpu, asked.workload.passes):
            share = asked.floor_s / asked.time_s
            out.print(f"It reaches {share:.2f} of its floor; on {gpu.base_id} in this pass {nearest}.")
        out.print("")
    fit_tables.print_levers(out, found.levers, bounded=found.turn is not None)
    for line in anew_sentences(found):
        out.print(line)
    _print_kernels(out, found)
    reached = ", ".join(f"{share:.2f} of {unit}" for unit, share in found.reached.items())
    details = (
        WITHOUT_RANGE,
        *fit_tables.COLUMNS,
        *([f"now: the datasheet's; of bandwidths kernels reach {reached}, and are busy by that."] if reached else []),
    )
    show.print_remarks(out, f"{WITHOUT_RANGE} -v explains the columns.", details, verbose)
    out.print("")
    print_compared(out, found)
    for line in verdict(found):
        out.print(line)


def _print_kernels(out: Console, found: Explanation) -> None:
    if not found.kernel_levers:
        return
    show.print_rows(
        out,
        "The kernel changed in one property, on the same GPU",
        [
            {
                "lever": lever.lever,
                "change": lever.change,
                "time": wording.time_text(lever.time_s),
                "speedup": f"{lever.speedup:.2f}x",
                "busiest then": lever.busiest.replace("_", " "),
            }
            for lever in found.kernel_levers
        ],
        right=("time", "speedup"),
        whole=("lever", "change"),
    )


def _limits(kernel: KernelFit, gpu: Gpu) -> list[dict[str, object]]:
    """A row for each resource of an SM: what a block takes, what there is, and how many blocks fit."""
    sm = gpu.sm
    buffers = ", ".join(f"{name} {size / 1024:g}" for name, size in kernel.buffers)
    registers = kernel.registers_per_thread * kernel.threads
    rows = {
        "threads": (f"{kernel.threads:,}", f"{sm.max_threads:,}"),
        "registers": (f"{registers:,} ({kernel.registers_per_thread} a thread)", f"{sm.registers:,}"),
        "shared memory": (
            f"{kernel.shared_memory_bytes / 1024:g} KiB{f' ({buffers})' if buffers else ''}"
            f" + {sm.shared_memory_reserved_bytes / 1024:g} reserved",
            f"{sm.shared_memory_bytes / 1024:g} KiB",
        ),
        "block slots": ("1", f"{sm.max_blocks}"),
        "launch bounds": ("1", f"{kernel.limits.get('launch bounds', '')}"),
    }
    return [
        {
            "resource": name,
            "a block takes": rows[name][0],
            "an SM has": rows[name][1],
            "room for": room,
            "": "limits" if name == kernel.limited_by else "",
        }
        for name, room in kernel.limits.items()
    ]


def verdict(found: Explanation) -> list[str]:
    """Sentences on the time, what bounds it, and what would have to change."""
    asked = found.prediction
    clock = [f"SM clock {clock_text(asked.clock_hz, asked.clock_by)}."] if asked.clock_hz and asked.clock_by else []
    return [f"Time {timed_text(asked)}, {asked.trust.level}.", *clock, *bound_sentences(found)]


BAR = 12
"""Characters of a bar that is as long as the call."""


def print_compared(out: Console, found: Explanation) -> None:
    """Time with its ratio, what bounds, and how long each unit is busy, before and after; nothing without a change."""
    before, after, ratio = found.unchanged, found.prediction, found.speedup
    if before is None:
        return
    text = f"{ratio} as fast" if ratio else "no ratio: one does not fit"
    columns = {"unchanged": _column(before), "changed": _column(after)}
    rows = [{"": name, **{head: cells.get(name, "") for head, cells in columns.items()}} for name in _column(after)]
    show.print_rows(out, f"Unchanged and changed: {text}", rows, whole=("", *columns))
    if found.slower:
        out.print(f"{found.slower}\n")


def _column(one: Outcome) -> dict[str, object]:
    cells: dict[str, object] = {
        "time": wording.time_text(one.time_s),
        "90 % range": wording.interval_text(one.time_low_s, one.time_high_s, one.time_s),
        "bound": str(one.bound or wording.NOTHING),
        "SM clock": clock_text(one.clock_hz, one.clock_by) if one.clock_hz and one.clock_by else wording.NOTHING,
    }
    for unit, busy in one.units_s.items():
        share = busy / (one.time_s or 1.0)
        bar = "█" * round(BAR * min(1.0, share))
        cells[unit.replace("_", " ")] = f"{bar:{BAR}} {100 * share:3.0f} %  {wording.time_text(busy)}"
    return cells
