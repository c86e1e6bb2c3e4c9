"""Instructions, spills and waits of the loops that multiply, read from machine code.

    python benchmarks/instruction_counts.py --functions 'flash_forward\\(Half,128.* sm_80'
    python benchmarks/instruction_counts.py library.cubin --functions flash_fwd --json
    python benchmarks/instruction_counts.py --write

Without a FILE our own kernels are compiled, as `attnsim kernels check` does. nvdisasm reads the machine code (`pip
install nvidia-cuda-nvdisasm`, or on PATH, or `--nvdisasm FILE`); `--write` needs none.
A row is one iteration of a loop with tensor instructions,
`--iterations` of the loops in it, without pieces that are seldom needed; `inside` says in how many such loops it lies.
No GPU is needed and nothing is measured: `stall_clks` is what the assembler has a warp wait at least, `clocks` and
`clocks_of_two` are those of one and two warps of a scheduler (:mod:`attnsim.ptx.scheduler`), without copies.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.lift.machine import clocks
from attnsim.kernels.resources import jobs
from attnsim.kernels.variant import Variant, compile_variant, source_hash
from attnsim.models.implementations.own import resources
from attnsim.ptx.machine_code import OTHER, PIPES, Code, inside, kernels_in
from attnsim.ptx.scheduler import simulated_iteration
from benchmarks.instruction_rows import rows_of
from benchmarks.machine_code import disassemble, disassembler, parse

MMA_SYNC = ("80", "86", "89", "90", "100")
"""Architectures whose clocks are told: of code for others, as 90a, products run beside their warps."""
TABLE = Path(str(resources.__file__)).with_name("instructions.csv")
COUNTED = (
    "flash_forward|flash_hopper|sigmoid_forward|sparse_forward|backward_[a-z_]+|decode_split|linear_state|"
    "linear_output|linear_causal|linear_reduce|linear_scan|decode_combine"
)
WRITTEN = rf"^(({COUNTED})\((?!.*,asked\)).*|naive_softmax\(\w+,\d+,\d+,1\)) sm_(80|90a?)$"
"""The kernels of the table: those whose schedules ask for counts; of the softmax those that hold their rows."""
HEAD = """\
# Instructions of a step of our kernels, as in models/schedule, without pieces that are seldom needed; `masked`: further
# ones on the integer lanes of a step that hides scores. Of kernels without products those of all that a warp does, and
# the elements that it goes over. `part`: where a kernel is charged in parts, which of them. Written by
# `python benchmarks/instruction_counts.py --write` after a kernel has changed; `source_hash` is of what was counted.
kernel,arch,scores,rescaled,issued,exp,fp32,integer,load_store,masked,part,source_hash"""


def report(code: Code, arch: str, iterations: Sequence[int] = (1,)) -> list[dict[str, Any]]:
    """A row for each loop of a kernel.

    Parameters
    ----------
    code : Code
    arch : str
        "80", "90a"; clocks are of products of `mma.sync` alone.
    iterations : sequence of int
        Of the loops inside a loop, in their order; the last holds for all that follow.
    """
    found, loops = [], code.loops()
    for loop in loops:
        path = list(code.path(loop, iterations))
        ran, pipes = [code.instructions[index] for index in path], code.counts(path)
        row: dict[str, Any] = {
            "from": f"{ran[0].address:#x}",
            "to": f"{ran[-1].address:#x}",
            "inside": sum(inside(loop, one) for one in loops),
            "issued": len(path),
            **{pipe: pipes[pipe] for pipe in (*PIPES, OTHER)},
            "spills": sum(one.name in ("LDL", "STL") for one in ran),
            "stall_clks": sum(one.stall for one in ran),
            "products": dict(Counter(one.opcode for one in ran if one.pipe == "tensor")),
        }
        if arch in MMA_SYNC:
            one, two = (simulated_iteration(ran, warps, clocks(int(arch))) for warps in (1, 2))
            row["clocks"], row["clocks_of_two"] = (round(each.products + each.others) for each in (one, two))
            row["waits"] = round(one.products_wait + one.others_wait)
            row["tensor_clocks"] = round(pipes["tensor"] * clocks(int(arch))["tensor"])
        found.append(row)
    return found


def own(wanted: str, program: str | None = None) -> Iterator[tuple[Variant, str, Code]]:
    """Our own kernels whose label and architecture match, as compiled here; with modifiers by the disassembler alone.

    Raises
    ------
    InputError
        Where none does.
    """
    chosen = [job for job in jobs(OPERATIONS.values()) if re.search(wanted, f"{job[0].label} sm_{job[1]}")]
    if not chosen:
        raise InputError(f"no kernel matches {wanted!r}; labels are in own/resources.csv, as 'decode_(.*) sm_80'")
    for variant, arch in chosen:
        cubin = compile_variant(variant, arch).cubin
        found = parse(disassemble(program, cubin)) if program else kernels_in(cubin).values()
        yield from ((variant, arch, code) for code in found if code.name == variant.entry)


def in_file(program: str, cubin: Path, wanted: str) -> Iterator[tuple[str, str, Code]]:
    """The kernels of a file whose names, as C++ writes them where ``c++filt`` is there, match."""
    try:
        text = disassemble(program, cubin.read_bytes())
    except OSError as error:
        raise InputError(f"{cubin} cannot be read: {error.strerror or error}") from None
    arch = re.search(r"^\s*\.target\s+sm_(\w+)", text, re.MULTILINE)
    codes = parse(text)
    names = [code.name for code in codes]
    if shutil.which("c++filt"):
        told = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
        names = told.stdout.splitlines()
    for name, code in zip(names, codes, strict=True):
        if re.search(wanted, name):
            yield name, arch[1] if arch else "", code


def write() -> None:
    """Write ``own/instructions.csv`` anew.

    Raises
    ------
    InputError
        Where the step of a kernel is not told apart; nothing is written then.
    """
    lines = []
    for variant, arch, code in own(WRITTEN):
        found = rows_of(variant, arch, code)
        if found is None:
            raise InputError(f"{variant.label} sm_{arch}: no loop has the products of a step; see step_row")
        lines += [f"{one},{source_hash(variant)}" for one in found]
    TABLE.write_text("\n".join((HEAD, *lines, "")), encoding="utf-8")
    print(f"{len(lines)} rows written to {TABLE}")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def _iterations(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} given; allowed: whole numbers from 1, with commas, as 4,4,2")
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="cubins; none: our own kernels")
    parser.add_argument(
        "--functions", type=_pattern, default="", help="regular expression: kernels, our own as 'LABEL sm_ARCH'"
    )
    parser.add_argument(
        "--iterations",
        type=_iterations,
        default=[1],
        help="of the loops inside a loop, as 4,4,2; the last for all others",
    )
    parser.add_argument("--nvdisasm", type=Path)
    parser.add_argument("--write", action="store_true", help="write the counts of our own kernels for their schedules")
    parser.add_argument("--json", action="store_true", help="rows as JSON lines")
    options = parser.parse_args()
    if options.write:
        if options.files or options.functions or options.iterations != [1] or options.json or options.nvdisasm:
            parser.error("--write counts the kernels of the table; leave out all else")
        write()
        return
    program = disassembler(options.nvdisasm)
    kernels = (
        (kernel for path in options.files for kernel in in_file(program, path, options.functions))
        if options.files
        else ((f"{one.label} sm_{arch}", arch, code) for one, arch, code in own(options.functions, program))
    )
    for name, arch, code in kernels:
        for row in report(code, arch, options.iterations):
            line = {"function": name, **row}
            print(json.dumps(line) if options.json else "  ".join(f"{key} {value}" for key, value in line.items()))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"instruction_counts: {error}", file=sys.stderr)
        sys.exit(2)
