"""What a prediction is held against: the closed form of a workload, and the time that no schedule undercuts."""

from attnsim.models.closed_forms.cost import Cost, cost_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import Workload


def cost(w: Workload, gpu: Gpu, implementation: Implementation) -> Cost:
    """Closed form of `w` as `implementation` runs it on `gpu`."""
    return cost_of(w, implementation.build(w, gpu, None))


def roofline_time(cost: Cost, w: Workload, gpu: Gpu) -> float:
    """Seconds that no schedule of this cost undercuts with a cold cache: the slowest unit at datasheet rate.

    Work over peak for the tensor cores (useful FLOPs, or executed ones where a form skips recomputation that
    the convention counts), the exponential unit and HBM with compulsory bytes (Williams, Waterman, Patterson,
    *Roofline*, CACM 52(4), 2009, with a ceiling for the exponentials).
    """
    return max(
        min(cost.flops_useful, cost.flops_executed) / gpu.peak_tensor_flops_per_s(w.dtype),
        min(cost.exponentials, cost.exponentials_needed) / gpu.exp_per_s,
        cost.compulsory_bytes / gpu.hbm.bandwidth_bytes_per_s,
    )
