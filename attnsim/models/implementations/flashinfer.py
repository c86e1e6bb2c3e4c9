"""FlashInfer's own kernels: its FlashAttention-2 and FlashAttention-3 back ends (flashinfer-ai/flashinfer@fb28d724).

``include/flashinfer/attention/{prefill,scheduler}.cuh``, ``hopper/``. The rows of a tile are the queries of a whole
group; keys are split over blocks if tiles are few. Decoding is played by the same kernel, as
`BatchDecodeWithPagedKVCacheWrapper` runs it with `use_tensor_cores`.

Cascade (``flashinfer/cascade.py``, `MultiLevelCascadeAttentionWrapper`): the queries of all sequences attend the shared
prefix as one sequence, then each attends its own keys, and a kernel merges both states
(``include/flashinfer/attention/cascade.cuh``, `MergeStateInPlaceKernel`). A tree is a custom mask, whose bits every
tile reads (``include/flashinfer/attention/prefill.cuh``, `MaskMode::kCustom`, `logits_mask`).

POD attention has prefill and decodes of one batch in one launch (``include/flashinfer/attention/pod.cuh``,
`PODWithKVCacheTensorKernel`): each SM takes blocks of prefill and of decode in turn, in proportion to their numbers, so
that tensor cores and memory have work at the same time. There are two alternatives. Two streams: two launches, where
the second's blocks start when all of the first have started. Sequential: two launches in one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flash_attention import hopper_tile
from attnsim.models.implementations.fused.building import flash_schedule, one_query, override
from attnsim.models.implementations.fused.forward import MASK_INSTRUCTIONS, flash_forward
from attnsim.models.implementations.fused.splits import (
    MERGE_INSTRUCTIONS,
    cache_write,
    merged,
    merged_rows,
    merging,
    store_cache,
)
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles, Order
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.mask.mask import Mask
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Tensor
from attnsim.models.schedule.operation import Nest, TileOp, loop, once
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.row_tiles import padded
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule, bytes_of, edited, renamed
from attnsim.models.schedule.splits import UNCUT, Splits

Write = Callable[[Workload, int], list[Kernel]]
FRAGMENT = 16
"""Rows and keys of an MMA instruction's tile."""
LANES, WARPS, STAGES = 32, 4, 4
"""Merging block: threads per row, partial results processed at a time, and pipeline stages of these in flight."""
EARLY = 90
"""Compute capability from which kernels are launched while the one before drains (`device_support_pdl`)."""
LEAST_CHUNK = 128
"""Fewest keys per block if they are split (`PrefillBinarySearchKVChunkSize`)."""


