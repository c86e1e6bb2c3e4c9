"""The path of a warp through machine code, by its count of each mark."""

from __future__ import annotations

from attnsim.kernels.lift.paths import code_marks, shortest_path
from attnsim.ptx.machine_code import Code, Instruction, pipe_of


def code(*lines: tuple[str, bool, int | None]) -> Code:
    """Opcode, whether it is under a predicate, and where it goes."""
    return Code(
        "written",
        tuple(
            Instruction(16 * place, opcode, pipe_of(opcode), predicate, False, to, 1, None, None, ())
            for place, (opcode, predicate, to) in enumerate(lines)
        ),
    )


UNROLLED = code(
    ("BRA", True, 4),  # 0: fewer than two are left
    ("LDG", False, None),
    ("LDG", False, None),
    ("BRA", True, 1),
    ("BRA", True, 7),  # 4: none is left over
    ("LDG", False, None),
    ("IADD3", False, None),
    ("BRA", True, 9),  # 7: a mask, which nothing marks
    ("FSEL", False, None),
    ("STG", True, None),
    ("EXIT", False, None),
)


def path(loads: int, stores: int = 1) -> list[int] | None:
    found = shortest_path(UNROLLED, code_marks(UNROLLED), {"load 32": loads, "store 32": stores})
    return sorted(found.places) if found else None


def test_a_loop_turns_as_often_as_its_accesses_say_and_what_is_left_over_is_run_once() -> None:
    assert path(0) == [0, 4, 7, 9, 10]
    assert path(1) == [0, 4, 5, 6, 7, 9, 10]
    assert path(5) == [0, *sorted([1, 2, 3] * 2), 4, 5, 6, 7, 9, 10]


def test_what_is_under_a_predicate_is_issued_whether_or_not_it_is_true() -> None:
    assert path(2, stores=0) == path(2, stores=1) == [0, 1, 2, 3, 4, 7, 9, 10]
    assert path(2, stores=2) is None


def test_what_is_jumped_over_without_a_mark_is_told() -> None:
    found = shortest_path(UNROLLED, code_marks(UNROLLED), {"load 32": 2, "store 32": 1})
    assert found is not None and found.over == [8]


def test_there_may_be_more_sums_and_no_loop_turns_by_itself() -> None:
    looping = code(
        ("BRA", False, 3),
        ("FADD", False, None),
        ("BRA", True, 1),
        ("FADD", False, None),
        ("EXIT", False, None),
    )
    marks = code_marks(looping)
    some = shortest_path(looping, marks, {})
    assert some is not None and some.places == [0, 3, 4]
    assert shortest_path(looping, marks, {"sum": 5}) is None
