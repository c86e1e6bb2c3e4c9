"""The attention of a model's layer: its projections and rotary embedding, step by step, around the attention call.

Counted are the products with W_Q, W_K and W_V as one GEMM (frameworks concatenate the three weights: vLLM's
`QKVParallelLinear`), rotary embedding in place, the attention, and the product with W_O. For multi-head latent
attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) these are the two down-projections as one GEMM, the up-projection
of Q, and the products of the attention's form: K and V of every key made from the latent, or, absorbed, W_UK multiplied
into Q and W_UV into O head by head. If the attention's own kernels do that, it is in the attention's time. Training
multiplies twice backward: by the weights for dX, by the inputs for dW.

Left out are normalisation (of the input, of Q and K), residual additions, the write of new keys into a cache unless the
attention implementation makes it, conversions to fp8, and communication between GPUs. The work after the
attention is in :mod:`attnsim.models.implementations.frameworks.layer`.

Kernels of a layer that does not attend: products, the short convolution, the recurrence or its chunks, a gated norm.

As vLLM serves them (``model_executor/models/qwen3_next.py``, ``layers/kda.py``, ``layers/mamba/mamba_mixer2.py``): one
product in, the convolution over Q, K and V, the kernels of the family, a norm that a gate multiplies, one product back.
Sequences that decode and prompts are called apart.

The MLP of a layer, and the LM head after the last one.

Counted are the products into the intermediate width as one GEMM (vLLM's `MergedColumnParallelLinear`; gate and up
if the MLP is gated), the activation, and the product back. For a mixture of experts: the products of the experts that
the tokens reach, in one kernel (a grouped GEMM), with equally many tokens each, and those of the shared experts.

Left out are the router, and moving tokens to experts and back, which are steps of their own.

Passes of a server between the products and the attention of a layer: norms with residuals, cache writes, embedding.

As vLLM runs them: ``fused_add_rms_norm`` adds to the residual and normalises in one kernel, ``reshape_and_cache_flash``
copies the new keys and values into the paged cache, and the embedding is a gather of rows. Tokens find their experts by
a product and ``topk_softmax``, ``moe_align_block_size`` sorts them, and ``moe_sum`` adds up what the experts return.

A step of a layer other than attention: products, rotary embedding, an activation, a pass; and its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.projection import Before, Product, projection, rotary
from attnsim.models.llm.mlp import Experts, Mlp
from attnsim.models.llm.model import LayerKind, Model
from attnsim.models.mask.mask import Mask
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import DTYPE_BYTES, Workload
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule

Direction = Literal["fwd", "bwd"]

PASS_INSTRUCTIONS = by_hand(4.0, "FP32-lane instructions per element of a norm with its residual addition")
"""Addition, square into the sum, products with the root and the weight."""
ACTIVATION_INSTRUCTIONS = by_hand(6.0, "FP32-lane instructions per element of an activation, beside its exponential")
"""SiLU: exponential, sum, division, product; the product with the gated half; conversions."""


@dataclass(frozen=True, slots=True)
class Activation:
    """SiLU, GELU or similar on the result of a product: one exponential per element of the output.

    Parameters
    ----------
    elements : int
        Elements of the output.
    gated : bool
        Whether two inputs are read for each element.
    backward : bool
        Whether the gradient of the output is also read, and those of the inputs are written.
    """

    elements: int
    gated: bool
    backward: bool = False

    def accesses(self, dtype: str) -> list[Access]:
        """Tensors that its kernel reads and writes, in 16 bits even for fp8."""
        size = self.elements * max(2, DTYPE_BYTES[dtype])
        inputs = size * (2 if self.gated else 1)
        if self.backward:
            return [Access("dH", size), Access("G", inputs), Access("dG", inputs, True)]
        return [Access("G", inputs), Access("H", size, True)]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a layer other than attention.

    Parameters
    ----------
    products : tuple of Product
        GEMMs, in launch order.
    turned : tuple of (str, int)
        Tensors with rotary embedding, and their rotated elements.
    moved : tuple of Access
        Tensors that a single kernel, such as a norm, passes over once.
    """

    name: str
    products: tuple[Product, ...] = ()
    turned: tuple[tuple[str, int], ...] = ()
    activation: Activation | None = None
    moved: tuple[Access, ...] = ()

    @property
    def flops(self) -> int:
        """Useful FLOPs: those of the products."""
        return sum(product.flops for product in self.products)


