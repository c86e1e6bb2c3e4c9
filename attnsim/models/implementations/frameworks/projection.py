"""Dense GEMMs as cuBLAS runs them: the projections before and after an attention call.

cuBLAS is closed; it is assumed to work like CUTLASS (NVIDIA/cutlass, ``media/docs/cpp/efficient_gemm.md``):

* One thread block per C tile, with `stages` steps of k in flight. The tile is the one of cuBLAS's
  (:data:`~attnsim.models.schedule.gemm.TILES`) whose whole waves finish first, by tensor rate or by the
  bytes of A and B from the L2.
* Tiles are walked in groups of `RASTER` columns, so that the columns of B stay in the L2 while A passes through: A is
  read from HBM once per group if it does not fit the L2, B once.
* If it is estimated to pay (a decode step, whose C has fewer tiles than the chip has SMs), k is split into equal parts
  that write fp32 partial sums, and a second kernel adds them up (split-K).
* A tile of few rows still multiplies whole: a decode step executes 64 or more rows, and is bound by the bytes of B.

Biases and conversions are in the epilogue. Operands come from shared memory while the tensor cores work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import DTYPE_BYTES
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm, gemm_path, library_tiles, waves_s
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel

RASTER = by_hand(8, "columns of C tiles that a GEMM of cuBLAS (closed) walks together")
"""CUTLASS's largest swizzle (``threadblock_swizzle.h``)."""

ROTARY_INSTRUCTIONS = by_hand(2.0, "FP32-lane instructions per element of a rotary embedding")
"""A multiplication by the cosine, a fused one by the sine of its neighbour."""

MOST_SPLITS = by_hand(16, "most parts that a GEMM of cuBLAS (closed) cuts k into")


Before = Literal["", "norm", "attention", "activation"]
"""The kernel that writes the input of a product."""


@dataclass(frozen=True, slots=True)
class Product:
    """A product C[m, n] = A[m, k] B[k, n], or `batch` of them with separate operands.

    Parameters
    ----------
    shape : (int, int, int)
        m, n, k.
    tensors : (str, str, str)
        Names of A, B and C.
    batch : int
        Number of products, such as one per head.
    after : {"", "norm", "attention", "activation"}
        The kernel that writes A, which may convert it.
    wide : bool
        Whether the weights keep 16 bits in a model of fp8.
    """

    name: str
    shape: tuple[int, int, int]
    tensors: tuple[str, str, str]
    batch: int = 1
    after: Before = ""
    wide: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions, 2 m n k each."""
        m, n, k = self.shape
        return 2 * self.batch * m * n * k


@dataclass(frozen=True, slots=True)
class Cut:
    """Partition of a product: the tile, and the parts of k."""

    tile: GemmTile
    splits: int

    def __str__(self) -> str:
        return f"{self.tile}, split-K {self.splits}" if self.splits > 1 else str(self.tile)


def cut(product: Product, gpu: Gpu, dtype: str) -> Cut:
    """The tile and the split of k with the least :func:`_estimate_s`, the largest tile among equals.

    Both are chosen for the unchanged GPU, as the library has done.
    """
    gpu = gpu.tiled_for
    fitting = library_tiles(gpu, dtype, product.shape[0], DTYPE_BYTES[dtype])
    choices = [Cut(tile, splits) for tile in fitting for splits in _splits(product, tile)]
    return min(choices, key=lambda choice: _estimate_s(product, choice, gpu, dtype))


def _splits(product: Product, tile: GemmTile) -> list[int]:
    """Numbers of equal parts of k, each long enough to fill the stages."""
    k = product.shape[2]
    if product.batch > 1 or k % tile.k:
        return [1]
    steps = k // tile.k
    return [1, *(n for n in range(2, min(steps // tile.stages, MOST_SPLITS) + 1) if steps % n == 0)]


def _estimate_s(product: Product, choice: Cut, gpu: Gpu, dtype: str) -> float:
    """Estimated seconds of whole waves of tiles, and of adding up parts."""
    (m, n, _), splits = product.shape, choice.splits
    partial = gpu.launch.stream_s + 2 * 4 * m * n * splits / gpu.l2.bandwidth_bytes_per_s if splits > 1 else 0.0
    return float(waves_s(choice.tile, product.batch, product.shape, gpu, dtype, DTYPE_BYTES[dtype], splits)) + partial


def projection(product: Product, gpu: Gpu, dtype: str) -> tuple[list[Kernel], Cut]:
    """Kernels of a product: the GEMM and, if k is split, the sum of its parts.

    Parameters
    ----------
    dtype : str
        Format of A and B; C is as wide, but 16-bit for fp8.
    """
    e, wide = DTYPE_BYTES[dtype], max(2, DTYPE_BYTES[dtype])
    chosen = cut(product, gpu, dtype)
    (m, n, _), (a, b, c), splits = product.shape, product.tensors, chosen.splits
    out = Operand(c, wide) if splits == 1 else Operand(f"{c} partial", 4)
    main = gemm(
        product.name,
        product.batch,
        product.shape,
        Operand(a, e),
        Operand(b, e),
        out,
        dtype=dtype,
        path=gemm_path(gpu),
        tile=chosen.tile,
        parts=splits,
        raster=RASTER,
    )
    if splits == 1:
        return [main], chosen
    sums = [Access(out.tensor, m * n * 4 * splits), Access(c, m * n * wide, True)]
    added = streaming(f"{product.name}, sum of parts", sums, elements=m * n * splits)
    return [main, replace(added, role="sum of parts")], chosen


def rotary(turned: Sequence[tuple[str, int]], dtype: str) -> Kernel:
    """Rotary embedding in place: every rotated element read and written once (Su et al., arXiv 2104.09864).

    One kernel turns queries and keys (vLLM, ``csrc/pos_encoding_kernels.cu``). Elements are 16-bit even if the products
    are in fp8, to which they are converted later.

    Parameters
    ----------
    turned : sequence of (str, int)
        Tensors and their rotated elements.
    """
    e = max(2, DTYPE_BYTES[dtype])
    accesses = [Access(tensor, elements * e, writes) for tensor, elements in turned for writes in (False, True)]
    elements = sum(elements for _, elements in turned)
    names = " and ".join(tensor for tensor, _ in turned)
    return streaming(f"rotary {names}", accesses, elements=elements, fp32_per_element=ROTARY_INSTRUCTIONS)
