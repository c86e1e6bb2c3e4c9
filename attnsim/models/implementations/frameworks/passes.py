"""What a server runs around the products and the attention of a layer: norms with residuals, cache writes, embedding.

As vLLM runs them: ``fused_add_rms_norm`` adds to the residual and normalises in one kernel, ``reshape_and_cache_flash``
copies the new keys and values into the paged cache, and the embedding is a gather of rows.
"""

from __future__ import annotations

from collections.abc import Collection

from attnsim.models.implementations.frameworks.step import Step
from attnsim.models.llm.model import Model
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.passes import Access


def norm_step(model: Model, w: Workload) -> Step:
    """The norm before attention, before the MLP and before the LM head, and the residual addition."""
    size = w.queries * model.hidden * w.output_bytes
    moved = [Access(name, size, written) for written in (False, True) for name in ("X", "residual")]
    return Step("norm and residual", moved=tuple(moved))


def cache_write_step(w: Workload, attention: Collection[str]) -> Step | None:
    """The write of new keys into the cache; None where a kernel of the attention call makes it."""
    if any("cache" in name or "append" in name for name in attention):
        return None
    width = w.latent.width if w.latent is not None else w.heads_kv * (w.head_dim + w.head_dim_v)
    read, written = (w.new_tokens * width * size for size in (w.output_bytes, w.element_bytes))
    return Step("cache write", moved=(Access("new KV", read), Access("KV cache", written, True)))


def embedding_step(model: Model, w: Workload) -> Step:
    """The rows of the embedding that the new tokens name."""
    size = w.queries * model.hidden * w.output_bytes
    return Step("embedding", moved=(Access("W_embedding", size), Access("X", size, True)))
