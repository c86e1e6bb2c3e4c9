"""Triton's attention lifted from its PTX, beside the times that were published of it and beside the fitted schedule.

What is lifted are the kernels that were timed, as the releases nearest to them compile them
(tests/data/triton/published, benchmarks/make_published_triton_ptx.py), at each row's shapes, played with the latencies
and rates of FlashAttention by the same instructions: nothing of Triton is fitted.

The backward of FlashAttention-2's figure 4 comes in two forms, of which its benchmark took the faster; here it is the
one that the hand-written schedule takes by the GPU's figures (`attnsim.models.implementations.triton.least_s`). The
forward of FlashAttention-3's figure 5 tunes over tiles by length and head_dim, not by mask, and each shape ran without
a mask first: here too the tile is the one that is faster without a mask.

`issue` charges work by the slots of the schedulers and the pipes behind them; `stalls` has warps wait for the stall
counts of the machine code too, as a warp does that is alone on its scheduler. Warps of mma.sync go in step: each step
has barriers of the whole block, which Triton sets around shared memory (`MembarAnalysis`, lib/Analysis/Membar.cpp), as
in :func:`attnsim.models.implementations.fused.building.in_step`. Run:
``python benchmarks/triton_lifted.py [SOURCE] [LENGTH ...]``; a row of 16,384 tokens takes a minute or more.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.kernels.build.cubin import kernels_in
from attnsim.kernels.cpu.parse import parse
from attnsim.kernels.lift.lifting import PtxLaunch, Resources, lift
from attnsim.models.calibrations.choose import choose
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.triton import OPS_SPILLS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel
from attnsim.models.schedule.uses import TensorUse
from attnsim.simulator.replay import replay
from attnsim.validation.measured.datasets import Row, published_rows

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "triton" / "published"
INDEX = {one["name"]: one for one in json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["kernels"]}
LIKE = {"fa2_fig4": "flash-attn.2", "fa3_fig5": "flash-attn.3"}
BLOCK = 128
"""Rows of a tile; of the backward also its keys."""
WAYS = ("issue", "stalls")
ROOM = 64
"""Columns up to which the L1 has room for what the backward of ``triton.ops`` puts aside."""


def main() -> None:
    """Print each row and the mean errors by source."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="*", metavar="SOURCE or LENGTH", help=f"{' or '.join(LIKE)}; tokens")
    given = parser.parse_args().given
    wanted = [one for one in given if not one.isdecimal()] or list(LIKE)
    lengths = [int(one) for one in given if one.isdecimal()]
    for one in wanted:
        if one not in LIKE:
            parser.error(f"{one}: no such source; there are {', '.join(LIKE)}")
    tuned: dict[tuple[str, int, int], str] = {}  # tiles by way, head_dim and length
    print("source,gpu,pass,head_dim,causal,seq,measured_us,fitted_by_hand,issue,stalls,issue_tile,stalls_tile")
    for row in sorted(published_rows(), key=lambda one: one.workload.mask.is_causal):
        if row.case.source not in wanted or "triton" not in row.record.name:
            continue
        if lengths and row.workload.seq_q not in lengths:
            continue
        ratios = {"fitted by hand": row.predict_s(choose(row.record, row.gpu).numbers) / row.measured_s}
        w, tiles = row.workload, ("128x32", "128x64") if row.gpu.features.wgmma else ("128x128",)
        shapes = {way: (way, w.head_dim, w.seq_q) for way in WAYS}
        timed = {
            tile: times_s(row, tile) for tile in ({tuned[one] for one in shapes.values() if one in tuned} or tiles)
        }
        for way, shape in shapes.items():
            if shape not in tuned:
                tuned[shape] = min((times[way], tile) for tile, times in timed.items())[1]
            ratios[way] = timed[tuned[shape]][way] / row.measured_s
        print(
            f"{row.case.source},{row.gpu.id},{w.passes},{w.head_dim},{w.mask.is_causal},{w.seq_q},"
            f"{row.measured_s * 1e6:.1f},{','.join(f'{one:.3f}' for one in ratios.values())},"
            f"{','.join(tuned[one] for one in shapes.values())}",
            flush=True,
        )
        for what, ratio in ratios.items():
            errors[row.case.source, what].append(abs(ratio - 1))
    for (source, what), found in errors.items():
        print(f"{source}, {what}: mean error {100 * np.mean(found):.1f} % over {len(found)} rows")


def times_s(row: Row, tile: str) -> dict[str, float]:
    """Times of the lifted kernels of a row, charged by each of the ways."""
    numbers = choose(find_implementation(LIKE[row.case.source]), row.gpu).numbers
    cache: Any = "cold" if row.case.cache == "cold" else "warm"
    launch: Any = row.case.launch
    stalled = tuple(tutorial(row.workload, tile) if row.gpu.features.wgmma else ops(row))
    kernels = dict(zip(WAYS, (tuple(map(without_stalls, stalled)), stalled), strict=True))
    return {
        way: replay(replace(row.schedule, kernels=each), row.gpu, numbers, cache=cache, launch=launch).time_s
        for way, each in kernels.items()
    }


