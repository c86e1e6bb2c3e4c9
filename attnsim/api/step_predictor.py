"""Seconds of a step for a serving simulator, from the new and cached tokens of each request."""

from __future__ import annotations

from collections.abc import Iterable
from math import floor, log2
from typing import Any

from attnsim.api.asking import read_gpu
from attnsim.api.step import step
from attnsim.api.step_answer import StepAnswer
from attnsim.errors import InputError, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.llm.files import load_model
from attnsim.models.llm.model import Model
from attnsim.models.question.lengths import Length

GROUPS = 4
"""Groups of like sequences that decode: each has the mean length of its own."""
STEPS = 16
"""Lengths are rounded to so many in an octave, so that a batch that grows by a token has mostly been seen."""


class StepPredictor:
    """Predict the steps of one model on one kind of GPU.

    A step whose rounded shape was seen is looked up; another one is a replay for each kind of kernel.

    Parameters
    ----------
    model : Model or str
    gpu : Gpu or str
    **conditions
        As for :func:`attnsim.api.step.step`: ``tp``, ``dtype``, ``implementation``, ``library``, ``launch``.

    Examples
    --------
    >>> predictor = StepPredictor("llama-3-8b", "h100-sxm5-80gb")
    >>> first = predictor([(512, 0), *[(1, 4096)] * 63])
    >>> first == predictor([(1, 4097)] * 63 + [(512, 0)])
    True
    """

    def __init__(self, model: Model | str, gpu: Gpu | str, **conditions: Any) -> None:
        self.model = load_model(model) if isinstance(model, str) else model
        self.gpu = read_gpu(gpu)
        self.conditions = conditions
        self.seen: dict[tuple[Length, ...], StepAnswer] = {}

    def __call__(self, requests: Iterable[tuple[int, int]]) -> float:
        """Seconds of a step.

        Parameters
        ----------
        requests : iterable of (int, int)
            New tokens of each request, and tokens of it in the cache; 1 new token decodes.

        Raises
        ------
        InputError
            When a request has no new token, and as :func:`attnsim.api.step.step` does.
        """
        return self.predict(requests).time_s

    def predict(self, requests: Iterable[tuple[int, int]]) -> StepAnswer:
        """The step with its parts, of the rounded shape."""
        shape = rounded(requests)
        if shape not in self.seen:
            self.seen[shape] = step(self.model, self.gpu, shape, **self.conditions)
        return self.seen[shape]


def rounded(requests: Iterable[tuple[int, int]]) -> tuple[Length, ...]:
    """The batch of which a step is predicted: chunks rounded each, sequences that decode in groups of like lengths.

    Raises
    ------
    InputError
        When a request has no new token.
    """
    decoding, chunks = list[int](), list[Length]()
    for new, cached in requests:
        if new < 1 or cached < 0:
            raise InputError(f"a request has {shown(new)} new and {shown(cached)} cached tokens; allowed: from 1 and 0")
        if new == 1:
            decoding.append(cached + 1)
        else:
            chunks.append(Length(new, new + (_near(cached) if cached else 0)))
    decoding.sort()
    size = -(-len(decoding) // GROUPS) or 1
    parts = [decoding[at : at + size] for at in range(0, len(decoding), size)]
    return (*(Length(1, _near(sum(one) / len(one)), len(one)) for one in parts), *sorted(chunks))


def _near(keys: float) -> int:
    """The nearest of `STEPS` lengths in an octave."""
    part = 1 << max(0, floor(log2(keys)) - floor(log2(STEPS)))
    return max(1, round(keys / part) * part)
