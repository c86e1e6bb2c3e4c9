"""Runs ``ptxas``, NVIDIA's assembler of PTX, from any installation; needs no GPU and no driver."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnsim.errors import InputError


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
