"""`attnsim predict --layer`: the parts of an attention layer, and attention's share of it by length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from attnsim.cli import options, progress, show
from attnsim.cli.heading import heading
from attnsim.models.errors import InputError

if TYPE_CHECKING:
    import typer

    from attnsim.api.layer_prediction import LayerPart, LayerPrediction
    from attnsim.cli.question_flags import QuestionFlags

_LEFT_OUT = (
    "Left out: normalisation, residual additions, cache writes that the attention does not make itself, communication."
)
_RIGHT = ("time", "90 % range", "share", "HBM GB", "TFLOP/s")


def predict_layers(
    context: typer.Context,
    flags: QuestionFlags,
    *,
    gpu: list[str],
    changes: list[str],
    lengths: list[int | None],
    algorithm: str,
    implementation: str,
    mode: str,
    budget: int | None,
    cache: str,
    launch: str,
    json: bool,
) -> None:
    """Answer `attnsim predict --layer`: every length on every GPU.

    Raises
    ------
    InputError
    """
    from attnsim.api.layer import layer
    from attnsim.models.hardware.files import load_gpu

    filled = flags.filled
    if filled is None:
        raise InputError("--layer needs a model; give --model ID (attnsim models lists them)")
    for name in ("tile", "tiles"):
        if _is_given(context, name):
            raise InputError(f"--{name} does not go with --layer, whose tiles are the shipped ones; leave it out")
    if flags.operations is not None:
        raise InputError("--operations does not go with --layer, whose projections surround the call; leave it out")
    machines = [options.changed(load_gpu(name), changes) for name in options.words(gpu, "--gpu")]
    answers = []
    with progress.plays() as told:
        for machine, length in product(machines, lengths):
            if length is None:
                raise InputError("--seq is missing; give --seq N, or several lengths with commas")
            answers.append(
                layer(
                    filled.model, machine, batch=flags.batch, seq=length, seq_kv=flags.seq_kv, pass_=flags.passes,
                    dtype=flags.dtype, algorithm=algorithm or None, implementation=implementation or None, mode=mode,
                    budget=budget, cache=cache if _is_given(context, "cache") else "cold", launch=launch, told=told,
                )
            )  # fmt: skip
    if json:
        show.print_json(answer.to_dict() for answer in answers)
    else:
        print_layers(filled.title, answers)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def print_layers(title: str, answers: Sequence[LayerPrediction]) -> None:
    """One table of parts for each answer; where lengths are compared, one table of shares for each GPU."""
    out = show.console()
    lengths = {answer.workload.seq_kv for answer in answers}
    w = answers[0].workload
    out.print(f"{title}: {_question(answers[0]) if len(lengths) == 1 else f'batch {w.batch}, {w.dtype}, {w.passes}'}\n")
    if len(lengths) == 1:
        for answer in answers:
            show.print_rows(out, _place(answer), [_row(part, answer) for part in (*answer.parts, None)], right=_RIGHT)
    else:
        for place in dict.fromkeys(map(_place, answers)):
            rows = [_share_row(answer) for answer in answers if _place(answer) == place]
            show.print_rows(out, place, rows, right=(*_RIGHT, "projections", "layer", "attention"))
    for line in dict.fromkeys(line for answer in answers for line in _remarks(answer, len(lengths) == 1)):
        out.print(line)
    out.print(_LEFT_OUT)


def _question(answer: LayerPrediction) -> str:
    return heading(answer.workload, {item.algorithm for item in answer.attention})


def _place(answer: LayerPrediction) -> str:
    cache = "" if answer.cache == "cold" else ", warm L2"
    return "; ".join((f"{answer.gpu}{cache}", *map(str, answer.changes)))


def _row(part: LayerPart | None, answer: LayerPrediction) -> dict[str, object]:
    """A part of a layer, or all of it."""
    whole = answer.time_s
    if part is None:
        trust = answer.trust
        time, low, high = whole, whole and whole * trust.low, whole and whole * trust.high
        size, flops = answer.hbm_bytes, answer.flops_useful
    else:
        time, low, high = part.time_s, part.time_low_s, part.time_high_s
        size, flops = part.hbm_bytes, part.flops_useful
    return {
        "part": part.name if part else "layer",
        "time": show.time_text(time) if time else "too large",
        "90 % range": show.interval_text(low, high, time),
        "share": _percent(time / whole if time and whole else None),
        "HBM GB": show.number(None if size is None else size / 1e9),
        "TFLOP/s": show.number(flops / time / 1e12 if time and flops else None),
        "bound": show.bound_text(part.bound if part else None),
        "tile": (part.tile if part else "") or show.NOTHING,
    }


def _share_row(answer: LayerPrediction) -> dict[str, object]:
    attention = answer.attention_time_s
    rest = answer.time_s - attention if answer.time_s and attention else None
    return {
        "seq": answer.workload.seq_kv,
        "projections": show.time_text(rest),
        "attention": show.time_text(attention) if attention else "too large",
        "layer": show.time_text(answer.time_s),
        "share": _percent(answer.attention_share),
    }


def _percent(share: float | None) -> str:
    return show.NOTHING if share is None else f"{100 * share:.1f} %"


def _remarks(answer: LayerPrediction, alone: bool) -> list[str]:
    lines = [f"attention: {item.algorithm}, {item.implementation}" for item in answer.attention]
    lines += [note for item in answer.attention for note in item.notes]
    return lines + [f"trust: {one}" for one in answer.trust.reasons if alone or one.kind == "projections"]
