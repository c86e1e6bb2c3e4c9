"""A document of sections, paragraphs, tables and pictures, written as one HTML file or as Markdown.

All text is plain: whoever writes the document escapes it, and nothing in it is markup. The HTML file needs no other
file, no network and no script. Markdown is CommonMark with GitHub's tables; its pictures are in a folder beside it.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from string import Template

from attnsim.tables import Table

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")


def clean(text: str) -> str:
    """Text without what no file may hold or what shows a line in another order: control and direction characters."""
    return _UNSAFE.sub("\ufffd", text.replace("\r\n", "\n"))


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Some sentences, strong where they are what to read first."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list without order."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Text to be copied as it is."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """One drawing of a picture, PNG, for pages that are dark, narrow, both or neither."""

    data: bytes
    dark: bool = False
    narrow: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, which a PNG file has from its byte 16 on."""
        return int.from_bytes(self.data[16:20]), int.from_bytes(self.data[20:24])


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture with a caption, what it shows in words, and the table that it was drawn from.

    Parameters
    ----------
    name : str
        Of its files, without suffix.
    caption, alt : str
    images : tuple of Image
        The last is the one for light and wide pages.
    table : bytes
        CSV; empty where there is none.
    widest : int
        Width from which on it is not enlarged, in rem (the height of a letter).
    """

    name: str
    caption: str
    alt: str
    images: tuple[Image, ...]
    table: bytes = b""
    widest: int = 46


@dataclass(frozen=True, slots=True)
class Details:
    """Blocks that a reader opens when wanted."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading.

    Parameters
    ----------
    ident : str
        Of its address in the page: letters and dashes.
    title : str
    blocks : tuple
        Sections among them are one level lower.
    """

    ident: str
    title: str
    blocks: tuple[Block | Section, ...]


Block = Paragraph | Bullets | Code | Table | Picture | Details


@dataclass(frozen=True, slots=True)
class Document:
    """A title, what comes before the first section, the sections, and a last line."""

    title: str
    lead: tuple[Block, ...]
    sections: tuple[Section, ...]
    foot: str = ""


def pictures_of(blocks: Sequence[Block | Section]) -> list[Picture]:
    """All pictures, in order."""
    found: list[Picture] = []
    for block in blocks:
        if isinstance(block, Picture):
            found.append(block)
        elif isinstance(block, (Section, Details)):
            found += pictures_of(block.blocks)
    return found


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: pictures within the page and its own style, nothing else, from nowhere else."""

NARROW = "(max-width: 45rem)"
DARK = "screen and (prefers-color-scheme: dark)"
"""Paper is never dark."""

PAGE, STYLE = (Path(__file__).with_suffix(suffix).read_text("utf-8") for suffix in (".html", ".css"))

SHORT = 26
"""Letters up to which a column of text is kept on one line; columns of longer ones are kept from becoming narrow."""
SCROLLED = 50
"""Width, in rem, from which on a picture without a narrow drawing scrolls on a narrow page."""


def html_text(document: Document) -> str:
    """The whole page.

    Parameters
    ----------
    document : Document
    """
    numbers = count(1)
    return Template(PAGE).substitute(
        policy=html.escape(POLICY),
        title=_safe(document.title),
        style=STYLE,
        contents="".join(f'<li><a href="#{one.ident}">{_safe(one.title)}</a></li>' for one in document.sections),
        sections="\n".join(_section_html(one, 2, numbers) for one in document.sections),
        lead=_blocks_html(document.lead, 2, numbers),
        foot=f"<footer>{_safe(document.foot)}</footer>\n" if document.foot else "",
    )


def _safe(text: str) -> str:
    return html.escape(clean(text))


def _section_html(section: Section, level: int, numbers: count[int]) -> str:
    ident = section.ident
    return (
        f'<section aria-labelledby="{ident}">\n<h{level} id="{ident}">{_safe(section.title)}</h{level}>\n'
        f"{_blocks_html(section.blocks, level + 1, numbers)}\n</section>"
    )


def _blocks_html(blocks: Sequence[Block | Section], level: int, numbers: count[int]) -> str:
    return "\n".join(
        _section_html(block, level, numbers) if isinstance(block, Section) else _block_html(block, level, numbers)
        for block in blocks
    )


