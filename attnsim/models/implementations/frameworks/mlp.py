"""The MLP of a layer, and the LM head after the last one.

Counted are the products into the intermediate width as one GEMM (vLLM's `MergedColumnParallelLinear`; gate and up
if the MLP is gated), the activation, and the product back. For a mixture of experts: the products of the experts that
the tokens reach, in one kernel (a grouped GEMM), with equally many tokens each, and those of the shared experts.

Left out are the router, and moving tokens to experts and back, which are steps of their own.
"""

from __future__ import annotations

from attnsim.errors import InputError
from attnsim.models.implementations.frameworks.step import Activation, Direction, Step, backward, product_step
from attnsim.models.llm.mlp import Experts, Mlp
from attnsim.models.llm.model import Model
from attnsim.models.question.workload import Workload


def mlp_steps(model: Model, w: Workload, direction: Direction = "fwd") -> tuple[Step, ...]:
    """Steps of the MLP of most layers: that of the experts, if the model has any.

    Raises
    ------
    InputError
        If the model file does not describe its MLP.
    """
    mlp, rows = known_mlp(model), w.queries
    if mlp.experts is None:
        return _dense(rows, model.hidden, mlp.width, mlp.gated, direction)
    experts, shared = mlp.experts, mlp.experts.shared_width
    found = _routed(rows, model.hidden, experts, mlp.gated)
    if shared:
        found = (*_forward(rows, model.hidden, shared, mlp.gated, "shared expert "), *found)
    return _directed(found, direction)


def dense_mlp_steps(model: Model, w: Workload, direction: Direction = "fwd") -> tuple[Step, ...]:
    """Steps of the MLP of layers without experts, if the model has both kinds; otherwise empty."""
    mlp = known_mlp(model)
    if mlp.experts is None or not mlp.experts.dense_layers:
        return ()
    return _dense(w.queries, model.hidden, mlp.width, mlp.gated, direction)


def head_step(model: Model, w: Workload, direction: Direction = "fwd") -> Step | None:
    """The product with the LM head; None if the model's vocabulary is not known.

    A forward pass alone is serving: it needs the next token of each sequence only. In training every token has one.
    """
    if not model.vocabulary:
        return None
    rows = w.batch * (w.seq_q if w.passes in ("decode", "bwd", "fwd+bwd") else 1)
    head = product_step("LM head", (rows, model.vocabulary, model.hidden), ("X", "W_vocabulary", "logits"), wide=True)
    return head if direction == "fwd" else backward(head)


def known_mlp(model: Model) -> Mlp:
    """MLP of a model; refused if the model file does not describe it.

    Raises
    ------
    InputError
        When the model does not say.
    """
    if model.mlp is None:
        raise InputError(
            f"{model.id} does not say what follows its attention; add intermediate: N (intermediate_size in a "
            "config.json) and gated: true or false to its file"
        )
    return model.mlp


def _dense(rows: int, hidden: int, width: int, gated: bool, direction: Direction) -> tuple[Step, ...]:
    return _directed(_forward(rows, hidden, width, gated, ""), direction)


def _forward(rows: int, hidden: int, width: int, gated: bool, whose: str) -> tuple[Step, ...]:
    into, named = (2 * width, "gate and up") if gated else (width, "up")
    return (
        product_step(f"{whose}{named}", (rows, into, hidden), ("Y", "W_up", "G"), after="norm"),
        Step(f"{whose}activation", activation=Activation(rows * width, gated)),
        product_step(f"{whose}down", (rows, hidden, width), ("H", "W_down", "Z"), after="activation"),
    )


def _routed(tokens: int, hidden: int, experts: Experts, gated: bool) -> tuple[Step, ...]:
    """Steps of this GPU's experts that the tokens of all groups reach, each with an equal share of the visits."""
    tokens *= experts.groups
    reached = experts.touched(tokens)
    rows, touched = max(1, round(tokens * experts.active / reached)), -(-reached // experts.gpus)
    into, named = (2 * experts.width, "gate and up") if gated else (experts.width, "up")
    return (
        product_step(f"experts' {named}", (rows, into, hidden), ("Y", "W_up", "G"), touched),
        Step("experts' activation", activation=Activation(rows * touched * experts.width, gated)),
        product_step("experts' down", (rows, hidden, experts.width), ("H", "W_down", "Z"), touched),
    )


def _directed(found: tuple[Step, ...], direction: Direction) -> tuple[Step, ...]:
    return found if direction == "fwd" else tuple(backward(step) for step in reversed(found))
