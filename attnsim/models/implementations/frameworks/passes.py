"""Passes of a server between the products and the attention of a layer: norms with residuals, cache writes, embedding.

As vLLM runs them: ``fused_add_rms_norm`` adds to the residual and normalises in one kernel, ``reshape_and_cache_flash``
copies the new keys and values into the paged cache, and the embedding is a gather of rows. Tokens find their experts by
a product and ``topk_softmax``, ``moe_align_block_size`` sorts them, and ``moe_sum`` adds up what the experts return.
"""

from __future__ import annotations

from collections.abc import Collection

from attnsim.models.implementations.frameworks.step import Step, product_step
from attnsim.models.llm.mlp import Experts
from attnsim.models.llm.model import Model
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.passes import Access


def norm_step(model: Model, w: Workload) -> Step:
    """The norm before attention, before the MLP and before the LM head, and the residual addition."""
    size = w.queries * model.hidden * w.output_bytes
    moved = [Access(name, size, written) for written in (False, True) for name in ("X", "residual")]
    return Step("norm and residual", moved=tuple(moved))


def cache_write_step(w: Workload, attention: Collection[str]) -> Step | None:
    """The write of new keys into the cache; None if a kernel of the attention call makes it."""
    if any("cache" in name or "append" in name for name in attention):
        return None
    width = w.latent.width if w.latent is not None else w.heads_kv * (w.head_dim + w.head_dim_v)
    read, written = (w.new_tokens * width * size for size in (w.output_bytes, w.element_bytes))
    return Step("cache write", moved=(Access("new KV", read), Access("KV cache", written, True)))


def embedding_step(model: Model, w: Workload) -> Step:
    """The gather of embedding rows of the new tokens."""
    size = w.queries * model.hidden * w.output_bytes
    return Step("embedding", moved=(Access("W_embedding", size), Access("X", size, True)))


def head_norm_step(model: Model, w: Workload) -> Step | None:
    """The norms of queries and keys, or of the latents that they are made from, in place; None where there are none."""
    if w.latent is not None:
        name, elements = "norms of latents", model.query_rank + w.latent.rank
    elif model.qk_norm:
        name, elements = "norms of Q and K", w.head_dim * (w.heads_q + w.heads_kv)
    else:
        return None
    size = w.queries * elements * w.output_bytes
    return Step(name, moved=(Access("QK", size), Access("QK", size, True)))


def router_step(model: Model, experts: Experts, w: Workload) -> Step:
    """The product that finds the experts of the new tokens; what else routes them is timed with the experts."""
    shape = (w.queries, experts.count, model.hidden)
    return product_step("router", shape, ("Y", "W_router", "scores"), after="norm", wide=True)
