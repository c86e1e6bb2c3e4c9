"""Closed forms of what a layer does around an attention call: GEMMs, rotary embedding, activations."""

from __future__ import annotations

from attnsim.models.closed_forms.form import Form, load, store, transfer
from attnsim.models.implementations.frameworks.projection import Cut, Product
from attnsim.models.implementations.frameworks.step import Activation
from attnsim.models.question.workload import DTYPE_BYTES


def product(product: Product, chosen: Cut, dtype: str) -> list[Form]:
    """Traffic and FLOPs of a product from shape and cut: A once per column of tiles, B once per row."""
    e, wide = DTYPE_BYTES[dtype], max(2, DTYPE_BYTES[dtype])
    (m, n, k), (a, b, c), batch = product.shape, product.tensors, product.batch
    tile, splits = chosen.tile, chosen.splits
    down, across = -(-m // tile.m), -(-n // tile.n)
    steps = batch * down * across * splits * -(-k // (splits * tile.k))
    out = store(c, batch * m * n * wide) if splits == 1 else store(f"{c} partial", m * n * 4 * splits)
    main = Form(
        product.name,
        (
            load(a, batch * m * k * e * across, batch * m * k * e),
            load(b, batch * k * n * e * down, batch * k * n * e),
            out,
        ),
        flops=steps * 2 * tile.m * tile.n * tile.k,
        smem_bytes=steps * tile.operand_bytes(e),
    )
    if splits == 1:
        return [main]
    moved = (load(out.tensor, out.requested_bytes), store(c, m * n * wide))
    return [main, Form(f"{product.name}, sum of parts", moved)]


def rotary(tensor: str, elements: int, dtype: str) -> Form:
    """Traffic of rotary embedding in place."""
    size = elements * max(2, DTYPE_BYTES[dtype])
    return transfer(f"rotary {tensor}", [(tensor, size)], [(tensor, size)])


def activation(one: Activation, dtype: str) -> Form:
    """Traffic of an activation: what comes in once, what goes out once, and with gradients both."""
    size = one.elements * max(2, DTYPE_BYTES[dtype])
    inputs = size * (1 + one.gated)
    if one.backward:
        return transfer("activation", [("dH", size), ("G", inputs)], [("dG", inputs)], one.elements)
    return transfer("activation", [("G", inputs)], [("H", size)], one.elements)
