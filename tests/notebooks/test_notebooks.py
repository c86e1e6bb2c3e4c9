"""Every notebook runs from top to bottom, prints what its committed outputs say, and is kept clean."""

import ast
import re
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

import attnsim
import attnsim.kernels
from benchmarks.refresh_notebooks import executed, notebooks, read, stale_cells

NOTEBOOKS = notebooks()
LARGEST_BYTES = 400_000


def code_cells(book: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def test_there_are_seven() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_its_outputs_are_those_of_today(path: Path) -> None:
    now = executed(path)
    errors = [output.text for cell in code_cells(now) for output in cell.outputs if output.get("name") == "stderr"]
    assert not errors
    stale = stale_cells(read(path), now)
    assert not stale, "python benchmarks/refresh_notebooks.py writes them anew\n" + "\n".join(stale)
    pictures = [[_pictures(cell) for cell in code_cells(book)] for book in (read(path), now)]
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_it_was_committed_as_one_clean_run(path: Path) -> None:
    book = read(path)
    nbformat.validate(book)
    assert path.stat().st_size < LARGEST_BYTES
    assert [cell.execution_count for cell in code_cells(book)] == list(range(1, len(code_cells(book)) + 1))
    assert set(book.metadata) == {"kernelspec", "language_info"} and book.metadata.kernelspec.name == "python3"
    assert book.metadata.language_info == {"name": "python"}
    assert not any(cell.metadata for cell in book.cells)
    for output in (output for cell in code_cells(book) for output in cell.outputs):
        assert output.output_type in ("stream", "display_data", "execute_result")
        assert output.get("name") != "stderr" and not output.get("metadata")
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/home/|/root/|/tmp/| at 0x[0-9a-f]+", text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_it_reads_as_a_text(path: Path) -> None:
    book = read(path)
    assert book.cells[0].cell_type == "markdown" and book.cells[0].source.startswith("# ")
    told = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    drawn = sum(_pictures(cell) for cell in code_cells(book))
    assert drawn and sum("What to see:" in text for text in told) == drawn
    for text in told:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
            assert (path.parent / link).exists(), link


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_it_uses_public_names_alone(path: Path) -> None:
    used: set[str] = set()
    for cell in code_cells(read(path)):
        source = "".join(line for line in cell.source.splitlines(keepends=True) if not line.startswith("%"))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] != "attnsim", ast.unparse(node)
            elif isinstance(node, ast.Import):
                known = {"attnsim", "attnsim.kernels"}
                assert all(one.name in known or not one.name.startswith("attnsim") for one in node.names)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in PUBLIC:
                assert node.attr in PUBLIC[ast.unparse(node.value)], ast.unparse(node)
                used.add(node.attr)
    assert used


PUBLIC = {
    "attnsim": attnsim.__all__,
    "attnsim.evidence": attnsim.evidence.__all__,
    "attnsim.plot": attnsim.plot.__all__,
    "ak": dir(attnsim.kernels),
}


def _pictures(cell: NotebookNode) -> int:
    return sum("image/png" in output.get("data", ()) for output in cell.outputs)
