"""Registers and shared memory of a kernel of PTX, as the assembler reports them; no GPU and no driver is needed."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from attnsim.errors import InputError
from attnsim.kernels.lift.lifting import Resources
from attnsim.ptx.machine_code import Code, kernels_in
from attnsim.ptx.nvrtc import Compiled


def target_of(ptx: str) -> str:
    """The architecture that PTX names: "80", "90a".

    Raises
    ------
    InputError
    """
    for line in ptx.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == ".target":
            return rest.split(",")[0].strip().removeprefix("sm_")
    raise InputError("the PTX has no .target line, so nobody can say for which architecture it is")


def assembled(ptx: str, entry: str, dynamic_bytes: int, registers: int | None) -> tuple[Resources, Code | None]:
    """What a block takes and the machine code: by ``ptxas``, or the registers that are given, without the code.

    Parameters
    ----------
    ptx, entry : str
    dynamic_bytes : int
        Dynamic shared memory.
    registers : int or None
        Of a thread; None to ask the assembler.

    Raises
    ------
    InputError
        When there is no assembler and no number, or it refuses the PTX: with its first message.
    """
    if registers is not None:
        if not 1 <= registers <= 255:
            raise InputError(f"--registers {registers}: a thread has 1 to 255")
        return Resources(registers, dynamic_bytes, "given"), None
    arch = target_of(ptx)
    program = _ptxas()
    if program is None:
        raise InputError(
            "registers of a thread are not known: ptxas is not here (pip install nvidia-cuda-nvcc, or Triton brings "
            "it); or say --registers N"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        target = Path(folder, "kernel.cubin")
        ran = subprocess.run(
            [program, "-v", f"-arch=sm_{arch}", str(source), "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        cubin = target.read_bytes() if not ran.returncode else b""
    said = ran.stdout + ran.stderr
    if ran.returncode:
        first = next((line for line in said.splitlines() if "error" in line or "fatal" in line), said.strip()[:200])
        raise InputError(f"ptxas refuses the PTX for sm_{arch}: {' '.join(first.split())}; or say --registers N")
    used = Compiled("", b"", said).resources(entry)
    taken = Resources(used.registers, dynamic_bytes + used.static_shared_bytes, f"ptxas, sm_{arch}")
    return taken, kernels_in(cubin).get(entry)


@functools.cache
def _ptxas() -> str | None:
    """The assembler: on the path, in a toolkit, or in Triton's package."""
    found = shutil.which("ptxas")
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for root in (*roots, Path("/usr/local/cuda")):
        if not found and (root / "bin" / "ptxas").is_file():
            found = str(root / "bin" / "ptxas")
    if not found:
        import importlib.util

        for package, place in (("nvidia", "cuda_nvcc/bin/ptxas"), ("triton", "backends/nvidia/bin/ptxas")):
            spec = importlib.util.find_spec(package)
            for folder in spec.submodule_search_locations or () if spec else ():
                if (Path(folder) / place).is_file():
                    found = str(Path(folder) / place)
    return found
