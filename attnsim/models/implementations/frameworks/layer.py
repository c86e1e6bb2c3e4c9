"""The attention of a model's layer: its projections and rotary embedding, step by step, around the attention call.

Counted are the products with W_Q, W_K and W_V as one GEMM (frameworks concatenate the three weights: vLLM's
`QKVParallelLinear`), rotary embedding in place, the attention, and the product with W_O. For multi-head latent
attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) these are the two down-projections as one GEMM, the up-projection
of Q, and the products of the attention's form: K and V of every key made from the latent, or, absorbed, W_UK multiplied
into Q and W_UV into O head by head. If the attention's own kernels do that, it is in the attention's time. Training
multiplies twice backward: by the weights for dX, by the inputs for dW.

Left out are normalisation (of the input, of Q and K), residual additions, the write of new keys into a cache unless the
attention implementation makes it, conversions to fp8, and communication between GPUs. The work after the
attention is in :mod:`attnsim.models.implementations.frameworks.mlp`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from attnsim.models.implementations.frameworks.step import Direction, Step, backward, product_step
from attnsim.models.llm.model import Model
from attnsim.models.question.workload import Workload


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps before the attention call, and steps after it."""

    before: tuple[Step, ...]
    after: tuple[Step, ...]


def steps(model: Model, w: Workload, direction: Direction = "fwd", attention: Collection[str] = ()) -> Steps:
    """The steps around the attention of `w` in a layer of `model`.

    Queries are the new tokens. If ``seq_kv`` exceeds ``seq_q`` (decode, chunked prefill), the other keys are in the
    cache.

    Parameters
    ----------
    direction : {"fwd", "bwd"}
    attention : collection of str
        Kernels of the attention call: those of latent attention may do part of the layer's work.
    """
    forward = _latent(model, w, attention) if w.latent is not None else _separate(model, w)
    if direction == "fwd":
        return forward
    return Steps(
        tuple(backward(step) for step in reversed(forward.after)),
        tuple(backward(step) for step in reversed(forward.before)),
    )


def _separate(model: Model, w: Workload) -> Steps:
    rows, d, dv = w.queries, w.head_dim, w.head_dim_v
    width = w.heads_q * d * (1 + model.gate) + w.heads_kv * (d + dv)
    turned = (("Q", rows * w.heads_q * model.rotary), ("K", rows * w.heads_kv * model.rotary))
    qkv = product_step("QKV projection", (rows, width, model.hidden), ("X", "W_QKV", "QKV"), after="norm")
    return Steps((qkv, *_turning(model, turned)), (_output(model, w),))


def _latent(model: Model, w: Workload, attention: Collection[str]) -> Steps:
    assert w.latent is not None
    rows, heads, rank, rope = w.queries, w.heads_q, w.latent.rank, w.latent.rope
    width, nope = heads * w.head_dim, w.head_dim - rope
    before = [
        product_step(
            "down projections",
            (rows, (model.query_rank or width) + rank + rope, model.hidden),
            ("X", "W_D", "C"),
            after="norm",
        )
    ]
    if model.query_rank:
        before.append(
            product_step("Q up projection", (rows, width, model.query_rank), ("C", "W_UQ", "Q"), after="norm")
        )
    if "rope_append" not in attention:
        before += _turning(model, (("Q", rows * heads * rope), ("K", rows * rope)))
    after = [_output(model, w)]
    if "latent_attention" not in attention and "decompress" not in attention:
        shape = (w.keys, heads * (nope + w.head_dim_v), rank)
        before.append(product_step("KV up projection", shape, ("C", "W_UKV", "KV"), after="norm"))
    elif "latent_attention" in attention and "absorb_q" not in attention:
        shapes = (rows, rank, nope), (rows, w.head_dim_v, rank)
        before.append(product_step("W_UK into Q", shapes[0], ("Q", "W_UK", "Q latent"), heads, wide=True))
        after.insert(0, product_step("W_UV into O", shapes[1], ("O latent", "W_UV", "O"), heads, wide=True))
    return Steps(tuple(before), tuple(after))


def _turning(model: Model, turned: tuple[tuple[str, int], ...]) -> tuple[Step, ...]:
    return (Step("rotary", turned=turned),) if model.rotary else ()


def _output(model: Model, w: Workload) -> Step:
    shape = (w.queries, model.hidden, w.heads_q * w.head_dim_v)
    return product_step("O projection", shape, ("O", "W_O", "Y"), after="attention")
