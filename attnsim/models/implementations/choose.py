"""The implementations that can be imitated, found by name.

A name stands for the code behind a column of measurements. Each file of this folder has the tiles and the builders of
one library or project, the TOML file of its name beside it what is known of each implementation; nothing is fitted.
"""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import dataclass, replace

from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations import (
    cudnn,
    flash_attention,
    flash_attention_4,
    serving,
    triton,
    trtllm,
    xformers,
)
from attnsim.models.implementations.frameworks import efficient, linformer, performer, pytorch, transformers
from attnsim.models.implementations.implementation import Builder, Implementation, TileRequest, sizing
from attnsim.models.implementations.latent import records as latent
from attnsim.models.implementations.own import backward, decode, flash, hopper, linear, naive, sigmoid, sparse
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

OWN_KERNELS: tuple[Implementation, ...] = (
    *naive.RECORDS,
    *(one.RECORD for one in (decode, sparse, flash, hopper, sigmoid, backward, linear)),
)
"""The schedules of the CUDA kernels in :mod:`attnsim.kernels`."""


def _normalising(record: Implementation) -> Builder:
    """The record's builder for masks and tiles that it plays, without limits that are never reached unless it asks."""

    def normalised(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_mask(record, w)
        if shape is not None and not record.tunable:
            raise InputError(f"{record.name} takes no tile of queries x keys; leave --tile out")
        if record.sees_window:
            return record.build(w, gpu, shape)
        return record.build(w.bounded(), gpu, shape)

    return normalised


def check_mask(record: Implementation, w: Workload) -> None:
    """Refuse patterns in the mask of an implementation that plays none.

    Raises
    ------
    InputError
    """
    if not (w.mask.is_band or record.patterns):
        raise InputError(
            f"{record.name} plays diagonal bands only, the mask is {w.mask}; take attnsim.sparse (--algorithm sparse)"
        )


IMPLEMENTATIONS: dict[str, Implementation] = {
    record.name: replace(record, build=_normalising(record))
    for record in (
        *(pytorch.RECORDS + transformers.RECORDS),
        *(flash_attention.RECORDS + flash_attention_4.RECORDS + serving.RECORDS),
        *(cudnn.RECORDS + trtllm.RECORDS + triton.RECORDS + xformers.RECORDS),
        *latent.RECORDS,
        *OWN_KERNELS,
        *(performer.RECORDS + linformer.RECORDS + efficient.RECORDS),
    )
}


_NAMES = {name: record for record in IMPLEMENTATIONS.values() for name in (*record.aliases, record.name)}
_LIBRARIES = {record.library for record in IMPLEMENTATIONS.values()}
_NUMBER = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True, slots=True)
class Match:
    """What a name stands for.

    Parameters
    ----------
    record : Implementation
    taken : str
        What was taken where that is not what was named; empty where it is.
    """

    record: Implementation
    taken: str = ""


def find_implementation(name: str) -> Implementation:
    """The record behind a name (:func:`match`).

    Raises
    ------
    InputError
        Naming the nearest known names.
    """
    return match(name).record


