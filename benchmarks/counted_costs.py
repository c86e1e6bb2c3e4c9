"""What counting instructions buys a what-if: `python benchmarks/counted_costs.py` (takes some minutes: it fits).

Two kernels, each with costs that were fitted (instructions per score, and pipes added up) and with costs that were
counted (the busiest pipe): FlashAttention-3 without each of its two ways to hide the softmax, as its paper's table 2
has it (`fa3_table2`), and FlashAttention-4 on a B200 with twice the exponential rate and on a B300, which has that.
The kind of costs that a kernel is not shipped with is fitted here, on the rows of its calibration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.by_hand import by_hand
from attnsim.models.calibrations.calibration import numbers_of
from attnsim.models.calibrations.choose import choose, priors_of
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.flash_attention import FA3, counted, fa3_forward, flash3
from attnsim.models.implementations.flash_attention_4 import choose_tile
from attnsim.models.implementations.fused.building import flash_schedule, in_step
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FlashTile, FusedTiles
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import LANES, StepCounts
from attnsim.models.schedule.operation import AMOUNTS, TileOp
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import replay
from attnsim.validation.fitting.jobs import jobs, separate
from attnsim.validation.fitting.problem import Problem
from attnsim.validation.fitting.solver import fit_numbers
from attnsim.validation.measured.datasets import Row, published_rows

FITTED_ROWS = 36
WGMMA_DEPTH = 16
"""Keys of a ``wgmma.m64nNk16`` of P V (PTX ISA, "Asynchronous warpgroup level matrix instructions")."""
SIX = "tensor_efficiency", "softmax_instructions", "interference", "step_clks", "block_clks", "extra"
FLASH_4 = StepCounts(
    scores=32 * 128,
    rescaled=0,
    issued=by_hand(
        390, "instructions of FlashAttention-4's softmax a warp and step of 32 x 128 scores, from its source"
    ),
    fp32=by_hand(256, "those on the FP32 lanes: a multiply-add and an addition a score"),
    integer=by_hand(128, "those on the integer lanes: maxima of three, conversions of two"),
    load_store=0,
)
"""``flash_attn/cute/softmax.py`` (`SoftmaxSm100`) and ``utils.py`` of Dao-AILab/flash-attention. A score has half a
maximum of three (`fmax_reduce`), half a packed multiply-add (`scale_subtract_rowmax`), half a packed addition
(`fadd_reduce`), half a conversion (`apply_exp2_convert`) and an exponential. A packed operation is one instruction and
two operations of a lane. 6 of a step's instructions read and write tensor memory."""
POLYNOMIAL_FP32, POLYNOMIAL_INTEGER = 5, 3
"""Operations of an exponential that is a polynomial, of which the FP32 ones are packed (`ex2_emulation_2`)."""
PUBLISHED_STEP = {64: "1.28"}
"""Of FlashAttention-4, B300 over B200, by head_dim: encoder rows of ai-dynamo/aiconfigurator, the medians stated there
to two digits; the rows are not in this repository."""


def flash_4_counts(tile: FlashTile) -> StepCounts:
    """Instructions of FlashAttention-4's softmax with the polynomials of a tile."""
    each = tile.polynomials(FLASH_4.scores) // LANES
    fp32, integer = each * POLYNOMIAL_FP32, each * POLYNOMIAL_INTEGER
    issued = FLASH_4.issued - each + fp32 // 2 + integer
    return replace(FLASH_4, issued=issued, fp32=FLASH_4.fp32 + fp32, integer=FLASH_4.integer + integer)


def alone(w: Workload, kernel: Kernel, tile: FlashTile) -> Schedule:
    """A forward kernel on a tile as the schedule of a call."""
    return flash_schedule(w, FA3, [kernel], FusedTiles(tile))


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


