"""Machine code as nvdisasm writes it, with modifiers, which `benchmarks/instruction_counts.py` prints."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.errors import InputError
from attnsim.ptx.machine_code import NEEDED, Code, Instruction, controlled, inside, pipe_of

WORK = (*NEEDED, "exp", "fp32")
"""NEEDED of kernels without products, whose pieces are the ends of rows; what hides scores has integers alone."""

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)", re.MULTILINE)
_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)([^;]*);\s*/\* 0x([0-9a-f]{16}) \*/")
_REST = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")
_LABEL = re.compile(r"^(\.L\S+):")
_TARGET = re.compile(r"`\((\.L\S+)\)")


def parse(text: str) -> list[Code]:
    """The kernels and functions in the output of ``nvdisasm -c -hex``."""
    _, *parts = _SECTION.split(text)
    return [_code(name, body.splitlines()) for name, body in zip(parts[::2], parts[1::2], strict=True)]


def _code(name: str, lines: Sequence[str]) -> Code:
    found: list[tuple[re.Match[str], int]] = []
    labels: dict[str, int] = {}
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        one, rest = _LINE.search(line), _REST.match(following)
        if one and rest:
            found.append((one, int(rest[1], 16)))
    return Code(name, tuple(_instruction(one, bits, labels) for one, bits in found))


def _instruction(one: re.Match[str], bits: int, labels: Mapping[str, int]) -> Instruction:
    opcode, operands = one[3], one[4].strip()
    label = _TARGET.search(operands) if opcode.startswith("BRA") and ".DIV" not in opcode else None
    target = labels.get(label[1]) if label else None
    further = target is not None and operands.startswith(("P", "!P", "UP", "!UP"))
    return Instruction(int(one[1], 16), opcode, pipe_of(opcode), bool(one[2]), further, target, *controlled(bits))


def disassembler(given: Path | None) -> str:
    """Path of nvdisasm: the one given, on PATH, or of NVIDIA's package.

    Raises
    ------
    InputError
        Where there is none.
    """
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    places = [given, shutil.which("nvdisasm"), *(one for folder in packages for one in folder.glob("*/bin/nvdisasm"))]
    for place in places:
        if place is not None and Path(place).is_file():
            return str(place)
    raise InputError("nvdisasm is not here; install it: pip install nvidia-cuda-nvdisasm, or give --nvdisasm FILE")


def disassemble(program: str, cubin: bytes) -> str:
    """Instructions and their bits.

    Raises
    ------
    InputError
        Where nvdisasm cannot read it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([program, "-c", "-hex", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"nvdisasm: {(done.stderr.strip() or 'failed').splitlines()[0]}")
    return done.stdout


def turning(code: Code) -> list[range]:
    """Loops but those inside others and those of what unrolling leaves over, which another loop does at once."""
    found = [one for one in code.every_loop if not any(inside(one, other) for other in code.every_loop)]
    accesses = [code.counts(one)["load_store"] for one in found]
    return [
        one
        for number, (one, some) in enumerate(zip(found, accesses, strict=True))
        if not (some and any(many > some and many % some == 0 for many in accesses[number + 1 : number + 2]))
    ]


def path_through(code: Code, needed: Sequence[str] = WORK) -> list[int]:
    """What a warp runs from the beginning to the end, its loops of `turning` and those inside them once each."""
    times = turning(code)
    each = [int(one in times or any(inside(one, other) for other in times)) for one in code.every_loop]
    found = []
    for index in code.path(range(len(code.instructions)), each or [1], needed=needed):
        found.append(index)
        if code.instructions[index].name == "EXIT" and not code.instructions[index].predicate:
            break
    return found


def shortest_run(code: Code) -> list[int]:
    """The shortest way from the beginning to the end: all that can be jumped over is."""
    last = max(index for index, one in enumerate(code.instructions) if one.name == "EXIT" and not one.predicate)
    before: dict[int, int] = {0: -1}
    pending = [0]
    for index in pending:
        for following in code.following(index):
            if following not in before:
                before[following] = index
                pending.append(following)
    found = [last]
    while found[-1] != 0:
        found.append(before[found[-1]])
    return found[::-1]
