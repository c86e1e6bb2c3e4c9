"""A CUDA file of somebody's own, or a Triton kernel, to PTX without a GPU or a driver.

What Triton's launcher would add is taken from its metadata: threads of a block, shared memory, and the arrays for
scratch that it appends to the kernel's arguments.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.ptx.foreign.run import find_entry
from attnsim.ptx.formats import FORMATS
from attnsim.ptx.nvrtc import CompileError, find_nvrtc


def source_text(path: Path, what: str) -> str:
    """The text of a file in a language: "CUDA", "PTX".

    Raises
    ------
    InputError
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a {what} file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; give a {what} file") from None


def compile_file(path: Path, arch: str = "80", options: Sequence[str] = ()) -> str:
    """The PTX of a CUDA file; headers are looked for beside it.

    Parameters
    ----------
    path : Path
    arch : str
        "80", "90a", ...
    options : sequence of str
        Further ones of NVRTC: ``-DN=64``, ``-Iinclude``.

    Raises
    ------
    InputError
        When there is no such file, no NVRTC, or it does not compile: with the compiler's messages.
    """
    text = source_text(path, "CUDA")
    nvrtc = find_nvrtc()
    if not arch.rstrip("af").isdecimal() or int(arch.rstrip("af")) not in nvrtc.architectures:
        known = ", ".join(map(str, nvrtc.architectures))
        raise InputError(f"--arch {arch}: NVRTC {'.'.join(map(str, nvrtc.version))} compiles for {known}")
    folders = [path.parent.resolve(), *_header_folders()]
    all_options = ["-std=c++17", f"-arch=compute_{arch}", *(f"-I{folder}" for folder in folders), *options]
    try:
        return nvrtc.compile(text, path.name, all_options).ptx
    except CompileError as error:
        found = (
            "" if len(folders) > 1 else "; CUDA's headers are not here: pip install nvidia-cuda-runtime, or --option -I"
        )
        raise InputError(f"{path} does not compile for sm_{arch}: {error}{found}") from None


def _header_folders() -> Iterator[Path]:
    """Where CUDA's own headers are (``cuda_fp16.h``): in a toolkit, or in NVIDIA's packages for Python."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots.append(Path("/usr/local/cuda"))
    packages = importlib.util.find_spec("nvidia")
    for place in packages.submodule_search_locations or () if packages else ():
        roots += sorted(Path(place).iterdir())
    yield from (root / "include" for root in roots if (root / "include" / "cuda_fp16.h").is_file())


POINTERS = {dtype: f"*{kind}" for kind, dtype in FORMATS.items()}
"""Triton's types of arrays, by NumPy's."""

ALIGNED = (("tt.divisibility", 16),)
"""What the compiler may take for granted of an array's address; the interpreter's are multiples of 256."""

LEAST_SCRATCH = 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """A Triton kernel that was compiled.

    Parameters
    ----------
    ptx : str
    entry : str
    threads : int
        Of a block.
    shared_memory_bytes : int
    scratch_bytes : int
        Of global scratch memory, for a block.
    """

    ptx: str
    entry: str
    threads: int
    shared_memory_bytes: int
    scratch_bytes: int

    def with_scratch(self, arguments: Mapping[str, Any], blocks: int) -> dict[str, Any]:
        """The arguments, and behind them the arrays that Triton's launcher appends."""
        extra = len(find_entry(self.ptx, self.entry).parameters) - len(arguments)
        names = ("global_scratch", "profile_scratch")[: max(0, extra)]
        size = max(LEAST_SCRATCH, self.scratch_bytes * blocks)
        return {**arguments, **{name: np.zeros(size, np.uint8) for name in names}}


def compile_triton(
    kernel: Any, arguments: Mapping[str, Any], arch: str = "80", options: Mapping[str, int] | None = None
) -> tuple[Compiled, dict[str, NDArray[Any] | np.generic | int | float]]:
    """Compile a ``@triton.jit`` function for ``sm_<arch>``.

    Parameters
    ----------
    kernel : triton.JITFunction
    arguments : mapping of str to array or number
        By the kernel's parameter names, in any order; ``tl.constexpr`` among them are compiled in.
    arch : str
        "80", "90", "100".
    options : mapping of str to int, optional
        ``num_warps``, ``num_stages``, ...

    Returns
    -------
    compiled : Compiled
    launched : dict
        The arguments that are left to launch it with, in order.

    Raises
    ------
    InputError
        When Triton is not installed, arguments are missing or too many, or it does not compile.
    """
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError as error:
        raise InputError(
            f"compiling a Triton kernel needs Triton ({error}); install it: pip install 'attnsim[triton]'"
        ) from None
    if not hasattr(kernel, "arg_names"):
        raise InputError(f"{getattr(kernel, '__name__', kernel)} is no Triton kernel; decorate it with @triton.jit")
    names, constant = list(kernel.arg_names), {one.name for one in kernel.params if one.is_constexpr}
    defaults = {one.name: one.default for one in kernel.params if one.has_default}
    _check_names(kernel.__name__, names, arguments, defaults)
    given = {name: arguments.get(name, defaults.get(name)) for name in names}
    launched = {name: value for name, value in given.items() if name not in constant}
    source = ASTSource(
        fn=kernel,
        signature={name: "constexpr" if name in constant else _type(name, given[name]) for name in names},
        constexprs={name: given[name] for name in names if name in constant},
        attrs={
            (number,): [list(one) for one in ALIGNED]
            for number, name in enumerate(names)
            if isinstance(given[name], np.ndarray)
        },
    )
    try:
        target = GPUTarget("cuda", _number(arch), 32)
        built = triton.compile(source, target=target, options=dict(options or {}))
    except Exception as error:  # of many classes, the compiler's own among them
        raise InputError(f"{kernel.__name__} does not compile for sm_{arch}: {type(error).__name__}: {error}") from None
    told = built.metadata
    compiled = Compiled(
        ptx=built.asm["ptx"],
        entry=told.name,
        threads=32 * int(told.num_warps),
        shared_memory_bytes=int(told.shared),
        scratch_bytes=int(getattr(told, "global_scratch_size", 0) or 0),
    )
    return compiled, launched


def _number(arch: str) -> int:
    if not arch.rstrip("a").isdecimal():
        raise InputError(f"--arch {arch}: Triton takes a compute capability, as 80, 90 or 100")
    return int(arch.rstrip("a"))


def _check_names(kernel: str, names: list[str], given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    missing = [name for name in names if name not in given and name not in defaults]
    surplus = [name for name in given if name not in names]
    if missing or surplus:
        told = [f"missing: {', '.join(missing)}"] if missing else []
        told += [f"too many: {', '.join(surplus)}"] if surplus else []
        raise InputError(f"{kernel} takes {', '.join(names)}; {'; '.join(told)}")


def _type(name: str, value: Any) -> str:
    """Triton's type of an argument that is not compiled in."""
    if isinstance(value, np.ndarray):
        return POINTERS[str(value.dtype)]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, np.generic):
        return POINTERS[str(value.dtype)].removeprefix("*")
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise InputError(f"argument {name} is {value!r}; give an array or a number")
