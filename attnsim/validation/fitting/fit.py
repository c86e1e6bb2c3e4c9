"""Fit the calibrations: each job on all of its rows, then again without each group of rows.

The numbers of the fits without a group are kept in the calibration file as its folds: they predict the rows that they
did not see.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attnsim.models.calibrations.calibration import Fold, calibrations, gpu_calibrations
from attnsim.models.calibrations.numbers import GpuNumbers, ImplementationNumbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.validation.fitting.jobs import Job, jobs, separate
from attnsim.validation.fitting.problem import Problem
from attnsim.validation.fitting.records import gpu_file, implementation_file, write_yaml
from attnsim.validation.fitting.solver import Solution, solve
from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.groups import groups

FITTED_ROWS = 70
"""Larger sets of rows are thinned evenly to about this many for the fit, not for its errors: neighbours on a dense grid
tell nothing new."""
HELD_COST = 1.02
"""Undetermined numbers are fixed at their priors if that raises the mean error by at most 2 %. Numbers that are each
undetermined alone may be determined together: fixing them on PyTorch's unfused rows took the error from 12.5 to
20.5 %."""

Told = Callable[[str], None]
"""Called with one line of progress."""


def fit(folder: Path, names: Sequence[str] = (), progress: Told = lambda line: None) -> list[Path]:
    """Run the jobs in order and write the calibration files.

    Parameters
    ----------
    folder : Path
        ``models/calibrations`` of the source tree.
    names : sequence of str
        Jobs to run; the others keep their files. Empty runs all.
    progress : callable
        Told one line per job.
    """
    known = {gpu: numbers for gpu, (_, numbers) in gpu_calibrations().items()}
    begin = {name: c.numbers for (name, _), c in calibrations().items()}
    written = []
    for job in separate(jobs()):
        if names and not any(job.name.startswith(name) for name in names):
            continue
        best, folds, problem = fit_job(job, known, begin, progress=progress)
        known[job.gpu] = next(iter(best.numbers.values())).gpu
        begin |= {owner: numbers.implementation for owner, numbers in best.numbers.items()}
        if job.gpu_free:
            written.append(write_yaml(folder / "gpus" / f"{job.gpu}.yaml", gpu_file(job, best, problem)))
        for owner in job.free:
            path = folder / "implementations" / f"{owner}.{problem.rows[0].gpu.architecture}.yaml"
            written.append(write_yaml(path, implementation_file(job, owner, best, folds, problem)))
    return written


def fit_job(
    job: Job,
    known: Mapping[str, GpuNumbers],
    begin: Mapping[str, ImplementationNumbers],
    *,
    iterations: int = 9,
    progress: Told = lambda line: None,
) -> tuple[Solution, dict[Fold, Solution], Problem]:
    """Fit a job, then again without each group.

    Parameters
    ----------
    job : Job
    known : mapping of str to GpuNumbers
        By GPU: what earlier jobs fitted.
    begin : mapping of str to ImplementationNumbers
        By implementation: where the fit starts.
    iterations : int
        Most evaluations of the Jacobian; a quarter of them without a group.
    progress : callable

    Returns
    -------
    best : Solution
        On all rows.
    folds : dict of (str, str) to Solution
        By split and the group that was left out.
    problem : Problem
        With the numbers that stayed free, and all rows.
    """
    from joblib import Parallel, delayed

    rows = job.rows
    whole = _problem(job, known, begin)
    problem, best = _held_where_open(job, replace(whole, rows=_thinned(whole.rows)), iterations, progress)
    progress(f"{job.name}: {len(rows)} rows, {len(whole.keys)} numbers, {_errors(problem, best.units)}")
    found = {split: sorted({groups(row)[split] for row in rows}) for split in ("band", "head_dim")}
    folds = [(split, group) for split, some in found.items() for group in some if len(some) > 1]
    solved = Parallel(n_jobs=min(2, os.cpu_count() or 1))(
        delayed(_without)(problem, fold, best.units, max(2, iterations // 4)) for fold in folds
    )
    return best, dict(zip(folds, solved, strict=True)), replace(problem, rows=rows)


def _problem(job: Job, known: Mapping[str, GpuNumbers], begin: Mapping[str, ImplementationNumbers]) -> Problem:
    """The problem on all rows of a job, from the numbers that its GPU and implementations have or borrow."""
    keys = tuple(("", name) for name in job.gpu_free)
    keys += tuple((owner, name) for owner, names in job.free.items() for name in names)
    gpu = known.get(job.gpu) or replace(known.get(job.like, GpuNumbers()), hbm_fraction=None)
    records = {
        owner: begin.get(owner) or begin.get(IMPLEMENTATIONS[owner].like) or ImplementationNumbers()
        for owner in job.free
    }
    others = {name: known.get(name) or replace(gpu, hbm_fraction=None, clock_fraction=1.0) for name in job.others}
    return Problem(job.rows, keys, gpu, records, others, load_gpu(job.gpu).hbm.achievable_fraction)


def _thinned(rows: Sequence[Row]) -> tuple[Row, ...]:
    return tuple(rows[:: max(1, round(len(rows) / FITTED_ROWS))])


def _held_where_open(job: Job, problem: Problem, iterations: int, progress: Told) -> tuple[Problem, Solution]:
    """The solution; with undetermined numbers fixed at their priors where `HELD_COST` allows it."""
    best = solve(problem, problem.start(), iterations)
    undetermined = best.undetermined(problem.keys)
    if not undetermined:
        return problem, best
    fewer = problem.held_at_prior(undetermined)
    held = solve(fewer, fewer.start(), iterations)
    then, now = (float(np.abs(one.residuals(found.units)).mean()) for one, found in ((problem, best), (fewer, held)))
    cheap = now <= HELD_COST * then
    names = ", ".join(" ".join(key).strip() for key in undetermined)
    progress(f"{job.name}: {'held at' if cheap else 'not held at'} the prior: {names} ({then:.1%}, {now:.1%})")
    return (fewer, held) if cheap else (problem, best)


def _without(problem: Problem, fold: Fold, start: NDArray[np.float64], iterations: int) -> Solution:
    split, group = fold
    rest = tuple(row for row in problem.rows if groups(row)[split] != group)
    return solve(replace(problem, rows=rest), start, iterations)


def _errors(problem: Problem, units: NDArray[np.float64]) -> str:
    errors = np.abs(np.exp(problem.residuals(units)) - 1)
    return f"mean {errors.mean():.1%}, median {np.median(errors):.1%}, worst {errors.max():.1%} (fitted rows)"
