"""Small faults that tests must see: `python benchmarks/mutants.py [NAME ...]` runs them and prints the survivors.

`benchmarks/mutants.toml` lists them: a file, the function, an expression or statement of it, what stands there instead,
and the tests that have to fail. They are found by the expression and not by its line, in another file if it has moved.
A mutant is killed by a test that says what is wrong: recorded answers that move do not count. One that no test can
tell from the original says why (`equivalent`). All runs are on a copy of the tree.

`--draw N --seed SEED` prints a list drawn from `ROOMS` by a seed, without tests; `--check` only looks for the code.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
SECONDS = 600
"""After which the tests of one mutant count as failed: a loop without an end."""

ROOMS = {
    "attnsim/simulator": (18, ("*.py",)),
    "attnsim/models/schedule": (
        10,
        (
            *("row_tiles", "occupancy", "launch", "splits", "borrowed_counts", "instructions"),
            *("passes", "schedule", "buffers"),
        ),
    ),
    "attnsim/models/implementations": (
        14,
        (
            "choose", "cudnn", "flash_attention", "flash_attention_4", "flashinfer", "natten", "serving", "registry",
            "trtllm", "builds", "host", "fused/splits", "fused/tile", "fused/order",
            "linear/shape", "own/least_time",
        ),
    ),
    "attnsim/models/hardware": (9, ("*.py",)),
    "attnsim/api": (9, ("*.py",)),
}  # fmt: skip
"""Where mutants are drawn: how many, and in which files."""

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True)
class Mutant:
    """A fault: `old` in `function` of `file` is `new` instead; `tests` see it, or it is `equivalent`."""

    name: str
    origin: str
    file: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    equivalent: str = ""


def scopes(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions, classes, and assigned names outside functions, with qualified names, each before what it holds."""
    for node in ast.iter_child_nodes(tree):
        name = ""
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(tree, (ast.Module, ast.ClassDef)):
            name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target).strip("()")
        if name:
            yield f"{outer}{name}", node
        yield from scopes(node, f"{outer}{name}." if name else outer)


def inner(scope: ast.AST) -> Iterator[ast.AST]:
    """Expressions and statements of a scope, outermost first; neither documentation nor types nor texts."""
    for name, value in ast.iter_fields(scope):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not isinstance(node, ast.AST) or documents or isinstance(node, (ast.JoinedStr, ast.Raise)):
                continue
            if isinstance(node, (ast.expr, ast.stmt)) and not isinstance(node, (ast.Slice, ast.Starred)):
                yield node
            yield from inner(node)


