"""Command-line text for kernels: arguments, ``Q=fp16[2,8,500,64]`` or ``N=500``; functions, ``file.py:name``."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError, nearest
from attnsim.ptx.counters import FORMATS, POISON, encode
from attnsim.ptx.outcome import INPUTS, fill

FLOATS = ("fp16", "bf16", "fp32", "fp64")
CONTENTS = ("empty", "zeros", "range")
"""Contents besides the kinds of inputs: poison (NaN in a float format); zeros; 0, 1, 2, ..."""

FORM = "NAME=FORMAT[SIZES], NAME=FORMAT[SIZES]:CONTENT or NAME=NUMBER"


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument, as written on the command line.

    Parameters
    ----------
    name : str
        Name of the kernel's parameter.
    format : str
        One of :data:`FORMATS`; "" for a number in the format of the kernel's parameter.
    shape : tuple of int or None
        None for a number.
    content : str
        For an array: one of :data:`CONTENTS`, a kind of inputs, or an ``.npy`` file; "" for the kind of the run. For a
        number: its digits.
    """

    name: str
    format: str
    shape: tuple[int, ...] | None
    content: str

    @classmethod
    def parse(cls, text: str) -> Argument:
        """Read ``NAME=FORMAT[SIZES]``, ``NAME=FORMAT[SIZES]:CONTENT``, ``NAME=NUMBER`` or ``NAME=FORMAT:NUMBER``."""
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals or not value:
            raise InputError(f"argument {text!r} is not of the form {FORM}")
        before, colon, content = (part.strip() for part in value.partition(":"))
        kind, bracket, sizes = before.partition("[")
        if not bracket and not colon:
            kind, content = "", kind
        if kind not in FORMATS and (kind or bracket):
            raise InputError(f"argument {name} has format {kind!r}; allowed: {', '.join(FORMATS)}")
        if not bracket:
            found = cls(name, kind, None, content)
            found.number()
            return found
        shape = tuple(int(size) if size.strip().isdecimal() else 0 for size in sizes.removesuffix("]").split(","))
        if not sizes.endswith("]") or min(shape) < 1:
            raise InputError(f"argument {name} has shape '[{sizes}'; give sizes of 1 or more, as {name}={kind}[2,8,64]")
        found = cls(name, kind, shape, content)
        found._check_content()
        return found

    def _check_content(self) -> None:
        known = (*CONTENTS, *(INPUTS if self.format in FLOATS else ()))
        if self.content in known or self.content.endswith(".npy"):
            return
        if self.content or self.format not in FLOATS:
            given = (
                f"holds {self.content!r}" if self.content else f"is of {self.format} and says nothing of its content"
            )
            raise InputError(
                f"argument {self.name} {given}; give {self.name}={self.format}[...]:CONTENT with {', '.join(known)} or "
                "a file NAME.npy"
            )

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes to fill, run and compare the array: two copies in float64, two in its format."""
        return math.prod(self.shape) * 2 * (8 + np.dtype(FORMATS[self.format]).itemsize) if self.shape else 0

    def number(self) -> int | float:
        """Parse the content as a number.

        Raises
        ------
        InputError
            If the content is not a number.
        """
        word = self.content.lower()
        if word in ("true", "false"):
            return word == "true"
        with contextlib.suppress(ValueError):
            return int(word, 0)
        with contextlib.suppress(ValueError):
            return float(word)
        raise InputError(f"argument {self.name} is {self.content!r}; allowed: {FORM}")

    def value(self, inputs: str, random: np.random.Generator) -> NDArray[Any] | np.generic | int | float:
        """Return the array or number that the kernel receives.

        Parameters
        ----------
        inputs : str
            Kind of inputs for arrays without a content.

        Raises
        ------
        InputError
            For a number that the format does not hold, or a file that does not fit.
        """
        if self.shape is None:
            return in_format(self.name, self.number(), FORMATS[self.format]) if self.format else self.number()
        dtype, kind = np.dtype(FORMATS[self.format]), self.content or inputs
        if kind == "empty":
            return np.full(self.shape, POISON, np.uint8).repeat(dtype.itemsize, axis=-1).view(dtype)
        if kind == "zeros":
            return np.zeros(self.shape, dtype)
        if kind == "range":
            return self._encoded(np.arange(int(np.prod(self.shape)), dtype=np.float64).reshape(self.shape))
        return self._read(Path(kind)) if kind.endswith(".npy") else self._encoded(fill(self.shape, kind, random))

    def _encoded(self, values: NDArray[np.float64]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            return encode(values, self.format) if self.format == "bf16" else values.astype(FORMATS[self.format])

    def _read(self, path: Path) -> NDArray[Any]:
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"argument {self.name}: {path} is no array that NumPy can read: {error}") from None
        if found.shape != self.shape or found.dtype != FORMATS[self.format]:
            wanted = f"{FORMATS[self.format]} {list(self.shape or ())}"
            raise InputError(f"argument {self.name} is {wanted}, {path} holds {found.dtype} {list(found.shape)}")
        return np.ascontiguousarray(found)


def parse_arguments(texts: Iterable[str]) -> list[Argument]:
    """Parse arguments in order; each name must be unique."""
    found = [Argument.parse(text) for text in texts]
    names = [one.name for one in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"argument {twice} is given {names.count(twice)} times; give each once")
    return found


def in_format(name: str, number: int | float, dtype: str) -> np.generic:
    """Convert a number to a format; raises InputError if the format cannot hold it."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        if not float(number).is_integer() or not limits.min <= number <= limits.max:
            raise InputError(f"argument {name} is {number}; its parameter is {kind}, {limits.min} to {limits.max}")
        return kind.type(int(number))  # type: ignore[no-any-return]
    return kind.type(number)  # type: ignore[no-any-return]


def load_named(text: str) -> Any:
    """Import the object named ``FILE.py:NAME`` or ``MODULE:NAME``; modules are also looked up in the working directory.

    Raises
    ------
    InputError
        When there is no such file, module or name, or importing it fails.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise InputError(f"{text!r} is not of the form FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        needed = "" if error.name == where.partition(".")[0] else f"; install {error.name}, which it needs"
        raise InputError(f"{where} cannot be imported: {error}{needed}") from None
    except (Exception, SystemExit) as error:  # whatever somebody's file does when it is imported
        raise InputError(f"{where} cannot be imported: {type(error).__name__}: {error}") from None
    try:
        return getattr(module, name)
    except AttributeError:
        names = [one for one in vars(module) if not one.startswith("_")]
        raise InputError(f"{where} has no {name}; {nearest(name, names)}") from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"{path}: no such file; give FILE.py:FUNCTION")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # its name ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # Triton reads the source of a kernel by its module
    spec.loader.exec_module(module)
    return module


def _from_path(name: str) -> ModuleType:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)
