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


def routing_steps(model: Model, experts: Experts, w: Workload) -> tuple[Step, ...]:
    """How the new tokens find their experts, and the sum of what those return."""
    rows, index = w.queries, 4
    scores, chosen = rows * experts.count * index, 2 * rows * experts.active * index
    size = rows * model.hidden * w.output_bytes
    return (
        product_step("router", (rows, experts.count, model.hidden), ("Y", "W_router", "scores")),
        Step("top-k of the router", moved=(Access("scores", scores), Access("chosen", chosen, True))),
        Step("tokens sorted by expert", moved=(Access("chosen", chosen), Access("sorted", chosen, True))),
        Step("sum of experts", moved=(Access("Z", experts.active * size), Access("sum", size, True))),
    )
