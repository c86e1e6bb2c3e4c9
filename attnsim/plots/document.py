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

STYLE = """
:root{--page:#fff;--text:#1a1a1a;--faint:#555;--line:#d5d5d5;--tint:#f4f5f6;--link:#0b57a4;--shade:#0006}
@media screen and (prefers-color-scheme:dark){
:root{--page:#15181c;--text:#ececec;--faint:#b6bcc4;--line:#3f464e;--tint:#20252b;--link:#8cc2ff;--shade:#fff7}}
*{box-sizing:border-box}
body{font:1rem/1.5 system-ui,sans-serif;margin:0 auto;max-width:70rem;padding:1.5rem 1rem 3rem;color:var(--text);
background:var(--page);overflow-wrap:break-word}
h1{font-size:1.7rem;line-height:1.25;margin:.5rem 0}h2{font-size:1.3rem;margin:2.4rem 0 .6rem}
h3{font-size:1.05rem;margin:1.6rem 0 .5rem}p,li{max-width:46rem}
header p{font-size:1.1rem}footer,figcaption,caption{color:var(--faint)}footer{margin-top:3rem;font-size:.875rem}
a{color:var(--link)}a:focus-visible,[tabindex]:focus-visible,summary:focus-visible{outline:3px solid var(--link);
outline-offset:2px}
.skip{position:absolute;left:-999rem}.skip:focus{position:static;display:inline-block;padding:.3rem .6rem}
nav ul{columns:2 16rem;padding-left:1.2rem}main:focus{outline:none}
.scroll{overflow-x:auto;margin:.8rem 0 1.4rem;background:
linear-gradient(to right,var(--page) 40%,transparent) 0 0/3rem 100% no-repeat local,
linear-gradient(to left,var(--page) 40%,transparent) 100% 0/3rem 100% no-repeat local,
linear-gradient(to right,var(--shade),transparent) 0 50%/.8rem calc(100% - 4px) no-repeat scroll,
linear-gradient(to left,var(--shade),transparent) 100% 50%/.8rem calc(100% - 4px) no-repeat scroll}
table{border-collapse:collapse;font-size:.875rem;line-height:1.4}
caption{text-align:left;padding-bottom:.4rem;max-width:min(46rem,100vw - 3.2rem)}
th,td{padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{border-bottom:2px solid var(--line);vertical-align:bottom}tbody th{font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}.w{min-width:12rem}
.s{white-space:nowrap}
figure{margin:1rem 0 1.8rem}img{width:100%;height:auto;display:block}.wide img{min-width:44rem}
figcaption{font-size:.875rem;margin-top:.5rem;
max-width:46rem}
details{margin:.8rem 0}summary{cursor:pointer}
pre{background:var(--tint);padding:.7rem .9rem;overflow-x:auto;font-size:.8125rem;line-height:1.45}
@page{size:A4;margin:16mm 14mm}
@media print{
body{font-size:9.5pt;max-width:none;padding:0}h1{font-size:17pt}h2{font-size:13pt;margin-top:1.3rem}h3{font-size:11pt}
header p{font-size:11pt}table,figcaption{font-size:8pt}nav,.skip,.table-link{display:none}
p,li,figcaption{max-width:none}
h2,h3,summary,caption{break-after:avoid}figure,tr{break-inside:avoid}thead{display:table-header-group}
.scroll{overflow:visible;background:none}.w{min-width:4rem;overflow-wrap:anywhere}
th,td{padding:.12rem .45rem .12rem 0}.s,thead .n{white-space:normal}
img{max-width:100%!important;max-height:9.4cm;width:auto}.wide img{min-width:0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font-size:7.5pt;border:1px solid var(--line);background:none}
summary{list-style:none;font-weight:600}details::details-content{content-visibility:visible;height:auto;opacity:1}
a{color:inherit;text-decoration:none}}
"""

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
    title = _safe(document.title)
    numbers = count(1)
    entries = "".join(f'<li><a href="#{one.ident}">{_safe(one.title)}</a></li>' for one in document.sections)
    sections = "\n".join(_section_html(one, 2, numbers) for one in document.sections)
    foot = f"<footer>{_safe(document.foot)}</footer>\n" if document.foot else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f"<header>\n<h1>{title}</h1>\n{_blocks_html(document.lead, 2, numbers)}\n</header>\n"
        f'<nav aria-label="Contents"><ul>{entries}</ul></nav>\n'
        f'<main id="main" tabindex="-1">\n{sections}\n</main>\n{foot}</body>\n</html>\n'
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
