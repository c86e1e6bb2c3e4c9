"""The answer of a step of a whole model: its parts, its memory, and how far to trust it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from attnsim.api.answer import Outcome, plain
from attnsim.api.asking import (
    LayerQuestion,
)
from attnsim.api.layer_answer import Group, LayerAnswer, LayerPart, total
from attnsim.api.trust import Reason, Trust
from attnsim.models.hardware.gpu import Change
from attnsim.models.implementations.collectives.collective import TIMED_GPUS
from attnsim.models.implementations.frameworks.layer import ALGORITHMS
from attnsim.models.llm.model import Model
from attnsim.models.question.lengths import Length

KEPT = 0.9
"""Share of the memory that vLLM fills by default (``gpu_memory_utilization``)."""
LEFT_OUT_HALF_WIDTH = 0.16
"""A server's step is off by so much in log time beside its parts' ranges: nine of ten of 937 lie within both, and of
models that are left out of the choice 88 % (``benchmarks/steps.py``). The host's work and a version's fusions are
in it."""
LEFT_OUT = "Left out: sampling, the scheduler and all else that the host does between steps"


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that one GPU has to hold.

    Parameters
    ----------
    weights_bytes : int or None
        None where the model does not say what is outside its layers.
    cache_bytes : int
        Keys and values of the batch.
    token_bytes : float
        What a token more in the cache takes, where no window drops another.
    capacity_bytes : int
    """

    weights_bytes: int | None
    cache_bytes: int
    token_bytes: float
    capacity_bytes: int

    @property
    def room_tokens(self) -> int | None:
        """Tokens that the cache has room for in all, of what a server fills; None where that is not known."""
        if self.weights_bytes is None or not self.token_bytes:
            return None
        return max(0, int((KEPT * self.capacity_bytes - self.weights_bytes) / self.token_bytes))


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """How one step of a model runs.

    Parameters
    ----------
    model : Model
    gpus, expert_gpus : int
        GPUs that share every layer, and those among which whole experts are divided, 0 where none are; times are those
        of one, which all take together.
    gpu : str
    changes : tuple of Change
    lengths : tuple of Length
    parts : tuple of (int, LayerPart)
        What runs in the order of launches, and how often in the step.
    attention : tuple of Outcome
        The attention call of each kind of layers, and the calls of layers that do not attend.
    memory : Memory
    left_out : tuple of str
        Layers that are not modelled.
    library : str
        Whose all-reduce it is, and whose GEMMs in fp8.
    dtype, mode, cache, launch : str
    asked : LayerQuestion
        The step as a question about a layer that holds all of it.
    products : str
        How far off its GEMMs were where they were measured.
    """

    model: Model
    gpus: int
    expert_gpus: int
    gpu: str
    changes: tuple[Change, ...]
    lengths: tuple[Length, ...]
    parts: tuple[tuple[int, LayerPart], ...]
    attention: tuple[Outcome, ...]
    memory: Memory
    left_out: tuple[str, ...]
    library: str
    dtype: str
    mode: str
    cache: str
    launch: str
    asked: LayerQuestion
    products: str = ""

    def _sum(self, name: str) -> float:
        return total(iter([number * getattr(part, name) for number, part in self.parts])) or 0.0

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return self._sum("time_s")

    @property
    def time_low_s(self) -> float:
        """The lower end of its 90 % range: parts that are all off in the same direction, and what is left out."""
        return self.time_s * math.exp(-math.hypot(math.log(self.time_s / self._sum("time_low_s")), LEFT_OUT_HALF_WIDTH))

    @property
    def time_high_s(self) -> float:
        """The upper end."""
        return self.time_s * math.exp(math.hypot(math.log(self._sum("time_high_s") / self.time_s), LEFT_OUT_HALF_WIDTH))

    @property
    def new_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(one.queries * one.times for one in self.lengths)

    @property
    def sequences(self) -> int:
        """Sequences of the batch; each that decodes makes a token."""
        return sum(one.times for one in self.lengths)

    @property
    def formats(self) -> str:
        """Formats of GEMMs and, where it is another or both are fp8, of the cache."""
        kept = {
            one.workload.kv_dtype or one.workload.dtype for one in self.attention if one.algorithm not in ALGORITHMS
        }
        return self.dtype if kept <= {self.dtype} and self.dtype != "fp8" else f"{self.dtype}, cache {', '.join(kept)}"

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, of all GPUs."""
        return self.groups * self.new_tokens / self.time_s

    @property
    def groups(self) -> int:
        """Groups of GPUs that have a batch each and meet at the experts."""
        return max(1, self.expert_gpus // self.gpus)

    def share(self, group: Group) -> float:
        """Share of a group of parts in the time."""
        return sum(number * (part.time_s or 0.0) for number, part in self.parts if part.group == group) / self.time_s

    def as_layer(self) -> LayerAnswer:
        """The step as one layer that holds all of it: each part as long as it takes together."""
        counted = ("hbm_bytes", "flops_useful", "flops_executed", "exponentials", "smem_bytes", "l2_bytes")
        times = ("time_s", "time_low_s", "time_high_s")
        parts = [
            replace(
                part,
                units_s={unit: number * busy for unit, busy in part.units_s.items()},
                **{name: value and number * value for name in (*counted, *times) for value in (getattr(part, name),)},
            )
            for number, part in self.parts
        ]
        trust = Trust(
            "extrapolated",
            self.time_low_s / self.time_s,
            self.time_high_s / self.time_s,
            None,
            tuple(Reason("projections", line) for line in trust_lines(self)),
        )
        return LayerAnswer(self.asked, tuple(parts), (), (), self.attention, trust)

    def to_dict(self) -> dict[str, object]:
        """Plain types for JSON."""
        told = ("gpu", "time_s", "time_low_s", "time_high_s", "new_tokens", "sequences", "tokens_per_s", "library")
        return {
            "model": self.model.id,
            "tp": self.gpus,
            "ep": self.expert_gpus,
            "lengths": [str(one) for one in self.lengths],
            **{
                name: plain(getattr(self, name))
                for name in (*told, "dtype", "mode", "cache", "launch", "left_out", "memory")
            },
            "room_tokens": self.memory.room_tokens,
            "parts": [{"times": number, **plain(part)} for number, part in self.parts],  # type: ignore[dict-item]
        }


def trust_lines(answer: StepAnswer) -> list[str]:
    """How far to trust a step, a line each."""
    lines = [f"products: {answer.products}"]
    wider = f"a factor of {math.exp(LEFT_OUT_HALF_WIDTH):.2f} either way (added in squares)"
    lines.append(
        f"the step's range: all parts off in the same direction, and {wider} for the host's work and for what a "
        "version of the server fuses"
    )
    if answer.gpus > 1:
        pcie = any((part.busiest or "").startswith("PCIe") for _, part in answer.parts)
        over_pcie = "the host decides, and one that was measured is 3 to 10 times slower with 4 and 8 GPUs"
        over_nvlink = "the mean error of all-reduces and all-gathers on GPUs that were held out is 7 to 13 %"
        lines.append(f"collectives over {'PCIe' if pcie else 'NVLink'}: {over_pcie if pcie else over_nvlink}")
        if answer.gpus > TIMED_GPUS:
            lines += [f"collectives: nobody has timed groups of more than {TIMED_GPUS} GPUs of one switch"]
    if answer.groups > 1:
        lines.append(
            "to experts and back: NCCL's all-to-all of a copy for each expert; 18 % off DeepEP's low-latency kernels "
            "in SGLang, while calls of vLLM and TensorRT-LLM take 1 to 10 times as long, 3 in the median, which is the "
            "upper end of their range; tokens reach all experts alike"
        )
    alone = len({one.implementation for one in answer.attention}) == 1
    for one in answer.attention:
        called = "attention" if alone else f"attention by {one.implementation}"
        what, trust = one.algorithm if one.algorithm in ALGORITHMS else called, one.trust
        lines += [
            f"{what} is {trust.level}: {trust.reasons[0]}",
            *(f"{what}: {reason}" for reason in trust.reasons[1:]),
        ]
    return list(dict.fromkeys(lines))
