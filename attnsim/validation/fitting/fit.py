"""Fit the calibrations: each job on all of its rows, then again without each group of rows.

The numbers of the fits without a group are kept in the calibration file as its folds: they predict the rows that they
did not see. A fold is fitted as if its rows did not exist: from the priors and other starts, to convergence, with
nothing taken from the fit on all rows. What its rows leave open is near the priors.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from joblib import Parallel, delayed

from attnsim.models.calibrations.calibration import Fold
from attnsim.models.calibrations.numbers import ImplementationNumbers
from attnsim.validation.fitting.jobs import Job, chosen
from attnsim.validation.fitting.problem import Problem
from attnsim.validation.fitting.profiles import profiled
from attnsim.validation.fitting.records import implementation_file, write_yaml
from attnsim.validation.fitting.solver import Solution, fit_free
from attnsim.validation.measured.datasets import Row, error_summary, grouped
from attnsim.validation.measured.groups import groups

FITTED_ROWS = 36
"""Larger sets of rows are thinned evenly to about this many for the fit, not for its errors: neighbours on a dense grid
tell nothing new."""
SMALLEST_GROUP = 4
"""Fewest rows of a group that is left out: fewer say little about an error."""

Told = Callable[[str], None]
"""Called with one line of progress."""


def fit(folder: Path, names: Sequence[str] = (), progress: Told = lambda line: None) -> list[Path]:
    """Run the jobs in order and write the calibration files.

    Parameters
    ----------
    folder : Path
        ``models/calibrations`` of the source tree.
    names : sequence of str
        Jobs to run, whole or of one implementation (`jobs.chosen`); the others keep their files. Empty runs all.
    progress : callable
        Told one line per job.

    Raises
    ------
    InputError
        For a name that no job has.
    """
    written = []
    for job in chosen(names):
        best, folds, problem = fit_job(job, progress=progress)
        architecture = problem.rows[0].gpu.architecture
        for owner in job.free:
            path = folder / "implementations" / f"{owner}.{architecture}.yaml"
            written.append(write_yaml(path, implementation_file(job, owner, best, folds, problem)))
    return written


def fit_job(
    job: Job,
    *,
    progress: Told = lambda line: None,
) -> tuple[Solution, dict[Fold, Solution], Problem]:
    """Fit a job, then again without each group.

    Parameters
    ----------
    job : Job
    progress : callable

    Returns
    -------
    best : Solution
        On all rows.
    folds : dict of (str, str) to Solution
        By split and the group that was left out.
    problem : Problem
        With all rows.
    """
    whole = _problem(job)
    found = Counter((split, group) for row in whole.rows for split, group in groups(row).items())
    wide = Counter(split for split, _ in found)
    folds = [fold for fold in sorted(found) if wide[fold[0]] > 1 and found[fold] >= SMALLEST_GROUP]
    rows = [[row for row in whole.rows if groups(row)[split] != group] for split, group in folds]
    best, *solved = Parallel(n_jobs=min(2, os.cpu_count() or 1))(
        [delayed(profiled)(_on(whole, whole.rows)), *(delayed(fit_free)(_on(whole, some)) for some in rows)]
    )
    progress(_told(job, whole, best, solved))
    return best, dict(zip(folds, solved, strict=True)), whole


def _problem(job: Job) -> Problem:
    """The problem on all rows of a job, with the numbers that are not free at their priors."""
    keys = tuple((owner, name) for owner, names in job.free.items() for name in names)
    return Problem(job.rows, keys, dict.fromkeys(job.free, ImplementationNumbers()))


def _on(problem: Problem, rows: Sequence[Row]) -> Problem:
    """The problem on some of its rows, thinned; a table may have its passes in turns, and all of them count."""
    every = max(1, round(len(rows) / FITTED_ROWS))
    by_pass = grouped(rows, lambda row: (row.record.name, row.case.passes))
    return replace(problem, rows=tuple(row for some in by_pass.values() for row in some[::every]))


def _told(job: Job, problem: Problem, best: Solution, folds: Sequence[Solution]) -> str:
    """One line on a job: its rows and numbers, what they left open, the errors on the fitted rows."""
    open_ = [" ".join(key).strip() for key in problem.keys if key not in best.keys]
    held = f"; at their priors: {', '.join(open_)}" if open_ else ""
    short = sum(not one.converged for one in (best, *folds))
    unfinished = f"; {short} of {1 + len(folds)} fits did not converge" if short else ""
    times = [row.predict_s(best.numbers[row.record.name]) for row in problem.rows]
    errors = error_summary(abs(time / row.measured_s - 1) for row, time in zip(problem.rows, times, strict=True))
    shown = f"mean {errors['mean']:.1%}, median {errors['median']:.1%} (fitted rows)"
    return f"{job.name}: {len(problem.rows)} rows, {len(best.keys)} numbers, {shown}{held}{unfinished}"
