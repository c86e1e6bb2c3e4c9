"""CUDA files as they are published, with host code beside the kernel, for a compiler that takes device code alone.

Which declarations are host code the compiler says: those in which it finds an error and that carry no ``__device__``,
``__global__`` or their kin, by themselves or through a macro. They become empty lines, so that all others keep theirs.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

PRELUDE = "standard.h"
"""The header that is included before every file: what nvcc knows of the C and C++ libraries in device code."""
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)
_DEVICE = r"__(?:device|global|constant|shared|managed|grid_constant)__"
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?:\([^)\n]*\))?((?:\\\n|[^\n])*)", re.M)
_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"  # comments
    r'|R"(?P<end>\w*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'  # strings
    r"|\b\d(?:'?\w)*|'(?:\\.|[^'\\\n])*'"  # numbers, whose digits a ' may part, and characters
    r"|^[ \t]*#[ \t]*(?P<directive>\w*)(?:\\\n|[^\n])*|[{};]",
    re.S | re.M,
)
_HOLDS_DECLARATIONS = re.compile(
    r"\bnamespace\b|^(?:\s*template\s*<[^{]*>)?\s*(?:typedef\s+)?(?:struct|class|union)\b[^{(]*(?:\([^)]*\)[^{(]*)?$"
    r'|\bextern\s*"C"\s*$'
)
_SHARED = re.compile(r"\b(?:constexpr|using|typedef|static_assert)\b")
"""What device code may need although nothing marks it."""
_ERROR = re.compile(r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<what>[^\n]*)", re.M)


@dataclass(slots=True)
class Piece:
    """A declaration: its text up to ``;`` or ``{``, and the declarations in its braces.

    Attributes
    ----------
    start, end : int
        Its place in the text, without blanks and comments before it.
    head : str
    body : list of Piece
    """

    start: int
    end: int
    head: str
    body: list[Piece] = field(default_factory=list)


@functools.lru_cache(maxsize=32)
def pieces(text: str) -> list[Piece]:
    """The declarations of a file; what an alternative (``#if``) opens ends with it, but for the last."""
    outermost = Piece(0, len(text), "")
    nest, start, alternatives = [outermost], 0, list[int]()
    for token in _TOKEN.finditer(text):
        word, directive = token[0], token["directive"]
        head = text[start : token.start()]
        if directive is not None or word.startswith(("//", "/*")):
            if directive in ("if", "ifdef", "ifndef"):
                alternatives.append(len(nest))
            elif directive in ("else", "elif") and alternatives and len(nest) > alternatives[-1]:
                for open_one in nest[alternatives[-1] :]:
                    open_one.end = token.start()
                del nest[alternatives[-1] :]
            elif directive == "endif" and alternatives:
                alternatives.pop()
            start = token.end() if not head.strip() else start
        elif word == "{":
            nest.append(Piece(start + len(head) - len(head.lstrip()), len(text), head))
            nest[-2].body.append(nest[-1])
            start = token.end()
        elif word in ("}", ";"):
            if word == ";":
                nest[-1].body.append(Piece(start + len(head) - len(head.lstrip()), token.end(), head))
            elif len(nest) > 1:
                nest.pop().end = token.end()
            start = token.end()
    return outermost.body


def without_comments(text: str) -> str:
    """The text with blanks for comments."""
    return _TOKEN.sub(lambda one: " " if one[0].startswith(("//", "/*")) else one[0], text)


@dataclass(frozen=True, slots=True)
class Error:
    """An error of the compiler: where, and what it says."""

    file: str
    line: int
    what: str


def errors_in(log: str) -> list[Error]:
    """The errors of a compiler's messages, in order."""
    return [Error(one["file"], int(one["line"]), one["what"].strip()) for one in _ERROR.finditer(log)]


def without_host_code(texts: Mapping[str, str], errors: Iterable[Error]) -> tuple[dict[str, str], list[Error]]:
    """The files without the host declarations in which there are errors, and the errors that are not in any.

    Parameters
    ----------
    texts : mapping of str to str
        Text by the name that the compiler has for a file.
    errors : iterable of Error
    """
    marker, left, remaining = marker_of(texts.values()), dict(texts), list[Error]()
    for error in errors:
        found = list(_host_at(texts.get(error.file, ""), error.line, marker)) if error.file != PRELUDE else []
        remaining += [] if found else [error]
        for piece in found:
            text = left[error.file]
            blank = re.sub(r"[^\n]", " ", text[piece.start : piece.end])
            left[error.file] = text[: piece.start] + blank + text[piece.end :]
    return left, remaining


def marker_of(texts: Iterable[str]) -> re.Pattern[str]:
    """What tells device code: CUDA's words, and the macros that stand for one."""
    defined = [(one[1], one[2]) for text in texts for one in _MACRO.finditer(text)]
    words, marker = {_DEVICE}, re.compile(_DEVICE)
    while more := {name for name, body in defined if marker.search(body) and rf"\b{name}\b" not in words}:
        words |= {rf"\b{name}\b" for name in more}
        marker = re.compile("|".join(words))
    return marker


def _host_at(text: str, line: int, marker: re.Pattern[str]) -> Iterator[Piece]:
    """The outermost declarations of host code alone on a line."""

    def search(some: list[Piece]) -> Iterator[Piece]:
        for one in some:
            first = text.count("\n", 0, one.start) + 1
            if not first <= line <= first + text.count("\n", one.start, one.end):
                continue
            if _HOLDS_DECLARATIONS.search(one.head) and marker.search(text, one.start, one.end):
                yield from search(one.body)
            elif text[one.start : one.end] != ";" and not marker.search(one.head) and not _SHARED.search(one.head):
                yield one

    yield from search(pieces(text))


@functools.cache
def _host_headers() -> dict[str, str]:
    """What stands for the headers of ``host_headers.csv``, by name, with a * for whatever follows."""
    path = Path(__file__).with_name("host_headers.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: _including(row["brings"].split()) for row in csv.DictReader(file)}


def _including(headers: Iterable[str]) -> str:
    return "".join(f"#if __has_include(<{one}>)\n#include <{one}>\n#endif\n" for one in headers)


def stand_in(header: str) -> str | None:
    """What a kernel takes of a header of the host beside the prelude, mostly nothing; None for other headers.

    C++'s own headers have no ending.
    """
    if re.fullmatch(r"\w+", header):
        return ""
    return next((text for name, text in _host_headers().items() if fnmatchcase(header, name)), None)


def headers_of(path: Path, text: str, folders: Sequence[Path]) -> dict[str, str]:
    """What the compiler is given of the headers of a file, by the names by which they are included.

    Headers beside the file that includes them or in `folders` have their text, those of the host are empty; CUDA's for
    device code the compiler finds by itself.
    """
    found = {PRELUDE: Path(__file__).with_name(PRELUDE).read_text(encoding="utf-8")}
    found |= {name: text for name, text in _host_headers().items() if "*" not in name}
    pending = [(path, text)]
    while pending:
        includer, content = pending.pop()
        for one in INCLUDE.finditer(content):
            name = one[1] or one[2]
            own = _in([includer.parent, *folders] if one[1] else folders, name)
            if own and name not in (PRELUDE, *found):
                found[name] = own.read_text(encoding="utf-8", errors="replace")
                pending.append((own, found[name]))
            elif name not in found and (text_of_host := stand_in(name)) is not None:
                found[name] = text_of_host
    return found


def _in(folders: Iterable[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)
