"""The kernels around attention on latents: projections by W_UK and W_UV, copies, cache writes, combine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.projection import Product, projection
from attnsim.models.implementations.latent.mla import use_of
from attnsim.models.implementations.latent.visits import latent_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.nest import loop_nest
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch


def products(w: Workload) -> dict[str, Product]:
    """The products with W_UK and W_UV, by name.

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
    """What each copying kernel reads and writes, by name."""
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
            Access("Latent cache", new * latent.width * e, True),
        ),
        "rope_append": (
            Access("new latent", new * latent.width * e),
            Access("Q rope in", queries * heads * latent.rope * e),
            Access("Latent cache", new * latent.width * e, True),
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
    """Merge the partial outputs of each request that was cut.

    Parameters
    ----------
    w : Workload
        Of the absorbed form.
    counts : mapping of (int, int) to int
        Requests by their rows and the number of ranges that they were cut into.
    rows_per_block, threads : int
    in_flight : int
        Partial results asked for before the first is used.
    """

    def block_rows(rows: int) -> list[int]:
        """Rows of the first block of a request and of its last, where they differ."""
        return list(dict.fromkeys([min(rows, rows_per_block), rows % rows_per_block or min(rows, rows_per_block)]))

    sizes = list(dict.fromkeys(size for rows, _ in counts for size in block_rows(rows)))
    merging = [segment for size in sizes for segment in _merging(w, size)]
    width = len(merging) // len(sizes)
    rows_of_counts: list[list[int]] = []
    launches: list[Launch] = []
    for (rows, splits), requests in sorted(counts.items()):
        filled = min(splits, in_flight)
        order = np.full(-(-rows // rows_per_block), len(rows_of_counts), dtype=np.int64)
        for size in block_rows(rows):
            row, at = [0] * len(merging), width * sizes.index(size)
            row[at : at + width] = [filled, splits - filled, filled, 1]
            order[-1] = len(rows_of_counts)
            rows_of_counts.append(row)
        launches.append(Launch(order, requests))
    segments, repeats = loop_nest(list(zip(merging, np.transpose(rows_of_counts), strict=True)))
    pieces, requests = (sum(n * counts[rows, n] for rows, n in counts), sum(counts.values()))
    read, written = (sum(rows * n**cut * counts[rows, n] for rows, n in counts) for cut in (1, 0))
    return Kernel(
        name="combine",
        threads=threads,
        registers_per_thread=64,
        buffers=(("LSE", rows_per_block * max(n for _, n in counts) * 4),),
        segments=segments,
        repeats=repeats,
        launches=tuple(launches),
        uses=(
            use_of("O partial", read * w.head_dim_v * 4, pieces),
            use_of("LSE partial", read * 4, pieces),
            use_of("O latent", written * w.head_dim_v * w.output_bytes, requests, written=True),
            use_of("LSE", written * 4, requests, written=True),
        ),
        dtype="fp32",
        step="split",
    )


def _merging(w: Workload, rows: int) -> tuple[Segment, ...]:
    """The segments of a combining block of so many rows."""
    width, tag = w.head_dim_v, f" ({rows} rows)"
    load = (
        TileOp("load", "LSE partial", bytes=rows * 4),
        TileOp("load", "O partial", bytes=rows * width * 4),
    )
    merge = (
        TileOp("wait", "LSE partial"),
        TileOp("wait", "O partial"),
        TileOp("vector", "O latent", exps=rows, fp32=rows * (2 * width + 4)),
    )
    out = (
        TileOp("store", "O latent", bytes=rows * width * w.output_bytes),
        TileOp("store", "LSE", bytes=rows * 4),
    )
    return (
        Segment(f"fill{tag}", load),
        Segment(f"split{tag}", (*merge, *load)),
        Segment(f"split, no load{tag}", merge),
        Segment(f"store{tag}", out),
    )
