"""Tensor parallelism: what one of several GPUs has of a layer (Shoeybi et al., Megatron-LM, arXiv 1909.08053).

Query heads, the MLP's width and the vocabulary are divided. Key heads are divided too, and where there are fewer of
them than GPUs each GPU has a copy of one (vLLM's `QKVParallelLinear`). Every GPU keeps the whole latent of multi-head
latent attention. Experts are divided in width too, or as whole ones among more GPUs (`share_of_experts`). What is left
out: the all-reduce after the attention's output projection and after the MLP.
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.errors import InputError
from attnsim.models.llm.mlp import Mlp
from attnsim.models.llm.model import Model

LEFT_OUT = "all-reduces left out"


def share_of_heads(heads_q: int, heads_kv: int, gpus: int) -> tuple[int, int]:
    """Query and key heads of one GPU of so many.

    Raises
    ------
    InputError
        When they do not divide.
    """
    if gpus < 1 or heads_q % gpus:
        raise InputError(f"tp is {gpus}; it must divide {heads_q} query heads: {_divisors(heads_q)}")
    if max(heads_kv, gpus) % min(heads_kv, gpus):
        raise InputError(
            f"tp is {gpus}; {heads_kv} key/value heads divide among {_divisors(heads_kv)}, or are copied to a multiple "
            f"of {heads_kv}"
        )
    return heads_q // gpus, max(1, heads_kv // gpus)


def share_of_model(model: Model, gpus: int, expert_gpus: int = 0) -> Model:
    """The model as one GPU of so many computes it.

    Parameters
    ----------
    model : Model
    gpus : int
        GPUs that share every layer.
    expert_gpus : int
        GPUs among which whole experts are divided: those, or several such groups, each with a batch of its own; 0 where
        experts are divided in width.

    Raises
    ------
    InputError
        When heads, the MLP or the experts do not divide.
    """
    if expert_gpus:
        whole = _share_of_experts(model, gpus, expert_gpus)
        share = share_of_model(replace(model, mlp=replace(whole, experts=None)), gpus)
        assert share.mlp is not None
        return replace(share, mlp=replace(share.mlp, experts=whole.experts))
    if gpus == 1:
        return model
    heads_q, heads_kv = share_of_heads(model.heads_q, model.heads_kv, gpus)
    mlp = model.mlp and _share_of_mlp(model.mlp, gpus)
    return replace(model, heads_q=heads_q, heads_kv=heads_kv, mlp=mlp, vocabulary=-(-model.vocabulary // gpus))


def _share_of_experts(model: Model, gpus: int, expert_gpus: int) -> Mlp:
    """The MLP with whole experts divided."""
    if model.mlp is None or model.mlp.experts is None:
        raise InputError(f"ep is {expert_gpus} and {model.id} has no experts; leave ep out")
    experts = model.mlp.experts
    if expert_gpus % gpus:
        raise InputError(f"ep is {expert_gpus} and tp {gpus}; whole groups of {gpus} share experts: give a multiple")
    if experts.count % expert_gpus:
        raise InputError(
            f"ep is {expert_gpus}; it must divide {experts.count} experts: {_divisors(experts.count, expert_gpus)}"
        )
    return replace(model.mlp, experts=replace(experts, gpus=expert_gpus, groups=expert_gpus // gpus))


def _share_of_mlp(mlp: Mlp, gpus: int) -> Mlp:
    """The MLP with its width, and that of its experts, divided."""
    for width in (mlp.width, *([mlp.experts.width] if mlp.experts else [])):
        if width % gpus:
            raise InputError(f"tp is {gpus}; it must divide the MLP's width of {width}: {_divisors(width, gpus)}")
    experts = mlp.experts and replace(mlp.experts, width=mlp.experts.width // gpus)
    return replace(mlp, width=mlp.width // gpus, experts=experts)


def _divisors(number: int, near: int = 0) -> str:
    """The divisors of a number, as words; up to twice `near`, where that is given."""
    most = 2 * near or number
    return f"one of {', '.join(str(n) for n in range(1, most + 1) if number % n == 0)}"
