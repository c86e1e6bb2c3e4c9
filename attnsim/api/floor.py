"""The floor of a call: the time that no schedule of it undercuts, on any tile and in any order."""

from __future__ import annotations

from attnsim.api.asking import Conditions
from attnsim.models.closed_forms.useful import Useful
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Schedule


def floor_s(schedule: Schedule, useful: Useful, gpu: Gpu, conditions: Conditions) -> float:
    """Seconds that a call takes at least: the longest of `limits_s`, and one launch."""
    return max(limits_s(schedule, useful, gpu, conditions.cache).values()) + gpu.launch.each_s(conditions.launch)


def limits_s(schedule: Schedule, useful: Useful, gpu: Gpu, cache: str) -> dict[str, float]:
    """Seconds that each limit of a GPU holds a call for at least.

    Its useful FLOPs at the rated "peak" and boost clock, its "rate of exponentials", and at the "bandwidth" the bytes
    of HBM that come from outside or stay, each once, less what a warm L2 holds and what the L2 keeps of the results
    (Williams, Waterman and Patterson, CACM 52(4), 2009, with a ceiling for exponentials).

    Parameters
    ----------
    schedule : Schedule
        Whose tensors and formats they are. Of forms that do less than the convention counts (no recomputation, fewer
        exponentials) it says how much.
    useful : Useful
    gpu : Gpu
    cache : str
        As for `predict`.
    """
    clks = gpu.sm.count * max(gpu.clock.boost_hz, gpu.clock.full_hz)
    flops_per_clk = max(gpu.tensor_flops_per_clk(kernel.dtype) for kernel in schedule.kernels)
    read = {use.tensor for kernel in schedule.kernels for use in kernel.uses if not use.written}
    moved = {"load": 0, "store": 0}
    for (_, kind, tensor), size in schedule.compulsory().items():
        stays = kind == "load" or tensor not in read  # what only goes from kernel to kernel may not stay
        moved[kind] += size * stays
    kept = {"load": gpu.l2.capacity_bytes * (cache != "cold"), "store": gpu.l2.capacity_bytes}
    left = sum(max(0, size - kept[kind]) for kind, size in moved.items())
    return {
        "peak": min(useful.flops, schedule.total("flops")) / (flops_per_clk * clks),
        "rate of exponentials": min(useful.exponentials, schedule.total("exps")) / (gpu.sm.exp_per_clk * clks),
        "bandwidth": left / gpu.hbm.bandwidth_bytes_per_s,
    }
