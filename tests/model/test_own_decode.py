"""Order in which a block of our decoding kernel goes over its key tiles, against the mask written out."""

from __future__ import annotations

import numpy as np
import pytest

from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.own.decode import ROWS, TILES, decode_schedule
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload


@pytest.mark.parametrize("gpu_name", ["a100-sxm4-80gb", "rtx-4090"])
@pytest.mark.parametrize(
    "w",
    [
        Workload(1, 2, 1, 128, heads_kv=1, seq_kv=1000, passes="decode"),
        Workload(1, 8, 5, 128, heads_kv=1, seq_kv=1000, mask=Mask.causal(), passes="decode"),
        Workload(1, 4, 3, 128, heads_kv=1, seq_kv=2000, mask=Mask.sliding_window(700), passes="decode"),
    ],
    ids=["ragged", "causal", "window"],
)
def test_key_tiles_are_walked_from_the_last_one_and_masked_where_a_row_does_not_see_all(
    w: Workload, gpu_name: str
) -> None:
    """`decode.cu`: ``first_key`` counts from ``tiles.end - 1`` down, ``Edges.hide`` compares keys that not all see."""
    tile = TILES[128][0]
    kernel = decode_schedule(w, load_gpu(gpu_name), tile, 1).kernels[0]
    wholly = min(op.int32 + op.fp32 for segment in kernel.segments for op in segment.ops if op.tensor == "P")
    walks = [
        [op.int32 + op.fp32 > wholly for place, n in kernel.runs(number) for _ in range(n)
         for op in kernel.segments[place].ops if op.tensor == "P"]
        for launch in kernel.launches for number in launch.classes.tolist()
    ]  # fmt: skip
    assert walks == [_masked(w, first, tile.keys) for first in range(0, w.seq_q * w.group, ROWS)]


def _masked(w: Workload, first: int, keys: int) -> list[bool]:
    """Whether each key tile that a row tile sees anything of is masked, last tile first."""
    queries = np.arange(first, min(first + ROWS, w.seq_q * w.group)) // w.group
    place = queries[:, None] + w.seq_kv - w.seq_q
    key = np.arange(-(-w.seq_kv // keys) * keys)
    seen = np.broadcast_to(key < w.seq_kv, (len(queries), len(key))).copy()
    if w.mask.right is not None:
        seen &= key <= place + w.mask.right
    if w.mask.left is not None:
        seen &= key >= place - w.mask.left
    tiles = seen.reshape(len(queries), -1, keys)
    visited = tiles.any(axis=(0, 2))
    masked = np.asarray(~tiles.all(axis=(0, 2)))
    return [bool(one) for one in masked[visited][::-1]]
