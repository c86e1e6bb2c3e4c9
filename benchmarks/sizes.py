"""Lines that hold code, room by room, beside their budget: `python benchmarks/sizes.py [--write]`.

A line holds code if a token stands on it that is not part of a docstring, an import or a comment. A room is a folder of
`attnsim` or of `attnsim/models`, as in docs/architecture.md; `beside` are the modules in no folder.
`benchmarks/budget.csv` says how many lines a room may hold, and how much of the kernels may be written by hand where
the rest is declared, how many imports stand inside functions, and how many statements the formatter leaves alone
(`# fmt: skip`). A test fails when a count is past its budget; `--write` sets the budget to the counts of today.
"""

from __future__ import annotations

import ast
import csv
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "attnsim"
BUDGET = Path(__file__).with_name("budget.csv")

DERIVING = {"models/schedule/operation.py", "models/schedule/axes.py", "models/schedule/kernel_file.py"}
"""The modules that make segments for everybody: of loops, of declarations, of a file."""

SEGMENTS, USES = "functions that build segments", "tensor uses written out"
INNER_IMPORTS, UNFORMATTED = "imports inside functions", "lines that the formatter leaves alone"
SKIP = "# fmt: " + "skip"

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def main() -> None:
    """Print the counts beside the budget, or make them the budget."""
    present = counts()
    if "--write" in sys.argv[1:]:
        rows = [("counted", "most"), *present.items()]
        BUDGET.write_text("".join(f"{name},{most}\n" for name, most in rows), encoding="utf-8")
    most, files = budget(), Counter(room(path) for path in PACKAGE.rglob("*.py"))
    print("  lines   budget  files")
    for name, count in present.items():
        grown = count - most.get(name, 0)
        print(f"{count:7,}  {count - grown:7,}  {files[name] or '':5}  {name}{f'   {grown:+,}' if grown else ''}")
    inside = sum(present[name] for name in files)
    tests = [len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py")]
    print(f"{inside:7,}           {sum(files.values()):5}  attnsim")
    print(f"{inside - present.get('ptx', 0):7,}           {sum(files.values()) - files['ptx']:5}  outside attnsim/ptx")
    print(f"{sum(tests):7,}           {len(tests):5}  tests, lines of any kind")


def budget() -> dict[str, int]:
    """How much there may be of each thing that is counted."""
    with BUDGET.open(encoding="utf-8") as file:
        return {row["counted"]: int(row["most"]) for row in csv.DictReader(file)}


def past_budget(present: dict[str, int], most: dict[str, int]) -> dict[str, int]:
    """The counts that are larger than their budget, or have none."""
    return {name: count for name, count in present.items() if count > most.get(name, -1)}


def counts() -> dict[str, int]:
    """Lines of each room that hold code, and whatever else has a budget."""
    lines: Counter[str] = Counter()
    others = {SEGMENTS: 0, USES: 0, INNER_IMPORTS: 0, UNFORMATTED: 0}
    for path in PACKAGE.rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix()
        lines[room(path)] += len(code_lines(text))
        tree = ast.parse(text)
        others[INNER_IMPORTS] += len(inner_imports(tree))
        others[UNFORMATTED] += text.count(SKIP)
        if name.startswith("models/"):
            others[SEGMENTS] += 0 if name in DERIVING else len(functions_that_call("Segment", tree))
            if room(path) != "models/schedule":
                others[USES] += len(calls("TensorUse", tree))
    return dict(sorted(lines.items())) | others


def room(path: Path) -> str:
    """The room that a module of the package is in."""
    folders = path.relative_to(PACKAGE).parts[:-1]
    return "/".join(folders[: 1 + (folders[:1] == ("models",))]) or "beside"


def code_lines(text: str) -> set[int]:
    """The numbers of a module's lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and is_text(node.value)):
            lines -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return lines


def is_text(value: ast.expr) -> bool:
    """Whether a value is text, which as a statement of its own is a docstring."""
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def calls(name: str, tree: ast.AST) -> list[ast.Call]:
    """The calls of what has this name, by itself or in a module."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call for call in found if name in (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))]


def functions_that_call(name: str, tree: ast.AST) -> set[ast.AST]:
    """The innermost functions around calls of this name; the tree itself stands for what is in none."""
    inner = {call: tree for call in calls(name, tree)}
    for node in ast.walk(tree):  # outer functions come before those in them
        if isinstance(node, ast.FunctionDef):
            inner |= {call: node for call in calls(name, node)}
    return {*inner.values()}


def inner_imports(tree: ast.AST) -> set[ast.stmt]:
    """The import statements that stand inside functions."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inner = (node for function in functions for node in ast.walk(function))
    return {node for node in inner if isinstance(node, ast.Import | ast.ImportFrom)}


if __name__ == "__main__":
    main()
