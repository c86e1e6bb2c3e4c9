"""A document as Markdown (CommonMark with GitHub's tables), its pictures in a folder beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnsim.plots.document import Block, Bullets, Code, Details, Document, Paragraph, Picture, Section, clean
from attnsim.tables import Table

_MARKS = re.compile(r"([\\`*\[\]<>{}|~&$!#@^])")
_LOOSE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ADDRESS = re.compile(r"(?i)\b(https?|ftp|mailto|xmpp)(?=:)|\bwww(?=\.)")
_FIRST = re.compile(r"^[-+=]|^\d+(?=[.)](?:\s|$))")


def markdown_text(document: Document, folder: str) -> str:
    """The whole text.

    Parameters
    ----------
    document : Document
    folder : str
        Where the pictures are, from the text: a name, for a link.
    """
    parts = [f"# {escaped(document.title)}", *_blocks(document.lead, 2, folder)]
    for section in document.sections:
        parts += _section(section, 2, folder)
    if document.foot:
        parts.append(begun(document.foot))
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text on one line in which nothing is markup or an address."""
    line = " ".join(clean(text).split())
    line = _LOOSE.sub(r"\\_", _MARKS.sub(r"\\\1", line))
    return _ADDRESS.sub(lambda found: f"{found[0][0]}{_named(found[0][1:])}", line)


def begun(text: str) -> str:
    """Escape the beginning of a line, where a dash or a number would begin a list."""
    return _FIRST.sub(lambda found: _named(found[0]), escaped(text))


def _named(text: str) -> str:
    """Text with its first letter by its number."""
    return f"&#{ord(text[0])};{text[1:]}"


def _section(section: Section, level: int, folder: str) -> list[str]:
    return [f"{'#' * level} {escaped(section.title)}", *_blocks(section.blocks, level + 1, folder)]


def _blocks(blocks: Sequence[Block | Section], level: int, folder: str) -> list[str]:
    found: list[str] = []
    for block in blocks:
        found += _section(block, level, folder) if isinstance(block, Section) else _block(block, level, folder)
    return found


def _block(block: Block, level: int, folder: str) -> list[str]:
    match block:
        case Paragraph(text, strong):
            return [f"**{escaped(text)}**" if strong else begun(text)]
        case Bullets(items):
            return ["\n".join(f"- {begun(item)}" for item in items)]
        case Code(text, language):
            return [_code(clean(text), language)]
        case Table():
            return [begun(block.heading), _table(block)]
        case Details(summary, inner):
            return [f"**{escaped(summary)}**", *_blocks(inner, level, folder)]
        case Picture(name):
            table = f" [The table behind it]({folder}/{name}.csv)" if block.table else ""
            return [f"![{escaped(block.alt)}]({folder}/{name}.png)", begun(block.caption) + table]


def _code(text: str, language: str) -> str:
    """A fence longer than any within."""
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", text))]))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _table(table: Table) -> str:
    ends = ["---:" if name in table.right else "---" for name in table.columns]
    rows = [table.columns, *table.cells]
    lines = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"| {' | '.join(ends)} |", *lines[1:]])
