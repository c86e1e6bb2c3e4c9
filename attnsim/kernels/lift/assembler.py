"""Registers and shared memory of a PTX kernel, from the assembler's report; needs no GPU and no driver."""

from __future__ import annotations

from attnsim.errors import InputError
from attnsim.kernels.lift.lifting import Resources
from attnsim.ptx.machine_code import Code, kernels_in
from attnsim.ptx.nvrtc import Compiled, assemble


def target_of(ptx: str) -> str:
    """Return the architecture of the PTX's .target line: "80", "90a"."""
    for line in ptx.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == ".target":
            return rest.split(",")[0].strip().removeprefix("sm_")
    raise InputError("the PTX has no .target line, so nobody can say for which architecture it is")


def assembled(ptx: str, entry: str, dynamic_bytes: int, registers: int | None) -> tuple[Resources, Code | None]:
    """Return a block's resources and the kernel's machine code, from ``ptxas``.

    With `registers` given, ``ptxas`` is not run, and the code is None.

    Parameters
    ----------
    dynamic_bytes : int
        Dynamic shared memory.
    registers : int or None
        Registers of a thread; None to take the assembler's.

    Raises
    ------
    InputError
        If neither an assembler nor a number is there, or the assembler rejects the PTX (with its first message).
    """
    if registers is not None:
        if not 1 <= registers <= 255:
            raise InputError(f"--registers {registers}: a thread has 1 to 255")
        return Resources(registers, dynamic_bytes, "given"), None
    arch = target_of(ptx)
    try:
        report, cubin = assemble(ptx, arch)
    except InputError as error:
        raise InputError(f"registers of a thread are not known: {error}; or say --registers N") from None
    used = Compiled("", b"", report).resources(entry)
    taken = Resources(used.registers, dynamic_bytes + used.static_shared_bytes, f"ptxas, sm_{arch}")
    return taken, kernels_in(cubin).get(entry)
