"""A document before it is written: sections of paragraphs, tables and pictures, as HTML and Markdown both have them.

All text is plain: whoever writes the document escapes it, and nothing in it is markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
