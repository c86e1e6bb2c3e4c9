"""Kernels around attention on latents: projections by W_UK and W_UV, copies, cache writes, combine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.projection import Product, projection
from attnsim.models.implementations.latent.tiles import latent_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor, uses_of
from attnsim.models.schedule.operation import Nest, TileOp, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import classes
from attnsim.models.schedule.schedule import Kernel, Launch


def products(w: Workload) -> dict[str, Product]:
    """Products with W_UK and W_UV, by name.

    ``absorb_q`` and ``output_up`` are batched over heads; ``decompress`` (``kv_b_proj``) makes K without its rotary
    part, and V, of all heads in one GEMM.
    """
    latent = latent_of(w)
    queries, nope, rank = w.queries, w.head_dim - latent.rope, latent.rank
    columns = w.heads_q * (nope + w.head_dim_v)
    found = (
        Product("absorb_q", (queries, rank, nope), ("Q nope", "W_UK", "Q latent"), w.heads_q),
        Product("output_up", (queries, w.head_dim_v, rank), ("O latent", "W_UV", "O"), w.heads_q),
        Product("decompress", (w.keys, columns, rank), ("Latent", "W_UK, W_UV", "K nope, V")),
    )
    return {product.name: product for product in found}


def product(w: Workload, name: str, gpu: Gpu) -> list[Kernel]:
    """The kernels of one of :func:`products`."""
    return projection(products(w)[name], gpu, w.dtype)[0]


def copies(w: Workload) -> dict[str, tuple[Access, ...]]:
    """Tensors that each copying kernel reads and writes, by name."""
    latent, e = latent_of(w), w.element_bytes
    keys, queries, heads, new = w.keys, w.queries, w.heads_q, w.new_tokens
    return {
        "concat_k": (
            Access("K nope, V", keys * heads * (w.head_dim - latent.rope) * e),
            Access("K rope", keys * latent.rope * e),
            Access("K", keys * heads * w.head_dim * e, True),
        ),
        "pad_v": (
            Access("K nope, V", keys * heads * w.head_dim_v * e),
            Access("V padded", keys * heads * w.head_dim * e, True),
        ),
        "slice_o": (
            Access("O padded", queries * heads * w.head_dim_v * w.output_bytes),
            Access("O", queries * heads * w.head_dim_v * w.output_bytes, True),
        ),
        "cache_write": (
            Access("new latent", new * latent.width * e),
            Access("Latent", new * latent.width * e, True),
        ),
        "rope_append": (
            Access("new latent", new * latent.width * e),
            Access("Q rope in", queries * heads * latent.rope * e),
            Access("Latent", new * latent.width * e, True),
            Access("Q rope", queries * heads * latent.rope * e, True),
        ),
        "metadata": (Access("lengths", 4 * w.batch), Access("shares", 4 * (w.batch + 1), True)),
        "prepare": (Access("lengths", 8 * w.batch), Access("splits", 4 * w.batch, True)),
        "combine (exits)": (Access("splits", 4 * w.batch),),
    }


def copy(w: Workload, name: str) -> Kernel:
    """One of the kernels of :func:`copies`."""
    accesses = copies(w)[name]
    elements = max(access.bytes for access in accesses) // w.element_bytes
    match name:
        case "metadata":  # FlashMLA's scheduler is one warp
            return streaming(name, accesses, elements=elements, threads=32, blocks=1)
        case "prepare":  # FA3's has a block for 992 sequences
            return streaming(name, accesses, elements=elements, threads=1024, blocks=-(-w.batch // 992))
    return streaming(name, accesses, elements=elements)


def latent_combine(
    w: Workload, counts: Mapping[tuple[int, int], int], *, rows_per_block: int, threads: int, in_flight: int
) -> Kernel:
    """Kernel that merges the partial outputs of each split request.

    Parameters
    ----------
    w : Workload
        The absorbed form.
    counts : mapping of (int, int) to int
        Number of requests, by their rows and the number of ranges they were split into.
    in_flight : int
        Partial results requested before the first is used.
    """
    width = w.head_dim_v
    parts, stats = Tensor("O partial", "p", width * 4), Tensor("LSE partial", "p", 4)
    out = Tensor("O latent", "r", width * w.output_bytes, written=True)
    lse = Tensor("LSE", "r", 4, written=True)
    requests = sorted(counts.items())
    blocks = [-(-rows // rows_per_block) for (rows, _), _ in requests]
    per_request = zip(requests, blocks, strict=True)
    size = np.concatenate(
        [np.minimum(rows_per_block, rows - np.arange(n) * rows_per_block) for ((rows, _), _), n in per_request]
    )
    (ranges, rows), order = classes(np.repeat([ranges for (_, ranges), _ in requests], blocks), size)

    def merged(n: int) -> Nest:
        """A block of n rows: partial results of the next range are on their way while one is merged."""
        work = TileOp("vector", out.name, exps=n, fp32=n * (2 * width + 4))

        def turn(load_next: bool) -> Iterator[TileOp]:
            yield from (stats.wait(), parts.wait(), work)
            if load_next:
                yield from (stats.load(n), parts.load(n))

        here, tag = (rows == n) * 1, f" ({n} rows)"
        return [
            *once(f"fill{tag}", (stats.load(n), parts.load(n)), here * np.minimum(ranges, in_flight)),
            *loop(f"split{tag}", here * ranges, turn, load_next=ranges - in_flight),
            *once(f"store{tag}", (out.store(n), lse.store(n)), here),
        ]

    nest = [one for n in sorted(set(rows.tolist()), reverse=True) for one in merged(n)]
    launched = np.split(order, np.cumsum(blocks)[:-1])
    read = sum(rows * ranges * n for (rows, ranges), n in requests)
    written = sum(rows * n for (rows, _), n in requests)
    return Kernel.of(
        nest,
        name="combine",
        threads=threads,
        registers_per_thread=64,
        buffers=(("LSE", rows_per_block * int(ranges.max()) * 4),),
        launches=tuple(Launch(one, n) for one, (_, n) in zip(launched, requests, strict=True)),
        uses=uses_of((parts, stats, out, lse), {"p": Axis(read), "r": Axis(written, rows_per_block, cuts="p")}, "r"),
        dtype="fp32",
        step="split",
    )
