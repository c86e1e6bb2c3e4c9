"""The documentation site: every page is reached from the index, links of moved documents lead somewhere."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_index(generated: ModuleType) -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = {line for block in re.findall(r"```\{toctree\}(.*?)```", index, re.DOTALL) for line in block.split("\n")}
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    made = {f"_generated/{page}" for page in (*generated.OUTSIDE.values(), "options", "errors")}
    assert pages | made <= listed


def test_links_of_a_moved_document_lead_to_pages(generated: ModuleType) -> None:
    text = (
        "[a](docs/design.md#trust) [b](CHANGELOG.md) [c](https://x.org/y) [`d/e.py`](d/e.py) [f](LICENSE) ![g](h.png)"
    )
    assert generated.moved(text) == (
        "[a](../design.md#trust) [b](changelog.md) [c](https://x.org/y) `d/e.py` f (`LICENSE`) ![g](h.png)"
    )


def test_every_command_has_its_options(generated: ModuleType) -> None:
    page = generated.options_page()
    for command in ("attnsim predict", "attnsim kernels run", "attnsim gpus show", "attnsim trace"):
        assert f"## {command}\n" in page
    assert page.count("Usage: attnsim") >= page.count("\n## ")
