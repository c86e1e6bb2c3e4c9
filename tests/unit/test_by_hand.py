"""Constants chosen by hand declare themselves, and none hides."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnsim
from attnsim.by_hand import by_hand
from attnsim.simulator import reduced_grid
from attnsim.validation.checking.accuracy import Chosen, chosen

ROOT = Path(attnsim.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
SAID = re.compile(r"\b(chosen|picked|set|taken|guessed)\s+by\s+(hand|eye)\b|\bassumed, not fitted\b", re.IGNORECASE)
ABOUT_THEM = ("by_hand.py", "validation/checking/accuracy.py")
FAST_MODE = ("grid.py", "reduced_grid.py", "players.py", "memory.py", "replay.py")
"""Files of the simulator in which every number is a choice; those of the others are facts with a source."""


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("by_hand"):
            yield node


@pytest.fixture(scope="module")
def found() -> list[Chosen]:
    return list(chosen())


def test_every_declaration_is_found(found: list[Chosen]) -> None:
    """None stands inside a function or under another name, where no list would have it."""
    declared = sum(len(list(calls(ast.parse(path.read_text("utf-8"))))) for path in FILES)
    assert len(found) == declared > 40
    assert len({(one.module, one.name) for one in found}) == declared
    for one in found:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", one.name), one
        assert len(one.meaning) > 20 and not one.meaning.endswith("."), one
        assert 0 < len(str(one.shown)) <= 48, one


def test_a_declaration_is_its_value(found: list[Chosen]) -> None:
    assert by_hand(2.5, "a number that means nothing") == 2.5
    least = next(one for one in found if one.name == "LEAST_SMS")
    assert (least.module, least.value) == ("simulator.reduced_grid", reduced_grid.LEAST_SMS)


def test_nothing_says_that_it_was_chosen_by_hand_without_declaring_it() -> None:
    hidden = {str(path.relative_to(ROOT)) for path in FILES if SAID.search(path.read_text("utf-8"))}
    assert hidden <= set(ABOUT_THEM)


@pytest.mark.parametrize("name", FAST_MODE)
def test_the_fast_mode_has_no_number_that_is_not_declared(name: str) -> None:
    tree = ast.parse((ROOT / "simulator" / name).read_text("utf-8"))
    declared = {id(part) for call in calls(tree) for part in ast.walk(call)}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            numbers = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, int | float)]
            assert all(id(number) in declared for number in numbers), ast.unparse(node)
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant) and isinstance(part.value, float) and id(part) not in declared:
            assert part.value in (0.0, 1.0, 2.0), f"{name}:{part.lineno}: {part.value}"