def pieces(op: TileOp, count: int) -> list[TileOp]:
    """An operation on the SM in so many parts."""
    amounts = [(name, getattr(op, name)) for name in AMOUNTS]
    return [
        op._replace(**{name: whole * (part + 1) // count - whole * part // count for name, whole in amounts})
        for part in range(count)
    ]


def softmax(op: TileOp, rescaled: int) -> tuple[TileOp, ...]:
    """A counted softmax as its exponentials, and then P's conversions, two scores each, with the rescaling of O.

    The order of ``hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp`` (`convert_type_out`, `softmax.rescale_o`).
    """
    if not op.issues:
        return (op,)
    conversions = op.scores // 2
    after = TileOp("vector", "P", fp32=rescaled, int32=conversions, issues=(rescaled + conversions) // LANES)
    first = {name: getattr(op, name) - getattr(after, name) for name in ("fp32", "int32", "issues")}
    return op._replace(**first), after


def sharing(kernel: Kernel, w: Workload, tile: FlashTile) -> Kernel:
    """With warpgroups that no barrier orders: they share the units by turns of an instruction, so many as P V has."""
    rescaled = tile.rows // tile.warpgroups * w.head_dim_v

    def told(op: TileOp) -> Iterator[TileOp]:
        if op.kind not in ("mma", "vector"):
            yield op
            return
        for one in softmax(op, rescaled) if op.kind == "vector" else (op,):
            yield from pieces(one, tile.keys // WGMMA_DEPTH)

    segments = tuple(replace(one, ops=tuple(new for op in one.ops for new in told(op))) for one in kernel.segments)
    return replace(kernel, segments=segments)


def ablations(w: Workload, gpu: Gpu, machine: str) -> dict[str, tuple[str, Schedule]]:
    """Ways to play FlashAttention-3 and its ablations, with the measured row that each stands beside.

    Without pipelining each product is waited for before the softmax; its warpgroups take turns at the tensor cores by
    named barriers, as the public source has it, or share them. Without warp specialization all meet at a barrier in
    each step: warps that multiply and copy have a buffer to refill when all have read it.
    """
    whole, tile = flash3(w, gpu, None, machine=machine), counted(fa3_forward(w, gpu), machine, w, gpu)
    waited = replace(flash_forward(w, gpu, replace(tile, loop="staged")), multicast=whole.main.multicast)
    no_pipelining, no_specialization = "fa3_no_gemm_softmax_pipelining", "fa3_no_warp_specialization"
    return {
        "FlashAttention-3": ("flash_attn_v3", whole),
        "without pipelining, in turns": (no_pipelining, alone(w, waited, tile)),
        "without pipelining, sharing": (no_pipelining, alone(w, sharing(waited, w, tile), tile)),
        "without warp specialization": (no_specialization, alone(w, in_step(whole.main), tile)),
    }


def flash_3() -> Iterator[tuple[str, float, list[float]]]:
    """Each way with the measured time, and the predicted one by fitted and by counted costs."""
    fits = (
        ("", fitted(FA3, SIX, lambda w, gpu, shape: flash3(w, gpu, shape, machine=""))),
        (FA3, shipped(FA3, load_gpu("h100-sxm5-80gb"))),
    )
    rows: dict[str, Row] = {
        row.case.implementation or "": row for row in published_rows() if row.case.source == "fa3_table2"
    }
    w, gpu = rows["flash_attn_v3"].workload, rows["flash_attn_v3"].gpu
    found: dict[str, tuple[float, list[float]]] = {}
    for machine, numbers in fits:
        for name, (row, schedule) in ablations(w, gpu, machine).items():
            found.setdefault(name, (rows[row].measured_s, []))[1].append(replay(schedule, gpu, numbers).time_s)
    for name, (measured_s, times) in found.items():
        yield name, measured_s, times


def flash_4() -> Iterator[tuple[int, list[float]]]:
    """By head_dim, how much faster than on B200 FlashAttention-4 is with twice the exponential rate, and on B300.

    Each by fitted and by counted costs.
    """
    gpu = load_gpu("b200-sxm-180gb")

    def build(has_counts: bool) -> Callable[[Workload, Gpu, TileRequest | None], Schedule]:
        def kernel(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
            tile = choose_tile(w, gpu)
            tile = replace(tile, counts=flash_4_counts(tile) if has_counts else None)
            return alone(w, flash_forward(w, gpu, tile), tile)

        return kernel

    counting = build(True)
    fits = (
        (build(False), shipped("flash-attn.4", gpu)),
        (counting, fitted("flash-attn.4", ("tensor_efficiency", "block_clks", "call_s"), counting)),
    )
    for head_dim in (64, 128):
        w = Workload(batch=4, heads_q=16, seq_q=8192, head_dim=head_dim, dtype="bf16")
        yield (
            head_dim,
            [
                replay(way(w, gpu, None), gpu, numbers).time_s / replay(way(w, newer, None), newer, numbers).time_s
                for newer in (gpu.replace("sm.exp_rate", "2x"), load_gpu("b300-sxm"))
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
    print(
        "\n| FlashAttention-4, faster than on B200 | published, B300 | 2x sm.exp_rate: fitted costs | counted costs ",
        end="",
    )
    print("| on B300: fitted costs | counted costs |\n|---|---:|---:|---:|---:|---:|")
    for head_dim, steps in flash_4():
        told = " | ".join(f"{step:.2f}x" for step in steps)
        print(
            f"| prefill of 8,192 tokens, head_dim {head_dim} | {PUBLISHED_STEP.get(head_dim, '-')} | {told} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
