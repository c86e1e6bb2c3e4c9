"""One compilation of a CUDA source: the file, its compile-time constants, and what a block of it takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnsim.models.implementations.own.resources import kernel_label

CUDA = Path(__file__).parents[1] / "cuda"
"""Folder of the CUDA sources."""


@dataclass(frozen=True, slots=True)
class Variant:
    """An entry point of a CUDA source at fixed compile-time constants.

    Parameters
    ----------
    source : str
        File name in the folder `cuda`.
    entry : str
        Name of the ``extern "C" __global__`` function; the schedule's kernel has the same name.
    defines : tuple of (str, int or str)
        Compile-time constants, passed as ``-DNAME=VALUE``.
    threads : int
        Threads of a block, a multiple of 32.
    shared_memory_bytes : int
        Dynamic shared memory of a block.
    compute_capability : (int, int)
        Oldest that it runs on.
    arch_suffix : str
        "a" for code that runs on one architecture only (``sm_90a``).
    """

    source: str
    entry: str
    defines: tuple[tuple[str, int | str], ...]
    threads: int
    shared_memory_bytes: int = 0
    compute_capability: tuple[int, int] = (8, 0)
    arch_suffix: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Compiler options apart from the architecture."""
        return ("-std=c++17", f"-I{CUDA}", *(f"-D{name}={value}" for name, value in self.defines))

    @property
    def label(self) -> str:
        """Entry and constants in one word: ``flash_forward(Half,64,...)``."""
        return kernel_label(self.entry, self.defines)

    def text(self) -> str:
        """The CUDA source."""
        return (CUDA / self.source).read_text(encoding="utf-8")