def faults(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of an expression or statement."""
    made = copy.deepcopy(node)
    match made:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPPED:
            made.op = SWAPPED[type(op)]()  # type: ignore[assignment]
            yield made
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            made.ops = [SWAPPED[type(op)]()]  # type: ignore[list-item]
            yield made
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1 if isinstance(value, int) else value * 2 or 1.0)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in NAMES:
            setattr(made.func, "id" if isinstance(made.func, ast.Name) else "attr", NAMES[name])
            yield made
        case ast.IfExp():
            made.body, made.orelse = made.orelse, made.body
            yield made
        case ast.AugAssign() | ast.Continue() | ast.Expr(value=ast.Call()) | ast.If(orelse=[]):
            yield ast.Pass()


def places(scope: ast.AST, text: str) -> list[ast.AST]:
    """Where an expression or statement stands in a scope."""
    try:
        wanted = ast.unparse(ast.parse(text))
    except SyntaxError:  # slices in a subscript
        return []
    found: dict[tuple[int, int, int], ast.AST] = {}
    for node in inner(scope):
        if ast.unparse(node) == wanted:  # a call that is a statement is the statement
            found.setdefault((node.lineno, node.col_offset, node.end_col_offset), node)  # type: ignore[attr-defined]
    return list(found.values())


def replaced(text: str, node: ast.AST, new: str) -> str:
    """A file's text with something else in the place of a node."""
    lines = text.encode().splitlines(keepends=True)
    begin, end = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
    before, after = lines[begin][: node.col_offset], lines[end][node.end_col_offset :]  # type: ignore[attr-defined]
    made = new if isinstance(node, ast.stmt) else f"({new})"
    indented = made.replace("\n", "\n" + " " * node.col_offset)  # type: ignore[attr-defined]
    return b"".join([*lines[:begin], before, indented.encode(), after, *lines[end + 1 :]]).decode()


def mutated(root: Path, one: Mutant) -> tuple[Path, str] | None:
    """The file of a mutant and its text with the fault; None where the code is gone."""
    stated = root / one.file
    for path in [stated, *sorted((root / "attnsim").rglob("*.py"))]:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if one.function.split(".")[-1] not in text:
            continue
        found = [n for name, scope in scopes(ast.parse(text)) if name == one.function for n in places(scope, one.old)]
        if len(found) == 1:
            return path, replaced(text, found[0], one.new)
    return None


def drawn(root: Path, number: int, seed: str) -> Iterator[Mutant]:
    """Mutants drawn by a seed, as many of each room as `ROOMS` says; `number` of them in all."""
    draw = random.Random(seed)
    for room, (share, names) in ROOMS.items():
        globs = [name if "*" in name else f"{name}.py" for name in names]
        found = []
        for path in sorted({path for one in globs for path in (root / room).glob(one)}):
            known = list(scopes(ast.parse(path.read_text(encoding="utf-8"))))
            holder = {id(node): (name, scope) for name, scope in known for node in inner(scope)}
            nodes = {id(node): node for _, scope in known for node in inner(scope)}
            found += [(path, *holder[key], node, made) for key, node in nodes.items() for made in faults(node)]
        draw.shuffle(found)
        wanted = round(share * number / sum(most for most, _ in ROOMS.values()))
        for path, function, scope, node, made in found:
            if wanted and (whole := anchor(scope, node)):
                old, new = ast.unparse(whole), ast.unparse(swapped(whole, node, made))
                yield Mutant("", f"drawn by {seed}", str(path.relative_to(root)), function, old, new)
                wanted -= 1


def anchor(scope: ast.AST, node: ast.AST) -> ast.AST | None:
    """The smallest expression or statement around a node, itself included, that stands only once in a scope."""
    around = [one for one in inner(scope) if any(part is node for part in ast.walk(one))]
    for one in reversed(around):
        if len(text := ast.unparse(one)) <= 200 and len(places(scope, text)) == 1:
            return one
    return None


def swapped(whole: ast.AST, node: ast.AST, made: ast.AST) -> ast.AST:
    """`whole` with another node in the place of one."""
    number = next(index for index, part in enumerate(ast.walk(whole)) if part is node)
    copied = copy.deepcopy(whole)
    parts = list(ast.walk(copied))
    if number == 0:
        return made

    class Swap(ast.NodeTransformer):
        def visit(self, one: ast.AST) -> ast.AST:
            return made if one is parts[number] else self.generic_visit(one)

    return Swap().visit(copied)


def read() -> list[Mutant]:
    """The list."""
    rows = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def told(one: Mutant) -> str:
    """An entry of the list."""

    def text(value: str) -> str:
        return f"'''{value}'''" if "\n" in value or '"' in value else f'"{value}"'

    rows = [f"{name} = {text(getattr(one, name))}" for name in ("name", "origin", "file", "function", "old", "new")]
    return "\n".join(["[[mutant]]", *rows, ""])


def outcome(tree: Path, tests: tuple[str, ...], seconds: float | None = SECONDS) -> str:
    """What tests say on a tree: "passed", the first that failed, or that they took too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "-n", "0", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return "took too long"
    if done.returncode == 0:
        return "passed"
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return said[0][:150] if said else f"could not run: {(done.stdout + done.stderr)[-300:]}"


def killed(tree: Path, one: Mutant) -> bool:
    """Whether a test of a mutant fails on it; the tree is left as it was."""
    path, text = mutated(tree, one) or (tree, "")
    before, begun = path.read_text(encoding="utf-8"), monotonic()
    path.write_text(text, encoding="utf-8")
    missing = [test for test in one.tests if not (tree / test.split("::")[0]).exists()]
    said = f"no such test: {missing}" if missing or not one.tests else outcome(tree, one.tests)
    path.write_text(before, encoding="utf-8")
    seen = said.startswith(("FAILED", "ERROR", "took"))
    print(f"{'killed' if seen else 'ALIVE '} {one.name:20} {monotonic() - begun:4.0f} s  {said}", flush=True)
    return seen


def main() -> None:
    """Run the list, or draw one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help="mutants to run; without, all, after the tests have passed without a fault"
    )
    parser.add_argument("--draw", type=int, help="print so many drawn mutants instead")
    parser.add_argument("--seed", default="44")
    parser.add_argument("--check", action="store_true", help="only say whose code is gone")
    options = parser.parse_args()
    if options.draw:
        for number, one in enumerate(drawn(ROOT, options.draw, options.seed), 1):
            print(told(Mutant(f"drawn-{number:02}", *list(vars(one).values())[1:])))
        return
    chosen = [one for one in read() if not options.names or one.name in options.names]
    gone = [one.name for one in chosen if mutated(ROOT, one) is None]
    print(f"{len(chosen)} mutants, {sum(bool(one.equivalent) for one in chosen)} equivalent; gone: {gone or 'none'}")
    if options.check:
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        left = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, tree, ignore=left)
        tests = sorted({test for one in chosen for test in one.tests if (tree / test.split("::")[0]).exists()})
        if not options.names and (said := outcome(tree, tuple(tests), None)) != "passed":
            sys.exit(f"the tests fail without a fault: {said}")
        survivors = [
            one.name for one in chosen if not one.equivalent and one.name not in gone and not killed(tree, one)
        ]
    print(f"{len(survivors)} survive: {', '.join(survivors) or 'none'}")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
