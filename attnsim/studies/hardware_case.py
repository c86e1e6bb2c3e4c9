"""Cases of a hardware search: an attention call or a whole layer, with a weight.

``--case`` gives each of several workloads its own flags and its weight.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from attnsim.api.answer import Outcome, without_alternatives
from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, ask
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.layer import answer_layer, ask_layer
from attnsim.api.layer_answer import LayerAnswer
from attnsim.api.step import step
from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.llm.model import Model
from attnsim.models.mechanisms import playing
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.simulator.program import Cache

Answered = Outcome | LayerAnswer
"""A machine's answer to a case."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a model, by the parameters of :func:`attnsim.layer`; `whole` is a step of all layers, with `ep`."""

    model: Model
    batch: int
    seq: int
    seq_kv: int | None = None
    passes: str = "fwd"
    dtype: str = "bf16"
    tp: int = 1
    whole: bool = False
    ep: int = 0

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The batch of a step.

        Raises
        ------
        InputError
            For a backward pass, which no server runs.
        """
        if self.passes not in ("fwd", "decode"):
            raise InputError(f"pass is {self.passes} of a whole model, a step of a server; take fwd or decode")
        new = 1 if self.passes == "decode" and self.seq_kv is None else self.seq
        return (Length(new, self.seq_kv or self.seq, self.batch),)


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and its weight.

    Parameters
    ----------
    workload : Workload
        The attention call.
    weight : float
        Share of the unchanged machine's time; weights need not sum to 1.
    name : str
        Name in tables.
    layer : Layer, optional
        The layer that contains this attention call, if the question is about the whole layer.
    cache : {"", "cold", "warm"}
        State of the L2 before the call; "" takes that of the search.
    model : str
        Name of the model in tables, "" without one.
    tp : int
        GPUs that share each layer; the workload is one GPU's part.
    """

    workload: Workload
    weight: float = 1.0
    name: str = ""
    layer: Layer | None = None
    cache: str = ""
    model: str = ""
    tp: int = 1

    @property
    def of(self) -> str:
        """The subject of the case: "attention", "layer" or "model"."""
        return "attention" if self.layer is None else "model" if self.layer.whole else "layer"

    def algorithm(self, named: str | None) -> str:
        """Return the mechanism: `named`, else flash; for a layer, the mechanism that supports its latent or mask."""
        return named or ("flash" if self.layer is None else playing(self.workload).name)

    def answered(
        self, gpu: Gpu, algorithm: str | None, implementation: str | None, conditions: Conditions, whole: bool = False
    ) -> Answered:
        """Return a machine's answer to the case.

        Parameters
        ----------
        algorithm : str, optional
            Of the attention; see :meth:`algorithm`.
        conditions : Conditions
            Conditions; the tile is the attention's.
        whole : bool
            Keep the replay of a call, which is needed for the calibration's alternatives and the bound. A search needs
            neither.
        """
        one = self.layer
        asked: Any = {"algorithm": algorithm, "implementation": implementation}
        if self.cache:
            conditions = replace(conditions, cache=cast(Cache, self.cache))
        if one is None:
            found = answer(ask(self.workload, gpu, self.algorithm(algorithm), implementation, conditions))
            return found if whole else without_alternatives(found)
        if one.whole:
            how: Any = {"cache": conditions.cache, "launch": conditions.launch, "calibration": conditions.own}
            return step(one.model, gpu, one.lengths, dtype=one.dtype, tp=one.tp, ep=one.ep, **asked, **how).as_layer()
        shape: Any = {item.name: getattr(one, item.name) for item in fields(one) if item.name not in ("whole", "ep")}
        return answer_layer(ask_layer(gpu=gpu, conditions=conditions, **shape, **asked))


NOT_OF_CASES = ("tiles", "tile", "mode", "budget", "progress")
"""Conditions that studies of cases set themselves, or that a step of a whole model does not have."""


def speedup_of(base: Answered, other: Answered) -> Ratio | None:
    """Return the speedup of `other` over `base`, two answers of one kind; None if one does not fit the memory."""
    if isinstance(base, LayerAnswer) and isinstance(other, LayerAnswer):
        return other.speedup_over(base)
    assert not isinstance(base, LayerAnswer) and not isinstance(other, LayerAnswer)  # answers of one case
    return other.speedup_over(base)


HOW = "write --case 'pass=decode, batch=16, seq=8192: 0.5', or --case decode.yaml:0.5 with such keys in the file"


def weighted(text: str) -> tuple[str, float]:
    """Split ``--case`` into the case and its weight."""
    what, colon, weight = (part.strip() for part in text.rpartition(":"))
    if not (colon and what):
        raise InputError(f"--case {shown(text)} has no weight; {HOW}")
    try:
        value = float(weight)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise InputError(f"--case: the weight is {shown(weight)}; allowed: a number above 0, such as 0.5")
    return what, value


def is_file(what: str) -> bool:
    """True if a case is a YAML file of keys."""
    return what.lower().endswith((".yaml", ".yml"))


def name_of(what: str) -> str:
    """Return the name of a case in tables."""
    return Path(what).stem if is_file(what) else what


def pairs_of(what: str) -> dict[str, str]:
    """Parse a case's own flags."""
    pairs: dict[str, str] = {}
    for part in what.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if equals:
            pairs[key] = value
        elif pairs:  # a comma inside a value, as masks have them
            last = next(reversed(pairs))
            pairs[last] = f"{pairs[last]}, {part.strip()}"
        else:
            raise InputError(f"--case {shown(what)} is not KEY=VALUE; {HOW}")
    return pairs


def flag_of(key: object, known: Collection[str], where: str) -> str:
    """Return the Python name of a question's flag; raises InputError if there is no such flag."""
    name = str(key).replace("-", "_")
    if name not in known:
        raise InputError(f"{where}: {shown(key)} is not a flag of a question; {nearest(name, known)}")
    return name


def each_once(cases: list[Case]) -> list[Case]:
    """Check that no case is given twice, and return the cases."""
    names = [one.name for one in cases]
    if len(set(names)) < len(names):
        raise InputError(f"--case {next(one for one in names if names.count(one) > 1)} is given twice; keep one")
    return cases


def described(case: Case, title: str) -> str:
    """Describe a workload, with its name and weight if there are several."""
    what = f"a whole layer, its attention {case.workload}" if case.layer else str(case.workload)
    return f"{case.name} (weight {case.weight:g}): {what}" if case.name else f"{title}{what}"
