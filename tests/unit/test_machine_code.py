"""What is counted in machine code: a loop written down as the disassembler would, with its control bits."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.variant import source_hash
from attnsim.ptx.machine_code import Code
from attnsim.tables import read_csv
from benchmarks import instruction_counts
from benchmarks.instruction_counts import report
from benchmarks.machine_code import disassembler, parse, path_through, shortest_run


def line(address: int, text: str, stall: int = 1, written: int = 7, waits: int = 0) -> str:
    """An instruction as ``nvdisasm -c -hex`` writes it; `waits` is a mask of barriers."""
    bits = (stall | written << 5 | 7 << 8 | waits << 11) << 41
    spaces = " " * 40
    return f"        /*{address:04x}*/  {text} ;  /* 0x{address:016x} */\n{spaces}  /* 0x{bits:016x} */"


def kernel(name: str, *lines: str) -> str:
    return "\n".join([f'\t.section\t.text.{name},"ax",@progbits', f"{name}:", *lines])


LOOP = kernel(
    "looping",
    line(0x00, "S2R R1, SR_TID.X", written=0),
    ".L_x_0:",
    line(0x10, "LDSM.16.M88.4 R4, [R2]", written=1),
    ".L_x_1:",
    line(0x20, "HMMA.16816.F32 R8, R4, R6, R8", waits=0b10),
    line(0x30, "HMMA.16816.F32 R12, R4, R6, R12"),
    line(0x40, "@P0 BRA `(.L_x_1)", stall=5),
    line(0x50, "@!P1 BRA `(.L_x_2)", stall=5),
    line(0x60, "FMUL R8, R8, R3"),  # seldom needed: jumped over
    line(0x70, "MUFU.EX2 R3, R3", written=2),
    ".L_x_2:",
    line(0x80, "MUFU.EX2 R9, R8", written=2),
    line(0x90, "STL [R1], R9", waits=0b100),
    line(0xA0, "@P2 BRA `(.L_x_0)"),
    line(0xB0, "EXIT"),
)


def the_loop() -> Code:
    (code,) = parse(LOOP)
    return code


def test_loops_run_those_inside_them_so_many_times_and_no_seldom_piece() -> None:
    code = the_loop()
    assert [one.stop - one.start for one in code.loops()] == [10, 3]
    (once, inner), (thrice, _) = report(code, "80"), report(code, "80", [3])
    assert (once["inside"], inner["inside"], inner["products"]) == (0, 1, {"HMMA.16816.F32": 2})
    assert (once["tensor"], once["matrix_load"], once["exp"], once["spills"]) == (2, 1, 1, 1)
    assert (once["issued"], once["fp32"], once["from"], once["to"]) == (8, 0, "0x10", "0xa0")
    assert thrice["tensor"] == 6 and thrice["tensor_clocks"] == 48 and thrice["issued"] == once["issued"] + 6
    assert "clocks" not in report(code, "90a")[0]


def test_a_step_is_the_shortest_turn_with_its_products() -> None:
    code = the_loop()
    found = {products: code.step(products) for products in (2, 3, 6)}
    assert found[3] is None
    assert {products: len(path) for products, path in found.items() if path} == {2: 3, 6: 14}


def test_a_turn_whose_loops_turn_differently_often_is_told_by_the_products_of_its_parts() -> None:
    inner = [line(0x10, "HMMA.16816.F32 R8, R4, R6, R8"), line(0x20, "@P0 BRA `(.L_x_1)")]
    then = [line(0x40, "HMMA.16816.F32 R8, R4, R6, R8"), line(0x50, "@P1 BRA `(.L_x_2)")]
    (code,) = parse(
        kernel(
            "parts",
            ".L_x_0:",
            line(0x00, "MOV R1, R2"),
            ".L_x_1:",
            *inner,
            line(0x30, "HMMA.16816.F32 R8, R4, R6, R8"),
            ".L_x_2:",
            *then,
            line(0x60, "@P2 BRA `(.L_x_0)"),
            line(0x70, "EXIT"),
        )
    )
    iteration = code.iteration([3, 1, 5])
    assert (
        iteration is not None
        and code.counts(iteration)["tensor"] == 9
        and iteration.count(1) == 3
        and iteration.count(4) == 5
    )
    assert code.iteration([2, 2, 5]) is None
    assert len(shortest_run(code)) == len(code.instructions) and path_through(code)[-1] == len(code.instructions) - 1


def test_a_branch_over_a_lone_branch_jumps_over_what_that_jumps_over() -> None:
    """Compilers write "if not, go past; go on" for "if, go past": what is behind is run unless it is seldom needed."""

    def step(inside: str) -> list[int] | None:
        (code,) = parse(
            kernel(
                "lone",
                ".L_x_0:",
                line(0x00, "@P0 BRA `(.L_x_1)"),
                line(0x10, "BRA `(.L_x_2)"),
                ".L_x_1:",
                line(0x20, inside),
                ".L_x_2:",
                line(0x30, "HMMA.16816.F32 R8, R4, R6, R8"),
                line(0x40, "@P1 BRA `(.L_x_0)"),
                line(0x50, "EXIT"),
            )
        )
        return code.step(1)

    assert step("LDG R4, [R2]") == [0, 2, 3, 4]
    assert step("FMUL R4, R4, R2") == [0, 3, 4]


def test_kernels_of_one_file_are_taken_apart() -> None:
    """Labels of two kernels may be the same, and what ends one of them ends no other."""
    short, code = parse("\n".join([kernel("short", ".L_x_0:", line(0x00, "EXIT")), LOOP]))
    assert (short.name, len(short.instructions), short.loops()) == ("short", 1, [])
    assert (code.name, code.loops()) == ("looping", the_loop().loops())


def test_control_bits_are_read() -> None:
    load, product = the_loop().instructions[1:3]
    assert (load.stall, load.written, load.waits, load.pipe) == (1, 1, (), "matrix_load")
    assert (product.written, product.waits, product.name, product.pipe) == (None, (1,), "HMMA", "tensor")


def test_every_kernel_that_is_counted_has_its_row_on_each_architecture() -> None:
    """A kernel that was added or renamed, and the table not written anew, would be played without counts."""
    room = files("attnsim.models.implementations.own")
    compiled = [(row["kernel"], row["arch"]) for row in read_csv(room / "resources.csv")]
    wanted = {one for one in compiled if re.search(instruction_counts.WRITTEN, f"{one[0]} sm_{one[1]}")}
    assert len(wanted) > 20
    counted = {(row["kernel"], row["arch"]) for row in read_csv(room / "instructions.csv")}
    assert counted == {(name, arch.rstrip("a")) for name, arch in wanted}


def test_counts_are_of_todays_sources() -> None:
    """A kernel that was changed has other instructions: count anew, benchmarks/instruction_counts.py --write."""
    today = {one.label: source_hash(one) for operation in OPERATIONS.values() for one in operation.variants()}
    rows = read_csv(files("attnsim.models.implementations.own") / "instructions.csv")
    stale = sorted({row["kernel"] for row in rows if today[row["kernel"]] != row["source_hash"]})
    assert not stale, "count anew: python benchmarks/instruction_counts.py --write"


def test_without_a_disassembler_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    with pytest.raises(InputError, match="pip install nvidia-cuda-nvdisasm"):
        disassembler(None)
