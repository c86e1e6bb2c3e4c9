"""Triton's attention lifted from its PTX, beside the times that were published of it and beside the fitted schedule.

The PTX of tests/data/triton is lifted at each row's shapes and played with the latencies and rates of FlashAttention of
the instruction path: nothing of Triton is fitted. The one lifted is ours in the form of today's tutorial, with its
tiles. FlashAttention-2's figure 4 is of another kernel, that of Triton's library in 2023, which has a schedule of its
own (`triton.ops`, the column fitted_hand): its backward keeps a dQ of 16 bits for each 128 keys, which is cleared
before and summed after, where that is faster than one block a head. `with its dQ` adds these passes to the lifted
kernels, by their bytes alone. Run: ``python benchmarks/triton_lifted.py [--fitted] [SOURCE]``.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.kernels.cpu.parse import parse
from attnsim.kernels.foreign.triton_kernel import Compiled
from attnsim.kernels.lift.assembler import assembled
from attnsim.kernels.lift.lifting import PtxLaunch, Resources, lift
from attnsim.models.calibrations.choose import choose
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.replay import replay
from attnsim.validation.measured.datasets import Row, published_rows

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "triton"
INDEX = {one["name"]: one for one in json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["kernels"]}
SOURCES = ("fa2_fig4", "fa3_fig5")
LIKE = {"80": "flash-attn.2", "90": "flash-attn.3"}


def main() -> None:
    """Print each row and the mean errors by source."""
    counted = "--fitted" not in sys.argv
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    print("source,gpu,pass,head_dim,causal,seq,measured_us,fitted_hand,lifted,with_its_dq")
    for row in published_rows():
        wanted = [one for one in sys.argv[1:] if not one.startswith("--")] or SOURCES
        if row.case.source not in wanted or "triton" not in row.record.name:
            continue
        hand = row.predict_s(choose(row.record, row.gpu).numbers) / row.measured_s
        mine, with_dq = (one / row.measured_s for one in lifted_s(row, counted))
        w = row.workload
        print(
            f"{row.case.source},{row.gpu.id},{w.passes},{w.head_dim},{w.mask.is_causal},{w.seq_q},"
            f"{row.measured_s * 1e6:.1f},{hand:.3f},{mine:.3f},{with_dq:.3f}",
            flush=True,
        )
        errors[row.case.source, "fitted, by hand"].append(abs(hand - 1))
        errors[row.case.source, "lifted, not fitted"].append(abs(mine - 1))
        errors[row.case.source, "lifted, with its dQ"].append(abs(with_dq - 1))
    for (source, what), found in errors.items():
        print(f"{source}, {what}: mean error {100 * np.mean(found):.1f} % over {len(found)} rows")


def lifted_s(row: Row, counted: bool) -> tuple[float, float]:
    """The time of the lifted kernels of a row's passes; and with those that clear and sum dQ before and after."""
    w = row.workload
    arch = "90" if row.gpu.features.wgmma else "80"
    names = {"fwd": ("forward",), "bwd": ("row_dots", "backward"), "fwd+bwd": ("forward", "row_dots", "backward")}
    kernels = tuple(
        lifted(kind, arch, w.head_dim, w.mask.is_causal, w.seq_q, w.batch * w.heads_q, counted)
        for kind in names[w.passes]
    )
    numbers = choose(find_implementation(LIKE[arch]), row.gpu).numbers
    cache = "cold" if row.case.cache == "cold" else "warm"
    more = () if w.passes == "fwd" else dq_passes(w.batch * w.heads_q * w.seq_q * w.head_dim, -(-w.seq_kv // 128))
    times = [
        replay(
            replace(row.schedule, kernels=(*kernels, *added)), row.gpu, numbers, cache=cache, launch=row.case.launch
        ).time_s  # type: ignore[arg-type]
        for added in ((), more)
    ]
    return times[0], times[1]


def dq_passes(elements: int, parts: int) -> tuple[Kernel, ...]:
    """Zeros for so many dQ of 16 bits, and their sum."""
    size = 2 * elements
    clear = streaming("clear dQ", [Access("dQ parts", parts * size, True)], elements=elements * parts)
    accesses = [Access("dQ parts", parts * size), Access("dQ", size, True)]
    return clear, streaming("sum dQ", accesses, elements=elements * parts)


def lifted(kind: str, arch: str, head_dim: int, causal: bool, seq: int, heads: int, counted: bool) -> Kernel:
    """One kernel at a shape."""
    mask = f"_{'causal' if causal else 'full'}" if kind != "row_dots" else ""
    name = f"{kind}_d{head_dim}{mask}_sm{arch}"
    told = INDEX[name]
    ptx = gzip.decompress((FOLDER / f"{name}.ptx.gz").read_bytes()).decode()
    compiled = Compiled(ptx, told["entry"], told["threads"], told["shared_memory_bytes"], told["scratch_bytes"])
    shape = (heads, seq, head_dim)
    values: dict[str, Any] = {
        one: np.zeros(shape, np.float16) for one in ("Q", "K", "V", "O", "DO", "DQ", "DK", "DV")
    } | {"L": np.zeros((heads, seq), np.float32), "D": np.zeros((heads, seq), np.float32), "N": np.int32(seq)}
    values |= {"scale": np.float32(0.125), "scale_log2": np.float32(0.18)}
    tile = told["constants"].get("BLOCK_M") or told["constants"]["TILE"]
    grid = (seq // tile, heads, 1)
    filled = compiled.with_scratch({one: values[one] for one in told["arguments"]}, grid[0] * grid[1])
    launch = PtxLaunch(parse(ptx)[told["entry"]], grid, (told["threads"], 1, 1), filled, told["shared_memory_bytes"])
    _, code = assembled(_assembled_as(ptx), told["entry"], told["shared_memory_bytes"], None)
    taken = Resources(told["registers"], told["shared_memory_bytes"], "ptxas")
    return lift(launch, taken, counted=counted, code=code)[0]


def _assembled_as(ptx: str) -> str:
    """The PTX under a version that ptxas of CUDA 13.0 takes; it has no instruction of later ones."""
    version = next(line for line in ptx.splitlines() if line.startswith(".version"))
    return ptx.replace(version, f".version {min(version.split()[1], '9.0')}", 1)


if __name__ == "__main__":
    main()
