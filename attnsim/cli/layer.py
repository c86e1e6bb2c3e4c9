"""`attnsim predict --layer`: the parts of a layer, what the model takes, and attention's share by length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import typer

from attnsim import wording
from attnsim.api.comparing.baselines import why_slower
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.comparing.splitting import Split
from attnsim.api.layer import layer, split_layer
from attnsim.api.layer_answer import LayerAnswer
from attnsim.cli import given, options, progress, question_flags, show, split
from attnsim.cli.look import Look
from attnsim.cli.predictions import heading
from attnsim.cli.question_flags import ConditionFlags, QuestionFlags
from attnsim.cli.step import predict_steps
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.units import bound_text
from attnsim.models.llm.asked import title_of
from attnsim.models.question.words import KERNEL_OPTIONS
from attnsim.models.question.workload import Workload
from attnsim.wording import clock_text

_LEFT_OUT = (
    "Left out: normalisation, residual additions, cache writes that the attention does not make itself, "
    "communication{routing}."
)
NOT_OF_LAYERS = ("operations", "lengths", "page_size", "prefix", "tree", "selection", *KERNEL_OPTIONS)
"""Flags of a question that say nothing of a layer."""
SERVED = ("fwd", "decode")
"""Passes of a server, whose steps `--lengths` asks for."""
_RIGHT = ("time", "90 % range", "vs base", "share", "HBM GB", "TFLOP/s")


def predict_layers(
    context: typer.Context,
    flags: QuestionFlags,
    how: ConditionFlags,
    ep: int,
    gpu: list[str],
    changes: list[str],
    lengths: list[int | None],
    algorithm: str,
    implementation: str,
    split_changes: bool,
    verbose: bool,
    json: bool,
    plot: Path | None,
    look: Look,
) -> None:
    """Answer `attnsim predict --layer`: every length on every GPU."""
    if flags.lengths is not None:
        names = algorithm or None, implementation or None
        predict_steps(context, flags, how, ep, gpu, changes, *names, verbose, json, plot, look)
        return
    given.refuse(context, "does not go with --layer", ("tile", "tiles", "baseline", *NOT_OF_LAYERS))
    filled = flags.filled
    if filled is None:
        raise InputError("--layer needs a model; give --model ID (attnsim models lists them)")
    if split_changes:
        split.check(changes)
    bases = [load_gpu(name) for name in options.words(gpu, "--gpu")]
    pairs = [(base, question_flags.changed(base, changes)) for base in bases]
    asked = how.with_l2(flags.cache or "cold") | {"algorithm": algorithm or None}
    asked |= {"implementation": implementation or None}
    asked |= {name: getattr(flags, name) for name in ("batch", "seq_kv", "passes", "dtype", "tp")}
    answers: list[_Answer] = []
    splits: list[Split[LayerAnswer]] = []
    with progress.plays() as report:
        for (base, machine), length in product(pairs, lengths):
            machines = dict.fromkeys((base, machine))
            found = [layer(filled.model, one, seq=length or 0, progress=report, **asked) for one in machines]
            answers.append(_Answer(found[0]))
            answers += [_Answer(one, found[0]) for one in found[1:]]
            if split_changes:
                splits.append(split_layer(filled.model, machine, seq=length or 0, **asked))
    answers.sort(key=lambda one: one.base is not None)
    if json:
        show.print_json(one.to_dict() for one in (splits if split_changes else answers))
        return
    print_layers(title_of(filled, flags.tp), how.launch, answers, verbose)
    for one in splits:
        split.print_split(show.console(), one, f"\nlayer with {_tokens(one.changed.workload)} on {one.changed.gpu}")


def _tokens(w: Workload) -> str:
    """The tokens of a layer's call: one of each sequence that decodes, whole sequences otherwise."""
    number = w.batch * w.seq_q
    return f"{number:,} token{'s' * (number != 1)}{f', {w.seq_kv:,} keys each' * (w.seq_q < w.seq_kv)}"


