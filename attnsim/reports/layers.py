"""Layers and steps of models for people: a table of parts, shares of attention, and how far to trust them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnsim import wording
from attnsim.api.comparing.baselines import why_slower
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.layer_answer import LayerAnswer
from attnsim.api.step_answer import LEFT_OUT, StepAnswer, trust_lines
from attnsim.models.hardware.units import bound_text
from attnsim.models.question.lengths import lengths_summary
from attnsim.models.question.workload import Workload
from attnsim.reports.predictions import heading
from attnsim.tables import Block, Remarks, Table, Unfolded

_LEFT_OUT = (
    "Left out: normalisation, residual additions, cache writes that the attention does not make itself, "
    "communication{routing}."
)
SERVED = ("fwd", "decode")
"""Passes of a server, whose steps `--lengths` asks for."""
_RIGHT = ("time", "90 % range", "vs base", "share", "HBM GB", "TFLOP/s")
_RIGHT_OF_STEPS = ("times", "each", "together", "90 % range", "share")


def tokens_text(w: Workload) -> str:
    """The tokens of a layer's call: one of each sequence that decodes, whole sequences otherwise."""
    number = w.batch * w.seq_q
    return f"{number:,} token{'s' * (number != 1)}{f', {w.seq_kv:,} keys each' * (w.seq_q < w.seq_kv)}"


@dataclass(frozen=True)
class Layer:
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


def layers(title: str, launch: str, answers: Sequence[Layer]) -> Iterator[Block]:
    """One table of parts for each answer; where lengths are compared, one table of shares for each GPU."""
    first = answers[0].found
    w, alone = first.workload, len({one.found.workload.seq_kv for one in answers}) == 1
    names = {item.algorithm for item in first.attention}
    launched = wording.launched_text(launch)
    yield f"{title}{heading(w, names) if alone else f'batch {w.batch}, {w.dtype}, {w.passes}'}\n"
    if alone:
        for one in answers:
            yield Table(f"{one.place}; {launched}", _rows(one), _RIGHT, ("part", "vs base"))
        for one in answers:
            yield Unfolded(f"{one.place}: {_shares(one.found)}")
    else:
        for place in dict.fromkeys(one.place for one in answers):
            rows = [_share_row(one) for one in answers if one.place == place]
            yield Table(f"{place}; {launched}", rows, rows[0].keys(), ("vs base",))
    yield from (f"attention: {text}" for one in answers for text in one.slower)
    served = "; a step of the model (--lengths) has them" * (w.passes in SERVED)
    yield f"Times are without norms, residual additions and communication{served}."
    known = [one.found for one in answers if one.base] or [one.found for one in answers]
    yield Remarks(_level(known), _details(answers, known, alone))


def _level(answers: Sequence[LayerAnswer]) -> str:
    """Level and range of the layer, from the best known to the least."""
    trusts = [one.trust for one in answers]
    levels = " to ".join(dict.fromkeys(one.level for one in trusts))
    spread = wording.spread_text(min(one.low for one in trusts), max(one.high for one in trusts))
    return f"{levels}: the layer within {spread}. -v says why, and what is left out."


def _details(answers: Sequence[Layer], known: Sequence[LayerAnswer], alone: bool) -> list[str]:
    clocks = [
        wording.clock_text(call.clock_hz, call.clock_by)
        for one in answers
        for call in one.found.attention
        if alone and call.clock_hz and call.clock_by
    ]
    lines = [f"SM clock of attention within the layer: {', '.join(dict.fromkeys(clocks))}"] if clocks else []
    lines += [line for one in known for line in _remarks(one, alone)]
    if any(one.base for one in answers):
        lines.append("vs base: over the unchanged GPU. Tiles of GEMMs are chosen for each GPU, as cuBLAS does.")
    experts = known[0].model.mlp and known[0].model.mlp.experts
    return [*lines, _LEFT_OUT.format(routing=", routing tokens to experts" if experts else "")]


def _rows(answer: Layer) -> list[dict[str, object]]:
    """Every part of a layer, the layer and the model."""
    found = answer.found
    whole, trust = found.time_s, found.trust
    ratios = found.speedups_over(answer.base) if answer.base else [None] * len(found.parts)
    rows = [
        _row(answer, part.name, (part.time_low_s, part.time_high_s, part.time_s), ratio)
        | _rates(answer, part.hbm_bytes, part.flops_useful, part.time_s)
        | {"busiest": bound_text(part.busiest)}
        for part, ratio in zip(found.parts, ratios, strict=True)
    ]
    times = whole and whole * trust.low, whole and whole * trust.high, whole
    layer = _row(answer, "layer", times, answer.layer_speedup)
    name = f"{found.model.layers} layers{' + LM head' if found.head else ''}"
    model = _row(answer, name, (*found.model_range_s, found.model_time_s), answer.model_speedup)
    return [*rows, layer | _rates(answer, found.hbm_bytes, found.flops_useful, whole), model]


