"""Our kernels lifted from their PTX beside the schedules that were written by hand, over 20 shapes each.

Both are charged by instructions, where the numbers that they are played with go with such; with ``--scores`` by scores
and fitted numbers. Run: ``python benchmarks/lifted_kernels.py [--scores] [NAME ...]``. A line a kernel and shape, then
a summary.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any
from unittest import mock

import numpy as np

from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.lift.tracing import lift_operation
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.own import resources
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.replay import replay

EACH_MASK = ("linear", "flash-hopper")
"""Operations whose questions are asked with each mask: other kernels by the mask, or one GPU alone."""
GPUS = {"flash-hopper": ("h100-sxm5-80gb",)}
BOTH = ("a100-sxm4-80gb", "h100-sxm5-80gb")
FULL, CAUSAL = Mask(), Mask.causal()
SPARSE = "causal, window 256, global 32"


def shapes(name: str) -> list[dict[str, Any]]:
    """Ten questions, with two GPUs twenty; those of :data:`EACH_MASK` twice as many."""
    if OPERATIONS[name].passes == "decode":
        return [
            {"seq_q": 1, "seq_kv": keys, "head_dim": d, "heads_q": 8, "heads_kv": kv}
            for keys in (512, 1000, 2048, 4096, 8192)
            for d, kv in ((64, 2), (128, 8))
        ]
    masks = (Mask.parse(SPARSE), CAUSAL) if name.startswith("sparse") else (FULL, CAUSAL)
    return [
        {"seq_q": seq, "head_dim": d, "heads_q": heads, "mask": mask}
        for seq, heads in ((256, 16), (512, 8), (1000, 8), (1024, 32), (2048, 16))
        for d, mask in (((64, masks[0]), (128, masks[1])) if name not in EACH_MASK else product((64, 128), masks))
    ]


def main() -> None:
    """Print the lines and the summary."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    wrong: dict[tuple[str, str], int] = defaultdict(int)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(OPERATIONS))
    parser.add_argument("--scores", action="store_true", help="charge by scores and fitted numbers")
    options = parser.parse_args()
    counted, names = not options.scores, options.names or [name for name in OPERATIONS if name != "linear-decode"]
    for name in names:
        if name not in OPERATIONS:
            parser.error(f"{name}: no such operation; there are {', '.join(OPERATIONS)}")
    print("operation,kernel,gpu,seq,head_dim,heads,mask,hand_us,ratio,bytes_equal,flops_equal")
    for name in names:
        for gpu in GPUS.get(name, BOTH):
            for shape in shapes(name):
                for one, other, ratio, hand_s in compared(name, gpu, shape, counted):
                    same = one.requested() == other.requested(), one.total("flops") == other.total("flops")
                    found[name, one.name].append(ratio)
                    wrong[name, one.name] += not all(same) and one.path != "simt"
                    keys = shape.get("seq_kv", shape["seq_q"])
                    told = (name, one.name, gpu, keys, shape["head_dim"], shape["heads_q"], shape.get("mask", FULL))
                    print(*(str(part).replace(",", ";") for part in told), f"{hand_s * 1e6:.1f},{ratio:.4f}", *same,
                          sep=",", flush=True)  # fmt: skip
    for (name, kernel), ratios in found.items():
        off = np.abs(np.array(ratios) - 1)
        print(
            f"{name}, {kernel}: {len(ratios)} shapes, {wrong[name, kernel]} with other bytes or FLOPs; time "
            f"{min(ratios):.3f} to {max(ratios):.3f} of the hand-written, within 2 % in {(off <= 0.02).sum()}"
        )


def compared(name: str, gpu: str, given: dict[str, Any], counted: bool) -> list[tuple[Kernel, Kernel, float, float]]:
    """Each kernel lifted and by hand, with the ratio of their times and the latter in seconds."""
    operation, machine = OPERATIONS[name], load_gpu(gpu)
    w = Workload(batch=1, dtype="fp16", passes=operation.passes, **given)
    numbers = choose(find_implementation(operation.implementation), machine).numbers
    with nullcontext() if counted else mock.patch.object(resources, "_counts", dict):
        hand = operation.schedule(w, machine)
    lifted = [one.kernel for one in lift_operation(operation, w, gpu, counted=counted).kernels]
    if counted and not numbers.counts:  # numbers of products that are charged by their FLOPs and reads
        plain = (one.kernel for one in lift_operation(operation, w, gpu, counted=False).kernels)
        lifted = [other if one.total("flops") else one for one, other in zip(lifted, plain, strict=True)]
    rows = []
    for one, other in zip(lifted, hand.kernels, strict=True):
        mine, theirs = (
            replay(replace(hand, kernels=(kernel,)), machine, numbers, launch="kernel").time_s
            for kernel in (one, other)
        )
        rows.append((one, other, mine / theirs, theirs))
    return rows


if __name__ == "__main__":
    main()