def without_stalls(kernel: Kernel) -> Kernel:
    """The kernel as it is lifted without its stall counts."""
    segments = (replace(one, ops=tuple(op for op in one.ops if op.tensor != "stall")) for one in kernel.segments)
    return replace(kernel, segments=tuple(segments))


def tutorial(w: Workload, tile: str) -> Iterable[Kernel]:
    """The tutorial's forward."""
    name = f"tutorial_{tile}_d{w.head_dim}_{'causal' if w.mask.is_causal else 'full'}"
    yield lifted(name, (w.seq_q // BLOCK, w.batch * w.heads_q, 1), arrays(w) | {"N": np.int32(w.seq_q)})


def ops(row: Row) -> Iterable[Kernel]:
    """Both passes of ``triton.ops.flash_attention``; PyTorch clears dQ, and sums its parts."""
    w, given = row.workload, arrays(row.workload)
    heads, tiles = w.batch * w.heads_q, w.seq_q // BLOCK
    kind = f"d{w.head_dim}_{'causal' if w.mask.is_causal else 'full'}"
    parts = any(one.name == "flash_bwd_parts" for one in row.schedule.kernels)
    dq = np.zeros((tiles, *given["Q"].shape), np.float16) if parts else np.zeros(given["Q"].shape, np.float32)
    yield lifted(f"ops_forward_{kind}", (tiles, heads, 1), given)
    yield streaming("clear dQ", [Access("DQ", dq.nbytes, True)], elements=dq.size, fp32_per_element=0)
    yield lifted(f"ops_dots_d{w.head_dim}", (tiles * heads, 1, 1), given)
    grid = (heads, tiles if parts else 1, 1)
    main = lifted(f"ops_backward_{'parts' if parts else 'turns'}_{kind}", grid, given | {"DQ": dq})
    spills = OPS_SPILLS[parts, w.mask.is_causal] if w.head_dim > ROOM else None
    yield with_spills(main, *spills, min(main.blocks, row.gpu.sm.count)) if spills else main
    if parts:
        summed = Access("dQ", given["Q"].nbytes, True)
        yield streaming("sum dQ", [Access("DQ", dq.nbytes), summed], elements=dq.size)


def with_spills(kernel: Kernel, put: int, taken: int, stack: int, running: int) -> Kernel:
    """The kernel with the bytes of registers that its threads put aside in a step and take back.

    PTX has none of them. They go through the L2, as a block's stack is several times what its shared memory leaves of
    the L1; that a step also waits for them is in the hand-written schedule only, where it was chosen on these rows.
    """
    found = []
    for one in kernel.segments:
        ops: list[TileOp] = []
        for op in one.ops:
            ops.append(op)
            if op.kind == "vector" and op.exps:
                ops.append(TileOp("load", "spills", bytes=taken * kernel.threads))
                ops.append(TileOp("store", "spills", bytes=put * kernel.threads))
        found.append(replace(one, ops=tuple(ops)))
    size = stack * kernel.threads
    uses = (TensorUse("spills", size, running, written=one, just_written=True) for one in (False, True))
    return replace(kernel, segments=tuple(found), uses=(*kernel.uses, *uses))


def arrays(w: Workload) -> dict[str, Any]:
    """Contiguous arrays ``[batch * heads, seq, head_dim]`` and what the kernels take beside them."""
    heads, n, d = w.batch * w.heads_q, w.seq_q, w.head_dim
    found: dict[str, Any] = {
        name: np.zeros((heads, n, d), np.float16) for name in ("Q", "K", "V", "O", "Out", "DO", "DK", "DV")
    } | {name: np.zeros((heads, n), np.float32) for name in ("L", "D", "Delta")}
    found |= {"scale_log2": np.float32(0.18), "sm_scale": np.float32(0.125)}
    sizes = {f"stride_{one}z": w.heads_q * n * d for one in "qkvo"} | {f"stride_{one}h": n * d for one in "qkvo"}
    sizes |= dict.fromkeys(("stride_qm", "stride_kn", "stride_vk", "stride_om"), d) | {"stride_dqa": heads * n * d}
    sizes |= {"Z": w.batch, "H": w.heads_q, "N_CTX": n}
    return found | {name: np.int32(size) for name, size in sizes.items()}


def lifted(name: str, grid: tuple[int, int, int], values: dict[str, Any]) -> Kernel:
    """One kernel on a grid, with its stall counts."""
    told = INDEX[name]
    ptx, cubin = (lzma.decompress((FOLDER / f"{name}.{kind}.xz").read_bytes()) for kind in ("ptx", "cubin"))
    shared = told["shared_memory_bytes"]
    given = {one: values[one] for one in told["arguments"]}
    launch = PtxLaunch(parse(ptx.decode())[told["entry"]], grid, (told["threads"], 1, 1), given, shared)
    taken = Resources(told["registers"], shared, "the ptxas of its release")
    return lift(launch, taken, code=kernels_in(cubin)[told["entry"]], stalls=True, in_step=True)[0]


if __name__ == "__main__":
    main()
