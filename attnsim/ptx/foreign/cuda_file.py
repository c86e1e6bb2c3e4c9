"""A CUDA file of somebody's own to PTX, by NVRTC, without a driver."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from attnsim.errors import InputError
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
