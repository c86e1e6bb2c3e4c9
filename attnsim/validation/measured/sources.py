"""Sources of measured rows: laboratory, software, and role (fit, choose, test, strangers).

``measurements/published/sources.csv`` lists the sources of the published tables; ``measurements/split.yaml`` has the
role of every source and of every table of aiconfigurator-core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal

from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.tables import read_csv
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, VERSION

Role = Literal["fit", "choose", "test", "strangers"]
ROLES: tuple[Role, ...] = ("fit", "choose", "test", "strangers")
KNOWN = ROLES[:-1]
"""Roles whose errors determine the widths of ranges; neither fits nor widths use strangers."""

MEASUREMENTS = Path(__file__).parents[1] / "measurements"
PUBLISHED = MEASUREMENTS / "published"
"""Published tables, with their sources in ``sources.csv``; its README describes each."""
BATCHES = MEASUREMENTS / "batches"
"""Tables of calls with sequences of unequal length, likewise."""

SERVING = "NVIDIA AIConfigurator"
"""The laboratory of every table of aiconfigurator-core."""


@dataclass(frozen=True, slots=True)
class Source:
    """A published source.

    Parameters
    ----------
    name : str
        Its key.
    laboratory : str
        Group of people who measured, with their machines and scripts.
    software : str
        Library and version, "vllm 0.24.0"; "" if the source states none, or ran several.
    clock_mhz : float or None
        Locked SM clock of all its rows; None if none is stated.
    tables : tuple of str
        Names of the files with its rows.
    """

    name: str
    laboratory: str
    software: str
    clock_mhz: float | None
    tables: tuple[str, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class Split:
    """Schema of the file of roles: of each source, and of tables of aiconfigurator-core by pattern."""

    published: Mapping[str, Role]
    batches: Mapping[str, Role]
    aiconfigurator: Mapping[str, Role]


@lru_cache(maxsize=1)
def split() -> Split:
    """Return the committed roles."""
    return read_typed(MEASUREMENTS / "split.yaml", "split", Split)


@lru_cache(maxsize=1)
def sources() -> dict[str, Source]:
    """Return the published sources by key, in order.

    Raises
    ------
    InputError
        Where the split names another set of sources.
    """
    return _read_sources(PUBLISHED, split().published)


@lru_cache(maxsize=1)
def batch_sources() -> dict[str, Source]:
    """Return the sources of calls with sequences of unequal length, by key.

    Raises
    ------
    InputError
        Where the split names another set of sources.
    """
    return _read_sources(BATCHES, split().batches)


def _read_sources(folder: Path, roles: Mapping[str, Role]) -> dict[str, Source]:
    rows = read_csv(folder / "sources.csv")
    if odd := {row["source"] for row in rows} ^ set(roles):
        raise InputError(
            f"split.yaml and sources.csv differ in {', '.join(sorted(odd))}; every source needs one role there"
        )
    return {
        row["source"]: Source(
            row["source"],
            row["laboratory"],
            row["software"],
            float(row["clock_mhz"]) if row["clock_mhz"] else None,
            tuple(row["tables"].split(";")),
            roles[row["source"]],
        )
        for row in rows
    }


def role_of(source: str) -> Role:
    """Return the role of a source; `source` is written as in a case.

    Raises
    ------
    InputError
        If the file of roles does not list it.
    """
    if (found := sources().get(source)) is not None:
        return found.role
    table = _serving_table(source)
    for pattern, role in split().aiconfigurator.items():
        if fnmatchcase(table, pattern):
            return role
    raise InputError(f"split.yaml gives {source!r} no role; add it as {', '.join(ROLES)}")


def laboratory_of(source: str) -> str:
    """Return the laboratory that measured a source."""
    found = sources().get(source)
    return found.laboratory if found else SERVING if _serving_table(source) else source


def software_of(source: str, library: str) -> str:
    """Return the version of a library that a source ran, "vllm 0.24.0"; "" if not stated, or for another library."""
    found = sources().get(source)
    framework, _, version = _serving_table(source).partition("/")[2].partition("/")
    ran = found.software if found else f"{framework} {version}".replace("trtllm", "tensorrt-llm")
    return ran if ran.partition(" ")[0] == library else ""


def source_of(source: str) -> str:
    """Return the name of a case's source: its key, or SYSTEM/FRAMEWORK/VERSION of aiconfigurator-core."""
    return _serving_table(source) or source


def _serving_table(source: str) -> str:
    """Return ``SYSTEM/FRAMEWORK/VERSION`` for a source in aiconfigurator-core, "" for others."""
    package, _, name = source.partition("/")
    if package != f"{PACKAGE}-{VERSION}":
        return ""
    system, _, framework, version, *_ = name.split("/")
    return f"{system}/{framework}/{version}"
