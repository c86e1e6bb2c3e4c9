"""CUDA source to PTX (for the interpreter) and to a CUBIN (for resources and for a GPU), with no driver."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass

from attnsim.kernels.build import compile_cache
from attnsim.kernels.build.nvrtc import CompileError, find_nvrtc
from attnsim.kernels.build.sources import source_hash
from attnsim.kernels.build.variant import Variant
from attnsim.models.errors import InputError


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler gave one kernel, from its own report.

    Parameters
    ----------
    registers : int
        Per thread.
    spill_bytes : int
        Registers stored to and loaded from local memory, per thread.
    stack_bytes : int
        Local memory per thread.
    static_shared_bytes : int
        Shared memory declared in the source.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """Outcome of one compilation.

    Parameters
    ----------
    ptx : str
    cubin : bytes
        Empty when only PTX was asked for.
    log : str
        Compiler's and assembler's messages.
    """

    ptx: str
    cubin: bytes
    log: str

    def resources(self, entry: str) -> Resources:
        """The assembler's report on one entry point.

        Raises
        ------
        InputError
            When the log has no such entry.
        """
        report = re.search(rf"Compiling entry function '{re.escape(entry)}'(.*?)(?=Compiling entry|\Z)", self.log, re.S)
        if report is None:
            raise InputError(f"{entry}: no such kernel in the compiler's report; its entry points differ from the call")

        def number(pattern: str) -> int:
            found = re.search(pattern, report[1])
            return int(found[1]) if found else 0

        return Resources(
            registers=number(r"Used (\d+) registers"),
            spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
            stack_bytes=number(r"(\d+) bytes stack frame"),
            static_shared_bytes=number(r"(\d+) bytes smem"),
        )


@functools.cache
def compile_variant(variant: Variant, arch: str = "80", *, cubin: bool = True) -> Compiled:
    """Compile a variant for ``sm_<arch>``, or take it from the cache of an earlier run.

    Parameters
    ----------
    variant : Variant
    arch : str
        "80", "90a", ...
    cubin : bool
        Whether to assemble as well; PTX alone does not notice instructions that the architecture lacks.

    Raises
    ------
    InputError
        When NVRTC is not installed, or with the compiler's messages when it refuses the source.
    """
    nvrtc = find_nvrtc()
    options = [*variant.options, f"-arch={'sm' if cubin else 'compute'}_{arch}"]
    if cubin:
        options.append("--ptxas-options=-v")
    told = ["1", source_hash(variant), *map(str, nvrtc.version), *(o for o in options if not o.startswith("-I"))]
    key = hashlib.sha256("\0".join(told).encode()).hexdigest()[:40]
    binary = compile_cache.read(key)
    if binary is None:
        try:
            binary = nvrtc.compile(variant.text(), variant.source, options)
        except CompileError as error:
            raise InputError(f"{variant.label} does not compile for sm_{arch}:\n{error}") from None
        compile_cache.write(key, binary)
    return Compiled(binary.ptx, binary.cubin, binary.log)
