"""Lookup of implementations by name.

A name stands for the code behind a column of measurements; its meaning may depend on GPU, version and workload.
"""

from __future__ import annotations

import copyreg
import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnsim.errors import InputError, some
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation, sizing
from attnsim.models.implementations.names import (
    MEANINGS,
    NOBODY,
    OWNERS,
    SERVING,
    Meaning,
    meanings_of,
    plain,
    version_distance,
    version_in,
    version_number,
    version_of,
    version_parts,
    versions_differ,
    versions_of,
)
from attnsim.models.implementations.options import came_later
from attnsim.models.implementations.registry import (
    IMPLEMENTATIONS,
    OWN_KERNELS,
    normalising,
    runs_on,
)
from attnsim.models.question.workload import Workload

__all__ = ["IMPLEMENTATIONS", "OWN_KERNELS", "Match", "find_implementation", "match", "runs_on", "settled_name"]

_NAMES = {name: record for record in IMPLEMENTATIONS.values() for name in (*record.aliases, record.name)}
_PLAIN = {plain(name): record for name, record in _NAMES.items() if "*" not in name}
_LIBRARIES = {record.library for record in IMPLEMENTATIONS.values()}


@dataclass(frozen=True, slots=True)
class Match:
    """Result of a lookup.

    Parameters
    ----------
    record : Implementation
        The implementation that was found.
    taken : str
        Description of the implementation that was taken instead of the named one; empty if they are the same.
    caller : Implementation, optional
        The named call, if it chooses among implementations and has chosen `record`.
    version : str
        The named version.
    """

    record: Implementation
    taken: str = ""
    caller: Implementation | None = None
    version: str = ""

    @property
    def assumed(self) -> str:
        """Remark on the version taken if none was named; empty if one was, or if versions do not differ."""
        if self.version or not self.record.versions:
            return ""
        return f"version empty, taken as {self.record.versions[-1]}"


def find_implementation(name: str) -> Implementation:
    """The record behind a name (:func:`match`).

    Raises
    ------
    InputError
        Naming the nearest known names.
    """
    return match(name).record


def _reduced(one: Implementation) -> Any:
    """How a record is pickled: by its name, as its functions cannot be; one that was changed as any object."""
    known = "@" in one.name or IMPLEMENTATIONS.get(one.name) is one
    return (find_implementation, (one.name,)) if known else one.__reduce_ex__(2)


copyreg.pickle(Implementation, _reduced)

OF_OTHERS = {"tile", "wave", "pod", "cascade", "radial", "paged", "manual", "ck", "tk", "te", "svg"}
"""Names of kernels that table columns also use for other things."""


def is_named(name: str) -> bool:
    """Return whether a name is that of an implementation or a library, on any GPU."""
    if plain(name) in OF_OTHERS:
        return False
    try:
        return bool(name and match(name))
    except InputError:
        return name.strip().lower().replace("_", "-") in _LIBRARIES or any(
            one.whose != NOBODY for one in meanings_of(name.strip())
        )


def settled_name(name: str) -> str:
    """Name of the record behind a name; the name itself if a version, the GPU or the workload decides.

    Raises
    ------
    InputError
        Naming the nearest known names.
    """
    found, key = match(name).record, name.strip()
    if "@" in key or (key.lower() not in IMPLEMENTATIONS and meanings_of(key)):
        return key
    return found.name


def match(name: str, version: str = "", gpu: Gpu | None = None, w: Workload | None = None, whose: str = "") -> Match:
    """Find the record of a name for a version, a GPU and a workload, as far as these are known.

    - Names with the meaning that their owners give them are in ``names.csv``.
    - Other names are those of records, aliases, or a library, of which the nearest version is taken.
    - The text after an @ is a number of features or projected keys if the record has one to choose (`sized`); otherwise
      a version of the library.
    - A call that chooses among implementations (`picks`) stands for the one that it runs.

    Parameters
    ----------
    name : str
        ``library.kernel``, ``library.kernel@version``, an alias, a library alone, or a common name.
    version : str
        As a measurement table states it: "2.8.3", "vllm 0.24.0", "torch 2.6, flash-attn 2.7".
    whose : str
        Owner of the name if the name does not give it: "transformers". By default the owner of the version.

    Raises
    ------
    InputError
        Naming the nearest known names.
    """
    key, at, number = name.strip().partition("@")
    record = _NAMES.get(key.lower())
    if record is not None and record.sized is not None and at:
        twin = record.sized(sizing(number, name))
        return Match(replace(twin, build=normalising(twin)), _taken(twin, version))
    if at and not version_number(number):
        raise InputError(f"{name!r} has {number!r} after the @; write a version such as 0.24")
    stated = version.strip()
    found = _found(key, number or stated, gpu, w, whose)
    if found is None and not at:
        key, number = version_in(key)
        found = _found(key, number, gpu, w, whose) if number else None
    if number and stated not in ("", number) and not versions_of(stated):
        raise InputError(f"implementation {name!r} and version {stated!r} name two versions; leave one of them out")
    if found is None:
        raise InputError(_unknown(key.lower(), name))
    if at and not found.record.versions:
        sized = ", ".join(f"{one.name}@N" for one in IMPLEMENTATIONS.values() if one.sized)
        raise InputError(
            f"{found.record.name} has no number to choose and no versions, {name!r} gives one; those that have a "
            f"number: {sized}"
        )
    picks = found.record.picks
    if picks is None or w is None or gpu is None:
        return found
    chooses = version_of("torch" if found.record.library == "transformers" else found.record.library, found.version)
    given = chooses if versions_of(found.version) or found.record.library != "transformers" else ""
    name = picks(w, gpu, given)
    same = IMPLEMENTATIONS[name].library == found.record.library  # otherwise the version is that of the caller
    picked = match(name, found.version if same else "", gpu, w)
    newest = f", as in version {found.record.versions[-1]}" if found.record.versions and not given else ""
    remarks = (found.taken, f"{found.record.name} runs {picked.record.name} here{newest}", picked.taken)
    return Match(picked.record, "; ".join(filter(None, remarks)), found.record, found.version)


