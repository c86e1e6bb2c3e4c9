"""What counting instructions buys a what-if: `python benchmarks/counted_costs.py` (takes some minutes: it fits).

Two kernels, each with costs that were fitted (instructions per score, and pipes added up) and with costs that were
counted (the busiest pipe): FlashAttention-3 without each of its two ways to hide the softmax, as its paper's table 2
has it (`fa3_table2`), and FlashAttention-4 on a B200 with twice the exponential rate, which is nearly what a B300 is.
The kind of costs that a kernel is not shipped with is fitted here, on the rows of its calibration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.models.by_hand import by_hand
from attnsim.models.calibrations.calibration import numbers_of
from attnsim.models.calibrations.choose import choose, priors_of
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.flash_attention import FA3, counted, fa3_forward, flash3
from attnsim.models.implementations.flash_attention_4 import choose_tile
from attnsim.models.implementations.fused.building import flash_schedule
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import StepCounts
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import replay
from attnsim.validation.fitting.jobs import jobs, separate
from attnsim.validation.fitting.problem import Problem
from attnsim.validation.fitting.solver import fit_numbers
from attnsim.validation.measured.datasets import Row, published_rows

FITTED_ROWS = 36
SIX = "tensor_efficiency", "softmax_instructions", "interference", "step_clks", "block_clks", "extra"
FLASH_4 = StepCounts(
    scores=32 * 128,
    rescaled=0,
    issued=by_hand(
        498, "instructions of FlashAttention-4's softmax a warp and step of 32 x 128 scores, from its source"
    ),
    fp32=by_hand(376, "those on the FP32 lanes: a multiply-add and an addition a score, polynomials"),
    integer=by_hand(200, "those on the integer lanes: maxima of three, conversions of two, polynomials"),
    load_store=0,
)
"""``flash_attn/cute/softmax.py`` (`SoftmaxSm100`) and ``utils.py`` of Dao-AILab/flash-attention. A score has half a
maximum of three (`fmax_reduce`), half a packed multiply-add (`scale_subtract_rowmax`), half a packed addition
(`fadd_reduce`), half a conversion (`apply_exp2_convert`) and an exponential; 3 of 16 exponentials are polynomials of
five packed FP32 operations and three integer ones (`ex2_emulation_2`). A packed operation is one instruction and two
operations of a lane. 6 of a step's instructions read and write tensor memory."""
PUBLISHED_STEP = {64: "1.28"}
"""Of FlashAttention-4, B300 over B200, by head_dim: encoder rows of ai-dynamo/aiconfigurator, the medians stated there
to two digits; the rows are not in this repository."""


def kernel_of(tile: FlashTile, w: Workload, gpu: Gpu) -> Schedule:
    """The forward kernel of a tile."""
    return flash_schedule(w, FA3, [flash_forward(w, gpu, tile)], FusedTiles(tile))


def fitted(
    owner: str, free: tuple[str, ...], build: Callable[[Workload, Gpu, TileRequest | None], Schedule]
) -> Numbers:
    """Numbers of an implementation, built in a way of its own, on the forward and backward rows of its job."""
    job = next(one for one in separate(jobs()) if owner in one.free)
    rows = [replace(row, record=replace(row.record, build=build)) for row in job.rows]
    gpu = load_gpu(job.gpu)
    problem = Problem(
        tuple(rows[:: max(1, round(len(rows) / FITTED_ROWS))]), tuple((owner, name) for name in free),
        numbers_of(gpu)[0], {owner: priors_of(rows[0].record)}, {}, gpu.hbm.achievable_fraction,
    )  # fmt: skip
    return fit_numbers(problem).numbers[owner]


def shipped(owner: str, gpu: Gpu) -> Numbers:
    """The numbers of an implementation's calibration."""
    return choose(find_implementation(owner), gpu).numbers


def ablations(tile: FlashTile) -> dict[str, FlashTile]:
    """The tile whole; each product waited for before the softmax; no warps that run ahead of one another."""
    return {
        "flash_attn_v3": tile,
        "fa3_no_gemm_softmax_pipelining": replace(tile, loop="staged"),
        "fa3_no_warp_specialization": replace(tile, warpgroups=1),
    }


def flash_3() -> Iterator[tuple[str, float, list[float]]]:
    """Each ablation with the measured slowing, and the predicted one by fitted and by counted costs."""
    fits = (
        ("", fitted(FA3, SIX, lambda w, gpu, shape: flash3(w, gpu, shape, machine=""))),
        (FA3, shipped(FA3, load_gpu("h100-sxm5-80gb"))),
    )
    rows: dict[str, Row] = {
        row.case.implementation or "": row for row in published_rows() if row.case.source == "fa3_table2"
    }
    whole = rows["flash_attn_v3"]
    w, gpu = whole.workload, whole.gpu
    times: dict[str, list[float]] = {name: [] for name in rows}
    for machine, numbers in fits:
        for name, tile in ablations(counted(fa3_forward(w, gpu), machine, w, gpu)).items():
            times[name].append(replay(kernel_of(tile, w, gpu), gpu, numbers).time_s)
    for name, found in times.items():
        yield name, rows[name].measured_s, found


def flash_4() -> Iterator[tuple[int, list[float]]]:
    """By head_dim, how much faster FlashAttention-4 is by twice the exponential rate, by fitted and counted costs."""
    gpu = load_gpu("b200-sxm-180gb")
    twice = gpu.replace("sm.exp_rate", "2x")

    def build(counts: StepCounts | None) -> Callable[[Workload, Gpu, TileRequest | None], Schedule]:
        def kernel(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
            return kernel_of(replace(choose_tile(w, gpu), counts=counts), w, gpu)

        return kernel

    counting = build(FLASH_4)
    fits = (
        (build(None), shipped("flash-attn.4", gpu)),
        (counting, fitted("flash-attn.4", ("tensor_efficiency", "block_clks", "call_s"), counting)),
    )
    for head_dim in (64, 128):
        w = Workload(batch=4, heads_q=16, seq_q=8192, head_dim=head_dim, dtype="bf16")
        yield (
            head_dim,
            [
                replay(way(w, gpu, None), gpu, numbers).time_s / replay(way(w, twice, None), twice, numbers).time_s
                for way, numbers in fits
            ],
        )


def main() -> None:
    print("| FlashAttention-3, H100 | measured | fitted costs | counted costs |\n|---|---:|---:|---:|")
    base: tuple[float, list[float]] | None = None
    for name, measured, found in flash_3():
        base = base or (measured, found)
        slower = " | ".join(
            f"{1000 * one:.2f} ms, {one / first:.2f}x" for one, first in zip(found, base[1], strict=True)
        )
        print(f"| {name} | {1000 * measured:.2f} ms, {measured / base[0]:.2f}x | {slower} |", flush=True)
    print("\n| FlashAttention-4, B200 with 2x sm.exp_rate | published, B300 | fitted costs | counted costs |")
    print("|---|---:|---:|---:|")
    for head_dim, steps in flash_4():
        told = " | ".join(f"{step:.2f}x" for step in steps)
        print(
            f"| prefill of 8,192 tokens, head_dim {head_dim} | {PUBLISHED_STEP.get(head_dim, '-')} | {told} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
