"""Every notebook runs from top to bottom, prints what its committed outputs say, and is kept clean."""

import ast
import copy
import re
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

import attnsim
import attnsim.kernels
from benchmarks.refresh_notebooks import executed, notebooks, read, stale_cells, text_outputs

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


def test_a_cell_that_fails_is_told(tmp_path: Path) -> None:
    book = _book("print(1)", "1 / 0")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        executed(_written(book, tmp_path))


def test_a_number_that_changed_is_told(tmp_path: Path) -> None:
    path = _written(_book("print(1 + 1)", "import sys; print('x', file=sys.stderr)"), tmp_path)
    now = executed(path)
    assert list(text_outputs(now)) == [(0, "stdout: 2\n"), (1, "stderr: x\n")]
    was = copy.deepcopy(now)
    was.cells[0].outputs[0].text = "3\n"
    assert stale_cells(now, now) == []
    (told,) = stale_cells(was, now)
    assert told.split("\n") == ["--- cell 0, committed", "+++ now", "@@ -1 +1 @@", "-stdout: 3", "+stdout: 2"]


def _pictures(cell: NotebookNode) -> int:
    return sum("image/png" in output.get("data", ()) for output in cell.outputs)


def _book(*sources: str) -> NotebookNode:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]  # type: ignore[no-untyped-call]
    return nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call, no-any-return]


def _written(book: NotebookNode, folder: Path) -> Path:
    path = folder / "small.ipynb"
    nbformat.write(book, path)  # type: ignore[no-untyped-call]
    return path
