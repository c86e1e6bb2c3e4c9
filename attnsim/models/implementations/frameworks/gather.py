"""Gather, then batched GEMMs: how frameworks run sparse attention without a kernel for it.

The kernels are those that Hugging Face's Longformer and BigBird have in common (``modeling_longformer.py``,
``modeling_big_bird.py``): K and V of every visible block are copied side by side into HBM, one batched GEMM multiplies
them with the queries, the mask is an addition of its own, softmax a kernel, and a second batched GEMM multiplies with
the gathered V. Global tokens have GEMMs of their own, whose scores are put beside the others before the softmax. The
scale is the GEMM's alpha and scores have the inputs' format.

Longformer's overlapping chunks are this schedule with blocks as long as the window reaches to one side: its P V reads
the same three chunks of V for each chunk of queries. Not counted are what its code does beyond that (Q K^T on chunks of
2 w x 2 w, a third more FLOPs than on w x 3 w; copies to and from the diagonal layout; softmax in fp32 and a cast back)
and BigBird's scaling of the scores in passes of their own, so that times are those of careful code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import gemm_path, one_pass, softmax
from attnsim.models.implementations.frameworks.gather_blocks import Gathering, choose_block, gathering
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Override, Tensor, uses_of
from attnsim.models.schedule.gemm import BATCHED, Operand, gemm
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS, Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule

NAME = "transformers.gather"
INDEX = "block index"


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The kernels for a mask, on blocks of `shape` or of the mask's own size.

    Raises
    ------
    InputError
        When the block given is not square.
    """
    sizes = gathering(w, choose_block(w, shape))
    return Schedule(
        algorithm="sparse",
        implementation=NAME,
        kernels=tuple(_Kernels(w, gpu, sizes).in_order()),
        tile=sizes,
        peak_memory_bytes=peak_memory_bytes(w, sizes),
        notes=(_note(sizes),),
    )


def _note(sizes: Gathering) -> str:
    gathered = f"{sizes.blocks} blocks of {sizes.keys} keys gathered for each of {sizes.row_blocks} blocks of queries"
    tokens = f"{sizes.global_keys} global keys and {sizes.global_rows} global queries multiplied apart"
    return "; ".join([gathered] * (sizes.blocks > 0) + [tokens] * (sizes.global_keys > 0)) or "nothing is visible"


def peak_memory_bytes(w: Workload, sizes: Gathering) -> int:
    """Inputs, outputs, gathered K and V, their index, the mask, and two matrices of scores: S and P."""
    heads, kv_heads, e = w.batch * w.heads_q, w.batch * w.heads_kv, w.element_bytes
    widths, seen = w.head_dim + w.head_dim_v, sizes.width + sizes.global_keys
    inputs = (heads * w.seq_q + kv_heads * w.seq_kv) * widths * e
    gathered = kv_heads * sizes.row_blocks * sizes.width * widths * e + 2 * sizes.index_bytes
    scores = sizes.seq_q * seen + sizes.global_rows * w.seq_kv
    return inputs + gathered + (2 * heads + 1) * scores * e


