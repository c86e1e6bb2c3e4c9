"""What may be imported when a file is loaded: no GPU library, numba by two files, for kernels little besides NumPy."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import attnsim.models
from attnsim.cli import main
from attnsim.cli.app import COMMANDS, app
from attnsim.cli.help import STORED, stored, summary
from benchmarks.command_help import helps

PACKAGE = Path(attnsim.models.__file__).parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))
BENCHMARKS = sorted((PACKAGE.parent / "benchmarks").glob("*.py"))


def module_level_imports(tree: ast.Module) -> Iterator[str]:
    """Names imported when the file is: everywhere but in functions and under ``if TYPE_CHECKING``."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)


def imports_of(path: Path) -> list[str]:
    return sorted(module_level_imports(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_gpu_library_at_module_level(path: Path) -> None:
    roots = {name.partition(".")[0] for name in imports_of(path)}
    assert not roots & {"cupy", "cupyx", "cuda", "pynvml", "torch", "triton"}


def test_only_what_is_compiled_imports_numba() -> None:
    users = {path for path in FILES for name in imported_anywhere(path) if name.partition(".")[0] == "numba"}
    assert users == {PACKAGE / "jit.py", PACKAGE / "simulator" / "compiled.py"}


def imported_anywhere(path: Path) -> Iterator[str]:
    """Names imported by a file, those in its functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


HEAVY = {"numpy", "yaml", "pydantic", "typer", "rich", "pandas", "matplotlib", "scipy", "joblib", "pint", "numba"}
PREDICT = "from attnsim.cli import main; main('predict --gpu a100-sxm4-80gb --heads 8 --seq 512 --head-dim 64'.split())"


@pytest.mark.parametrize(
    ("script", "loaded"),
    [
        ("import attnsim", set()),
        ("import attnsim.models.hardware.gpu", set()),
        ("from attnsim.cli import main; main(['--help'])", {"typer"}),
        ("from attnsim.cli import main; main(['whatif', '--help'])", {"typer"}),
        ("from attnsim import load_gpu; load_gpu('h100-sxm5-80gb')", {"numpy", "yaml", "pydantic"}),
        ("import attnsim.models.question.case_file", {"numpy", "yaml"}),
        ("import attnsim.plots.roofline, attnsim.api.roofline", {"numpy", "yaml", "pydantic"}),
        (PREDICT, {"numpy", "yaml", "pydantic", "typer", "rich"}),  # less than SimPy plays before the twin is loaded
    ],
)
def test_what_is_asked_first_loads_little(script: str, loaded: set[str]) -> None:
    code = f"import sys; {script}; sys.exit(' '.join({HEAVY - loaded} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


LEAVES = {path.stem for path in PACKAGE.glob("*.py")}


def test_kernels_and_ptx_import_numpy_the_standard_library_and_models() -> None:
    allowed = {"numpy", *sys.stdlib_module_names}
    for path in FILES:
        if path.is_relative_to(PACKAGE / "kernels") or path.is_relative_to(PACKAGE / "ptx"):
            for name in imports_of(path):
                root, _, rest = name.partition(".")
                ours = root == "attnsim" and rest.partition(".")[0] in {"models", "kernels", "ptx", *LEAVES}
                assert ours or root in allowed, f"{path.name} imports {name}"


BARE = """
import importlib, importlib.abc, pkgutil, sys

class OnlyNumpy(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names and root not in ("numpy", "attnsim"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyNumpy())
import attnsim.kernels, attnsim.ptx
for package in attnsim.kernels, attnsim.ptx:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.removeprefix("attnsim.kernels.") not in ("build", "cpu", "foreign"):
            importlib.import_module(module.name)

from attnsim.kernels.catalog import OPERATIONS
from attnsim.models.hardware.attached import Attached, gpu_of_attached
from attnsim.models.question.workload import Workload

gpu = gpu_of_attached(Attached("NVIDIA H200", 90, 150 * 10**9, {"MultiProcessorCount": 132}))
for operation in OPERATIONS.values():
    assert operation.variants()
    queries = 1 if operation.passes == "decode" else 256
    question = Workload(1, 4, queries, operation.head_dims[0], seq_kv=256, passes=operation.passes)
    assert operation.schedule(question, gpu).kernels
"""
"""What a GPU machine with NumPy and CuPy alone does up to the launch."""


def test_a_machine_with_numpy_alone_gets_as_far_as_the_launch() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmarks_import_what_is_there(path: Path) -> None:
    """No type checker reads them."""
    pytest.importorskip("pandas", reason="some read tables: pip install -e .[dev]")
    importlib.import_module(f"benchmarks.{path.stem}")


def test_a_command_loads_no_other() -> None:
    code = (
        "import sys; from attnsim.cli import main; main(['gpus', 'show', 'l4']); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    loaded = {name.rpartition(".")[2] for name in done.stderr.split() if name.startswith("attnsim.cli.")}
    assert "gpus" in loaded and not loaded & {one["module"] for one in COMMANDS.values() if one["module"] != "gpus"}


def test_the_help_lists_commands_as_they_describe_themselves() -> None:
    root = typer.main.get_command(app)
    loaded = root.commands  # type: ignore[attr-defined]
    assert {name: one["summary"] for name, one in COMMANDS.items()} == {
        name: summary(loaded[name]) for name in COMMANDS
    }


def test_the_stored_help_is_what_each_command_says() -> None:
    """`make outputs` stores it."""
    assert json.loads(STORED.read_text(encoding="utf-8")) == helps()


def test_a_narrow_terminal_has_its_help_folded_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert stored(["gpus", "show", "--help"]) == ""
    assert main(["gpus", "show", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


PRODUCT = """
import sys
import numba, numpy as np
from attnsim.jit import jit
assert jit(lambda one: one + 1)(1) == 2
assert "scipy.linalg" not in sys.modules, "its linear algebra was loaded"
assert numba.njit(lambda one, two: one @ two)(np.ones((2, 3)), np.ones((3, 2))).sum() == 12
"""


def test_compiled_code_loads_no_linear_algebra_and_leaves_it_to_others() -> None:
    done = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