@dataclass(frozen=True)
class _Answer:
    """A layer, and the same one on the unchanged GPU where this one is changed."""

    found: LayerAnswer
    base: LayerAnswer | None = None

    @property
    def place(self) -> str:
        """The GPU, and under which conditions."""
        cache = "" if self.found.cache == "cold" else ", warm L2"
        return "; ".join((f"{self.found.gpu}{cache}", *map(str, self.found.changes)))

    @property
    def layer_speedup(self) -> Ratio | None:
        """Speedup of the layer over the unchanged GPU."""
        return self.found.speedup_over(self.base) if self.base else None

    @property
    def model_speedup(self) -> Ratio | None:
        """Speedup of the model over the unchanged GPU."""
        return self.found.model_speedup_over(self.base) if self.base else None

    @property
    def slower(self) -> list[str]:
        """Reasons why attention is slower than on the unchanged GPU though figures are better."""
        pairs = zip(self.base.attention, self.found.attention, strict=True) if self.base else ()
        return [text for before, after in pairs if (text := why_slower(before, after))]

    def to_dict(self) -> dict[str, object]:
        """The layer for JSON, with its speedups where there is something to compare with."""
        speedups = {"speedup": self.layer_speedup, "model_speedup": self.model_speedup} if self.base else {}
        return self.found.to_dict() | {name: one and one.to_dict() for name, one in speedups.items()}


def print_layers(title: str, launch: str, answers: Sequence[_Answer], verbose: bool = False) -> None:
    """One table of parts for each answer; where lengths are compared, one table of shares for each GPU."""
    out = show.console()
    first = answers[0].found
    lengths = {one.found.workload.seq_kv for one in answers}
    w, alone = first.workload, len(lengths) == 1
    names = {item.algorithm for item in first.attention}
    launched = wording.launched_text(launch)
    out.print(f"{title}{heading(w, names) if alone else f'batch {w.batch}, {w.dtype}, {w.passes}'}\n")
    if alone:
        for one in answers:
            show.print_rows(out, f"{one.place}; {launched}", _rows(one), right=_RIGHT, whole=("part", "vs base"))
    else:
        for place in dict.fromkeys(one.place for one in answers):
            rows = [_share_row(one) for one in answers if one.place == place]
            show.print_rows(out, f"{place}; {launched}", rows, right=rows[0].keys(), whole=("vs base",))
    if alone:
        for one in answers:
            out.print(f"{one.place}: {_shares(one.found)}", soft_wrap=True)
    for line in (text for one in answers for text in one.slower):
        out.print(f"attention: {line}")
    served = "; a step of the model (--lengths) has them" * (w.passes in SERVED)
    out.print(f"Times are without norms, residual additions and communication{served}.")
    told = [one.found for one in answers if one.base] or [one.found for one in answers]
    show.print_remarks(out, _level(told), _details(answers, told, alone), verbose)


def _level(answers: Sequence[LayerAnswer]) -> str:
    """Level and range of the layer, from the best known to the least."""
    trusts = [one.trust for one in answers]
    levels = " to ".join(dict.fromkeys(one.level for one in trusts))
    spread = wording.spread_text(min(one.low for one in trusts), max(one.high for one in trusts))
    return f"{levels}: the layer within {spread}. -v says why, and what is left out."


def _details(answers: Sequence[_Answer], told: Sequence[LayerAnswer], alone: bool) -> list[str]:
    clocks = [
        clock_text(call.clock_hz, call.clock_by)
        for one in answers
        for call in one.found.attention
        if alone and call.clock_hz and call.clock_by
    ]
    lines = [f"SM clock of attention within the layer: {', '.join(dict.fromkeys(clocks))}"] if clocks else []
    lines += [line for one in told for line in _remarks(one, alone)]
    if any(one.base for one in answers):
        lines.append("vs base: over the unchanged GPU. Tiles of GEMMs are chosen for each GPU, as cuBLAS does.")
    experts = told[0].model.mlp and told[0].model.mlp.experts
    return [*lines, _LEFT_OUT.format(routing=", routing tokens to experts" if experts else "")]


