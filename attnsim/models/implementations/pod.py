"""Prefill and decodes of one batch in one launch: FlashInfer's POD attention, and the two ways without it.

One launch (``include/flashinfer/attention/pod.cuh``, `PODWithKVCacheTensorKernel`): each SM takes blocks of prefill and
of decode in turn, as many of the more numerous kind after one of the other as there are more of them, so that the
tensor cores and the memory have work at the same time. Two streams: two launches, of which the second's blocks come
when those of the first have all begun. One after the other: two launches in a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attnsim.arrays import Ints
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.flashinfer import fa2_tile, merge_states, plan
from attnsim.models.implementations.fused.building import flash_schedule, one_query, override
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.buffers import bytes_of
from attnsim.models.schedule.editing import renamed
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.models.schedule.splits import Splits

DECODE_TENSORS = {name: f"{name} decode" for name in ("Q", "K", "V", "O", "LSE")}
"""Names of the decodes' tensors, beside those of the prefill."""
Order = Callable[[int, int], Ints]
"""(blocks of prefill, blocks of decode) to the order in which they are handed out: 0 prefill, 1 decode."""


@dataclass(frozen=True, slots=True)
class PodTile:
    """The tiles of the two halves."""

    prefill: FlashTile
    decode: FlashTile

    def __str__(self) -> str:
        return f"prefill {self.prefill}; decode {self.decode}"


def halves(w: Workload) -> tuple[Workload, Workload]:
    """The sequences of several queries, and those of one.

    Raises
    ------
    InputError
        When there are none of one kind.
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
    """One of the fewer kind, then of the other as many as there are more of them; what is left at the end."""
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


def together(prefill: Kernel, decode: Kernel, name: str, order: Order) -> Kernel:
    """Two kernels as one grid, which has the resources of the larger block."""
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


def build(w: Workload, gpu: Gpu, shape: TileRequest | None, name: str, order: Order | None) -> Schedule:
    """The kernels of one batch: a grid of both halves in some order, or without one two launches."""
    long, short = halves(w)
    short = one_query(short)
    tiles = PodTile(override(fa2_tile(long, gpu), shape, long, gpu), fa2_tile(short, gpu))
    cut = replace(plan(short, gpu, tiles.decode), direct=True)
    prefill = flash_forward(long, gpu, tiles.prefill, "prefill")
    decode = renamed(flash_forward(short, gpu, tiles.decode, "decode", cut), DECODE_TENSORS)
    kernels = [prefill, decode] if order is None else [together(prefill, decode, "pod", order)]
    if cut.partial:
        kernels.append(renamed(merge_states(short, gpu, cut), DECODE_TENSORS))
    ranges = iter(cut.each or (cut.count,) * len(short.parts))
    each = tuple(next(ranges) if one.queries == 1 else 1 for one in w.parts)
    splits = Splits(max(each), each=each, chunk=cut.chunk) if cut.partial else cut
    return flash_schedule(w, name, kernels, tiles, splits)


RECORDS = (
    record("flashinfer.pod", partial(build, name="flashinfer.pod", order=taken_in_turn)),
    record("flashinfer.pod-streams", partial(build, name="flashinfer.pod-streams", order=one_then_the_other)),
    record("flashinfer.pod-serial", partial(build, name="flashinfer.pod-serial", order=None)),
)
