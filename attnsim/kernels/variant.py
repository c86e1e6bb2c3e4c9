"""Variants of our CUDA sources: source, compile-time constants, hash, and compilation."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from attnsim.errors import InputError
from attnsim.models.implementations.own.resources import kernel_label
from attnsim.ptx import compile_cache
from attnsim.ptx.nvrtc import Compiled, CompileError, find_nvrtc

CUDA = Path(__file__).parent / "cuda"
"""Folder of the CUDA sources."""

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


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
        Oldest compute capability that it runs on.
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
        """Entry and constants as one word: ``flash_forward(Half,64,...)``."""
        return kernel_label(self.entry, self.defines)

    def text(self) -> str:
        """Read the CUDA source."""
        return (CUDA / self.source).read_text(encoding="utf-8")


@functools.cache
def files_of(source: str) -> tuple[str, ...]:
    """Return a source and all headers that it includes, directly or indirectly, sorted by name."""
    found, pending = {source}, [source]
    while pending:
        text = (CUDA / pending.pop()).read_text(encoding="utf-8")
        new = set(_INCLUDE.findall(text)) - found
        found |= new
        pending += sorted(new)
    return tuple(sorted(found))


@functools.cache
def _text_hash(source: str) -> bytes:
    digest = hashlib.sha256()
    for name in files_of(source):
        digest.update(name.encode() + b"\0" + (CUDA / name).read_bytes() + b"\0")
    return digest.digest()


def source_hash(variant: Variant) -> str:
    """Return the hash of everything that decides a variant's code, except architecture and compiler."""
    digest = hashlib.sha256(_text_hash(variant.source))
    # Where the folder of the sources lies must not matter.
    options = [option for option in variant.options if not option.startswith("-I")]
    digest.update("\0".join([variant.entry, *options]).encode())
    return digest.hexdigest()[:16]


@functools.cache
def compile_variant(variant: Variant, arch: str = "80", *, cubin: bool = True) -> Compiled:
    """Compile a variant for ``sm_<arch>``; results are cached on disk.

    Parameters
    ----------
    arch : str
        "80", "90a", ...
    cubin : bool
        Assemble too; PTX alone does not reveal instructions that the architecture lacks.

    Raises
    ------
    InputError
        If NVRTC is not installed, or it rejects the source (with its messages).
    """
    nvrtc = find_nvrtc()
    options = [*variant.options, f"-arch={'sm' if cubin else 'compute'}_{arch}"]
    if cubin:
        options.append("--ptxas-options=-v")
    parts = ["1", source_hash(variant), *map(str, nvrtc.version), *(o for o in options if not o.startswith("-I"))]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
    found = compile_cache.read(key)
    if found is None:
        try:
            found = nvrtc.compile(variant.text(), variant.source, options)
        except CompileError as error:
            raise InputError(f"{variant.label} does not compile for sm_{arch}:\n{error}") from None
        compile_cache.write(key, found)
    return found