def product_step(
    name: str,
    shape: tuple[int, int, int],
    tensors: tuple[str, str, str],
    batch: int = 1,
    *,
    after: Before = "",
    wide: bool = False,
) -> Step:
    """A step of one product."""
    return Step(name, (Product(name, shape, tensors, batch, after, wide),))


def backward(step: Step) -> Step:
    """Backward step: gradients of inputs and weights; rotary embedding is inverted."""
    products: list[Product] = []
    for product in step.products:
        (m, n, k), (a, b, c), batch = product.shape, product.tensors, product.batch
        products += [
            Product(f"{product.name}, dX", (m, k, n), (f"d{c}", b, f"d{a}"), batch),
            Product(f"{product.name}, dW", (k, n, m), (a, f"d{c}", f"d{b}"), batch),
        ]
    turned = tuple((f"d{tensor}", elements) for tensor, elements in step.turned)
    activation = step.activation and replace(step.activation, backward=True)
    return Step(f"{step.name}, backward", tuple(products), turned, activation)


def step_schedule(step: Step, gpu: Gpu, dtype: str) -> Schedule:
    """Kernels of a step.

    Parameters
    ----------
    dtype : str
        Format of inputs and weights.
    """
    kernels: list[Kernel] = []
    cuts = []
    for product in step.products:
        found, chosen = projection(product, gpu, dtype)
        kernels += found
        cuts.append(str(chosen))
    kernels += [rotary(step.turned, dtype)] if step.turned else []
    if step.activation is not None:
        kernels.append(_activation(step.activation, dtype))
    if step.moved:
        elements = max(one.bytes for one in step.moved) // max(2, DTYPE_BYTES[dtype])
        kernels.append(streaming(step.name, step.moved, elements=elements, fp32_per_element=PASS_INSTRUCTIONS))
    sizes = {use.tensor: use.unique_bytes for kernel in kernels for use in kernel.uses}
    return Schedule("projection", "cublas", tuple(kernels), "; ".join(dict.fromkeys(cuts)), sum(sizes.values()))


def _activation(one: Activation, dtype: str) -> Kernel:
    return streaming(
        "activation",
        one.accesses(dtype),
        elements=one.elements,
        exps=one.elements,
        fp32_per_element=ACTIVATION_INSTRUCTIONS,
    )


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
    return Steps(_directed(forward.after, direction), _directed(forward.before, direction))


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


CONVOLUTION = "short-convolution"
WITH_ALL_AROUND = ("vllm.kda-fused-decode",)
"""Kernels that have the convolution before them and the norm behind them in themselves."""
_STATE_BYTES, _TAPS_KEPT = 4, 3


@dataclass(frozen=True, slots=True)
class Mixer:
    """A mixer: what a kind of layers runs in place of attention.

    Parameters
    ----------
    algorithm : str
        Of its recurrence.
    into : callable
        Columns of the product in, by heads, width of all keys and of all values.
    convolved : callable
        Channels of the convolution, by the same.
    ranked : int
        Gates, each as wide as the values, that are made from a latent as wide as one head.
    """

    algorithm: str
    into: Callable[[int, int, int], int]
    convolved: Callable[[int, int, int], int]
    ranked: int = 0


MIXERS = {
    "gated delta net": Mixer("gdn", lambda h, k, v: 2 * k + 2 * v + 2 * h, lambda h, k, v: 2 * k + v),
    "kimi delta attention": Mixer("kda", lambda h, k, v: 2 * k + v + h, lambda h, k, v: 2 * k + v, ranked=2),
    "mamba-2": Mixer("mamba-2", lambda h, k, v: 2 * k + 2 * v + h, lambda h, k, v: 2 * k + v),
}
"""By kind of layers, as :mod:`attnsim.models.llm.mixers` counts their parameters."""
ALGORITHMS = frozenset({CONVOLUTION, *(one.algorithm for one in MIXERS.values())})


def _widths(kind: LayerKind) -> tuple[int, int, int]:
    return kind.heads_q, kind.heads_kv * kind.head_dim, kind.heads_q * kind.head_dim_v


