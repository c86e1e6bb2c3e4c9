"""Parts of a layer that does not attend: products, convolution, recurrence or chunks, gated norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache

from attnsim.api.answer import Outcome
from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, ask
from attnsim.api.layer_answer import ATTENTION, Group, LayerPart
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks import layer
from attnsim.models.implementations.frameworks.layer import Direction, Step
from attnsim.models.llm.model import LayerKind
from attnsim.models.llm.parallel import share_of_heads
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import DTYPE_BYTES, Workload


def attention_part(answer: Outcome, direction: Direction) -> LayerPart:
    """The attention call as a part, which has the answer's figures."""
    name = ATTENTION if direction == "fwd" else f"{ATTENTION}, backward"
    same = [one.name for one in fields(LayerPart) if one.name not in ("name", "group", "spread")]
    return LayerPart(name, **{one: getattr(answer, one) for one in same}, group="attention")


def share_of_mixer(kind: LayerKind, gpus: int) -> LayerKind:
    """One GPU's part of layers that do not attend.

    Raises
    ------
    InputError
        When their heads do not divide.
    """
    heads, kv_heads = share_of_heads(kind.heads_q, kind.heads_kv, gpus)
    return replace(kind, heads_q=heads, heads_kv=kv_heads)


@lru_cache(maxsize=1024)
def _seen(w: Workload, gpu: Gpu, algorithm: str, conditions: Conditions) -> Outcome:
    """A call that knows nothing of the tokens before."""
    return answer(ask(w, gpu, algorithm, None, conditions))


def mixer_parts(
    kind: LayerKind,
    hidden: int,
    lengths: Sequence[Length],
    gpu: Gpu,
    dtype: str,
    conditions: Conditions,
    part: Callable[[Step, Group], LayerPart],
) -> tuple[list[LayerPart], list[Outcome]]:
    """The parts of a layer that does not attend, up to its product back, and the answers of its kernels.

    Parameters
    ----------
    kind : LayerKind
        One GPU's part.
    hidden : int
    lengths : sequence of Length
        New tokens of each sequence; one decodes.
    gpu, dtype, conditions
        In fp8 the products alone are fp8.
    part : callable
        A step as a part.
    """
    dtype = "bf16" if dtype == "fp8" else dtype
    alone = replace(conditions, own=None, progress=None)
    parts, answers = list[LayerPart](), list[Outcome]()
    rows, normed, whole = sum(one.queries * one.times for one in lengths), 0, False
    for algorithm, call in layer.calls(kind, lengths, dtype):
        if algorithm == layer.CONVOLUTION and whole:
            continue
        found = _seen(call, gpu, algorithm, alone)
        whole = found.implementation in layer.WITH_ALL_AROUND
        normed += 0 if whole or algorithm == layer.CONVOLUTION else call.queries
        of = "decode" if call.passes == "decode" else "prompts"
        answers.append(found)
        parts.append(replace(attention_part(found, "fwd"), name=f"{algorithm}, {of}"))
    before = [part(one, "projections") for one in layer.products_in(kind, hidden, rows)]
    after = layer.products_out(kind, hidden, rows, normed, DTYPE_BYTES[dtype])
    return [*before, *parts, *(part(one, "projections") for one in after)], answers
