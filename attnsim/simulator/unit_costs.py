"""A GPU as the replay sees it: picoseconds per FLOP, per exponential, per byte at each level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import PIPES
from attnsim.models.schedule.schedule import Kernel

PS = 1e12
"""Picoseconds in a second: the replay counts time in whole picoseconds so that the order of events is exact."""

SM_PORT_BYTES_PER_CLK = 64.0
"""L2 to SM bandwidth of one SM (NVIDIA A100 whitepaper, 2020: 64 B/clk/SM)."""


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """Costs of one kernel's operations on one GPU, in picoseconds per unit of work.

    Parameters
    ----------
    clk : float
        One SM clock, longer by the speed of a slower build.
    tensor, exp, fp32, issue, int32, load_store : float
        One tensor FLOP on the kernel's path, one exponential, one FP32-lane instruction, one warp instruction of the
        schedulers, one integer-lane instruction and one access of the load/store units, each on one SM with the unit to
        itself. Named as the units are.
    pipes : mapping of str to float
        One byte on each pipe that the GPU has, by the amount of a tile operation that counts it.
    l2, hbm : float
        One byte through the whole chip's L2 and HBM.
    port_byte : float
        One byte through one SM's port to the L2.
    l2_latency, hbm_latency : float
        Load-to-use latencies.
    smem_exposed, softmax_instructions, interference, step, block : float
        The implementation's fitted numbers, latencies in picoseconds. Of a counted kernel there are no instructions
        per score beside the counted ones, and its reads of operands are instructions too.
    extra : float
        Scale of delays named "extra".
    integers : float
        Scale of integer instructions that are not counted.
    """

    clk: float
    tensor: float
    exp: float
    fp32: float
    issue: float
    int32: float
    load_store: float
    pipes: Mapping[str, float]
    l2: float
    hbm: float
    port_byte: float
    l2_latency: float
    hbm_latency: float
    smem_exposed: float
    softmax_instructions: float
    interference: float
    step: float
    block: float
    extra: float
    integers: float


def unit_costs(kernel: Kernel, gpu: Gpu, numbers: Numbers) -> UnitCosts:
    """Costs of `kernel`'s operations on `gpu` with the fitted `numbers`.

    The tensor rate of warp-level ``mma.sync`` is `Tensor.mma_sync_fraction` of the peak; a kernel without tensor
    cores multiplies on the FP32 lanes. With tcgen05 one thread issues an MMA and no operand passes through registers
    (PTX ISA, "TensorCore 5th Generation"): it takes as long as its FLOPs or its reads, and stalls no other warp.
    """
    fitted = numbers.implementation
    clk = PS / gpu.clock.full_hz
    work = clk / numbers.speed  # a clock of SM work: a slower build takes longer, memory answers as before
    rate = (gpu.mma_sync_flops_per_clk if kernel.path == "mma_sync" else gpu.tensor_flops_per_clk)(kernel.dtype)
    if kernel.slowed_by_extra:
        rate /= fitted.extra
    l2_share = fitted.extra if kernel.copies_by_extra else numbers.gpu.l2_fraction
    hbm_fraction = numbers.gpu.hbm_fraction or gpu.hbm.achievable_fraction
    return UnitCosts(
        clk=work,
        tensor=work / (rate * fitted.tensor_efficiency),
        pipes={one.amount: work / per_clk for one in PIPES if (per_clk := gpu.get(one.figure))},
        exp=work / gpu.sm.exp_per_clk,
        fp32=work / (gpu.sm.fp32_flops_per_clk / 2),
        issue=work / gpu.sm.issues_per_clk,
        int32=work / gpu.sm.int32_per_clk,
        load_store=work / gpu.sm.load_stores_per_clk,
        l2=PS / (gpu.l2.bandwidth_bytes_per_s * l2_share),
        hbm=PS / (gpu.hbm.bandwidth_bytes_per_s * hbm_fraction),
        port_byte=clk / SM_PORT_BYTES_PER_CLK,
        l2_latency=gpu.l2.latency_clk * clk,
        hbm_latency=gpu.hbm.latency_clk * clk,
        smem_exposed=fitted.smem_exposed if kernel.exposes_operand_reads and not kernel.counted else 0.0,
        softmax_instructions=0.0 if kernel.counted else fitted.softmax_instructions,
        interference=fitted.interference if kernel.interferes else 0.0,
        step=fitted.step_clks * work,
        block=fitted.block_clks * work,
        extra=fitted.extra,
        integers=fitted.extra if kernel.integers_by_extra else 1.0,
    )
