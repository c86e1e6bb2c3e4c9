"""A step of a layer other than attention: products, rotary embedding, an activation, a pass; and its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.projection import Before, Product, projection, rotary
from attnsim.models.question.workload import DTYPE_BYTES
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
