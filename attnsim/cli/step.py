"""`attnsim predict --layer --lengths`: one step of a whole model in a batch of different sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from attnsim import wording
from attnsim.api.step import step
from attnsim.api.step_answer import LEFT_OUT, StepAnswer, trust_lines
from attnsim.cli import given, options, progress, question_flags, show
from attnsim.cli.look import Look
from attnsim.cli.question_flags import ConditionFlags, QuestionFlags
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.units import bound_text
from attnsim.models.question.lengths import lengths_summary, read_lengths
from attnsim.models.question.words import KERNEL_OPTIONS
from attnsim.plots.step import step as picture

_NOT_OF_STEPS = (
    *("tile", "tiles", "baseline", "split_changes", "operations", "page_size", "prefix", "tree"),
    *("selection", "batch", "seq", "seq_kv", "heads", "kv_heads", "head_dim", "head_dim_v", "latent", "causal"),
    *("window", "mask", *KERNEL_OPTIONS),
)
"""Flags that say nothing of a step, whose model and lengths say it all."""
_RIGHT = ("times", "each", "together", "90 % range", "share")


def predict_steps(
    context: typer.Context,
    flags: QuestionFlags,
    how: ConditionFlags,
    ep: int,
    gpu: list[str],
    changes: list[str],
    algorithm: str | None,
    implementation: str | None,
    verbose: bool,
    json: bool,
    plot: Path | None,
    look: Look,
) -> None:
    """Answer `attnsim predict --layer --lengths`: a step on every GPU, unchanged and changed."""
    given.refuse(context, "does not go with --layer --lengths", _NOT_OF_STEPS)
    if flags.model is None:
        raise InputError("--layer needs a model; give --model ID (attnsim models lists them)")
    if flags.passes not in ("fwd", "decode"):
        raise InputError(f"--pass {flags.passes} does not go with --layer --lengths, a step of a server; leave it out")
    lengths = read_lengths(flags.lengths or "", flags.passes == "decode")
    asked = how.with_l2(flags.cache or "cold") | {"algorithm": algorithm, "implementation": implementation}
    asked |= {"dtype": flags.dtype, "tp": flags.tp, "ep": ep}
    asked |= {} if given.is_given(context, "launch") else {"launch": "graph"}
    machines: list[Any] = []
    for base in [load_gpu(name) for name in options.words(gpu, "--gpu")]:
        machines += dict.fromkeys((base, question_flags.changed(base, changes, joined=max(flags.tp, ep) > 1)))
    with progress.plays() as report:
        answers = [step(flags.model, one, lengths, progress=report, **asked) for one in machines]
    written = look.write(picture(answers), plot) if plot else []
    if json:
        show.print_json(one.to_dict() for one in answers)
        return
    print_steps(answers, verbose)
    if written:
        print(f"written: {', '.join(map(str, written))}")


def print_steps(answers: Sequence[StepAnswer], verbose: bool = False) -> None:
    """A table of parts for each GPU, and below it what the step makes and what the memory holds."""
    out, first = show.console(), answers[0]
    shared = f", {first.gpus} GPUs share each layer" if first.gpus > 1 else ""
    shared += f", {first.expert_gpus} GPUs share the experts" if first.expert_gpus else ""
    tokens = f"{_count(first.new_tokens, 'new token')} of {_count(first.sequences, 'sequence')}"
    groups = f" on each of {first.groups} {'groups of ' * (first.gpus > 1)}GPUs" if first.groups > 1 else ""
    out.print(
        f"{first.model.id}{shared}: a step of {tokens}{groups} ({lengths_summary(first.lengths)})\n", soft_wrap=True
    )
    for one in answers:
        place = "; ".join((one.gpu, "warm L2" if one.cache == "warm" else "cold L2", *map(str, one.changes)))
        show.print_rows(out, f"{place}; {wording.launched_text(one.launch)}", _rows(one), right=_RIGHT, whole=("part",))
        for line in _remarks(one):
            out.print(line, soft_wrap=True)
    for before, after in pairwise(answers):
        if after.changes and not before.changes:
            ratio = wording.times_text(before.time_s / after.time_s)
            out.print(f"{after.gpu} with the changes: {ratio} the speed of the unchanged GPU")
    missing = [text for text in (LEFT_OUT, *first.left_out) if text]
    left_out = f"{'; '.join(missing)}."
    low = min(one.time_low_s / one.time_s for one in answers)
    high = max(one.time_high_s / one.time_s for one in answers)
    short = f"the step within {wording.spread_text(low, high)}. -v says why, and what is left out."
    show.print_remarks(out, short, [*(text for one in answers for text in _trust(one)), left_out], verbose)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _rows(answer: StepAnswer) -> list[dict[str, object]]:
    """Every part, and the step."""
    rows: list[dict[str, object]] = []
    for number, part in answer.parts:
        times = [number * (value or 0.0) for value in (part.time_s, part.time_low_s, part.time_high_s)]
        rows.append(
            {
                "part": part.name,
                "times": str(number),
                "each": wording.time_text(part.time_s),
                "together": wording.time_text(times[0]),
                "90 % range": wording.interval_text(times[1], times[2], times[0]),
                "share": wording.share_text(times[0] / answer.time_s),
                "bound by": bound_text(part.busiest),
            }
        )
    whole = wording.interval_text(answer.time_low_s, answer.time_high_s, answer.time_s)
    return [
        *rows,
        {"part": "step", "together": wording.time_text(answer.time_s), "90 % range": whole, "share": "100 %"},
    ]


def _remarks(answer: StepAnswer) -> list[str]:
    """Tokens a second, what the memory holds, and who says what to whom."""
    made = answer.groups * answer.sequences / answer.time_s
    lines = [
        f"{answer.tokens_per_s:,.0f} tokens/s computed, {made:,.0f} tokens/s generated if every sequence generates one"
    ]
    held, giga = answer.memory, 1e9
    weights = "weights not known" if held.weights_bytes is None else f"weights {held.weights_bytes / giga:.1f} GB"
    room = "" if held.room_tokens is None else f"; 0.9 of it has room for {held.room_tokens:,} cached tokens in all"
    size = f"the batch's cache {held.cache_bytes / giga:.1f} GB of {held.capacity_bytes / giga:.0f} GB"
    lines.append(f"memory of a GPU: {weights}, {size}{room}")
    said = [f"{part.name} {part.tile}" for _, part in answer.parts if part.group == "communication"]
    lines += [f"between GPUs ({answer.library}'s): {'; '.join(said)}"] if said else []
    formats = {one.workload.dtype for one in answer.attention} - {answer.dtype}
    if formats:
        lines.append(f"attention and its cache in {', '.join(formats)}: its kernels have no {answer.dtype}")
    return [*lines, ""]


def _trust(answer: StepAnswer) -> list[str]:
    kernels = [f"attention: {one.algorithm}, {one.implementation}" for one in answer.attention]
    return [*kernels, *(f"trust: {line}" for line in trust_lines(answer))]
