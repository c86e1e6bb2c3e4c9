"""Compile a user's CUDA file or Triton kernel to PTX, without a GPU or a driver.

Triton's metadata provides what its launcher would add: threads of a block, shared memory, and the scratch arrays that
it appends to the kernel's arguments.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.ptx.counters import FORMATS
from attnsim.ptx.foreign.host_code import PRELUDE, Error, errors_in, headers_of, without_comments, without_host_code
from attnsim.ptx.foreign.names import matching
from attnsim.ptx.foreign.run import find_entry
from attnsim.ptx.nvrtc import CompileError, find_nvrtc
from attnsim.ptx.parse import parse


def source_text(path: Path, what: str) -> str:
    """Read the text of a file in a language ("CUDA", "PTX"); raises InputError if it cannot be read or is not text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a {what} file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; give a {what} file") from None


def compile_file(path: Path, arch: str = "80", options: Sequence[str] = ()) -> str:
    """Return the PTX of all kernels of a CUDA file; see :func:`compile_kernel`."""
    return compile_kernel(path, arch, options)[0]


def compile_kernel(path: Path, arch: str = "80", options: Sequence[str] = (), entry: str = "") -> tuple[str, str]:
    """Return the PTX of a CUDA file and the mangled name of a kernel in it.

    Headers are looked up in the file's folder. Host code in which NVRTC finds errors is left out
    (:mod:`attnsim.ptx.foreign.host_code`).

    Parameters
    ----------
    path : Path
        The CUDA file.
    arch : str
        "80", "90a", ...
    options : sequence of str
        Further options of NVRTC: ``-DN=64``, ``-Iinclude``.
    entry : str
        Name of the kernel; with template arguments, as ``flash<64, true>``, the template is compiled for them.

    Raises
    ------
    InputError
        If there is no such file or no NVRTC, or if it does not compile (with the compiler's messages).
    """
    text = source_text(path, "CUDA")
    nvrtc = find_nvrtc()
    if not arch.rstrip("af").isdecimal() or int(arch.rstrip("af")) not in nvrtc.architectures:
        known = ", ".join(map(str, nvrtc.architectures))
        raise InputError(f"--arch {arch}: NVRTC {'.'.join(map(str, nvrtc.version))} compiles for {known}")
    toolkit = [*header_folders()]
    own = [Path(one[2:]) for one in options if one.startswith("-I") and one != "-I"]
    standard = [] if any(one.startswith(("-std", "--std")) for one in options) else ["-std=c++17"]
    folders = [f"-I{folder}" for folder in (path.parent.resolve(), *toolkit)]
    asked = [*standard, f"-arch=compute_{arch}", f"--pre-include={PRELUDE}", *folders, *options]
    texts = {path.name: text, **headers_of(path, text, own)}
    names: list[str] = []
    while True:
        headers = {name: one for name, one in texts.items() if name != path.name}
        try:
            built = nvrtc.compile(texts[path.name], path.name, asked, headers, names)
        except CompileError as error:
            errors = errors_in(error.log)
            cut, left = without_host_code(texts, errors)
            if cut == texts:
                what = _described(left[0], texts, bool(toolkit), entry) if left else str(error)
                raise InputError(f"{path} does not compile for sm_{arch}: {what}") from None
            texts = cut
            continue
        if names or "<" not in entry:  # NVRTC may crash on a name beside an error, so none is asked for before
            _check_templates(built.ptx, entry, texts.values())
            return built.ptx, built.names.get(entry, entry)
        names = [entry]


_TEMPLATE = re.compile(
    r"\btemplate\s*<(?P<takes>[^{};]*?)>\s*[^{};<>]*?\b__global__\b[^{};]*?\b(?!__)(?P<name>\w+)\s*\((?!\s*\))"
)


def _check_templates(ptx: str, entry: str, texts: Iterable[str]) -> None:
    """Raise InputError for a kernel template without arguments: nothing is compiled for it."""
    code = (without_comments(text) for text in texts)
    found = [one for text in code for one in _TEMPLATE.finditer(text) if one["name"] == entry or not entry]
    if found and not (matching(entry, parse(ptx)) if entry else parse(ptx)):
        name, takes = found[0]["name"], " ".join(found[0]["takes"].split())
        raise InputError(f"{name} is a template of <{takes}>; give what it takes, as --entry '{name}<...>'")


def _described(error: Error, texts: Mapping[str, str], toolkit: bool, entry: str) -> str:
    """Describe the first error in device code, with advice."""
    if missing := re.search(r'cannot open source file "([^"]+)"', error.what):
        of_cuda = "CUDA's headers are not here: pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl; "
        advice = "put it beside the file, or name its folder: --option=-IFOLDER"
        return f"{error.file}({error.line}): no header {missing[1]}; {'' if toolkit else of_cuda}{advice}"
    if error.file.startswith("__nv_name_map"):
        return f"--entry '{entry}': {error.what}; give a kernel of the file, a template with all that it takes"
    lines = texts.get(error.file, "").splitlines()
    source = f", in '{' '.join(lines[error.line - 1].split())}'" if 0 < error.line <= len(lines) else ""
    return f"{error.file}({error.line}): error: {error.what}{source}"


