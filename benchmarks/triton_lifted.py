"""Triton's attention lifted from its PTX, beside the times that were published of it and beside the fitted schedule.

What is lifted are the kernels that were timed, as the releases nearest to them compile them
(tests/data/triton/published, benchmarks/make_published_triton_ptx.py), at each row's shapes, played with the latencies
and rates of FlashAttention by the same instructions: nothing of Triton is fitted.

The backward of FlashAttention-2's figure 4 comes in two forms, of which its benchmark took the faster; here it is the
one that the hand-written schedule takes by the GPU's figures (`attnsim.models.implementations.triton.least_s`). The
forward of FlashAttention-3's figure 5 tunes over tiles by length and head_dim, not by mask, and each shape ran without
a mask first: here too the tile is the one that is faster without a mask.

`issue` charges work by the slots of the schedulers and the pipes behind them; `waits` has warps wait for stall counts
and scoreboards of the machine code too. Warps of mma.sync go in step: each step has barriers of the whole block, which
Triton sets around shared memory (`MembarAnalysis`, lib/Analysis/Membar.cpp). `waits` is what FlashAttention's own rows
decide (``stall_counts.py``), and what `attnsim kernels trace` does; both ways are played with FlashAttention's numbers
as they are shipped, in which its own waits are hidden. `refitted` has the waits, and numbers without. Run:
``python benchmarks/triton_lifted.py [SOURCE] [LENGTH ...]``. Heads do not differ: one is lifted, and repeated.
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

from attnsim.kernels.lift.left import WAITS
from attnsim.kernels.lift.lifting import PtxLaunch, Resources, lift
from attnsim.models.calibrations.choose import choose
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.triton import OPS_SPILLS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.models.schedule.uses import TensorUse
from attnsim.ptx.machine_code import kernels_in
from attnsim.ptx.parse import parse
from attnsim.simulator.replay import replay
from attnsim.validation.measured.datasets import Row, published_rows

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "triton" / "published"
INDEX = {one["name"]: one for one in json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["kernels"]}
LIKE = {"fa2_fig4": "flash-attn.2", "fa3_fig5": "flash-attn.3"}
BLOCK = 128
"""Rows of a tile; of the backward also its keys."""
WAYS = ("issue", "waits", "refitted")
REFITTED = {
    "fa2_fig4": {"tensor_efficiency": 0.9882, "interference": 0.309, "block_clks": 3146, "extra": 0.7687},
    "fa3_fig5": {"tensor_efficiency": 0.9998, "interference": 0.4824, "block_clks": 4214, "extra": 1.397},
}
"""Numbers of FlashAttention-2 and -3 that its own rows give where its schedules wait as these kernels do
(``stall_counts.py``, the way `waits`)."""
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
    tuned: dict[tuple[str, str, int, int], str] = {}  # tiles by source, way, head_dim and length
    told = ",".join((*WAYS, *(f"{way}_tile" for way in WAYS)))
    print(f"source,gpu,pass,head_dim,causal,seq,measured_us,fitted_by_hand,{told}")
    for row in sorted(published_rows(), key=lambda one: one.workload.mask.is_causal):
        if row.case.source not in wanted or "triton" not in row.record.name:
            continue
        if lengths and row.workload.seq_q not in lengths:
            continue
        ratios = {"fitted by hand": row.predict_s(choose(row.record, row.gpu).numbers) / row.measured_s}
        w, tiles = row.workload, ("128x32", "128x64") if row.gpu.features.wgmma else ("128x128",)
        shapes = {way: (row.case.source, way, w.head_dim, w.seq_q) for way in WAYS}
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
    shipped = choose(find_implementation(LIKE[row.case.source]), row.gpu).numbers
    refitted = replace(shipped, implementation=replace(shipped.implementation, **REFITTED[row.case.source]))
    cache: Any = "cold" if row.case.cache == "cold" else "warm"
    launch: Any = row.case.launch
    waiting = tuple(tutorial(row.workload, tile) if row.gpu.features.wgmma else ops(row))
    issuing = tuple(map(without_waits, waiting))
    played = {"issue": (issuing, shipped), "waits": (waiting, shipped), "refitted": (waiting, refitted)}
    return {
        way: replay(replace(row.schedule, kernels=each), row.gpu, numbers, cache=cache, launch=launch).time_s
        for way, (each, numbers) in played.items()
    }


def without_waits(kernel: Kernel) -> Kernel:
    """The kernel as it is lifted without what its warps wait for."""
    segments = (replace(one, ops=tuple(op for op in one.ops if op.tensor != WAITS)) for one in kernel.segments)
    return replace(kernel, segments=tuple(segments))


def tutorial(w: Workload, tile: str) -> Iterable[Kernel]:
    """The tutorial's forward."""
    name = f"tutorial_{tile}_d{w.head_dim}_{'causal' if w.mask.is_causal else 'full'}"
    yield lifted(name, w, (w.seq_q // BLOCK, 1, 1), arrays(w) | {"N": np.int32(w.seq_q)})


def ops(row: Row) -> Iterable[Kernel]:
    """Both passes of ``triton.ops.flash_attention``; PyTorch clears dQ, and sums its parts."""
    w, given, tiles = row.workload, arrays(row.workload), row.workload.seq_q // BLOCK
    kind = f"d{w.head_dim}_{'causal' if w.mask.is_causal else 'full'}"
    parts = any(one.name == "flash_bwd_parts" for one in row.schedule.kernels)
    q, heads = given["Q"], w.batch * w.heads_q
    dq = np.zeros((tiles, *q.shape), np.float16) if parts else np.zeros(q.shape, np.float32)
    cleared = Access("DQ", heads * dq.nbytes, True)
    yield lifted(f"ops_forward_{kind}", w, (tiles, 1, 1), given)
    yield streaming("clear dQ", [cleared], elements=heads * dq.size, fp32_per_element=0)
    yield lifted(f"ops_dots_d{w.head_dim}", w, (tiles, 1, 1), given)
    grid = (1, tiles if parts else 1, 1)
    main = lifted(f"ops_backward_{'parts' if parts else 'turns'}_{kind}", w, grid, given | {"DQ": dq})
    spills = OPS_SPILLS[parts, w.mask.is_causal] if w.head_dim > ROOM else None
    yield with_spills(main, *spills, min(main.blocks, row.gpu.sm.count)) if spills else main
    if parts:
        summed = [replace(cleared, written=False), Access("dQ", heads * q.nbytes, True)]
        yield streaming("sum dQ", summed, elements=heads * dq.size)


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
    """Arrays ``[1, seq, head_dim]`` of one head and what the kernels take beside them."""
    n, d = w.seq_q, w.head_dim
    found: dict[str, Any] = {
        name: np.zeros((1, n, d), np.float16) for name in ("Q", "K", "V", "O", "Out", "DO", "DK", "DV")
    } | {name: np.zeros((1, n), np.float32) for name in ("L", "D", "Delta")}
    found |= {"scale_log2": np.float32(0.18), "sm_scale": np.float32(0.125)}
    sizes = {f"stride_{one}{axis}": n * d for one in "qkvo" for axis in "zh"} | {"stride_dqa": n * d}
    sizes |= dict.fromkeys(("stride_qm", "stride_kn", "stride_vk", "stride_om"), d)
    sizes |= {"Z": 1, "H": 1, "N_CTX": n}
    return found | {name: np.int32(size) for name, size in sizes.items()}


def lifted(name: str, w: Workload, grid: tuple[int, int, int], values: dict[str, Any]) -> Kernel:
    """One kernel on the grid of a head, with its stall counts, and from it that of all heads.

    Heads are the first axis of a grid whose tiles are the second, and the last of one whose tiles are the first.
    """
    told = INDEX[name]
    ptx, cubin = (lzma.decompress((FOLDER / f"{name}.{kind}.xz").read_bytes()) for kind in ("ptx", "cubin"))
    shared = told["shared_memory_bytes"]
    given = {one: values[one] for one in told["arguments"]}
    launch = PtxLaunch(parse(ptx.decode())[told["entry"]], grid, (told["threads"], 1, 1), given, shared)
    taken = Resources(told["registers"], shared, "the ptxas of its release")
    one = lift(launch, taken, code=kernels_in(cubin)[told["entry"]], foreign=True)[0]
    heads = w.batch * w.heads_q
    uses = (
        replace(use, pieces=heads * use.pieces)
        if use.sharers > 1
        else replace(use, piece_bytes=heads * use.piece_bytes)
        for use in one.uses
    )
    launches = [
        Launch(np.repeat(part.classes, heads), part.times)
        if grid[1] > 1 and len(part.classes) > 1
        else replace(part, times=heads * part.times)
        for part in one.launches
    ]
    return replace(one, uses=tuple(uses), launches=tuple(launches))


if __name__ == "__main__":
    main()
