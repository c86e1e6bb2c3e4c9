"""Jobs, numbers that are fitted together: those of ``models/calibrations/jobs.yaml``, and one for each measured GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

from attnsim.errors import InputError, nearest
from attnsim.files import read_typed
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, OWN_KERNELS, find_implementation
from attnsim.validation.measured.datasets import Row, published_rows
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.own_runs import own_rows


@dataclass(frozen=True, slots=True)
class Job:
    """A job: the numbers that are fitted together.

    Parameters
    ----------
    name : str
    gpu : str
        GPU whose rows are fitted on.
    free : mapping of str to tuple of str
        Numbers to fit, by implementation.
    sources : tuple of str
        Keys of the measurements.
    others : tuple of str
        Further GPUs whose rows are used.
    """

    name: str
    gpu: str
    free: Mapping[str, tuple[str, ...]]
    sources: tuple[str, ...]
    others: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The measured rows that the job is fitted on."""
        return tuple(
            row
            for row in (*published_rows(), *own_rows())
            if row.case.source in self.sources
            and row.record.name in self.free
            and row.gpu.base_id in (self.gpu, *self.others)
            and usable(row)
        )


_JOBS = Path(str(resources.files("attnsim.models").joinpath("calibrations", "jobs.yaml")))


@dataclass(frozen=True, slots=True)
class _File:
    sets: Mapping[str, tuple[str, ...]]
    jobs: tuple[Job, ...]


@lru_cache(maxsize=1)
def jobs() -> tuple[Job, ...]:
    """The committed jobs, in their order; then those of our own measurements."""
    committed = read_jobs(_JOBS)
    return (*committed, *own_jobs(own_rows(), committed))


def own_jobs(rows: Iterable[Row], committed: Sequence[Job]) -> Iterator[Job]:
    """A job ``own-GPU`` for each GPU that our kernels were measured on.

    A kernel's free numbers are those of the first implementation down its chain of `like` that a committed job fits.
    Other people's kernels measured beside ours stay a test: their numbers come from published rows.
    """
    ours = {record.name for record in OWN_KERNELS}
    mine = [row for row in rows if row.record.name in ours]
    for gpu in dict.fromkeys(row.gpu.base_id for row in mine):
        here = [row for row in mine if row.gpu.base_id == gpu]
        free = {name: numbers_like(name, committed) for name in dict.fromkeys(row.record.name for row in here)}
        yield Job(f"own-{gpu}", gpu, free, tuple(dict.fromkeys(row.case.source for row in here)))


def numbers_like(name: str, committed: Sequence[Job]) -> tuple[str, ...]:
    """The numbers that a job frees of an implementation, or of the one whose calibration stands in for it, and so on.

    Raises
    ------
    InputError
        Where none is ever fitted.
    """
    like = name
    while like:
        for job in committed:
            if like in job.free:
                return job.free[like]
        like = IMPLEMENTATIONS[like].like
    raise InputError(f"{name} is like nothing that is fitted: give its record a `like` that jobs.yaml names")


def read_jobs(path: Path) -> tuple[Job, ...]:
    """The jobs of a file.

    Raises
    ------
    InputError
        One line on the first fault: an unknown key, GPU, implementation or number, or a name given twice.
    """
    found = read_typed(path, "job", _File)
    try:
        read = tuple(_checked(job, found.sets) for job in found.jobs)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    names = [job.name for job in read]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path.name}: job {twice[0]} is given twice; keep one")
    return read


def _checked(job: Job, sets: Mapping[str, tuple[str, ...]]) -> Job:
    """The job with each set of numbers in full and the implementations' own names."""
    for gpu in (job.gpu, *job.others):
        load_gpu(gpu)
    free = {}
    for owner, names in job.free.items():
        expanded = tuple(number for name in names for number in sets.get(name, (name,)))
        _refuse_unknown(expanded, IMPLEMENTATION_NUMBERS, job.name)
        free[find_implementation(owner).name] = expanded
    return replace(job, free=free)


def _refuse_unknown(names: Iterable[str], known: Iterable[str], job: str) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"job {job}: number {name!r} is not known; {nearest(name, known)}")


def separate(every: Iterable[Job]) -> Iterable[Job]:
    """Jobs taken apart by implementation, which share no number: smaller problems with the same answer."""
    for job in every:
        for owner, names in job.free.items():
            yield replace(job, name=f"{job.name}:{owner}", free={owner: names})


def chosen(names: Sequence[str]) -> list[Job]:
    """The jobs with these names, taken apart (:func:`separate`); without a name all.

    Parameters
    ----------
    names : sequence of str
        Of whole jobs, or of one implementation of a job as a fit's progress prints it: ``JOB:IMPLEMENTATION``.

    Raises
    ------
    InputError
        Naming the nearest.
    """
    parts = list(separate(jobs()))
    known = list(dict.fromkeys(each for part in parts for each in (part.name.partition(":")[0], part.name)))
    for name in names:
        if name not in known:
            raise InputError(f"fit {name!r} is not known; {nearest(name, known)}; all: {_JOBS.name}")
    return [part for part in parts if not names or {part.name, part.name.partition(":")[0]} & {*names}]
