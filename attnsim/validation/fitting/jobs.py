"""What is fitted together: the jobs of ``models/calibrations/jobs.yaml``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path

from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError

from attnsim.models.calibrations.numbers import GPU_NUMBERS, IMPLEMENTATION_NUMBERS
from attnsim.models.errors import InputError, nearest
from attnsim.models.files import read_yaml
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.validation.measured.datasets import Row, published_rows
from attnsim.validation.measured.groups import usable


@dataclass(frozen=True, slots=True)
class Job:
    """What is fitted together.

    Parameters
    ----------
    name : str
    gpu : str
        GPU whose numbers are fitted or used.
    gpu_free : tuple of str
        GPU numbers to fit; empty: those of an earlier job are used.
    free : mapping of str to tuple of str
        Numbers to fit, by implementation.
    sources : tuple of str
        Keys of the measurements.
    like : str
        GPU of an earlier job whose numbers are the start when this GPU has none.
    others : tuple of str
        Further GPUs whose rows are used, with numbers from earlier jobs.
    """

    name: str
    gpu: str
    gpu_free: tuple[str, ...]
    free: Mapping[str, tuple[str, ...]]
    sources: tuple[str, ...]
    like: str = ""
    others: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The published rows that the job is fitted on."""
        return tuple(
            row
            for row in published_rows()
            if row.case.source in self.sources
            and row.record.name in self.free
            and row.gpu.base_id in (self.gpu, *self.others)
            and usable(row)
        )


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: StrictStr
    gpu: StrictStr
    gpu_free: list[StrictStr] = []
    free: dict[StrictStr, list[StrictStr]]
    sources: list[StrictStr]
    like: StrictStr = ""
    others: list[StrictStr] = []


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sets: dict[StrictStr, list[StrictStr]]
    jobs: list[_Entry]


@lru_cache(maxsize=1)
def jobs() -> tuple[Job, ...]:
    """The committed jobs, in their order."""
    return read_jobs(Path(str(resources.files("attnsim.models").joinpath("calibrations", "jobs.yaml"))))


def read_jobs(path: Path) -> tuple[Job, ...]:
    """The jobs of a file.

    Raises
    ------
    InputError
        One line on the first fault: an unknown key, GPU, implementation or number, or a name given twice.
    """
    try:
        found = _File.model_validate(read_yaml(path, "job"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{path.name}: {where}: {first['msg']}; allowed keys stand at the top of the file") from None
    try:
        read = tuple(_job(entry, found.sets) for entry in found.jobs)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    names = [job.name for job in read]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path.name}: job {twice[0]} is given twice; keep one")
    return read


def _job(entry: _Entry, sets: Mapping[str, list[str]]) -> Job:
    for gpu in (entry.gpu, *entry.others, *([entry.like] if entry.like else [])):
        load_gpu(gpu)
    free = {}
    for owner, names in entry.free.items():
        expanded = [number for name in names for number in sets.get(name, [name])]
        free[find_implementation(owner).name] = _known(expanded, IMPLEMENTATION_NUMBERS, entry.name)
    return Job(
        entry.name, entry.gpu, _known(entry.gpu_free, GPU_NUMBERS, entry.name), free, tuple(entry.sources), entry.like,
        tuple(entry.others),
    )  # fmt: skip


def _known(names: Iterable[str], allowed: Iterable[str], job: str) -> tuple[str, ...]:
    known, names = list(allowed), tuple(names)
    for name in names:
        if name not in known:
            raise InputError(f"job {job}: number {name!r} is not known; {nearest(name, known)}")
    return names


def separate(every: Iterable[Job]) -> Iterable[Job]:
    """Jobs with no GPU number to share, taken apart by implementation: smaller problems with the same answer."""
    for job in every:
        if job.gpu_free:
            yield job
        else:
            for owner, names in job.free.items():
                yield replace(job, name=f"{job.name}:{owner}", free={owner: names})
