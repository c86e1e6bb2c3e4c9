"""How a counted step is charged, decided on FlashAttention's own rows: `python benchmarks/stall_counts.py`.

The machine code says how many clocks after each instruction its warp may issue the next, and which results it waits
for; a barrier of the whole block in each step keeps warps from running ahead of one another. Schedules that are written
by hand have none of it. Here those of FlashAttention-2 and -3 are given it or not, and fitted to their measured times
each way: mean error and loss on all rows, and the mean error of rows of a head dimension that the fit has not seen.
Jobs and ways of :data:`JOBS` and :data:`WAYS` may be named; some minutes for each of both.

Barriers: the main loop of FlashAttention-2's backward has several ``__syncthreads`` (``flash_bwd_kernel.h``); those of
FlashAttention-3 are of single warpgroups, so it stays as it is. `attnsim kernels trace` charges foreign kernels as is
decided here.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.kernels.lift.left import Left
from attnsim.models.calibrations.calibration import numbers_of
from attnsim.models.calibrations.choose import priors_of
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.fused.building import in_step
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.validation.fitting.jobs import chosen
from attnsim.validation.fitting.problem import Problem, numbers_on
from attnsim.validation.fitting.solver import Solution, fit_free, fit_numbers
from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.groups import groups

JOBS = ("papers-a100:flash-attn.2", "papers-h100:flash-attn.2", "papers-h100:flash-attn.3")
WAYS = {"issue slots": ("", False), "in step": ("", True), "stall counts": ("stalls", True), "waits": ("waits", True)}
"""What is charged beside issue slots, and whether the backward's warps go in step."""
FITTED_ROWS = 36
WARPS = 4
"""Of a warpgroup."""
COUNTED = {
    ("mma_sync", "flash_fwd", 80): {64: (1.066, 2.11, 1.66), 128: (0.887, 2.87, 2.06), 256: (0.851, 7.77, 1.62)},
    ("mma_sync", "flash_fwd", 90): {64: (0.853, 0.00, 1.45), 128: (0.614, 0.00, 1.47), 256: (0.663, 0.00, 1.65)},
    ("mma_sync", "flash_bwd", 80): {64: (1.458, 3.17, 2.17), 128: (1.436, 3.65, 2.39), 256: (1.157, 7.36, 1.25)},
    ("mma_sync", "flash_bwd", 90): {64: (1.172, 1.53, 1.65), 128: (1.305, 2.03, 1.51), 256: (0.920, 2.18, 0.85)},
    ("wgmma", "flash_fwd", 90): {64: (1.22, 0.00, 1.63), 128: (1.03, 0.00, 1.69), 256: (1.05, 0.00, 1.57)},
    ("wgmma", "flash_bwd", 90): {64: (0.62, 0.00, 0.94), 128: (0.98, 0.00, 1.36), 256: (0.93, 0.00, 1.27)},
}
"""By path, kernel, architecture and head_dim, of the same steps of the same machine code as in
``models/schedule/instructions.csv``. Of each instruction of a step that is neither product nor fragment: clocks for
which a warp may not issue by the stall count behind it. Of each product, and of each other instruction: clocks that
warps wait beyond their pipes (:func:`attnsim.kernels.lift.machine.waits_of`, one warp of a scheduler in step, of
backwards by ``mma.sync`` two). Stall counts of FlashAttention-3's forward, whose compilations differ by a tenth, are
about their middle."""


def charged(kernel: Kernel, w: Workload, gpu: Gpu, waits: str, together: bool) -> Kernel:
    """A kernel with what its warps wait for, or with its warps in step."""
    widths = COUNTED.get((kernel.path, kernel.name, 80 if gpu.compute_capability_number < 90 else 90))
    if widths is None:
        return kernel
    groups = kernel.warpgroups
    if together and kernel.path == "mma_sync" and kernel.name == "flash_bwd":
        kernel = in_step(kernel)
    if not waits:
        return kernel
    stalls, product, other = widths[min(widths, key=lambda one: abs(one - w.head_dim))]
    warps = WARPS * groups // kernel.warpgroups
    unfilled = max(0.0, stalls - (groups // kernel.warpgroups - 1))
    left = Left({}, {}, 0, product, other) if waits == "waits" else Left({}, {}, 0, 0.0, unfilled)
    segments = tuple(replace(one, ops=left.with_waits(one.ops, warps)) for one in kernel.segments)
    return replace(kernel, segments=segments)


def charged_row(row: Row, waits: str, together: bool) -> Row:
    """A row whose implementation launches kernels that are charged so."""
    record = row.record

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        found = record.build(w, gpu, shape)
        return replace(found, kernels=tuple(charged(one, w, gpu, waits, together) for one in found.kernels))

    return replace(row, record=replace(record, build=build))


def problem_of(name: str, way: str) -> Problem:
    """The problem of a job, with its kernels charged in one of the ways."""
    (job,) = chosen([name])
    gpu = load_gpu(job.gpu)
    found = Problem(
        tuple(charged_row(row, *WAYS[way]) for row in job.rows),
        tuple((owner, one) for owner, names in job.free.items() for one in names),
        numbers_of(gpu)[0],
        {owner: priors_of(IMPLEMENTATIONS[owner]) for owner in job.free},
        {one: numbers_of(load_gpu(one))[0] for one in job.others},
        gpu.hbm.achievable_fraction,
    )
    if WAYS[way][0] != "waits":
        return found
    counted = {(owner, "step_clks"): 0.0 for owner in job.free}  # barriers and dependent issue of a step
    return replace(found.with_values(counted), keys=tuple(key for key in found.keys if key not in counted))


def thinned(problem: Problem) -> Problem:
    """As :mod:`attnsim.validation.fitting.fit` thins rows."""
    return replace(problem, rows=problem.rows[:: max(1, round(len(problem.rows) / FITTED_ROWS))])


def errors(problem: Problem, rows: tuple[Row, ...], found: Solution) -> Iterator[float]:
    """Errors of rows with the numbers of a fit."""
    for row in rows:
        numbers = numbers_on(row, found.numbers[row.record.name], problem.others)
        yield abs(row.predict_s(numbers) / row.measured_s - 1)


def main() -> None:
    """Print each job each way."""
    print("job,way,rows,mean_error,loss,unseen_head_dim,numbers")
    given = sys.argv[1:]
    for name in [one for one in given if one not in WAYS] or JOBS:
        for way in [one for one in given if one in WAYS] or WAYS:
            problem = problem_of(name, way)
            best = fit_numbers(thinned(problem))
            widths = Counter(groups(row)["head_dim"] for row in problem.rows)
            unseen = list[float]()
            for width in widths:
                seen = replace(problem, rows=tuple(row for row in problem.rows if groups(row)["head_dim"] != width))
                away = tuple(row for row in problem.rows if groups(row)["head_dim"] == width)
                unseen += errors(problem, away, fit_free(thinned(seen)))
            told = " ".join(
                f"{key[1]}={problem.definition(key).value(unit):.4g}"
                for key, unit in zip(best.keys, best.units.tolist(), strict=True)
            )
            mean = np.mean(list(errors(problem, problem.rows, best)))
            print(
                f"{name},{way},{len(problem.rows)},{mean:.4f},{best.loss:.3f},{np.mean(unseen):.4f},{told}", flush=True
            )


if __name__ == "__main__":
    main()
