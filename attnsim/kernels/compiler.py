"""NVRTC: CUDA source to PTX (for the interpreter) and to a CUBIN (for resources and for a GPU), with no driver."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from attnsim.kernels.variant import Variant
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
    """Compile a variant for ``sm_<arch>``.

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
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise InputError(
            "compiling kernels without a GPU needs NVRTC; install it with: pip install 'attnsim[cuda-cpu]'"
        ) from None
    target = "sm" if cubin else "compute"
    options = [*variant.options, f"-arch={target}_{arch}"]
    if cubin:
        options.append("--ptxas-options=-v")
    status, program = nvrtc.nvrtcCreateProgram(variant.text().encode(), variant.source.encode(), 0, [], [])
    _check(nvrtc, status, variant, "create")
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _fetch(nvrtc, program, "ProgramLog").decode(errors="replace").rstrip("\0")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise InputError(f"{variant.label} does not compile for sm_{arch}:\n{log}")
        ptx = _fetch(nvrtc, program, "PTX").decode().rstrip("\0")
        binary = _fetch(nvrtc, program, "CUBIN") if cubin else b""
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Compiled(ptx, binary, log)


def _fetch(nvrtc: Any, program: object, what: str) -> bytes:
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    buffer: bytes = b" " * size
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer


def _check(nvrtc: Any, status: object, variant: Variant, step: str) -> None:
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise InputError(f"NVRTC cannot {step} {variant.label}: {status}")
