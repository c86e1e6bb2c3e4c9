"""Tensor parallelism: what one of several GPUs has of a layer (Shoeybi et al., Megatron-LM, arXiv 1909.08053).

Query heads, the MLP's width and the vocabulary are divided. Key heads are divided too, and where there are fewer of
them than GPUs each GPU has a copy of one (vLLM's `QKVParallelLinear`). Every GPU keeps the whole latent of multi-head
latent attention. What is left out: the all-reduce after the attention's output projection and after the MLP.
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


def share_of_model(model: Model, gpus: int) -> Model:
    """The model as one GPU of so many computes it.

    Raises
    ------
    InputError
        When heads or the MLP do not divide.
    """
    if gpus == 1:
        return model
    heads_q, heads_kv = share_of_heads(model.heads_q, model.heads_kv, gpus)
    mlp = model.mlp and _share_of_mlp(model.mlp, gpus)
    return replace(model, heads_q=heads_q, heads_kv=heads_kv, mlp=mlp, vocabulary=-(-model.vocabulary // gpus))


def _share_of_mlp(mlp: Mlp, gpus: int) -> Mlp:
    """The MLP with its width, and that of its experts, divided."""
    for width in (mlp.width, *([mlp.experts.width] if mlp.experts else [])):
        if width % gpus:
            raise InputError(f"tp is {gpus}; it must divide the MLP's width of {width}: {_divisors(width, gpus)}")
    experts = mlp.experts and replace(mlp.experts, width=mlp.experts.width // gpus)
    return replace(mlp, width=mlp.width // gpus, experts=experts)


def _divisors(number: int, near: int = 0) -> str:
    """What divides a number, as words; up to twice `near`, where that is given."""
    most = 2 * near or number
    return f"one of {', '.join(str(n) for n in range(1, most + 1) if number % n == 0)}"