def _rows(answer: _Answer) -> list[dict[str, object]]:
    """Every part of a layer, the layer and the model."""
    found = answer.found
    whole, trust = found.time_s, found.trust
    ratios = found.speedups_over(answer.base) if answer.base else [None] * len(found.parts)
    rows: list[dict[str, object]] = [
        {
            "part": part.name,
            "time": _time(part.time_s),
            "90 % range": wording.interval_text(part.time_low_s, part.time_high_s, part.time_s),
            **_versus(answer, ratio),
            **_rates(answer, part.hbm_bytes, part.flops_useful, part.time_s),
            "busiest": bound_text(part.busiest),
        }
        for part, ratio in zip(found.parts, ratios, strict=True)
    ]
    rows.append(
        {
            "part": "layer",
            "time": _time(whole),
            "90 % range": wording.interval_text(whole and whole * trust.low, whole and whole * trust.high, whole),
            **_versus(answer, answer.layer_speedup),
            **_rates(answer, found.hbm_bytes, found.flops_useful, whole),
        }
    )
    rows.append(
        {
            "part": _model_parts(found),
            "time": _time(found.model_time_s),
            "90 % range": wording.interval_text(*found.model_range_s, found.model_time_s),
            **_versus(answer, answer.model_speedup),
        }
    )
    return rows


def _rates(answer: _Answer, size: int | None, flops: int, time_s: float | None) -> dict[str, object]:
    """Share, bytes and FLOPs, for which a comparison with the unchanged GPU has no room."""
    if answer.base is not None:
        return {}
    whole = answer.found.time_s
    return {
        "share": _percent(time_s / whole if time_s and whole else None),
        "HBM GB": wording.number(None if size is None else size / 1e9),
        "TFLOP/s": wording.number(flops / time_s / 1e12 if time_s and flops else None),
    }


def _model_parts(found: LayerAnswer) -> str:
    """The parts of the model's time: "80 layers + LM head"."""
    return f"{found.model.layers} layers{' + LM head' if found.head else ''}"


def _versus(answer: _Answer, ratio: Ratio | None) -> dict[str, object]:
    if answer.base is None:
        return {}
    return {"vs base": str(ratio or wording.NOTHING)}


def _time(seconds: float | None) -> str:
    return wording.time_text(seconds) if seconds else "too large"


def _share_row(answer: _Answer) -> dict[str, object]:
    found = answer.found
    groups = found.time_by_group
    return {
        "seq": found.workload.seq_kv,
        "projections": _time(groups["projections"]),
        "attention": _time(groups["attention"]),
        "MLP": _time(groups["mlp"]),
        "layer": _time(found.time_s),
        "90 % range": wording.interval_text(found.time_low_s, found.time_high_s, found.time_s),
        **_versus(answer, answer.layer_speedup),
        "attention's share": _percent(found.attention_share),
    }


def _percent(share: float | None) -> str:
    return wording.NOTHING if share is None else wording.share_text(share)


def _shares(found: LayerAnswer) -> str:
    """Attention's share of the layer and of the model, in words."""
    layer, model = (_percent(share) for share in (found.attention_share, found.model_attention_share))
    return f"attention takes {layer} of the layer, {model} of the model"


def _remarks(answer: LayerAnswer, alone: bool) -> list[str]:
    lines = [f"attention: {item.algorithm}, {item.implementation}" for item in answer.attention]
    lines += [f"MLP: {answer.model.mlp}{answer.experts_text if alone else ''}"]
    tiles = [f"{part.name} {part.tile}" for part in answer.parts if part.tile]
    lines += [f"tiles: {'; '.join(tiles)}"] if alone else []
    lines += [note for item in answer.attention for note in item.notes]
    return lines + [f"trust: {one}" for one in answer.trust.reasons if alone or one.kind == "projections"]