def _block_html(block: Block, level: int, numbers: count[int]) -> str:
    match block:
        case Paragraph(text, strong):
            return f"<p><strong>{_safe(text)}</strong></p>" if strong else f"<p>{_safe(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_safe(item)}</li>" for item in items) + "</ul>"
        case Code(text):
            return f'<pre tabindex="0"><code>{_safe(text)}</code></pre>'
        case Table():
            return _table_html(block, f"table-{next(numbers)}")
        case Details(summary, inner):
            return f"<details><summary>{_safe(summary)}</summary>\n{_blocks_html(inner, level, numbers)}\n</details>"
        case Picture():
            return _figure(block)


def _table_html(table: Table, ident: str) -> str:
    """A region that scrolls by itself where the page is narrower than the table, with the keyboard too."""
    kinds = [_kind(table, number) for number in range(len(table.columns))]
    head = "".join(f'<th scope="col"{kind}>{_safe(name)}</th>' for name, kind in zip(table.columns, kinds, strict=True))
    lines = []
    for row in table.cells:
        cells = [
            f'<th scope="row"{kind}>{_safe(cell)}</th>' if place < table.heads else f"<td{kind}>{_safe(cell)}</td>"
            for place, (cell, kind) in enumerate(zip(row, kinds, strict=True))
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return (
        f'<div class="scroll" role="region" aria-labelledby="{ident}" tabindex="0"><table>'
        f'<caption id="{ident}">{_safe(table.heading)}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>{''.join(f'<p>{_safe(line)}</p>' for line in table.remarks)}"
    )


def _kind(table: Table, place: int) -> str:
    if table.columns[place] in table.right:
        return ' class="n"'
    longest = max((len(row[place]) for row in table.cells), default=0)
    return ' class="s"' if longest <= SHORT else ' class="w"'


def _figure(picture: Picture) -> str:
    *others, plain = picture.images
    sources = "".join(f'<source media="{_media(one)}" srcset="{_png(one)}"{_size(one)}>' for one in others)
    image = f'<img alt="{_safe(picture.alt)}" src="{_png(plain)}"{_size(plain)} style="max-width:{picture.widest}rem">'
    shown = f"<picture>{sources}{image}</picture>"
    if picture.widest > SCROLLED and not any(one.narrow for one in others):
        shown = f'<div class="scroll wide" role="region" aria-label="Picture" tabindex="0">{shown}</div>'
    link = ""
    if picture.table:
        data = base64.b64encode(picture.table).decode()
        link = (
            f' <a class="table-link" download="{picture.name}.csv" href="data:text/csv;base64,{data}">'
            "The table behind it (CSV)</a>"
        )
    return f"<figure>{shown}\n<figcaption>{_safe(picture.caption)}{link}</figcaption></figure>"


def _media(image: Image) -> str:
    return " and ".join(
        words for words, wanted in ((DARK, image.dark), ("screen", not image.dark), (NARROW, image.narrow)) if wanted
    )


def _png(image: Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(image.data).decode()}"


def _size(image: Image) -> str:
    width, height = image.size
    return f' width="{width}" height="{height}"'


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
    parts = [f"# {escaped(document.title)}", *_blocks_markdown(document.lead, 2, folder)]
    for section in document.sections:
        parts += _section_markdown(section, 2, folder)
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


def _section_markdown(section: Section, level: int, folder: str) -> list[str]:
    return [f"{'#' * level} {escaped(section.title)}", *_blocks_markdown(section.blocks, level + 1, folder)]


def _blocks_markdown(blocks: Sequence[Block | Section], level: int, folder: str) -> list[str]:
    found: list[str] = []
    for block in blocks:
        found += (
            _section_markdown(block, level, folder)
            if isinstance(block, Section)
            else _block_markdown(block, level, folder)
        )
    return found


def _block_markdown(block: Block, level: int, folder: str) -> list[str]:
    match block:
        case Paragraph(text, strong):
            return [f"**{escaped(text)}**" if strong else begun(text)]
        case Bullets(items):
            return ["\n".join(f"- {begun(item)}" for item in items)]
        case Code(text, language):
            return [_code(clean(text), language)]
        case Table():
            return [begun(block.heading), _table_markdown(block), *map(begun, block.remarks)]
        case Details(summary, inner):
            return [f"**{escaped(summary)}**", *_blocks_markdown(inner, level, folder)]
        case Picture(name):
            table = f" [The table behind it]({folder}/{name}.csv)" if block.table else ""
            return [f"![{escaped(block.alt)}]({folder}/{name}.png)", begun(block.caption) + table]


def _code(text: str, language: str) -> str:
    """A fence longer than any within."""
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", text))]))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _table_markdown(table: Table) -> str:
    ends = ["---:" if name in table.right else "---" for name in table.columns]
    rows = [table.columns, *table.cells]
    lines = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"| {' | '.join(ends)} |", *lines[1:]])
