"""trace: when each unit of an SM does what while it runs a workload."""

from __future__ import annotations

from attnsim.api.building import peak_bytes, shipped
from attnsim.api.choosing import choose_implementation, read_algorithm, read_conditions, read_gpu, without_window
from attnsim.models.calibrations.choose import choose
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.simulator.trace import Trace
from attnsim.simulator.trace import trace as play

MOST_SMS = 16


def trace(
    workload: Workload,
    gpu: Gpu | str,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    cache: str = "warm",
    launch: str = "stream",
    sms: int = 2,
) -> Trace:
    """Replay one algorithm with the shipped tiles and note what the first SMs do.

    Parameters
    ----------
    workload, gpu, algorithm, implementation, cache, launch
        As for :func:`attnsim.predict`.
    sms : int
        SMs to note, where the grid is small enough to be played whole.

    Returns
    -------
    Trace
        Kernels with their slices of time; a large grid is sampled, and each kernel says what is left out.

    Raises
    ------
    InputError
        Bad input, in one line; also where the call does not fit the GPU's memory.

    Examples
    --------
    >>> import attnsim
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=2048, head_dim=128, mask=attnsim.Mask.causal())
    >>> found = trace(question, "a100-sxm4-80gb")
    >>> sorted({piece.unit for piece in found.kernels[0].slices})
    ['block', 'copy', 'softmax', 'store', 'tensor']
    """
    machine = read_gpu(gpu)
    conditions = read_conditions("shipped", None, "fast", cache, launch)
    what = read_algorithm(algorithm)
    if not 1 <= sms <= MOST_SMS:
        raise InputError(f"sms is {sms}; allowed: 1 to {MOST_SMS}")
    record = choose_implementation(what, implementation, workload, machine)
    if peak_bytes(record, workload) > machine.hbm.capacity_bytes:
        raise InputError(f"{record.name} needs more memory than {machine.id} has; take a smaller batch or length")
    numbers = choose(record, machine).numbers
    schedule = shipped(record, workload, machine)
    return play(schedule, machine, numbers, cache=conditions.cache, launch=conditions.launch, sms=sms)


def traces(
    workload: Workload, gpu: Gpu | str, algorithms: list[str], *, cache: str, launch: str, sms: int
) -> list[Trace]:
    """Several algorithms for one question; a window is given to those alone that are asked for one."""
    found = []
    for name in algorithms:
        asked = (
            workload if name == "sliding-window" or read_algorithm(name).group == "sparse" else without_window(workload)
        )
        found.append(trace(asked, gpu, name, cache=cache, launch=launch, sms=sms))
    return found
