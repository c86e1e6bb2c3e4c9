"""The attention layer of a model: its projections and rotary embedding, step by step, around the attention call.

What is counted: the products with W_Q, W_K and W_V as one GEMM (frameworks keep the three weights side by side: vLLM's
`QKVParallelLinear`), rotary embedding in place, the attention, and the product with W_O. Of multi-head latent attention
(DeepSeek-V2, arXiv 2405.04434, section 2.1) the two down-projections as one GEMM, the up-projection of Q, and what
the form of the attention asks for: K and V of every key made from the latent, or, absorbed, W_UK multiplied into Q and
W_UV into O head by head; where the attention's own kernels do that, it is in the attention's time. Training multiplies
twice backward: by the weights for dX, by the inputs for dW.

What is left out: normalisation (of the input, of Q and K), residual additions, the write of new keys into a cache
except where the attention implementation makes it, conversions to fp8, and communication between GPUs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.projection import (
    Cuts,
    Product,
    projection,
    rotary,
)
from attnsim.models.llm.model import Model
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule

Direction = Literal["fwd", "bwd"]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a layer does besides attention.

    Parameters
    ----------
    name : str
    products : tuple of Product
        GEMMs, in launch order.
    turned : tuple of (str, int)
        Tensors that rotary embedding turns, and how many of their elements.
    """

    name: str
    products: tuple[Product, ...] = ()
    turned: tuple[tuple[str, int], ...] = ()

    @property
    def flops(self) -> int:
        """Useful FLOPs: those of the products."""
        return sum(product.flops for product in self.products)


@dataclass(frozen=True, slots=True)
class Steps:
    """What comes before the attention call, and what after it."""

    before: tuple[Step, ...]
    after: tuple[Step, ...]


def steps(model: Model, w: Workload, direction: Direction = "fwd", attention: Collection[str] = ()) -> Steps:
    """The steps around the attention of `w` in a layer of `model`.

    Queries are the new tokens: with ``seq_kv`` larger than ``seq_q`` (decode, chunked prefill) the others' keys are in
    a cache already.

    Parameters
    ----------
    model : Model
    w : Workload
    direction : {"fwd", "bwd"}
    attention : collection of str
        Kernels of the attention call: those of latent attention may do part of the layer's work.
    """
    forward = _latent(model, w, attention) if w.latent is not None else _separate(model, w)
    if direction == "fwd":
        return forward
    return Steps(
        tuple(_backward(step) for step in reversed(forward.after)),
        tuple(_backward(step) for step in reversed(forward.before)),
    )


def _separate(model: Model, w: Workload) -> Steps:
    rows, d, dv = w.batch * w.seq_q, w.head_dim, w.head_dim_v
    width = w.heads_q * d + w.heads_kv * (d + dv)
    turned = (("Q", rows * w.heads_q * model.rotary), ("K", rows * w.heads_kv * model.rotary))
    qkv = _product("QKV projection", (rows, width, model.hidden), ("X", "W_QKV", "QKV"))
    return Steps((qkv, *_turning(model, turned)), (_output(model, w),))


def _latent(model: Model, w: Workload, attention: Collection[str]) -> Steps:
    assert w.latent is not None
    rows, heads, rank, rope = w.batch * w.seq_q, w.heads_q, w.latent.rank, w.latent.rope
    width, nope = heads * w.head_dim, w.head_dim - rope
    before = [
        _product("down projections", (rows, (model.query_rank or width) + rank + rope, model.hidden), ("X", "W_D", "C"))
    ]
    if model.query_rank:
        before.append(_product("Q up projection", (rows, width, model.query_rank), ("C", "W_UQ", "Q")))
    if "rope_append" not in attention:
        before += _turning(model, (("Q", rows * heads * rope), ("K", rows * rope)))
    after = [_output(model, w)]
    if "latent_attention" not in attention and "decompress" not in attention:
        shape = (w.batch * w.seq_kv, heads * (nope + w.head_dim_v), rank)
        before.append(_product("KV up projection", shape, ("C", "W_UKV", "KV")))
    elif "latent_attention" in attention and "absorb_q" not in attention:
        before.append(_product("W_UK into Q", (rows, rank, nope), ("Q", "W_UK", "Q latent"), heads))
        after.insert(0, _product("W_UV into O", (rows, w.head_dim_v, rank), ("O latent", "W_UV", "O"), heads))
    return Steps(tuple(before), tuple(after))


def _product(name: str, shape: tuple[int, int, int], tensors: tuple[str, str, str], batch: int = 1) -> Step:
    return Step(name, (Product(name, shape, tensors, batch),))


def _turning(model: Model, turned: tuple[tuple[str, int], ...]) -> tuple[Step, ...]:
    return (Step("rotary", turned=turned),) if model.rotary else ()


def _output(model: Model, w: Workload) -> Step:
    shape = (w.batch * w.seq_q, model.hidden, w.heads_q * w.head_dim_v)
    return _product("O projection", shape, ("O", "W_O", "Y"))


def _backward(step: Step) -> Step:
    """Gradients of the inputs and of the weights; rotary embedding turns back."""
    products: list[Product] = []
    for product in step.products:
        (m, n, k), (a, b, c) = product.shape, product.tensors
        products += [
            Product(f"{product.name}, dX", (m, k, n), (f"d{c}", b, f"d{a}")),
            Product(f"{product.name}, dW", (k, n, m), (a, f"d{c}", f"d{b}")),
        ]
    turned = tuple((f"d{tensor}", elements) for tensor, elements in step.turned)
    return Step(f"{step.name}, backward", tuple(products), turned)


def step_schedule(step: Step, gpu: Gpu, dtype: str) -> Schedule:
    """The kernels of a step.

    Parameters
    ----------
    step : Step
    gpu : Gpu
    dtype : str
        Of inputs and weights.
    """
    kernels: list[Kernel] = []
    cuts = []
    for product in step.products:
        found, chosen = projection(product, gpu, dtype)
        kernels += found
        cuts.append(chosen)
    kernels += [rotary(tensor, elements, dtype) for tensor, elements in step.turned]
    sizes = {use.tensor: use.unique_bytes for kernel in kernels for use in kernel.uses}
    return Schedule("projection", "cublas", tuple(kernels), Cuts(tuple(cuts)), sum(sizes.values()))
