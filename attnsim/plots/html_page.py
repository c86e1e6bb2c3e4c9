"""A document as one HTML file that needs no other file, no network and no script."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from itertools import count

from attnsim.plots.document import (
    Block,
    Bullets,
    Code,
    Details,
    Document,
    Image,
    Paragraph,
    Picture,
    Section,
    clean,
)
from attnsim.tables import Table

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
    sections = "\n".join(_section(one, 2, numbers) for one in document.sections)
    foot = f"<footer>{_safe(document.foot)}</footer>\n" if document.foot else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f"<header>\n<h1>{title}</h1>\n{_blocks(document.lead, 2, numbers)}\n</header>\n"
        f'<nav aria-label="Contents"><ul>{entries}</ul></nav>\n'
        f'<main id="main" tabindex="-1">\n{sections}\n</main>\n{foot}</body>\n</html>\n'
    )


def _safe(text: str) -> str:
    return html.escape(clean(text))


def _section(section: Section, level: int, numbers: count[int]) -> str:
    ident = section.ident
    return (
        f'<section aria-labelledby="{ident}">\n<h{level} id="{ident}">{_safe(section.title)}</h{level}>\n'
        f"{_blocks(section.blocks, level + 1, numbers)}\n</section>"
    )


def _blocks(blocks: Sequence[Block | Section], level: int, numbers: count[int]) -> str:
    return "\n".join(
        _section(block, level, numbers) if isinstance(block, Section) else _block(block, level, numbers)
        for block in blocks
    )


def _block(block: Block, level: int, numbers: count[int]) -> str:
    match block:
        case Paragraph(text, strong):
            return f"<p><strong>{_safe(text)}</strong></p>" if strong else f"<p>{_safe(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_safe(item)}</li>" for item in items) + "</ul>"
        case Code(text):
            return f'<pre tabindex="0"><code>{_safe(text)}</code></pre>'
        case Table():
            return _table(block, f"table-{next(numbers)}")
        case Details(summary, inner):
            return f"<details><summary>{_safe(summary)}</summary>\n{_blocks(inner, level, numbers)}\n</details>"
        case Picture():
            return _figure(block)


def _table(table: Table, ident: str) -> str:
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
        f"<tbody>\n{body}\n</tbody></table></div>"
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
