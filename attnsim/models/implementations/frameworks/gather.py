"""Gather, then batched GEMMs: sparse attention in frameworks without a kernel for it.

The kernels are those that Hugging Face's Longformer and BigBird have in common (``modeling_longformer.py``,
``modeling_big_bird.py``): K and V of every visible block are copied contiguously into HBM, one batched GEMM multiplies
them with the queries, the mask is a separate addition, softmax a kernel, and a second batched GEMM multiplies with
the gathered V. Global tokens have separate GEMMs, whose scores are concatenated with the others before the softmax. The
scale is the GEMM's alpha and scores have the inputs' format.

Longformer's overlapping chunks are this schedule with blocks as long as the window's one-sided reach: its P V reads
the same three chunks of V for each chunk of queries. Its additional work is not counted (Q K^T on chunks of
2 w x 2 w, a third more FLOPs than on w x 3 w; copies to and from the diagonal layout; softmax in fp32 and a cast back),
nor BigBird's separate passes for scaling the scores: times are those of careful code.

A window by gathering in PyTorch: each query gets a copy of the keys and values that it sees.

The straightforward implementation: K and V are padded, ``unfold`` makes ``[N, w, d]`` views of them, and the products
copy the views (``reshape`` before ``bmm``), so that each key is stored once for every query that sees it. S = Q K^T and
O = P V are then batched products of one row for every query. The scale is a GEMM's alpha, positions beyond the ends
of the sequence are masked by an addition, and softmax is a separate kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import arrays_bytes, one_pass, softmax
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.block_patterns import Blocks, BlockWindow, Random
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.patterns import Dilated, Global, Part, Window
from attnsim.models.mask.tile_counts import TileCounts
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, uses_of
from attnsim.models.schedule.gemm import Operand, library_gemm
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS, Access, streaming
from attnsim.models.schedule.schedule import Kernel, Schedule

STEP = by_hand(64, "blocks that gathered attention chooses for a window are multiples of this")
LARGEST_BLOCK = by_hand(512, "largest block that gathered attention chooses for a window")
INDEX_BYTES = 8
"""An entry of PyTorch's index tensors (int64)."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Sizes of the gathered tensors of one head.

    Parameters
    ----------
    rows, keys : int
        Queries and keys of a block.
    row_blocks : int
        Blocks of queries, the last one padded.
    blocks : int
        Blocks of keys copied for each block of queries; 0 if the mask has only global tokens.
    touched_keys : int
        Keys in blocks that any query sees.
    passes : float
        Times that they are read without a neighbouring block of queries to share the read.
    global_keys, global_rows : int
        Global tokens among the keys and among the queries.
    """

    rows: int
    keys: int
    row_blocks: int
    blocks: int
    touched_keys: int
    passes: float
    global_keys: int
    global_rows: int

    @property
    def width(self) -> int:
        """Keys copied for each block of queries."""
        return self.blocks * self.keys

    @property
    def seq_q(self) -> int:
        """Queries, with the last block padded."""
        return self.row_blocks * self.rows

    @property
    def index_bytes(self) -> int:
        """Bytes of the list of blocks."""
        return self.row_blocks * self.blocks * INDEX_BYTES

    def __str__(self) -> str:
        return f"blocks of {self.keys}"


def gathering(w: Workload, block: int) -> Gathering:
    """Sizes that a framework gathers for a workload's mask in blocks of `block` keys."""
    ranges = tuple(one for part in w.mask.parts if isinstance(part, Global) for one in part.ranges)
    tokens = Global(ranges).ranges if ranges else ()
    global_keys, global_rows = (
        sum(max(0, min(stop, w.seq_kv) - max(start, low)) for start, stop in tokens) for low in (0, w.seq_kv - w.seq_q)
    )
    counts = _local_counts(w, block)
    blocks = int(counts.visits.max()) if counts else 0
    return Gathering(
        rows=min(block, w.seq_q),
        keys=block,
        row_blocks=-(-w.seq_q // block),
        blocks=blocks,
        touched_keys=counts.touched_keys if counts else 0,
        passes=max(1.0, counts.fresh * block / counts.touched_keys) if counts and blocks else 1.0,
        global_keys=global_keys,
        global_rows=global_rows,
    )


def _local_counts(w: Workload, block: int) -> TileCounts | None:
    """Tile counts of the mask without its global tokens; None if it has nothing else."""
    local = tuple(part for part in w.mask.parts if not isinstance(part, Global))
    if w.mask.parts and not local:
        return None
    return Mask(w.mask.left, w.mask.right, local).tile_counts(w.seq_q, w.seq_kv, block, block)


def choose_block(w: Workload, shape: TileRequest | None) -> int:
    """The requested block, or the one that code for the mask would use.

    Patterns of blocks have their own. A window is cut into chunks as long as its one-sided reach, so that a chunk
    of queries sees three chunks of keys (`_sliding_chunks_query_key_matmul` of Hugging Face's Longformer).

    Raises
    ------
    InputError
        If the requested tile is not square.
    """
    if shape is not None:
        if shape.rows != shape.keys:
            raise InputError(f"transformers.gather takes blocks of as many queries as keys, such as 64x64, not {shape}")
        return shape.rows
    own = [part.block for part in w.mask.parts if isinstance(part, (BlockWindow, Random, Blocks))]
    if own:
        return max(own)
    reach = max((_reach(part) for part in w.mask.parts or (Window(w.mask.left, w.mask.right),)), default=0)
    longest = min(LARGEST_BLOCK, max(w.seq_q, w.seq_kv))
    return max(STEP, -(-min(reach, longest) // STEP) * STEP)


def _reach(part: Part) -> int:
    """One-sided reach of a window in keys; 0 for another part, or if it is unlimited."""
    if isinstance(part, Dilated):
        return part.reach
    return max(part.left or 0, part.right or 0) if isinstance(part, Window) else 0


NAME = "transformers.gather"
INDEX = "block index"


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule for a mask, on blocks of `shape` or of the mask's own size.

    Raises
    ------
    InputError
        If the requested block is not square.
    """
    sizes = gathering(w, choose_block(w, shape))
    kernels = tuple(_Kernels(w, gpu, sizes).in_order())
    return Schedule("sparse", NAME, kernels, sizes, peak_memory_bytes(w, sizes), (_note(sizes),))


def _note(sizes: Gathering) -> str:
    gathered = f"{sizes.blocks} blocks of {sizes.keys} keys gathered for each of {sizes.row_blocks} blocks of queries"
    tokens = f"{sizes.global_keys} global keys and {sizes.global_rows} global queries multiplied apart"
    return "; ".join([gathered] * (sizes.blocks > 0) + [tokens] * (sizes.global_keys > 0)) or "nothing is visible"


def peak_memory_bytes(w: Workload, sizes: Gathering) -> int:
    """Peak memory: inputs, outputs, gathered K and V, their index, the mask, and two matrices of scores: S and P."""
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

    def in_order(self) -> Iterator[Kernel]:
        """Gathers, scores, mask, softmax, outputs, then the rows of the global tokens."""
        w, sizes = self.w, self.sizes
        blocks, rows, width, tokens = self.heads * sizes.row_blocks, sizes.rows, sizes.width, sizes.global_keys
        local, has_global = width > 0, tokens > 0
        both = local and has_global
        if local:
            yield self._gather("K", w.head_dim)
            yield self._gather("V", w.head_dim_v)
            scores = "S local" if both else "S"
            yield self._product("S = Q K^T", blocks, (rows, width, w.head_dim), ("Q", "K gathered", scores))
        if has_global:
            scores = "S global" if both else "S"
            yield self._product("S global = Q K^T", self.heads, (sizes.seq_q, tokens, w.head_dim), ("Q", "K", scores))
        queries = self.heads * sizes.seq_q
        if both:
            parts = {"S local": queries * width, "S global": queries * tokens}
            yield self._pass("concatenate", parts, {"S": sum(parts.values())}, rows=queries)
        if local or has_global:
            yield from self._weights("", sizes.seq_q, width + tokens)
        else:
            yield self._pass("fill O", {}, {"O": queries * w.head_dim_v})
        if local:
            yield self._product("O = P V", blocks, (rows, w.head_dim_v, width), ("P", "V gathered", "O"))
        if has_global:
            out, size = ("O global" if both else "O"), queries * w.head_dim_v
            yield self._product("O global = P V", self.heads, (sizes.seq_q, w.head_dim_v, tokens), ("P", "V", out))
            if both:
                yield self._pass("add O", {"O": size, "O global": size}, {"O": size})
        if sizes.global_rows:
            yield from self._global_rows()

    def _global_rows(self) -> Iterator[Kernel]:
        """Kernels of the queries that see every key, unfused."""
        w, rows = self.w, self.sizes.global_rows
        size = self.heads * rows * w.head_dim_v
        yield self._product("S rows = Q K^T", self.heads, (rows, w.seq_kv, w.head_dim), ("Q", "K", "S rows"))
        yield from self._weights(" rows", rows, w.seq_kv)
        yield self._product("O rows = P V", self.heads, (rows, w.head_dim_v, w.seq_kv), ("P rows", "V", "O rows"))
        yield self._pass("put rows", {"O rows": size}, {"O": size})

    def _gather(self, tensor: str, width: int) -> Kernel:
        """Copies of whole blocks by index (PyTorch's `index_select`); neighbouring blocks hit the L2."""
        sizes = self.sizes
        copied = self.kv_heads * sizes.row_blocks * sizes.width * width
        index = self.kv_heads * sizes.index_bytes
        reads = [Access(INDEX, index), Access(tensor, copied * self.e)]
        written = Access(f"{tensor} gathered", copied * self.e, True)
        kernel = streaming(f"gather {tensor}", [*reads, written], elements=copied)
        axes = {
            "heads": Axis(self.kv_heads),
            "touched": Axis(sizes.touched_keys),
            "copied": Axis(copied // self.kv_heads, copied // kernel.blocks, cuts="index"),
            "index": Axis(sizes.index_bytes),
        }
        near = max(1.0, sizes.row_blocks * sizes.width / max(1.0, sizes.touched_keys * sizes.passes))
        tensors = (
            Tensor(INDEX, "index", 1),
            Tensor(
                tensor, "heads touched", width * self.e, seen=Seen("copied", sizes.touched_keys, near, sizes.passes)
            ),
            Tensor(written.tensor, "heads copied", self.e, written=True),
        )
        return replace(kernel, uses=uses_of(tensors, axes, "heads copied"))

    def _product(self, name: str, batch: int, shape: tuple[int, int, int], tensors: tuple[str, str, str]) -> Kernel:
        """A batched GEMM; the query heads of a group read the same B."""
        left, right, out = tensors
        operands = Operand(left, self.e), Operand(right, self.e, self.w.group), Operand(out, self.e)
        return library_gemm(name, batch, shape, *operands, dtype=self.w.dtype, gpu=self.gpu)

    def _weights(self, tag: str, rows: int, columns: int) -> Iterator[Kernel]:
        """From scores to probabilities; the mask is one for all heads."""
        every = self.heads * rows
        elements = every * columns
        scores, mask = {f"S{tag}": elements}, f"mask{tag}"
        added = self._pass(mask, scores | {mask: elements}, scores, int32=BROADCAST_INSTRUCTIONS)
        axes = {"heads": Axis(self.heads), "scores": Axis(rows * columns, elements // added.blocks)}
        (shared,) = uses_of([Tensor(mask, "scores", self.e)], axes, "heads scores")
        yield replace(added, uses=tuple(shared if use.tensor == mask else use for use in added.uses))
        sides = [(f"S{tag}", elements * self.e)], (f"P{tag}", elements * self.e)
        yield softmax(f"softmax{tag}", *sides, every, columns, even=False)

    def _pass(self, name: str, reads: dict[str, int], writes: dict[str, int], rows: int = 0, int32: int = 0) -> Kernel:
        """An element-wise kernel; tensors with their numbers of elements; a block per row if `rows` are given."""
        read, written = ([(tensor, n * self.e) for tensor, n in side.items()] for side in (reads, writes))
        return one_pass(name, read, written, max(writes.values()), int32=int32, blocks=rows)


RECORDS = (record(NAME, build),)


WINDOW = "torch.window-gather"


def width_of(w: Workload) -> int:
    """Keys of a query's window.

    Raises
    ------
    InputError
        If the mask is not a band, or queries and keys are not those of one sequence.
    """
    mask, ends = w.mask, w.seq_q - 1
    if not mask.is_band or w.seq_q != w.seq_kv:
        raise InputError(
            f"{WINDOW} copies as many keys for every query of a sequence: the mask is {mask}, seq_q {w.seq_q}, seq_kv "
            f"{w.seq_kv}; give a window, --mask 'causal window 256', and as many keys as queries"
        )
    return sum(ends if reach is None else min(reach, ends) for reach in (mask.left, mask.right)) + 1


def build_window(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of a workload.

    Raises
    ------
    InputError
        As :func:`width_of`.
    """
    width, rows, e = width_of(w), w.batch * w.heads_q * w.seq_q, w.element_bytes
    scores, one_mask = [("S", rows * width * e)], ("mask", w.seq_q * width * e)
    masked = one_pass("mask", [*scores, one_mask], scores, rows * width, int32=BROADCAST_INSTRUCTIONS)
    kernels = (
        *_copies(w, "K", w.head_dim, width),
        _product(w, gpu, "S = Q K^T", (width, w.head_dim), ("Q", "K windows", "S")),
        masked,
        softmax("softmax", scores, ("P", rows * width * e), rows, width, even=False),
        *_copies(w, "V", w.head_dim_v, width),
        _product(w, gpu, "O = P V", (w.head_dim_v, width), ("P", "V windows", "O")),
    )
    return Schedule("sparse", WINDOW, kernels, f"{width} keys copied for each query", peak_bytes(w))


def _copies(w: Workload, tensor: str, columns: int, width: int) -> tuple[Kernel, Kernel]:
    """``F.pad``, and the copy of the windows, with offsets by divisions; neighbouring queries share reads."""
    heads, e = w.batch * w.heads_kv, w.element_bytes
    plain, longer = heads * w.seq_kv * columns, heads * (w.seq_kv + width - 1) * columns
    copied = heads * w.seq_q * width * columns
    padded, windows = (f"{tensor} padded", longer * e), (f"{tensor} windows", copied * e)
    kernel = one_pass(f"unfold {tensor}", [(padded[0], copied * e)], [windows], copied, int32=BROADCAST_INSTRUCTIONS)
    rows = Axis(w.seq_q * width, max(1, heads * w.seq_q * width // kernel.blocks))
    axes, row = {"h": Axis(heads), "p": Axis(w.seq_kv + width - 1), "rows": rows}, columns * e
    seen = Seen("rows", axes["p"].size, max(1.0, width * width / rows.tile))  # queries beside each other read the same
    tensors = Tensor(padded[0], "h p", row, seen=seen), Tensor(windows[0], "h rows", row, written=True)
    uses = uses_of(tensors, axes, "h rows")
    return one_pass(f"pad {tensor}", [(tensor, plain * e)], [padded], longer), replace(kernel, uses=uses)


def _product(w: Workload, gpu: Gpu, name: str, shape: tuple[int, int], tensors: tuple[str, str, str]) -> Kernel:
    """A batched GEMM with an entry per query: its rows are the query heads that share a head of K and V."""
    left, right, out = tensors
    entries, e = w.batch * w.heads_kv * w.seq_q, w.element_bytes
    operands = Operand(left, e), Operand(right, e), Operand(out, e)
    return library_gemm(name, entries, (w.group, *shape), *operands, dtype=w.dtype, gpu=gpu)


def peak_bytes(w: Workload) -> int:
    """Peak memory: inputs and output, one tensor of windows with its padded source, scores and probabilities."""
    width = width_of(w)
    keys = w.batch * w.heads_kv * (w.seq_q * width + w.seq_kv + width - 1) * max(w.head_dim, w.head_dim_v)
    return arrays_bytes(w) + (keys + 2 * w.batch * w.heads_q * w.seq_q * width) * w.element_bytes


WINDOW_RECORDS = (record(WINDOW, build_window, peak_bytes=peak_bytes),)