def header_folders() -> Iterator[Path]:
    """Yield the folders of CUDA's headers (``cuda_fp16.h``): in a toolkit, or in NVIDIA's Python packages."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    roots.append(Path("/usr/local/cuda"))
    packages = importlib.util.find_spec("nvidia")
    for place in packages.submodule_search_locations or () if packages else ():
        roots += sorted(Path(place).iterdir())
    for include in (root / "include" for root in roots):
        if (include / "cuda_fp16.h").is_file():
            yield from (one for one in (include, include / "cccl") if one.is_dir())


POINTERS = {dtype: f"*{kind}" for kind, dtype in FORMATS.items()}
"""Triton's types of arrays, by NumPy's."""

ALIGNED = (("tt.divisibility", 16),)
"""Divisibility that the compiler may assume of an array's address; the interpreter's are multiples of 256."""

LEAST_SCRATCH = 16


@dataclass(frozen=True, slots=True)
class Compiled:
    """A Triton kernel that was compiled.

    Parameters
    ----------
    ptx : str
        PTX text.
    entry : str
        Name of the kernel in it.
    threads : int
        Threads of a block.
    shared_memory_bytes : int
        Shared memory of a block.
    scratch_bytes : int
        Global scratch memory of a block.
    """

    ptx: str
    entry: str
    threads: int
    shared_memory_bytes: int
    scratch_bytes: int

    def with_scratch(self, arguments: Mapping[str, Any], blocks: int) -> dict[str, Any]:
        """Return the arguments followed by the scratch arrays that Triton's launcher appends."""
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
    kernel, arguments, options = _decorated(kernel, arguments, options or {})
    names, constant = list(kernel.arg_names), {one.name for one in kernel.params if one.is_constexpr}
    defaults = {one.name: one.default for one in kernel.params if one.has_default}
    _check_names(kernel.__name__, names, arguments, defaults)
    given: dict[str, Any] = {name: arguments.get(name, defaults.get(name)) for name in names}
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
        built = triton.compile(source, target=target, options=options)
    except Exception as error:  # of many classes, the compiler's own among them
        raise InputError(f"{kernel.__name__} does not compile for sm_{arch}: {type(error).__name__}: {error}") from None
    metadata = built.metadata
    compiled = Compiled(
        ptx=built.asm["ptx"],
        entry=metadata.name,
        threads=32 * int(metadata.num_warps),
        shared_memory_bytes=int(metadata.shared),
        scratch_bytes=int(getattr(metadata, "global_scratch_size", 0) or 0),
    )
    return compiled, launched


def _decorated(
    kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, int]
) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """Unwrap ``@triton.heuristics`` and ``@triton.autotune``; returns the function, its arguments and its options.

    If there are several configurations, the caller chooses one by its arguments and options.
    """
    found, chosen, inner = dict(arguments), dict(options), kernel
    while hasattr(inner, "fn") and not hasattr(inner, "params"):
        inner = inner.fn
    while hasattr(kernel, "fn") and not hasattr(kernel, "params"):
        for name, rule in getattr(kernel, "values", {}).items():  # of heuristics
            found.setdefault(name, rule(found))
        configurations = getattr(kernel, "configs", [])
        if len(configurations) == 1:
            found = {**configurations[0].kwargs, **found}
            given = {name: getattr(configurations[0], name, None) for name in ("num_warps", "num_stages")}
            chosen = {**{name: value for name, value in given.items() if value is not None}, **chosen}
        elif configurations and (open_ones := [name for name in configurations[0].kwargs if name not in found]):
            first = configurations[0]
            shown = ", ".join(f"--arg {name}={value}" for name, value in first.kwargs.items())
            raise InputError(
                f"{inner.__name__} is tuned over {len(configurations)} configurations and {', '.join(open_ones)} of "
                f"none is given; the first is {shown} with --option num_warps={first.num_warps} --option "
                f"num_stages={first.num_stages}"
            )
        kernel = kernel.fn
    return kernel, found, chosen


def _number(arch: str) -> int:
    if not arch.rstrip("a").isdecimal():
        raise InputError(f"--arch {arch}: Triton takes a compute capability, as 80, 90 or 100")
    return int(arch.rstrip("a"))


def _check_names(kernel: str, names: list[str], given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    missing = [name for name in names if name not in given and name not in defaults]
    surplus = [name for name in given if name not in names]
    if missing or surplus:
        faults = [f"missing: {', '.join(missing)}"] if missing else []
        faults += [f"too many: {', '.join(surplus)}"] if surplus else []
        raise InputError(f"{kernel} takes {', '.join(names)}; {'; '.join(faults)}")


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