def match(name: str, version: str = "") -> Match:
    """The record that a name and a version stand for: by name or alias, then by library and nearest version.

    What follows an @ is a number of features or projected keys where the record has one to choose (`sized`), and a
    version of the library everywhere else.

    Parameters
    ----------
    name : str
        ``library.kernel``, ``library.kernel@version``, an alias, or a library alone.
    version : str
        As a measurement table states it: "2.8.3", "vllm 0.24.0".

    Raises
    ------
    InputError
        Naming the nearest known names.
    """
    key, at, number = name.strip().lower().partition("@")
    record = _NAMES.get(key)
    if record is not None and record.sized is not None and at:
        twin = record.sized(sizing(number, name))
        return Match(replace(twin, build=_normalising(twin)), _taken(twin, version))
    if at and not _NUMBER.search(number):
        raise InputError(f"{name!r} has {number!r} after the @; write a version such as 0.24")
    if number and version.strip() not in ("", number):
        raise InputError(f"implementation {name!r} and version {version!r} name two versions; leave one of them out")
    version = number or version.strip()
    library = key.replace("_", "-")
    if library in _LIBRARIES and (record is None or version):
        record = _of_library(library, version, record)
    if record is not None:
        if at and not record.versions:
            sized = ", ".join(f"{one.name}@N" for one in IMPLEMENTATIONS.values() if one.sized)
            raise InputError(
                f"{record.name} has no number to choose and no versions, {name!r} gives one; those that have a "
                f"number: {sized}"
            )
        return Match(record, _taken(record, version))
    for record in IMPLEMENTATIONS.values():
        for alias in record.aliases:
            if alias.endswith("*") and key.startswith(alias[:-1]):
                told = _NUMBER.search(key.removeprefix(alias[:-1].rstrip("0123456789.")))
                return Match(record, _taken(record, told[0]) if told else f"{record.name} taken for {name}")
    alike = difflib.get_close_matches(key, [one for one in _NAMES if not one.endswith("*")], 3, 0.4)
    near = ", ".join(dict.fromkeys(_NAMES[one].name for one in alike) or sorted(IMPLEMENTATIONS)[:3])
    raise InputError(f"implementation {name!r} is not known; nearest: {near}; see `attnsim implementations`")


def _of_library(library: str, version: str, usual: Implementation | None) -> Implementation:
    """Of a library's implementations the one of the nearest version; without one, its only one."""
    able = [one for one in IMPLEMENTATIONS.values() if one.library == library]
    if version and any(one.versions for one in able):
        nearest = min(_distance(known, version) for one in able for known in one.versions)
        able = [one for one in able if any(_distance(known, version) == nearest for known in one.versions)]
    if usual is not None and usual in able:
        return usual
    if len(able) == 1:
        return able[0]
    raise InputError(
        f"implementation {library!r} is a library; name one of its kernels: {', '.join(one.name for one in able)}"
    )


def _taken(record: Implementation, version: str) -> str:
    """What to say of a version: nothing where the record stands for it, else which was taken."""
    if not version:
        return ""
    if not record.versions:
        return f"{record.name} has one version here, taken for {version}"
    if not _NUMBER.search(version):
        raise InputError(f"version is {version!r}; write numbers, such as 2.8.3 or 'vllm 0.24.0', or leave it empty")
    foreign = {word.strip(",;").lower() for word in version.split()} & _LIBRARIES - {record.library}
    nearest = min(record.versions, key=lambda known: _distance(known, version))
    wanted, have = _parts(version), _parts(nearest)
    common = min(len(wanted), len(have))
    if wanted[:common] == have[:common] and not foreign:
        return ""
    return f"{record.name} of version {nearest} taken for {version}"


def _parts(version: str) -> tuple[int, ...]:
    found = _NUMBER.search(version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _distance(one: str, other: str) -> tuple[int, ...]:
    """How far apart two versions are: first by their first numbers, then by the next."""
    return tuple(abs(a - b) for a, b in itertools.zip_longest(_parts(one)[:3], _parts(other)[:3], fillvalue=0))


def check_pages(record: Implementation, page_size: int | None) -> None:
    """Refuse a page size of the cache that an implementation does not stand for.

    Raises
    ------
    InputError
    """
    if page_size is None:
        return
    if record.pages is None:
        able = ", ".join(one.name for one in IMPLEMENTATIONS.values() if one.pages and not one.form)
        raise InputError(
            f"page_size is {page_size}, {record.name} reads K and V in one piece; leave it empty, or take {able}"
        )
    low, high = record.pages
    if not low <= page_size <= high:
        raise InputError(f"page_size is {page_size}; {record.name} stands for pages of {low} to {high} keys")


def runs_on(record: Implementation, gpu: Gpu) -> bool:
    """Whether an implementation has kernels for the GPU."""
    low, high = record.compute_capability
    return low <= gpu.compute_capability_number <= high
