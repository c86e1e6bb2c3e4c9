"""Sections of other tools' files; numbers are checked as they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsim.errors import InputError, shown
from attnsim.files import read_bytes
from attnsim.models.hardware.figure import Figure, Kind
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """Information about a GPU found in a file.

    Parameters
    ----------
    figures : dict of str to Figure
        By key, ``hbm.bandwidth``.
    like : Gpu
        The known GPU that supplies figures missing from file and rules.
    capability : int
        90 for compute capability 9.0.
    memory : str
        Kind of memory as in GPU files; "" if the file does not state it.
    remarks : tuple of str
        Interpretations that a person should know of.
    likened : bool
        Whether it is a different GPU than `like`, so that figures taken from `like` are assumed.
    """

    name: str
    figures: dict[str, Figure]
    like: Gpu
    capability: int
    memory: str = ""
    remarks: tuple[str, ...] = ()
    likened: bool = False


class Section:
    """A mapping within a file, with its path for messages."""

    def __init__(self, content: object, where: str = "") -> None:
        if not isinstance(content, Mapping):
            raise InputError(f"{where or 'the file'} is {shown(content)}; it should hold keys and values")
        self.content: Mapping[Any, object] = content
        self.where = where

    def path(self, key: str) -> str:
        """Path of a key: ``device.io.global_buffer_MB``."""
        return f"{self.where}.{key}" if self.where else key

    def section(self, key: str) -> Section:
        """The mapping under a key.

        Raises
        ------
        InputError
            If the key is missing.
        """
        if key not in self.content:
            raise InputError(f"{self.path(key)} is missing; add it")
        return Section(self.content[key], self.path(key))

    def number(self, key: str, unit: str = "", default: float | None = None) -> float:
        """A positive number.

        Parameters
        ----------
        unit : str
            Unit in the file, for messages: "bytes/s".
        default : float, optional
            Value if the key is absent.

        Raises
        ------
        InputError
            If the value is missing or not positive.
        """
        given = self.content.get(key)
        if given is None and default is not None:
            return default
        if given is None:
            raise InputError(f"{self.path(key)} is missing; add it as a number{f' in {unit}' if unit else ''}")
        try:
            value = math.nan if isinstance(given, bool) or not isinstance(given, (int, float)) else float(given)
        except OverflowError:
            value = math.inf
        if not 0 < value < math.inf:
            of = f" in {unit}, without the unit" if unit else ""
            raise InputError(f"{self.path(key)} is {shown(given)}; write a positive number{of}")
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.number(key, default=None if default is None else float(default))
        if value != int(value):
            raise InputError(f"{self.path(key)} is {shown(self.content.get(key))}; write a whole number")
        return int(value)

    def text(self, key: str) -> str:
        """Text on one line; "" if absent."""
        value = self.content.get(key)
        return " ".join(filter(str.isprintable, value.split()))[:200] if isinstance(value, str) else ""


def figure(key: str, value: float, kind: Kind, source: str) -> Figure:
    """Make a figure, checked against the range of GPU files, and whole if it counts something.

    Raises
    ------
    InputError
        If the value is out of range or not whole.
    """
    field = FIELDS[key]
    number = float(round(value)) if field.integer and math.isfinite(value) else float(value)
    try:
        field.check(number, field.show(number) if math.isfinite(number) else number)
    except InputError as error:
        raise InputError(f"{key}, by {source}, {error}") from None
    return Figure(number, field.unit, kind, source)


def read_text(path: Path) -> str:
    """The text of a file of at most `MAX_FILE_BYTES`.

    Raises
    ------
    InputError
        If the file is too large or not UTF-8.
    """
    raw = read_bytes(path, MAX_FILE_BYTES, "a hardware file", "hardware files are small")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path.name}: is not UTF-8 text; save it as UTF-8") from None
