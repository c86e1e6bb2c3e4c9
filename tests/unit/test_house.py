"""Rules of the house: the length of files, no circular imports, where text is parsed, and plain English docstrings."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mechanisms import ALGORITHMS

PACKAGE = Path(__file__).resolve().parents[2] / "attnsim"
FILES = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}

LONGEST = 600
"""Lines of a file."""

READS_FOREIGN_TEXT = {
    "api/requests.py": "columns of other people's traces",
    "cli/outputs.py": "names of files",
    "kernels/gpu/environment.py": "what the driver and nvcc say of themselves",
    "kernels/variant.py": "#include lines of CUDA sources",
    "models/hardware/attached.py": "names that a driver gives GPUs",
    "models/hardware/gpu.py": "values that people give, '2x'",
    "models/hardware/importing/__init__.py": "names in other tools' files",
    "models/hardware/importing/nvidia_smi.py": "what nvidia-smi prints",
    "models/implementations/names.py": "names and versions that people give, 'vllm 0.24.0'",
    "models/llm/files.py": "names of files",
    "models/llm/huggingface.py": "names of models on the Hub",
    "models/mask/mask.py": "masks that people write",
    "models/question/case_row.py": "numbers in tables that people give",
    "models/question/headings.py": "headings in tables that people give, 'Flash Time (µs)', and what benchmarks print",
    "models/question/columns.py": "names of columns in tables that people give, 'latency [us]'",
    "ptx/foreign/compilers.py": "messages of NVRTC, and CUDA that people wrote",
    "ptx/foreign/host_code.py": "messages of NVRTC, and CUDA that people wrote",
    "ptx/foreign/names.py": "names that compilers mangled",
    "ptx/nvrtc.py": "reports of ptxas, and the version that it prints",
    "ptx/parse.py": "PTX",
    "ptx/syntax.py": "PTX",
    "units.py": "quantities that people give, '3.35 TB/s'",
    "plots/document.py": "characters that a page cannot hold, and those that Markdown reads as its own, in any text",
    "studies/hardware_space.py": "ranges and conditions that people give",
    "validation/measuring/counters.py": "reports of Nsight Compute",
}
"""The files that may use regular expressions, and what they read: never text that the package wrote for people."""


def test_a_file_holds_one_noun_in_at_most_600_lines() -> None:
    assert not {name for name, text in FILES.items() if text.count("\n") > LONGEST}


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        ("An implementation", "triton.split.?k"),
        ("A mechanism", "window.gather|windowed_attention"),
        ("A hardware unit", "fp64"),
    ],
)
def test_a_recipe_costs_the_files_that_it_says(recipe: str, word: str) -> None:
    """Files of the package that the example is named in; PTX has data of 64 bits of its own."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    said = text.partition(f"**{recipe}**")[2].partition(";")[0]
    parts = {".py", ".toml", ".md", ".csv", ".json", ".yaml", ".cu"}
    paths = [path for path in PACKAGE.rglob("*") if path.suffix in parts and PACKAGE / "ptx" not in path.parents]
    named = [str(path) for path in paths if re.search(word, f"{path.name}\n{path.read_text(encoding='utf-8')}")]
    assert len(named) == sum(map(int, re.findall(r"\d+", said))), named


def test_no_imports_go_in_a_circle() -> None:
    """Imports in functions and for type checkers are counted too: they are how a circle hides."""
    graph = grimp.build_graph("attnsim", cache_dir=None)
    assert not set(in_circles({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}))


def in_circles(imports: dict[str, set[str]]) -> Iterator[str]:
    """The modules that import themselves by way of others."""
    for start in imports:
        seen: set[str] = set()
        pending = [start]
        while pending:
            new = imports[pending.pop()] - seen
            seen |= new
            pending += new
        if start in seen:
            yield start


def test_regular_expressions_read_only_what_others_wrote() -> None:
    using = {name for name, text in FILES.items() if any(imports_re(node) for node in ast.walk(ast.parse(text)))}
    assert using == READS_FOREIGN_TEXT.keys()


def imports_re(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name == "re" for alias in node.names)
    return isinstance(node, ast.ImportFrom) and node.module == "re"


NAMED = {*ALGORITHMS, *IMPLEMENTATIONS, *(alias for one in IMPLEMENTATIONS.values() for alias in one.aliases)}
NAMED -= {"global", "linear"}  # a memory space of PTX, and how the names of our own linear kernels' operations begin
NAMES = ("name", "algorithm", "implementation", "mechanism", "runs", "family")


def test_nothing_is_decided_by_the_name_of_a_mechanism_or_an_implementation() -> None:
    """What differs between them is a field of their records; a name is looked up or shown."""
    found = {f"{name}: {ast.unparse(node)}" for name, text in FILES.items() for node in by_name(ast.parse(text))}
    assert found == set()


def by_name(tree: ast.AST) -> Iterator[ast.AST]:
    """Comparisons of what is called a name with the names of mechanisms or implementations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(is_name(side) for side in sides) and any(NAMED & strings(side) for side in sides):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and is_name(node.func.value):
            begins = strings(node) if node.func.attr == "startswith" else set()
            if any(known.startswith(one) for one in begins if len(one) > 1 for known in NAMED):
                yield node
        elif isinstance(node, ast.Match) and is_name(node.subject):
            yield from (case.pattern for case in node.cases if NAMED & strings(case.pattern))


def is_name(node: ast.AST) -> bool:
    last = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
    return str(last or ast.unparse(node).split(".")[-1]).endswith(NAMES)


def strings(node: ast.AST) -> set[str]:
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


OPENING = re.compile(r"(?:As|Of|The same|Those|What(?!-)|Where|Who)\b")
"""Words with which a docstring begins that does not name its subject."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring, those behind assignments included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", ())
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, inspect.cleandoc(one.value.value)


def rewritten() -> Iterator[tuple[str, str]]:
    """Place and text of each docstring in the rooms that are in plain English."""
    for name, text in FILES.items():
        yield from ((f"{name}:{line}", doc) for line, doc in docstrings(ast.parse(text)))


def test_docstrings_name_their_subject() -> None:
    assert [place for place, doc in rewritten() if OPENING.match(doc)] == []


def test_docstrings_say_when_an_error_is_raised() -> None:
    """An `InputError` without a condition says no more than every other function does."""
    bare = re.compile(r"^Raises\n-+\nInputError$(?!\n )", re.MULTILINE)
    assert [place for place, doc in rewritten() if bare.search(doc)] == []
