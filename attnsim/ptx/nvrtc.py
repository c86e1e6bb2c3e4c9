"""NVRTC, NVIDIA's runtime compiler, through either binding: NVIDIA's own, or the one inside CuPy.

Runs ``ptxas``, NVIDIA's assembler of PTX, from any installation; needs no GPU and no driver.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from attnsim.errors import InputError

NONE: Mapping[str, str] = {}


class CompileError(Exception):
    """The compiler rejected a source; the message is the first error of its log."""

    def __init__(self, log: str) -> None:
        self.log = log
        errors = [line for line in log.splitlines() if "error:" in line] or log.split("\n", 1)
        super().__init__(errors[0].strip() + (f" (the first of {len(errors)})" if "error:" in errors[-1] else ""))


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one kernel, from the assembler's report.

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
    """The result of one compilation.

    Parameters
    ----------
    ptx : str
        PTX text.
    cubin : bytes
        Machine code; empty for a virtual architecture (``compute_80``).
    log : str
        Messages of the compiler and of the assembler.
    names : mapping of str to str
        Mangled names of the kernels that were asked for by name.
    """

    ptx: str
    cubin: bytes
    log: str
    names: Mapping[str, str] = field(default_factory=dict)

    def resources(self, entry: str) -> Resources:
        """Parse the assembler's report on one entry point.

        Raises
        ------
        InputError
            If the log has no such entry.
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


class Compile(Protocol):
    """A compiler of CUDA text to PTX and machine code."""

    def __call__(
        self, text: str, file: str, options: Sequence[str], headers: Mapping[str, str] = ..., names: Sequence[str] = ...
    ) -> Compiled:
        """Compile `text`, named `file`, with headers by name, and with the template instances in `names`.

        Raises
        ------
        CompileError
        """
        ...


@dataclass(frozen=True, slots=True)
class Nvrtc:
    """One binding of the library.

    Parameters
    ----------
    binding : str
        "cuda-bindings" or "CuPy".
    version : (int, int)
        Version of the library.
    architectures : tuple of int
        Compute capabilities that it compiles for.
    compile : Compile
        Compiles CUDA text.
    """

    binding: str
    version: tuple[int, int]
    architectures: tuple[int, ...]
    compile: Compile


@functools.cache
def find_nvrtc() -> Nvrtc:
    """Return the first binding that works, NVIDIA's own first.

    Raises
    ------
    InputError
        If there is none; the message says what to install.
    """
    for binding in (_from_cuda_bindings, _from_cupy):
        try:
            return binding()
        except (ImportError, OSError, RuntimeError):  # no such package, or no library behind it
            continue
    raise InputError("compiling kernels needs NVRTC, which is not here; install it: pip install 'attnsim[cuda-cpu]'")


