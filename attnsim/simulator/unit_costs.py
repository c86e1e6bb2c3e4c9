"""Costs of a GPU in the replay: picoseconds per FLOP, per exponential, per byte at each level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import ASYNC_SHARE, CONCURRENT, MMA_SYNC_STALL, PIPES
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
    l2_write : float
        One byte written to the L2: with two partitions a write crosses between them more often than a read.
    port_byte : float
        One byte through one SM's port to the L2.
    l2_latency, hbm_latency : float
        Load-to-use latencies.
    stall : float
        Share of a product during which vector work of the same SM stalls, and the other way round.
    own_path : float
        Part of an operation's vector work that one warpgroup runs, one pipe after another, while the unit is held for
        the busiest pipe alone; 0 where products stall that unit.
    step, block, write : float
        The implementation's latencies, in picoseconds.
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
    l2_write: float
    hbm: float
    port_byte: float
    l2_latency: float
    hbm_latency: float
    stall: float
    own_path: float
    step: float
    block: float
    write: float


def unit_costs(kernel: Kernel, gpu: Gpu, numbers: Numbers) -> UnitCosts:
    """Costs of `kernel`'s operations on `gpu` with the fitted latencies in `numbers`.

    Rates are the chip's. Warp-level ``mma.sync`` runs at `Tensor.mma_sync_fraction` of the peak, wgmma and tcgen05 at
    `ASYNC_SHARE` of it. A kernel without tensor cores multiplies on the FP32 lanes. Products of ``mma.sync`` read the
    registers that vector work reads and stall it (`MMA_SYNC_STALL`). Products of wgmma and tcgen05 run concurrently
    with vector work, so a warpgroup's softmax is bound by its own instruction stream.
    """
    fitted = numbers.implementation
    clk = PS / gpu.clock.full_hz
    work = clk / numbers.speed  # one clock of SM work: a slower build takes longer, memory latency is unchanged
    concurrent = kernel.path in CONCURRENT
    rate = (gpu.mma_sync_flops_per_clk if kernel.path == "mma_sync" else gpu.tensor_flops_per_clk)(kernel.dtype)
    backward = fitted.back_clks if kernel.is_backward else None
    l2 = PS / (gpu.l2.bandwidth_bytes_per_s * numbers.l2_share)
    return UnitCosts(
        clk=work,
        tensor=work / (rate * (ASYNC_SHARE if concurrent else 1.0) * numbers.tensor_share),
        pipes={one.amount: work / per_clk for one in PIPES if (per_clk := gpu.get(one.figure))},
        exp=work / gpu.sm.exp_per_clk,
        fp32=work / (gpu.sm.fp32_flops_per_clk / 2),
        issue=work / gpu.sm.issues_per_clk,
        int32=work / gpu.sm.int32_per_clk,
        load_store=work / gpu.sm.load_stores_per_clk,
        l2=l2,
        l2_write=l2 / gpu.l2.write_share,
        hbm=PS / (gpu.hbm.bandwidth_bytes_per_s * gpu.hbm.achievable_fraction * numbers.hbm_share),
        port_byte=clk / SM_PORT_BYTES_PER_CLK,
        l2_latency=gpu.l2.latency_clk * clk,
        hbm_latency=gpu.hbm.latency_clk * clk,
        stall=MMA_SYNC_STALL if kernel.path == "mma_sync" else 0.0,
        own_path=1 / kernel.in_step if concurrent else 0.0,
        step=(fitted.step_clks if backward is None else backward) * work,
        block=fitted.block_clks * work,
        write=fitted.write_clks * work,
    )
