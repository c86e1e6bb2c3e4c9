"""Who measured a row, with which software, and what the row may be used for: fitting, choosing, testing or none of it.

The published tables' sources stand in ``measurements/published/sources.csv``, the use of every source and of every
table of aiconfigurator-core in ``measurements/split.yaml``.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal

from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, VERSION

Role = Literal["fit", "choose", "test", "strangers"]
ROLES: tuple[Role, ...] = ("fit", "choose", "test", "strangers")
KNOWN = ROLES[:-1]
"""Roles whose errors the widths of ranges are measured on; neither fits nor widths rest on strangers."""

MEASUREMENTS = Path(__file__).parents[1] / "measurements"
PUBLISHED = MEASUREMENTS / "published"
"""Published tables, each under its sources in ``sources.csv``; see the README there for what each is."""
BATCHES = MEASUREMENTS / "batches"
"""The same of calls whose sequences differ in length."""

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
        Who measured: one group of people with their machines and scripts.
    software : str
        Library and version that ran, "vllm 0.24.0"; "" where the source does not state one, or ran several.
    clock_mhz : float or None
        SM clock that was held for all of its rows; None where none is stated.
    tables : tuple of str
        Names of the files that its rows stand in.
    role : str
    """

    name: str
    laboratory: str
    software: str
    clock_mhz: float | None
    tables: tuple[str, ...]
    role: Role


@dataclass(frozen=True, slots=True)
class Split:
    """The file: the role of each source, and of each table of aiconfigurator-core by pattern."""

    published: Mapping[str, Role]
    batches: Mapping[str, Role]
    aiconfigurator: Mapping[str, Role]


@lru_cache(maxsize=1)
def split() -> Split:
    """The committed split."""
    return read_typed(MEASUREMENTS / "split.yaml", "split", Split)


@lru_cache(maxsize=1)
def sources() -> dict[str, Source]:
    """The published sources by key, in their order.

    Raises
    ------
    InputError
        Where the split names another set of sources.
    """
    return _read_sources(PUBLISHED, split().published)


@lru_cache(maxsize=1)
def batch_sources() -> dict[str, Source]:
    """The sources of calls whose sequences differ in length, by key.

    Raises
    ------
    InputError
        Where the split names another set of sources.
    """
    return _read_sources(BATCHES, split().batches)


def _read_sources(folder: Path, roles: Mapping[str, Role]) -> dict[str, Source]:
    rows = list(csv.DictReader((folder / "sources.csv").read_text("utf-8").splitlines()))
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
    """What the rows of a source may be used for; `source` as a case has it.

    Raises
    ------
    InputError
        Where the split does not say.
    """
    if (found := sources().get(source)) is not None:
        return found.role
    table = _serving_table(source)
    for pattern, role in split().aiconfigurator.items():
        if fnmatchcase(table, pattern):
            return role
    raise InputError(f"split.yaml gives {source!r} no role; add it as {', '.join(ROLES)}")


def laboratory_of(source: str) -> str:
    """Who measured the rows of a source."""
    found = sources().get(source)
    return found.laboratory if found else SERVING if _serving_table(source) else source


def software_of(source: str, library: str) -> str:
    """Version of a library that a source ran, "vllm 0.24.0"; "" where it does not say, or ran another library."""
    found = sources().get(source)
    framework, _, version = _serving_table(source).partition("/")[2].partition("/")
    ran = found.software if found else f"{framework} {version}".replace("trtllm", "tensorrt-llm")
    return ran if ran.partition(" ")[0] == library else ""


def source_of(source: str) -> str:
    """What a case's source is called: its key, or SYSTEM/FRAMEWORK/VERSION of aiconfigurator-core."""
    return _serving_table(source) or source


def _serving_table(source: str) -> str:
    """``SYSTEM/FRAMEWORK/VERSION`` of a source that is a table of aiconfigurator-core, "" for others."""
    package, _, name = source.partition("/")
    if package != f"{PACKAGE}-{VERSION}":
        return ""
    system, _, framework, version, *_ = name.split("/")
    return f"{system}/{framework}/{version}"
