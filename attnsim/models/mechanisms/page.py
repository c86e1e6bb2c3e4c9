"""Documentation page of a mechanism: one Markdown file each, `pages/<name>.md`, in a fixed form.

A title, one line without a full stop, then three sections: Definition (MyST, LaTeX between dollars), When it wins (and
what it gives up), Sources (a list: papers and code, with arXiv numbers or equations).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

SECTIONS = ("Definition", "When it wins", "Sources")


@dataclass(frozen=True, slots=True)
class Page:
    """Heading, summary line, definition, conditions under which it wins, and sources of a mechanism."""

    title: str
    summary: str
    definition: str
    wins: str
    sources: tuple[str, ...]


@cache
def read_page(name: str) -> Page:
    """Read the page of a mechanism.

    Raises
    ------
    ValueError
        If the file has another form.
    """
    text = resources.files(__package__).joinpath("pages", f"{name}.md").read_text(encoding="utf-8")
    head, *sections = text.strip().split("\n\n## ")
    title, _, summary = head.removeprefix("# ").partition("\n\n")
    parts = [section.partition("\n\n") for section in sections]
    if tuple(heading for heading, _, _ in parts) != SECTIONS or not text.startswith("# ") or "\n" in summary:
        raise ValueError(f"pages/{name}.md: wanted a title, one line, and the sections {', '.join(SECTIONS)}")
    definition, wins, sources = (body for _, _, body in parts)
    return Page(title, summary, definition, wins, tuple(line.removeprefix("- ") for line in sources.splitlines()))