def fa2_tile(w: Workload, gpu: Gpu) -> FlashTile:
    """Rows by the mean packed length (`FA2DetermineCtaTileQ`), keys by the memory that two blocks per SM leave.

    Above head_dim 128 the accumulators of 128 rows leave no room for scores (`KernelTraits::IsInvalid`): 64 rows. With
    an fp8 cache, a tile also holds K or V in 16 bits and an even number of fragments (`kUseRepack`, `kMinValidMmaKV`),
    except in decoding.
    """
    d, dv, e = padded(w.head_dim), padded(w.head_dim_v), w.element_bytes
    packed = w.queries * w.group // w.batch
    rows = 128 if packed > 64 and max(d, dv) <= 128 else 64 if packed > FRAGMENT else FRAGMENT
    over_keys = 4 if rows == FRAGMENT else 1  # warps along the keys
    least = 2 if w.kv_dtype and rows > FRAGMENT else 1
    staged = max(d, dv) * e if least > 1 else 0
    each = ((d + dv) * w.cache_bytes + staged) * FRAGMENT * over_keys
    limit = gpu.sm.shared_memory_per_block_bytes
    if gpu.sm.shared_memory_bytes >= 2 * (rows * d * e + least * each):
        limit = min(limit, gpu.sm.shared_memory_bytes // 2 - 1024)
    fragments = min(4 if rows == 128 else 8, max(least, (limit - rows * d * e) // each // least * least))
    keys = FRAGMENT * over_keys * fragments
    cache_bytes = w.cache_bytes if w.kv_dtype else 0
    return FlashTile(
        rows, keys, pack_gqa=True, warps_share_keys=rows == FRAGMENT, order="planned", cache_bytes=cache_bytes
    )


def plan(w: Workload, gpu: Gpu, tile: FlashTile) -> Splits:
    """The chunks of keys that `PrefillPlan` makes: the shortest for which all work items fit two blocks per SM.

    `PrefillBinarySearchKVChunkSize`; of a window, the keys that a row tile may see count. Chunks are whole key tiles
    here. If any sequence is split, the results of all go through the merge kernel.
    """
    key_tiles = np.array([-(-one.keys // tile.keys) for one in w.parts])
    if w.mask.is_windowed and w.mask.left is not None:  # the window may begin anywhere in a tile
        key_tiles = np.minimum(key_tiles, -(-(w.mask.left + tile.rows) // tile.keys) + 1)
    items = np.array([one.times * -(-one.queries * w.group // tile.rows) for one in w.parts])
    most = 2 * gpu.sm.count // w.heads_kv
    low, high = min(-(-LEAST_CHUNK // tile.keys), int(key_tiles.max())), int(key_tiles.max())
    while low < high:
        middle = (low + high) // 2
        if int(items @ -(-key_tiles // middle)) > most:
            low = middle + 1
        else:
            high = middle
    each = [-(-int(n) // low) for n in key_tiles]
    if max(each) == 1:
        return UNCUT
    return Splits(
        max(each), of_seen=w.mask.is_windowed, each=tuple(each) if len(w.parts) > 1 else (), direct=False, chunk=low
    )


def merge_states(w: Workload, gpu: Gpu, splits: Splits, lse: bool = False) -> Kernel:
    """Kernel that merges partial results: one block per row of a head, four results at a time, sixteen in flight.

    `PersistentVariableLengthMergeStatesKernel` of ``include/flashinfer/attention/cascade.cuh``: the grid is as many
    persistent blocks as fit. Each thread computes two exponentials per partial result, and the four warps merge theirs
    at the end.
    """
    width, runs = w.head_dim_v, merged_rows(w, splits)
    (parts, sums, out, final), uses = merged(w, runs, columns=width)
    work = TileOp("vector", "O", exps=2 * LANES * WARPS, fp32=MERGE_INSTRUCTIONS * WARPS * width)

    def body(ranges: int) -> Nest:
        steps = -(-ranges // WARPS)
        ahead, load = min(steps, STAGES), parts.load(WARPS * width)
        rest = parts.load((ranges - (steps - 1) * WARPS) * width)

        def turn(load_next: bool) -> Iterator[TileOp]:
            yield from (parts.wait(), work)
            if load_next:
                yield load

        return [
            *once("first", [rest, *[load] * (ahead - 1), sums.load(ranges), sums.wait()]),
            *loop("split", steps, turn, load_next=steps - ahead),
            *once("store", [work, out.store(width), *[final.store()] * lse]),
        ]

    buffers = (("O", STAGES * WARPS * width * 4), ("LSE", LANES * WARPS * 4))
    early = gpu.compute_capability_number >= EARLY
    return merging(
        "combine (states)",
        list(runs.items()),
        body,
        threads=LANES * WARPS,
        buffers=buffers,
        uses=uses,
        persistent=True,
        launched_early=early,
    )


def fa2(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, write: Write | None) -> Schedule:
    """FlashAttention-2 back end, after the framework's kernel that writes the cache."""
    w_main = one_query(w)
    tile = override(fa2_tile(w_main, gpu), shape, w_main, gpu)
    splits = plan(w_main, gpu, tile)
    kernels = write(w, w.new_tokens) if write else []
    kernels.append(flash_forward(w_main, gpu, tile, splits=splits))
    if splits.partial:
        kernels.append(merge_states(w, gpu, splits))
    return flash_schedule(w_main, name, kernels, FusedTiles(tile), splits)


def fa3(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, paged: bool) -> Schedule:
    """FlashAttention-3 back end: heads are not packed, keys not split, most keys first (`PrefillSM90Plan`).

    For a paged cache, a kernel before it converts page numbers to an offset per token
    (`block_sparse_indices_to_vector_sparse_offsets`), by which keys are gathered.
    """
    w_main = one_query(w)
    d, masked = padded(w.head_dim), w_main.mask.is_causal or w_main.mask.is_windowed
    rows, keys = (192, 128) if d <= 64 else (128, 128 if masked or d > 128 else 192) if d <= 192 else (128, 64)
    order: Order = "planned" if w.lengths else "longest_first" if masked else "ascending"
    tile = override(hopper_tile(rows, keys, order=order), shape, w_main, gpu)
    kernels = [flash_forward(w_main, gpu, tile)]
    if paged:
        sizes = [Access("page numbers", 4 * w.keys), Access("token offsets", 4 * w.keys, True)]
        kernels.insert(0, streaming("page offsets", sizes, elements=w.keys, blocks=gpu.sm.count))
    return flash_schedule(w_main, name, kernels, FusedTiles(tile))


DECODE_TENSORS = {name: f"{name} decode" for name in ("Q", "K", "V", "O", "LSE")}
"""Names of the decodes' tensors, distinct from the prefill's."""
Turns = Callable[[int, int], Ints]
"""(blocks of prefill, blocks of decode) to their launch order: 0 prefill, 1 decode."""


def halves(w: Workload) -> tuple[Workload, Workload]:
    """Split a batch into sequences of several queries and sequences of one.

    Raises
    ------
    InputError
        If there are none of one kind.
    """
    long = [one for one in w.parts if one.queries > 1]
    short = [one for one in w.parts if one.queries == 1]
    if not long or not short:
        raise InputError(
            f"the question is {w}; POD attention fuses sequences of several queries with sequences of one: "
            "give both, such as --lengths '512:2560, 1:4096 x 63'"
        )
    return w.having(long), w.having(short)


def taken_in_turn(prefill: int, decode: int) -> Ints:
    """Interleave: one block of the rarer kind, then a fixed number of the other; the remainder at the end."""
    kind, few, many = (0, prefill, decode) if prefill <= decode else (1, decode, prefill)
    each = many // few
    turn = np.full(each + 1, 1 - kind, dtype=np.int64)
    turn[0 if kind == 0 else -1] = kind
    return np.concatenate([np.tile(turn, few), np.full(many - few * each, 1 - kind, dtype=np.int64)])


def one_then_the_other(prefill: int, decode: int) -> Ints:
    """All blocks of prefill before those of decode."""
    return np.repeat(np.arange(2), [prefill, decode])


def _listed(kernel: Kernel) -> Ints:
    return np.concatenate([np.tile(launch.classes, launch.times) for launch in kernel.launches])


def together(prefill: Kernel, decode: Kernel, name: str, order: Turns) -> Kernel:
    """Two kernels as one grid, with the resources of the larger block."""
    (many, _, stretches), (others, _, more) = prefill.repeats.shape, decode.repeats.shape
    repeats = np.zeros((many + others, 1, stretches + more), dtype=np.int64)
    repeats[:many, :, :stretches], repeats[many:, :, stretches:] = prefill.repeats, decode.repeats
    kinds = order(prefill.blocks, decode.blocks)
    classes = np.empty(len(kinds), dtype=np.int64)
    classes[kinds == 0], classes[kinds == 1] = _listed(prefill), many + _listed(decode)
    return replace(
        prefill,
        name=name,
        threads=max(prefill.threads, decode.threads),
        registers_per_thread=max(prefill.registers_per_thread, decode.registers_per_thread),
        segments=prefill.segments + decode.segments,
        repeats=repeats,
        launches=(Launch(classes),),
        uses=prefill.uses + decode.uses,
        buffers=max(prefill.buffers, decode.buffers, key=bytes_of),
    )


def pod(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, order: Turns | None) -> Schedule:
    """Kernels of one batch: a single grid of both halves in some order; without `order`, two launches."""
    long, short = halves(w)
    short = one_query(short)
    first, second = override(fa2_tile(long, gpu), shape, long, gpu), fa2_tile(short, gpu)
    cut = replace(plan(short, gpu, second), direct=True)
    prefill = flash_forward(long, gpu, first, "prefill")
    decode = renamed(flash_forward(short, gpu, second, "decode", cut), DECODE_TENSORS)
    kernels = [prefill, decode] if order is None else [together(prefill, decode, "pod", order)]
    if cut.partial:
        kernels.append(renamed(merge_states(short, gpu, cut), DECODE_TENSORS))
    ranges = iter(cut.each or (cut.count,) * len(short.parts))
    each = tuple(next(ranges) if one.queries == 1 else 1 for one in w.parts)
    splits = Splits(max(each), each=each, chunk=cut.chunk) if cut.partial else cut
    return flash_schedule(w, name, kernels, f"prefill {first}; decode {second}", splits)


TREE_MASK = "mask bits"
PREFIX_TENSORS = {name: f"{name} prefix" for name in ("K", "V", "O", "LSE", "O partial", "LSE partial")}
"""Names of the shared part's tensors, distinct from those of each sequence."""


def tree(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Attention of branching draft tokens."""
    whole = replace(w, mask=Mask.full(), tree=None)  # the mask is read, but skips no tile
    tile = override(fa2_tile(whole, gpu), shape, whole, gpu)
    splits = plan(whole, gpu, tile)
    plain = flash_forward(whole, gpu, tile, splits=splits)
    masked = edited(plain, lambda op: op._replace(fp32=op.fp32 + MASK_INSTRUCTIONS * op.scores))
    axes = {
        "h": Axis(w.heads_q),
        "tiles": Axis(-(-plain.blocks // w.heads_q), cuts="bytes"),
        "bytes": Axis(sum(one.times * -(-one.queries * one.keys // 8) for one in w.parts)),
    }
    bits = Tensor(TREE_MASK, "bytes", 1)
    reading = (replace(one, ops=tuple(_reading(bits, tile.rows * tile.keys // 8, one.ops))) for one in masked.segments)
    kernel = replace(masked, segments=tuple(reading), uses=(*masked.uses, bits.use(axes, "h tiles")))
    kernels = [kernel, *([merge_states(whole, gpu, splits)] if splits.partial else [])]
    schedule = flash_schedule(whole, "flashinfer.tree", kernels, f"{tile}, custom mask", splits)
    return replace(schedule, useful_flops=w.matrix_flops(w.visible_pairs))


def _reading(bits: Tensor, size: int, ops: Iterable[TileOp]) -> Iterator[TileOp]:
    """Operations of a step, with the bits of the mask read where scores are masked (`logits_mask`)."""
    for op in ops:
        yield op
        if op.tensor == "S":
            yield from (bits.load(size), bits.wait())


def cascaded(w: Workload) -> tuple[Workload, Workload]:
    """Two workloads: the queries of all sequences over the prefix, and each sequence over its own keys."""
    plain = replace(w, prefix=0, page_size=0)
    shared = replace(plain, mask=Mask.full()).of(Length(w.queries, w.prefix))
    return shared, plain.having(Length(one.queries, one.keys - w.prefix, one.times) for one in w.parts)


def _prefixed(kernel: Kernel, name: str) -> Kernel:
    return replace(renamed(kernel, PREFIX_TENSORS), name=name)


def cascade(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """The shared prefix once, each sequence's own keys, and the merge of both.

    Raises
    ------
    InputError
        If nothing is shared.
    """
    if not w.prefix:
        raise InputError(f"flashinfer.cascade shares a prefix, the question is {w}; give one, --prefix N")
    shared, own = cascaded(w)
    own = one_query(own)
    first, second = override(fa2_tile(shared, gpu), shape, shared, gpu), override(fa2_tile(own, gpu), shape, own, gpu)
    cut_shared, cut_own = plan(shared, gpu, first), plan(own, gpu, second)
    kernels = [_prefixed(flash_forward(shared, gpu, first, splits=cut_shared), "prefix")]
    if cut_shared.partial:
        kernels.append(_prefixed(merge_states(shared, gpu, cut_shared, lse=True), "combine prefix"))
    kernels.append(flash_forward(own, gpu, second, "suffix", cut_own))
    if cut_own.partial:
        kernels.append(merge_states(own, gpu, cut_own, lse=True))
    kernels.append(merge(w))
    schedule = flash_schedule(own, "flashinfer.cascade", kernels, f"prefix {first}; suffix {second}", cut_own)
    once = w.prefix * w.heads_kv * (w.head_dim + w.head_dim_v) * w.element_bytes
    peak, useful = schedule.peak_memory_bytes + once, w.matrix_flops(w.visible_pairs)
    return replace(schedule, peak_memory_bytes=peak, useful_flops=useful)


def merge(w: Workload) -> Kernel:
    """Kernel that reads both states of every row and writes one (`MergeStateInPlaceKernel`)."""
    rows = w.heads_q * w.queries
    out, sums = rows * w.head_dim_v * w.output_bytes, rows * 4
    accesses = [Access("O", out), Access("O prefix", out), Access("LSE", sums), Access("LSE prefix", sums)]
    return streaming("merge", [*accesses, Access("O merged", out, True)], elements=rows * w.head_dim_v)


RECORDS = (
    record("flashinfer.fa2", partial(fa2, name="flashinfer.fa2", write=None)),
    record("flashinfer.fa3", partial(fa3, name="flashinfer.fa3", paged=False)),
    record("flashinfer.fa3-paged", partial(fa3, name="flashinfer.fa3-paged", paged=True)),
    record("vllm.flashinfer", partial(fa2, name="vllm.flashinfer", write=lambda w, n: [cache_write(w, n)])),
    record("sglang.flashinfer", partial(fa2, name="sglang.flashinfer", write=store_cache)),
    record("flashinfer.pod", partial(pod, name="flashinfer.pod", order=taken_in_turn)),
    record("flashinfer.pod-streams", partial(pod, name="flashinfer.pod-streams", order=one_then_the_other)),
    record("flashinfer.pod-serial", partial(pod, name="flashinfer.pod-serial", order=None)),
    record("flashinfer.tree", tree),
    record("flashinfer.cascade", cascade),
)
