"""What the list of a block-sparse kernel costs over all tiles, on whole grids.

A play without chance keeps blocks that are all alike in step, or out of it, which moves a whole grid by up to a tenth
(docs/design/replay.md). On a GPU they do not begin together: to be compared are blocks that begin at unequal times.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.implementation import Implementation, TileRequest
from attnsim.models.implementations.own import sparse
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import Segment, TileOp
from attnsim.models.schedule.schedule import Kernel, Launch, Schedule
from attnsim.simulator.replay import Replay, replay

LATE_CLKS, PLACES = 4000, 8
"""Blocks begin up to so many clocks late, at so many places of that time: about one step of three resident blocks."""
IN_STEP_AGAIN = {("a100-sxm4-80gb", 128, False): 16384}
"""Where two resident blocks fall in step again within a long walk, from which length on: the list's kernel is played
2.4 % shorter there."""
SHORTER = {
    ("a100-sxm4-80gb", 64, True, 2048): 0.944,
    ("a100-sxm4-80gb", 128, False, 4096): 0.866,
    ("a100-sxm4-80gb", 128, False, 8192): 0.997,
    ("a100-sxm4-80gb", 128, True, 4096): 0.996,
    ("l40s", 128, False, 8192): 0.960,
    ("l40s", 128, False, 16384): 0.989,
}
"""Of 80 grids those that the list's kernel, which persists, does sooner on the tiles that both choose, and its part of
the time: on an A100 or L40S residents that differ in number, or fall in step again."""
SEQS = (1024, 2048, 4096, 8192, 16384)
LISTED, DENSE = find_implementation("attnsim.sparse"), find_implementation("attnsim.flash")


def unequal(kernel: Kernel, seed: int) -> Kernel:
    """The kernel with blocks of every class that begin at unequal times."""
    draw = np.random.default_rng(seed)
    late = tuple(
        Segment(f"late {place}", (TileOp("delay", "late", clks=LATE_CLKS * place // PLACES),))
        for place in range(1, PLACES)
    )
    classes, outer, _ = kernel.repeats.shape
    begins = np.zeros((classes, PLACES, outer, PLACES - 1), np.int64)
    begins[:, :, 0] = np.eye(PLACES, dtype=np.int64)[:, 1:]
    every = np.repeat(kernel.repeats[:, None], PLACES, axis=1)
    launched = np.concatenate([np.tile(launch.classes, launch.times) for launch in kernel.launches])
    placed = launched * PLACES + draw.integers(0, PLACES, len(launched))
    return replace(
        kernel,
        segments=(*late, *kernel.segments),
        repeats=np.concatenate([begins, every], axis=3).reshape(classes * PLACES, outer, -1),
        launches=(Launch(placed, 1),),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "l40s"])
def test_over_all_tiles_a_list_costs_time_on_a_whole_grid(
    gpu: str, head_dim: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many blocks on an SM, launched alike, begun at unequal times: the kernel with the list takes longer.

    Neither persists here: dense flash never does, and blocks that stay save at a row tile's end what the list costs.
    The dense kernel is given the registers and the shared memory of the other's compilation: at head_dim 64 ours is
    compiled so that three blocks share an SM, where the dense one has room for two.
    """
    monkeypatch.setattr(sparse, "heads_together", lambda w, *_: w.heads_q if causal else 1)
    monkeypatch.setattr(sparse, "blocks_at_once", lambda *_: sys.maxsize)
    for seq in SEQS:
        listed, dense = (
            record.build(asked(seq, head_dim, causal), load_gpu(gpu), TileRequest(128, 64))
            for record in (LISTED, DENSE)
        )
        ours, theirs = listed.kernels[0], dense.kernels[0]
        alike = replace(
            theirs,
            registers_per_thread=ours.registers_per_thread,
            buffers=ours.buffers,
        )
        took = [played(LISTED, listed, ours, gpu, seq), played(DENSE, dense, alike, gpu, seq)]
        assert took[0].kernels[0].blocks_per_sm == took[1].kernels[0].blocks_per_sm
        ratio = took[0].time_s / took[1].time_s
        assert (ratio > 1) == (seq < IN_STEP_AGAIN.get((gpu, head_dim, causal), seq + 1)) and ratio > 0.97, (seq, ratio)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "l40s"])
def test_over_all_tiles_a_list_costs_time_on_the_tiles_that_both_choose(gpu: str, head_dim: int, causal: bool) -> None:
    """Each with its own registers, shared memory and launch order, begun at unequal times."""
    for seq in SEQS:
        listed, dense = (record.build(asked(seq, head_dim, causal), load_gpu(gpu), None) for record in (LISTED, DENSE))
        took = [
            played(record, built, built.kernels[0], gpu, seq).time_s
            for record, built in ((LISTED, listed), (DENSE, dense))
        ]
        ratio = took[0] / took[1]
        known = SHORTER.get((gpu, head_dim, causal, seq))
        assert ratio > 1 if known is None else ratio == pytest.approx(known, rel=0.005), (seq, ratio)


def asked(seq: int, head_dim: int, causal: bool) -> Workload:
    return Workload(1, 16, seq, head_dim, mask=Mask.causal() if causal else Mask.full())


def played(record: Implementation, built: Schedule, kernel: Kernel, gpu: str, seed: int) -> Replay:
    """The kernel, with blocks that begin at unequal times, in place of its schedule's."""
    machine = load_gpu(gpu)
    schedule = replace(built, kernels=(unequal(kernel, seed),))
    return replay(schedule, machine, choose(record, machine).numbers, mode="exact")
