"""Rooms stay within the budget of lines that hold code, and what is counted is what is meant."""

import ast

from benchmarks import sizes

MODULE = '''"""A module,
of two lines."""

import math
from os import (
    path,
)

TEXT = """of
two lines"""  # a comment


def outer():
    """Say nothing."""
    parts.Segment("step")

    def inner():
        return Segment("first"), Segment("last")

    Tensor("K", sharers=2.0, bytes=4)
'''


def test_no_count_is_past_its_budget() -> None:
    assert sizes.past_budget(sizes.counts(), sizes.budget()) == {}


def test_past_its_budget_is_what_has_grown_and_what_has_none() -> None:
    assert sizes.past_budget({"api": 11, "cli": 10, "ptx": 1}, {"api": 10, "cli": 10}) == {"api": 11, "ptx": 1}


def test_code_is_neither_docstring_nor_import_nor_comment_nor_blank() -> None:
    lines = MODULE.splitlines()
    assert [lines[number - 1].split()[0] for number in sorted(sizes.code_lines(MODULE))] == [
        *("TEXT", "two", "def", 'parts.Segment("step")', "def", "return", 'Tensor("K",')
    ]


def test_a_call_belongs_to_the_innermost_function_around_it() -> None:
    found = sizes.functions_that_call("Segment", ast.parse(MODULE))
    assert sorted(getattr(node, "name", "") for node in found) == ["inner", "outer"]
    assert sizes.functions_that_call("Segment", tree := ast.parse("A = Segment('a')")) == {tree}


def test_rooms_are_folders_and_those_of_models() -> None:
    names = (
        "errors.py",
        "api/comparing/ratios.py",
        "kernels/lift/drafts.py",
        "models/mask/mask.py",
        "models/__init__.py",
    )
    assert [sizes.room(sizes.PACKAGE / name) for name in names] == ["beside", "api", "kernels", "models/mask", "models"]


def test_inner_imports_are_those_of_functions_each_once() -> None:
    tree = ast.parse("import a\nif a:\n    import b\ndef f():\n    import c\n    def g():\n        from d import e\n")
    assert sorted(map(ast.unparse, sizes.inner_imports(tree))) == ["from d import e", "import c"]
