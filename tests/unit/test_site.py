"""The documentation site: every page is reached from the index, links of moved documents lead somewhere."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from docutils.utils.math.latex2mathml import tex2mathml  # type: ignore[import-untyped]
from typer.main import get_command

from attnsim.cli.app import app

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_reached_from_the_index(generated: ModuleType) -> None:
    reached, todo = {"index"}, ["index"]
    while todo:
        name = todo.pop()
        text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
        folder = name.rpartition("/")[0]
        for block in re.findall(r"```\{toctree\}(.*?)```", text, re.DOTALL):
            listed = [line for line in block.split("\n") if line and not line.startswith(":")]
            below = {f"{folder}/{line}" if folder else line for line in listed} - reached
            reached |= below
            todo += [line for line in below if not line.startswith("_generated/")]
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    pages = {page for page in pages if not page.startswith(("_generated/", "_build/"))}
    assert (
        pages | {f"_generated/{page}" for page in (*generated.OUTSIDE.values(), "options", "errors", "ratios")}
        == reached
    )


def test_every_command_has_a_page() -> None:
    for command in get_command(app).commands:  # type: ignore[attr-defined]
        assert (DOCS / "cli" / f"{command}.md").exists(), command


def test_links_of_a_moved_document_lead_to_pages(generated: ModuleType) -> None:
    text = (
        "[a](docs/design/trust.md#x) [b](CHANGELOG.md) [c](https://x.org/y) [`d/e.py`](d/e.py) [f](LICENSE) ![g](h.png)"
    )
    assert generated.moved(text) == (
        "[a](../design/trust.md#x) [b](changelog.md) [c](https://x.org/y) `d/e.py` f (`LICENSE`) ![g](h.png)"
    )


def test_every_command_has_its_options(generated: ModuleType) -> None:
    page = generated.options_page()
    for command in ("attnsim predict", "attnsim kernels run", "attnsim gpus show", "attnsim trace"):
        assert f"## {command}\n" in page
    assert page.count("Usage: attnsim") >= page.count("\n## ")


def test_every_formula_is_drawn_without_a_network() -> None:
    formulas = [
        (page.name, block or inline, bool(block))
        for page in DOCS.rglob("*.md")
        if not {"_generated", "_build", "_api"} & set(page.relative_to(DOCS).parts)
        for block, inline in re.findall(
            r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+?)\$",
            re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL),
            flags=re.DOTALL,
        )
    ]
    assert len(formulas) > 200
    for page, formula, as_block in formulas:
        assert tex2mathml(formula, as_block=as_block).startswith("<math"), page
