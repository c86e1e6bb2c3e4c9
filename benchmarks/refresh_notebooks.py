"""Execute every notebook and write its outputs back.

`python benchmarks/refresh_notebooks.py [NAME ...]` runs `notebooks/*.ipynb`, or those whose names begin with NAME, each
in an empty folder, and stores them with their outputs. With `--check` it changes nothing and fails if a text would
change; pictures are not compared, the tables beside them are.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from difflib import unified_diff
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from attnsim.writing import write_whole

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDER = REPOSITORY / "notebooks"
TIMEOUT_S = 600
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebooks() -> list[Path]:
    """The notebooks in their order."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """A notebook as it is committed."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call, no-any-return]


def executed(path: Path) -> NotebookNode:
    """The notebook run from top to bottom in an empty folder, with its outputs and nothing of the machine.

    Parameters
    ----------
    path : Path
        Left as it is.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        With the cell and its traceback.
    """
    book = read(path)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            book, timeout=TIMEOUT_S, kernel_name=KERNEL["name"], record_timing=False, coalesce_streams=True
        )
        client.resources = {"metadata": {"path": folder}}
        client.create_kernel_manager()
        # Sockets in the folder: several notebooks at once cannot take each other's ports.
        client.km.transport, client.km.ip = "ipc", os.path.join(folder, "kernel")
        client.execute(env=_environment(folder))
    book.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})  # type: ignore[no-untyped-call]
    for cell in book.cells:
        cell.metadata = nbformat.from_dict({})  # type: ignore[no-untyped-call]
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})  # type: ignore[no-untyped-call]
    return book


def _environment(folder: str) -> dict[str, str]:
    """The package beside this folder, and no settings of the user's."""
    here = {name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "MATPLOTLIBRC")}
    path = os.pathsep.join(part for part in (str(REPOSITORY), here.get("PYTHONPATH", "")) if part)
    return here | {"PYTHONPATH": path, "IPYTHONDIR": os.path.join(folder, "ipython"), "COLUMNS": "120"}


def as_text(path: Path) -> str:
    """The notebook run, as its file should be."""
    text: str = nbformat.writes(executed(path))  # type: ignore[no-untyped-call]
    return f"{text.rstrip()}\n"


def text_outputs(book: NotebookNode) -> Iterator[tuple[int, str]]:
    """The number of each code cell and what it printed or returned, pictures left out."""
    for number, cell in enumerate(book.cells):
        if cell.cell_type == "code":
            yield number, "".join(_text(output) for output in cell.outputs)


def _text(output: Any) -> str:
    if output.output_type == "stream":
        return f"{output.name}: {output.text}"
    if output.output_type == "error":
        return f"error: {output.ename}: {output.evalue}"
    return f"{output.data['text/plain']}\n"


def stale_cells(committed: NotebookNode, now: NotebookNode) -> list[str]:
    """What a reader would no longer see, one difference for each cell."""
    return [
        "\n".join(unified_diff(old.split("\n"), new.split("\n"), f"cell {number}, committed", "now", n=0, lineterm=""))
        for (number, old), (_, new) in zip(text_outputs(committed), text_outputs(now), strict=True)
        if old != new
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of names; without any, every notebook")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a text is out of date")
    options = parser.parse_args()
    chosen = [path for path in notebooks() if path.name.startswith(tuple(options.names) or "")]
    if not chosen:
        known = ", ".join(path.name for path in notebooks())
        parser.error(f"no notebook begins with {' or '.join(options.names)}; there are {known}")
    stale = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for path, text in zip(chosen, pool.map(as_text, chosen), strict=True):
            book = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
            found = stale_cells(read(path), book)
            stale += bool(found)
            if options.check:
                print(*found, sep="\n", end="\n" if found else "")
            else:
                write_whole(path, text)
            state = "as committed" if not found else "out of date" if options.check else "refreshed"
            print(f"{path.name}: {state}")
    return int(options.check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