def is_played(kind: LayerKind) -> bool:
    """Whether these layers do not attend and have kernels here."""
    return kind.kind in MIXERS and kind.heads_q > 0


def products_in(kind: LayerKind, hidden: int, rows: int) -> Iterator[Step]:
    """The products before the convolution."""
    mixer, values = MIXERS[kind.kind], kind.heads_q * kind.head_dim_v
    columns = mixer.into(*_widths(kind)) + mixer.ranked * kind.head_dim_v
    yield product_step("mixer's input projection", (rows, columns, hidden), ("X", "W_in", "QKV"), after="norm")
    if mixer.ranked:
        shape = (rows, values, kind.head_dim_v)
        yield product_step("gates' up projection", shape, ("C", "W_gates", "gates"), mixer.ranked)


def products_out(kind: LayerKind, hidden: int, rows: int, normed: int, element_bytes: int) -> Iterator[Step]:
    """The gated norm of so many rows, and the product back of all."""
    values = kind.heads_q * kind.head_dim_v
    if normed:
        size = normed * values * element_bytes
        yield Step("gated norm", moved=(Access("O", size), Access("gate", size), Access("normed", size, True)))
    yield product_step("mixer's output projection", (rows, hidden, values), ("normed", "W_out", "Y"))


def calls(kind: LayerKind, lengths: Sequence[Length], dtype: str) -> Iterator[tuple[str, Workload]]:
    """The recurrence of the sequences that decode and of prompts, each by its algorithm, and the convolution of both.

    Of prompts of different lengths the mean is called: they are taken in side by side.
    """
    mixer = MIXERS[kind.kind]
    channels = mixer.convolved(*_widths(kind))
    width = gcd(channels, 128)
    whole = (channels // width, channels // width, width, width)
    own = (kind.heads_q, kind.heads_kv, kind.head_dim, kind.head_dim_v)
    for decodes in (True, False):
        some = [one for one in lengths if (one.queries == 1) is decodes]
        if batch := sum(one.times for one in some):
            tokens = round(sum(one.queries * one.times for one in some) / batch)
            for algorithm, (heads, kv_heads, d, dv) in ((mixer.algorithm, own), (CONVOLUTION, whole)):
                yield algorithm, Workload(
                    batch=batch, heads_q=heads, heads_kv=kv_heads, seq_q=tokens, seq_kv=tokens, head_dim=d,
                    head_dim_v=dv, dtype=dtype, passes="decode" if decodes else "fwd", mask=Mask.causal(),
                )  # fmt: skip


def state_bytes(kind: LayerKind, dtype: str) -> int:
    """Bytes that a sequence keeps in such a layer, whatever its length: fp32 states, tokens of the convolution."""
    kept = MIXERS[kind.kind].convolved(*_widths(kind)) * _TAPS_KEPT * DTYPE_BYTES[dtype]
    return kind.heads_q * kind.head_dim * kind.head_dim_v * _STATE_BYTES + kept


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


def _forward(rows: int, hidden: int, width: int, gated: bool, whose: str, batch: int = 1) -> tuple[Step, ...]:
    into, named = (2 * width, "gate and up") if gated else (width, "up")
    return (
        product_step(f"{whose}{named}", (rows, into, hidden), ("Y", "W_up", "G"), batch, after="norm"),
        Step(f"{whose}activation", activation=Activation(rows * batch * width, gated)),
        product_step(f"{whose}down", (rows, hidden, width), ("H", "W_down", "Z"), batch, after="activation"),
    )


def _routed(tokens: int, hidden: int, experts: Experts, gated: bool) -> tuple[Step, ...]:
    """Steps of this GPU's experts that the tokens of all groups reach, each with an equal share of the visits."""
    tokens *= experts.groups
    reached = experts.touched(tokens)
    rows, touched = max(1, round(tokens * experts.active / reached)), -(-reached // experts.gpus)
    return _forward(rows, hidden, experts.width, gated, "experts' ", touched)


def _directed(found: tuple[Step, ...], direction: Direction) -> tuple[Step, ...]:
    return found if direction == "fwd" else tuple(backward(step) for step in reversed(found))


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
