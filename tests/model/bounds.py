"""What a prediction is held against: useful work, and the time that no schedule undercuts."""

from attnsim.models.closed_forms.useful import Useful
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mechanisms import running
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def useful(w: Workload, implementation: str) -> Useful:
    """Useful work of `w`, by the convention of the mechanism that `implementation` runs."""
    return running(find_implementation(implementation))[0].useful(w)


def compulsory(schedule: Schedule) -> int:
    """HBM bytes with perfect reuse."""
    return sum(schedule.compulsory().values())


def requested(schedule: Schedule) -> int:
    """HBM bytes without any reuse."""
    return sum(schedule.requested().values())


def roofline_time(schedule: Schedule, w: Workload, gpu: Gpu) -> float:
    """Seconds that no schedule with this one's work undercuts with a cold cache: the slowest unit at datasheet rate.

    Work over peak for the tensor cores (useful FLOPs, or executed ones where a form skips recomputation that
    the convention counts), the exponential unit and HBM with compulsory bytes (Williams, Waterman, Patterson,
    *Roofline*, CACM 52(4), 2009, with a ceiling for the exponentials).
    """
    least = useful(w, schedule.implementation)
    return max(
        min(least.flops, schedule.total("flops")) / gpu.peak_tensor_flops_per_s(w.dtype),
        min(least.exponentials, schedule.total("exps")) / gpu.exp_per_s,
        compulsory(schedule) / gpu.hbm.bandwidth_bytes_per_s,
    )