def _row(
    answer: Layer, name: str, times: tuple[float | None, float | None, float | None], ratio: Ratio | None
) -> dict[str, object]:
    """A part with its low, high and typical time."""
    cells: dict[str, object] = {"part": name, "time": _time(times[-1]), "90 % range": wording.interval_text(*times)}
    return cells | _versus(answer, ratio)


def _rates(answer: Layer, size: int | None, flops: int, time_s: float | None) -> dict[str, object]:
    """Share, bytes and FLOPs, for which a comparison with the unchanged GPU has no room."""
    if answer.base is not None:
        return {}
    whole = answer.found.time_s
    return {
        "share": wording.share_text(time_s / whole if time_s and whole else None),
        "HBM GB": wording.number(None if size is None else size / 1e9),
        "TFLOP/s": wording.number(flops / time_s / 1e12 if time_s and flops else None),
    }


def _versus(answer: Layer, ratio: Ratio | None) -> dict[str, object]:
    if answer.base is None:
        return {}
    return {"vs base": str(ratio or wording.NOTHING)}


def _time(seconds: float | None) -> str:
    return wording.time_text(seconds) if seconds else "too large"


def _share_row(answer: Layer) -> dict[str, object]:
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
        "attention's share": wording.share_text(found.attention_share),
    }


def _shares(found: LayerAnswer) -> str:
    """Attention's share of the layer and of the model, in words."""
    layer, model = (wording.share_text(share) for share in (found.attention_share, found.model_attention_share))
    return f"attention takes {layer} of the layer, {model} of the model"


def _remarks(answer: LayerAnswer, alone: bool) -> list[str]:
    lines = [f"attention: {item.algorithm}, {item.implementation}" for item in answer.attention]
    lines += [f"MLP: {answer.model.mlp}{answer.experts_text if alone else ''}"]
    tiles = [f"{part.name} {part.tile}" for part in answer.parts if part.tile]
    lines += [f"tiles: {'; '.join(tiles)}"] if alone else []
    lines += [note for item in answer.attention for note in item.notes]
    return lines + [f"trust: {one}" for one in answer.trust.reasons if alone or one.kind == "projections"]


def steps(answers: Sequence[StepAnswer]) -> Iterator[Block]:
    """A table of parts for each GPU, and below it what the step makes and what the memory holds."""
    first = answers[0]
    shared = f", {first.gpus} GPUs share each layer" if first.gpus > 1 else ""
    experts = "the same" if first.expert_gpus == first.gpus else f"{first.expert_gpus} GPUs"
    shared += f", {experts} share the experts" if first.expert_gpus else ""
    tokens = f"{_count(first.new_tokens, 'new token')} of {_count(first.sequences, 'sequence')}"
    groups = f" on each of {first.groups} {'groups of ' * (first.gpus > 1)}GPUs" if first.groups > 1 else ""
    yield Unfolded(f"{first.model.id}{shared}: a step of {tokens}{groups} ({lengths_summary(first.lengths)})\n")
    for one in answers:
        place = "; ".join(
            (one.gpu, one.formats, "warm L2" if one.cache == "warm" else "cold L2", *map(str, one.changes))
        )
        title = f"{place}; {wording.launched_text(one.launch)}"
        yield Table(title, _rows_of_step(one), _RIGHT_OF_STEPS, ("part",))
        yield from map(Unfolded, _remarks_of_step(one))
    for before, after in pairwise(answers):
        if after.changes and not before.changes:
            ratio = wording.times_text(before.time_s / after.time_s)
            yield f"{after.gpu} with the changes: {ratio} the speed of the unchanged GPU"
    missing = [text for text in (LEFT_OUT, *first.left_out) if text]
    left_out = f"{'; '.join(missing)}."
    low = min(one.time_low_s / one.time_s for one in answers)
    high = max(one.time_high_s / one.time_s for one in answers)
    each = "" if len(answers) == 1 else "of all GPUs, "
    short = f"90 % range of the step: {each}{wording.spread_text(low, high)}. -v says why, and what is left out."
    yield Remarks(short, [*(text for one in answers for text in _trust(one)), left_out])


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _rows_of_step(answer: StepAnswer) -> list[dict[str, object]]:
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


def _remarks_of_step(answer: StepAnswer) -> list[str]:
    """Tokens a second, what the memory holds, and who says what to whom."""
    made = answer.groups * answer.sequences / answer.time_s
    lines = [
        f"{answer.tokens_per_s:,.0f} tokens/s computed, {made:,.0f} tokens/s generated if every sequence generates one"
    ]
    held, giga = answer.memory, 1e9
    weights = "weights not known" if held.weights_bytes is None else f"weights {held.weights_bytes / giga:.1f} GB"
    room = "" if held.room_tokens is None else f"; at 90 % use the cache holds {held.room_tokens:,} tokens"
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