def _found(key: str, version: str, gpu: Gpu | None, w: Workload | None, whose: str) -> Match | None:
    """Match of a name; None if nothing has this name."""
    low = key.lower()
    whose = whose or next((what for what in versions_of(version) if OWNERS.get(what) in SERVING), "")
    if low in IMPLEMENTATIONS:
        lines = tuple(one for one in MEANINGS if low in one.spellings)
    else:
        lines = meanings_of(key, whose, bare=low in _NAMES)
    return _in_table(key, lines, version, gpu, w) or _by_record(low, version, key)


def _in_table(name: str, lines: Sequence[Meaning], version: str, gpu: Gpu | None, w: Workload | None) -> Match | None:
    """Match by the lines of a name in the table; None if there are none, or only for other versions."""
    held = [one for one in lines if one.holds(version_of(one.whose, version), gpu, w)]
    able = [one for one in held if not one.implementation or w is None or _suits(_of(one), w)] or held
    if gpu is None:  # on some GPU it is this
        able = [one for one in able if one.implementation] or able
    if able and able[0].implementation:
        record, note = _of(able[0]), able[0].note
        remark = f"{record.name} taken for {name}: {note}" if note else ""
        taken = "; ".join(filter(None, (remark, _taken(record, version))))
        return Match(_versioned(record, version), taken, version=version)
    if not lines or (not held and name.lower() in _NAMES):
        return None
    where = "" if gpu is None else f" on {gpu.id} ({gpu.sm_arch})"
    nearest = able[0].nearest if able else lines[0].implementation or lines[0].nearest
    why = f": {able[0].note}" if able and able[0].note else ""
    raise InputError(f"{name} is not modelled{where}{why}; nearest that is: {nearest}")


def _suits(record: Implementation, w: Workload) -> bool:
    able = (not w.page_size or bool(record.pages)) and (w.dtype in record.dtypes or record.picks is not None)
    return able and w.passes in record.passes and max(w.head_dim, w.head_dim_v) <= record.largest_head_dim


def _of(meaning: Meaning) -> Implementation:
    return IMPLEMENTATIONS[meaning.implementation]


def _by_record(key: str, version: str, name: str) -> Match | None:
    """Match of a record's name, an alias or a library; None if it is none of these."""
    record, library = _NAMES.get(key) or _PLAIN.get(plain(key)), key.replace("_", "-")
    if library in _LIBRARIES and (record is None or version):
        record = _of_library(library, version, record)
    if record is not None:
        return Match(_versioned(record, version), _taken(record, version), version=version)
    for record in IMPLEMENTATIONS.values():
        for alias in record.aliases:
            if alias.endswith("*") and key.startswith(alias[:-1]):
                number = key.removeprefix(alias[:-1].rstrip("0123456789.")).lstrip("_.-")
                if version_number(number) == number != "":
                    return Match(_versioned(record, number), _taken(record, number), version=number)
    return None


def _unknown(key: str, name: str) -> str:
    """Message that a name is unknown, with the nearest known ones."""
    known = {spelling for one in MEANINGS for spelling in one.spellings} | set(_NAMES)
    alike = difflib.get_close_matches(key, sorted(known), 3, 0.6)
    near = ", ".join(dict.fromkeys(_NAMES[one].name if one in _NAMES else _told(one) for one in alike))
    instead = (
        f"nearest: {near}; see `attnsim implementations`" if near else "`attnsim implementations` lists those that are"
    )
    return f"implementation {name!r} is not known; {instead}"


def _told(name: str) -> str:
    """Record that a name stands for on some GPU, or the nearest to it."""
    first = next(one for one in MEANINGS if name in one.spellings)
    return first.implementation or first.nearest


def _of_library(library: str, version: str, usual: Implementation | None) -> Implementation:
    """A library's implementation of the nearest version; without a version, its usual or only one."""
    able = [one for one in IMPLEMENTATIONS.values() if one.library == library]
    if version and any(one.versions for one in able):
        nearest = min(version_distance(known, version) for one in able for known in one.versions)
        able = [one for one in able if any(version_distance(known, version) == nearest for known in one.versions)]
    if usual is not None and usual in able:
        return usual
    if len(able) == 1:
        return able[0]
    raise InputError(
        f"implementation {library!r} is a library; name one of its kernels: "
        f"{some([one.name for one in able], 'attnsim implementations', 12)}"
    )


def _versioned(record: Implementation, version: str) -> Implementation:
    """The record with the given version, if versions differ in known properties."""
    own = version_of(record.library, version)
    known = own and (versions_differ(record) or came_later(record.name, own))
    return replace(record, version=own) if known else record


def _taken(record: Implementation, version: str) -> str:
    """Remark on a version: empty if the record stands for it, otherwise the version that was taken."""
    if not version:
        return ""
    if record.picks is not None:
        return ""  # it chooses by the version
    if not record.versions:
        return f"{record.name} has one version here, taken for {version}"
    if not version_number(version):
        raise InputError(f"version is {version!r}; write numbers, such as 2.8.3 or 'vllm 0.24.0', or leave it empty")
    own = version_of(record.library, version)
    nearest = min(record.versions, key=lambda known: version_distance(known, own)) if own else record.versions[-1]
    wanted, have = version_parts(own), version_parts(nearest)
    common = min(len(wanted), len(have))
    if own and wanted[:common] == have[:common]:
        return ""
    return f"{record.name} of version {nearest} taken for {version}"
