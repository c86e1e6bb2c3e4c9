"""The answer about a whole attention layer: its parts, and what share attention has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnsim.api.prediction import Prediction
from attnsim.api.trust import Trust
from attnsim.models.hardware.changes import Change
from attnsim.models.llm.model import Model
from attnsim.models.question.workload import Workload

ATTENTION = "attention"


@dataclass(frozen=True, slots=True)
class LayerPart:
    """One step of a layer.

    Parameters
    ----------
    name : str
        ``attention`` is the attention call; the others are projections and rotary embedding.
    time_s, time_low_s, time_high_s : float or None
        With launches; None where attention does not fit the memory.
    hbm_bytes : int or None
    flops_useful, flops_executed : int or None
    bound : str or None
    tile : str
    """

    name: str
    time_s: float | None
    time_low_s: float | None
    time_high_s: float | None
    hbm_bytes: int | None
    flops_useful: int
    flops_executed: int | None
    bound: str | None
    tile: str


@dataclass(frozen=True, slots=True)
class LayerPrediction:
    """How one attention layer of a model runs on a GPU.

    Parameters
    ----------
    model : Model
    gpu : str
    changes : tuple of Change
        What makes the GPU hypothetical.
    parts : tuple of LayerPart
        In launch order.
    attention : tuple of Prediction
        The attention call, forward and backward apart where both are asked for.
    mode, cache, launch : str
        Conditions of the replay.
    budget : int or None
        As of `Prediction`.
    trust : Trust
        In the sum, its interval that of parts which are all off in the same direction.
    """

    model: Model
    gpu: str
    changes: tuple[Change, ...]
    parts: tuple[LayerPart, ...]
    attention: tuple[Prediction, ...]
    mode: str
    budget: int | None
    cache: str
    launch: str
    trust: Trust

    @property
    def workload(self) -> Workload:
        """The attention call."""
        both = len(self.attention) > 1
        return replace(self.attention[0].workload, passes="fwd+bwd") if both else self.attention[0].workload

    @property
    def time_s(self) -> float | None:
        """Seconds of all parts; None where attention does not fit the memory."""
        return total(part.time_s for part in self.parts)

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
    def hbm_bytes(self) -> int | None:
        """HBM traffic of all parts."""
        size = total(part.hbm_bytes for part in self.parts)
        return None if size is None else round(size)

    @property
    def flops_useful(self) -> int:
        """Useful FLOPs of all parts."""
        return sum(part.flops_useful for part in self.parts)

    def to_dict(self) -> dict[str, object]:
        """Plain types for JSON."""
        return {
            "model": self.model.id,
            "gpu": self.gpu,
            "changes": list(map(str, self.changes)),
            "seq_q": self.workload.seq_q,
            "seq_kv": self.workload.seq_kv,
            "time_s": self.time_s,
            "attention_share": self.attention_share,
            "hbm_bytes": self.hbm_bytes,
            "flops_useful": self.flops_useful,
            "mode": self.mode,
            "budget": self.budget,
            "cache": self.cache,
            "launch": self.launch,
            "trust": self.trust.to_dict(),
            "parts": [{name: getattr(part, name) for name in LayerPart.__slots__} for part in self.parts],
            "attention": [item.to_dict() for item in self.attention],
        }


def total(values: Iterator[float | None]) -> float | None:
    """Sum of all, None where one is not known."""
    found = list(values)
    return None if any(value is None for value in found) else sum(value for value in found if value is not None)