def _from_cuda_bindings() -> Nvrtc:
    from cuda.bindings import nvrtc

    def checked(results: tuple[Any, ...]) -> Any:
        status, *rest = results
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC: {status.name}")
        return rest[0] if len(rest) == 1 else tuple(rest)

    def fetch(program: object, what: str) -> bytes:
        buffer: bytes = b" " * checked(getattr(nvrtc, f"nvrtcGet{what}Size")(program))
        checked(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
        return buffer

    def compile_text(
        text: str, file: str, options: Sequence[str], headers: Mapping[str, str] = NONE, names: Sequence[str] = ()
    ) -> Compiled:
        given = [one.encode() for one in headers.values()], [one.encode() for one in headers]
        program = checked(nvrtc.nvrtcCreateProgram(text.encode(), file.encode(), len(headers), *given))
        try:
            for name in names:
                checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
            log = fetch(program, "ProgramLog").decode(errors="replace").rstrip("\0")
            if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
                raise CompileError(log or status.name)
            own = {name: checked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names}
            return Compiled(fetch(program, "PTX").decode().rstrip("\0"), fetch(program, "CUBIN"), log, own)
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    version = checked(nvrtc.nvrtcVersion())
    architectures = checked(nvrtc.nvrtcGetSupportedArchs())
    return Nvrtc("cuda-bindings", version, tuple(architectures), compile_text)


def _from_cupy() -> Nvrtc:
    from cupy_backends.cuda.libs import nvrtc

    def compile_text(
        text: str, file: str, options: Sequence[str], headers: Mapping[str, str] = NONE, names: Sequence[str] = ()
    ) -> Compiled:
        program = nvrtc.createProgram(text, file, tuple(headers.values()), tuple(headers))
        try:
            for name in names:
                nvrtc.addNameExpression(program, name)
            try:
                nvrtc.compileProgram(program, tuple(options))
            except nvrtc.NVRTCError as error:
                raise CompileError(nvrtc.getProgramLog(program) or str(error)) from None
            ptx = nvrtc.getPTX(program)
            cubin = b"" if any("=compute_" in option for option in options) else nvrtc.getCUBIN(program)
            own = {name: nvrtc.getLoweredName(program, name) for name in names}
            return Compiled(ptx.decode().rstrip("\0"), cubin, nvrtc.getProgramLog(program), own)
        finally:
            nvrtc.destroyProgram(program)

    return Nvrtc("CuPy", nvrtc.getVersion(), tuple(nvrtc.getSupportedArchs()), compile_text)


@dataclass(frozen=True, slots=True, order=True)
class Assembler:
    """One installed assembler, ordered by version.

    Parameters
    ----------
    version : tuple of int
        Version, as (12, 8, 93).
    path : str
        The program.
    """

    version: tuple[int, ...]
    path: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.version))} ({self.path})"


@functools.cache
def assemblers() -> tuple[Assembler, ...]:
    """Return all installed assemblers, the newest first: on PATH, in toolkits, in packages of NVIDIA and Triton."""
    found: dict[tuple[int, ...], Assembler] = {}
    for path in dict.fromkeys(_places()):
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if found_version := re.search(r"\bV(\d+(?:\.\d+)+)", ran.stdout):
            version = tuple(map(int, found_version[1].split(".")))
            found.setdefault(version, Assembler(version, path))
    return tuple(sorted(found.values(), reverse=True))


def _places() -> Iterator[str]:
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if found := shutil.which("ptxas", path=folder):
            yield found
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    patterns = [(root, "bin/ptxas") for root in (*roots, *sorted(Path("/usr/local").glob("cuda*")))]
    for package, pattern in (("nvidia", "*/bin/ptxas"), ("triton", "backends/nvidia/bin/ptxas*")):
        spec = importlib.util.find_spec(package)
        patterns += [(Path(place), pattern) for place in (spec.submodule_search_locations or () if spec else ())]
    for root, pattern in patterns:
        yield from (str(path) for path in sorted(root.glob(pattern)) if os.access(path, os.X_OK))


def assemble(ptx: str, arch: str) -> tuple[str, bytes]:
    """Assemble PTX with the newest assembler that accepts it; returns its report (``-v``) and the cubin.

    Parameters
    ----------
    arch : str
        "80", "90a".

    Raises
    ------
    InputError
        If no assembler is installed, or none accepts the PTX (with the first message of the newest).
    """
    if not assemblers():
        raise InputError("ptxas is not here (pip install nvidia-cuda-nvcc, or Triton brings it)")
    refused = ""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        for one in assemblers():
            command = [one.path, "-v", f"-arch=sm_{arch}", str(source), "-o", str(target)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            report = ran.stdout + ran.stderr
            if ran.returncode == 0:
                return report, target.read_bytes()
            words = (line for line in report.splitlines() if "error" in line or "fatal" in line)
            refused = refused or " ".join(next(words, report.strip()[:200]).split())
    raise InputError(f"ptxas refuses the PTX for sm_{arch}: {refused}")