class _Kernels:
    """The kernels in launch order."""

    def __init__(self, w: Workload, gpu: Gpu, sizes: Gathering) -> None:
        self.w, self.gpu, self.sizes = w, gpu, sizes
        self.heads, self.kv_heads = w.batch * w.heads_q, w.batch * w.heads_kv
        self.e = w.element_bytes
        self.path = gemm_path(gpu)

    def in_order(self) -> Iterator[Kernel]:
        """Gathers, scores, mask, softmax, outputs, then the rows of the global tokens."""
        w, sizes = self.w, self.sizes
        blocks, rows, width, tokens = self.heads * sizes.row_blocks, sizes.rows, sizes.width, sizes.global_keys
        local, beside = width > 0, tokens > 0
        both = local and beside
        if local:
            yield self._gather("K", w.head_dim)
            yield self._gather("V", w.head_dim_v)
            scores = "S local" if both else "S"
            yield self._product("S = Q K^T", blocks, (rows, width, w.head_dim), ("Q", "K gathered", scores))
        if beside:
            scores = "S global" if both else "S"
            yield self._product("S global = Q K^T", self.heads, (sizes.seq_q, tokens, w.head_dim), ("Q", "K", scores))
        queries = self.heads * sizes.seq_q
        if both:
            parts = {"S local": queries * width, "S global": queries * tokens}
            yield self._pass("concatenate", parts, {"S": sum(parts.values())}, rows=queries)
        if local or beside:
            yield from self._weights("", sizes.seq_q, width + tokens)
        else:
            yield self._pass("fill O", {}, {"O": queries * w.head_dim_v})
        if local:
            yield self._product("O = P V", blocks, (rows, w.head_dim_v, width), ("P", "V gathered", "O"))
        if beside:
            out, size = ("O global" if both else "O"), queries * w.head_dim_v
            yield self._product("O global = P V", self.heads, (sizes.seq_q, w.head_dim_v, tokens), ("P", "V", out))
            if both:
                yield self._pass("add O", {"O": size, "O global": size}, {"O": size})
        if sizes.global_rows:
            yield from self._global_rows()

    def _global_rows(self) -> Iterator[Kernel]:
        """The queries that see every key, unfused."""
        w, rows = self.w, self.sizes.global_rows
        size = self.heads * rows * w.head_dim_v
        yield self._product("S rows = Q K^T", self.heads, (rows, w.seq_kv, w.head_dim), ("Q", "K", "S rows"))
        yield from self._weights(" rows", rows, w.seq_kv)
        yield self._product("O rows = P V", self.heads, (rows, w.head_dim_v, w.seq_kv), ("P rows", "V", "O rows"))
        yield self._pass("put rows", {"O rows": size}, {"O": size})

    def _gather(self, tensor: str, width: int) -> Kernel:
        """Copies of whole blocks by index (PyTorch's `index_select`); neighbours find each other's in the L2."""
        sizes = self.sizes
        copied = self.kv_heads * sizes.row_blocks * sizes.width * width
        index = self.kv_heads * sizes.index_bytes
        reads = [Access(INDEX, index), Access(tensor, copied * self.e)]
        written = Access(f"{tensor} gathered", copied * self.e, True)
        kernel = streaming(f"gather {tensor}", [*reads, written], elements=copied)
        running = min(kernel.blocks, self.gpu.sm.count * occupancy(kernel, self.gpu).blocks_per_sm)
        axes = {
            "heads": Axis(self.kv_heads),
            "touched": Axis(sizes.touched_keys),
            "copied": Axis(copied // self.kv_heads),
        }
        together = Override(
            "blocks that run at the same time copy blocks of one head after the other",
            sharers=max(1.0, min(running, kernel.blocks / self.kv_heads)), passes_per_block=sizes.passes,
        )  # fmt: skip
        told = Override("every head reads the same index", sharers=running)
        tensors = (
            Tensor(INDEX, "", sizes.index_bytes, override=told),
            Tensor(tensor, "heads touched", width * self.e, override=together),
            Tensor(written.tensor, "heads copied", self.e, written=True),
        )
        return replace(kernel, uses=uses_of(tensors, axes, "heads"))

    def _product(self, name: str, batch: int, shape: tuple[int, int, int], tensors: tuple[str, str, str]) -> Kernel:
        """A batched GEMM; the query heads of a group read the same B."""
        left, right, out = tensors
        return gemm(
            name,
            batch,
            shape,
            Operand(left, self.e),
            Operand(right, self.e, self.w.group),
            Operand(out, self.e),
            dtype=self.w.dtype,
            path=self.path,
            tile=replace(BATCHED, m=64 if shape[0] <= 64 else BATCHED.m, n=64 if shape[1] <= 64 else BATCHED.n),
        )

    def _weights(self, tag: str, rows: int, columns: int) -> Iterator[Kernel]:
        """From scores to probabilities; the mask is one for all heads."""
        every = self.heads * rows
        elements = every * columns
        scores, mask = {f"S{tag}": elements}, f"mask{tag}"
        added = self._pass(mask, scores | {mask: elements}, scores, int32=BROADCAST_INSTRUCTIONS)
        (shared,) = uses_of([Tensor(mask, "", rows * columns * self.e, times=self.heads)], {}, "")
        yield replace(added, uses=tuple(shared if use.tensor == mask else use for use in added.uses))
        sides = [(f"S{tag}", elements * self.e)], (f"P{tag}", elements * self.e)
        yield softmax(f"softmax{tag}", *sides, every, columns, even=False)

    def _pass(self, name: str, reads: dict[str, int], writes: dict[str, int], rows: int = 0, int32: int = 0) -> Kernel:
        """An elementwise kernel; tensors with their numbers of elements, a block a row where `rows` are given."""
        read, written = ([(tensor, n * self.e) for tensor, n in side.items()] for side in (reads, writes))
        return one_pass(name, read, written, max(writes.values()), int32=int32, blocks=rows)
