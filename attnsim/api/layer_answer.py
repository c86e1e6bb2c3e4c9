"""The answer about a whole layer: its parts, and what share attention has of it and of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from attnsim.api.answer import Outcome, Reply
from attnsim.api.asking import LayerQuestion
from attnsim.api.comparing.ratios import Ratio, moved, together
from attnsim.api.trust import Trust
from attnsim.models.calibrations.components import NORMAL_90, ratio_widths, widths
from attnsim.models.llm.model import Model
from attnsim.models.question.workload import Workload

ATTENTION = "attention"

Group = Literal["projections", "attention", "mlp", "head", "communication", "passes"]


@dataclass(frozen=True, slots=True)
class LayerPart:
    """One step of a layer.

    Parameters
    ----------
    name : str
        ``attention`` is the attention call; the others are projections, rotary embedding and what follows.
    time_s, time_low_s, time_high_s : float or None
        With launches; None where attention does not fit the memory.
    hbm_bytes : int or None
    flops_useful, flops_executed : int or None
    busiest : str or None
    tile : str
    group : {"projections", "attention", "mlp", "head", "communication", "passes"}
        What it belongs to; the last two are of a whole step alone.
    units_s : mapping of str to float
        Busy seconds of each unit.
    exponentials, smem_bytes, l2_bytes : int or None
        Counted work, as of an `Answer`.
    clock_hz : float or None
        SM clock of the replay.
    spread : float
        Relative half-width of the time of a GEMM by its sensitivity to timing; 0 of the attention.
    launch_s : float or None
        Of its kernels' launches, within the time.
    """

    name: str
    time_s: float | None
    time_low_s: float | None
    time_high_s: float | None
    hbm_bytes: int | None
    flops_useful: int
    flops_executed: int | None
    busiest: str | None
    tile: str
    group: Group
    units_s: Mapping[str, float]
    exponentials: int | None
    smem_bytes: int | None
    l2_bytes: int | None
    clock_hz: float | None
    spread: float = 0.0
    launch_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayerAnswer(Reply[LayerQuestion]):
    """How one layer of a model runs on a GPU, and all of them.

    Parameters
    ----------
    asked : LayerQuestion
    parts : tuple of LayerPart
        Of a layer, in launch order; of one with experts, where the model has both kinds.
    dense : tuple of LayerPart
        The MLP of the layers without experts, in a model that has both kinds.
    head : tuple of LayerPart
        The LM head; empty where it is not known.
    attention : tuple of Answer or TooLarge
        The attention call, forward and backward apart where both are asked for.
    trust : Trust
        In the sum, its interval that of parts which are all off in the same direction.
    """

    asked: LayerQuestion
    parts: tuple[LayerPart, ...]
    dense: tuple[LayerPart, ...]
    head: tuple[LayerPart, ...]
    attention: tuple[Outcome, ...]
    trust: Trust

    @property
    def model(self) -> Model:
        """The model as one GPU computes it, where several share it."""
        return self.asked.model

    @property
    def gpus(self) -> int:
        """GPUs that share each layer."""
        return self.asked.gpus

    @property
    def fits(self) -> bool:
        """Whether the attention fits the GPU's memory."""
        return all(one.fits for one in self.attention)

    @property
    def workload(self) -> Workload:
        """The attention call."""
        both = {"fwd", "bwd"} <= {one.workload.passes for one in self.attention}
        return replace(self.attention[0].workload, passes="fwd+bwd") if both else self.attention[0].workload

    @property
    def time_s(self) -> float | None:
        """Seconds of all parts; None where attention does not fit the memory."""
        return total(part.time_s for part in self.parts)

    @property
    def time_low_s(self) -> float | None:
        """The lower end of its 90 % range, of parts which are all off in the same direction."""
        return total(part.time_low_s for part in self.parts)

    @property
    def time_high_s(self) -> float | None:
        """The upper end."""
        return total(part.time_high_s for part in self.parts)

    @property
    def busiest(self) -> str | None:
        """The busiest unit of the parts that take most of the time together; None where attention does not fit."""
        if self.time_s is None:
            return None
        times: dict[str, float] = {}
        for part in self.parts:
            times[part.busiest or ""] = times.get(part.busiest or "", 0.0) + (part.time_s or 0.0)
        return max(times, key=lambda unit: times[unit])

    @property
    def tile(self) -> str:
        """That of the attention."""
        return "; ".join(dict.fromkeys(one.tile for one in self.attention))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the attention."""
        return tuple(dict.fromkeys(note for one in self.attention for note in one.notes))

    @property
    def attention_time_s(self) -> float | None:
        """Seconds of the attention calls."""
        return total(answer.time_s for answer in self.attention)

    @property
    def attention_share(self) -> float | None:
        """Share of attention in the time."""
        attention, whole = self.attention_time_s, self.time_s
        return None if attention is None or not whole else attention / whole

    @property
    def time_by_group(self) -> dict[Group, float | None]:
        """Seconds of the projections, the attention and the MLP."""
        groups: tuple[Group, ...] = ("projections", "attention", "mlp")
        return {group: total(part.time_s for part in self.parts if part.group == group) for group in groups}

    @property
    def experts_text(self) -> str:
        """How many experts the tokens of a call reach, in words; nothing of a model without."""
        mlp, tokens = self.model.mlp, self.workload.batch * self.workload.seq_q
        if mlp is None or mlp.experts is None:
            return ""
        reached = mlp.experts.touched(tokens)
        dense = f"; {mlp.experts.dense_layers} layers have one of width {mlp.width} instead" if self.dense else ""
        return f"; {tokens} tokens reach {reached} experts where each token's are drawn at random{dense}"

    @property
    def model_parts(self) -> tuple[tuple[int, LayerPart], ...]:
        """Every part of the model, and how often it runs."""
        layers, dense = self.model.layers, self.dense_layers
        return (
            *((layers - dense if part.group == "mlp" else layers, part) for part in self.parts),
            *((dense, part) for part in self.dense),
            *((1, part) for part in self.head),
        )

    @property
    def dense_layers(self) -> int:
        """Layers of a mixture of experts that have the one MLP."""
        mlp = self.model.mlp
        return mlp.experts.dense_layers if mlp and mlp.experts else 0

    @property
    def model_time_s(self) -> float | None:
        """Seconds of all layers and the LM head, where that is known."""
        return total(part.time_s and number * part.time_s for number, part in self.model_parts)

    @property
    def model_range_s(self) -> tuple[float | None, float | None]:
        """The ends of its 90 % range, of parts which are all off in the same direction."""
        low, high = ([(n, getattr(part, end)) for n, part in self.model_parts] for end in ("time_low_s", "time_high_s"))
        return total(s and n * s for n, s in low), total(s and n * s for n, s in high)

    @property
    def model_attention_share(self) -> float | None:
        """Share of attention in the time of the model."""
        attention, whole = self.attention_time_s, self.model_time_s
        return None if attention is None or not whole else self.model.layers * attention / whole

    def speedup_over(self, base: LayerAnswer) -> Ratio | None:
        """How many times faster the layer is than the same layer on another GPU; None where one does not fit."""
        ratios = self.speedups_over(base)
        return together([(part.time_s or 0.0, one) for part, one in zip(base.parts, ratios, strict=True)])

    def speedups_over(self, base: LayerAnswer) -> list[Ratio | None]:
        """Speedup of each part."""
        return self._speedups(base, self.parts, base.parts)

    def model_speedup_over(self, base: LayerAnswer) -> Ratio | None:
        """Speedup of all layers and the LM head."""
        mine, theirs = ([part for _, part in one.model_parts] for one in (self, base))
        times = [number * (part.time_s or 0.0) for number, part in base.model_parts]
        return together(list(zip(times, self._speedups(base, mine, theirs), strict=True)))

    def _speedups(
        self, base: LayerAnswer, mine: Iterable[LayerPart], theirs: Iterable[LayerPart]
    ) -> list[Ratio | None]:
        calls = (after.speedup_over(before) for before, after in zip(base.attention, self.attention, strict=True))
        return [
            next(calls) if one.group == "attention" else _gemm_speedup(two, one)
            for one, two in zip(mine, theirs, strict=True)
        ]

    @property
    def hbm_bytes(self) -> int | None:
        """HBM traffic of all parts."""
        size = total(part.hbm_bytes for part in self.parts)
        return None if size is None else round(size)

    @property
    def flops_useful(self) -> int:
        """Useful FLOPs of all parts."""
        return sum(part.flops_useful for part in self.parts)


def _gemm_speedup(base: LayerPart, other: LayerPart) -> Ratio | None:
    """The speedup of a GEMM, whose own error is that of the same kernel twice and cancels out.

    What is left: what the change moves, as of an attention kernel, and sensitivity to timing.
    """
    if not base.time_s or not other.time_s:
        return None
    known = ratio_widths()
    spreads = [math.log1p(part.spread) / NORMAL_90 for part in (base, other)]
    half = math.hypot(known.half_width([known.sd["change"] * moved(base, other)]), widths().half_width(spreads))
    return Ratio.of(base.time_s, other.time_s, half)


def total(values: Iterator[float | None]) -> float | None:
    """Sum of all, None where one is not known."""
    found = list(values)
    return None if any(value is None for value in found) else sum(value for value in found if value is not None)
