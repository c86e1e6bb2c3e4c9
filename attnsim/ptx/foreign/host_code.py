"""Removes host code from published CUDA files, for a compiler that takes device code only (NVRTC).

A declaration is host code if the compiler finds an error in it and it carries no ``__device__``, ``__global__`` or
similar word, directly or through a macro. Such declarations become empty lines, so that line numbers stay. A
``constexpr`` function is marked for the device instead.
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
"""The header that is included before every file: parts of the C and C++ libraries that nvcc knows in device code."""
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
_SHARED = re.compile(r"\b(?:constexpr|static_assert)\b")
"""Words of declarations that device code may need although nothing marks them."""
_UNMARKED = "A function without execution space annotations"
"""Start of NVRTC's message on a host function. nvcc takes a constexpr one with --expt-relaxed-constexpr."""
_ERROR = re.compile(r"^(?P<file>[^\n(]+)\((?P<line>\d+)\): (?:catastrophic )?error: (?P<what>[^\n]*)", re.M)


@dataclass(slots=True)
class Piece:
    """A declaration: its text up to ``;`` or ``{``, and the declarations in its braces.

    Attributes
    ----------
    start, end : int
        Its range in the text, without leading blanks and comments.
    head : str
        The text before its braces.
    body : list of Piece
        The declarations in its braces.
    """

    start: int
    end: int
    head: str
    body: list[Piece] = field(default_factory=list)


@functools.lru_cache(maxsize=32)
def pieces(text: str) -> list[Piece]:
    """Parse the declarations of a file.

    Braces that one branch of ``#if`` opens are closed at the end of that branch; those of the last branch stay open.
    """
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
    """Replace comments by blanks."""
    return _TOKEN.sub(lambda one: " " if one[0].startswith(("//", "/*")) else one[0], text)


@dataclass(frozen=True, slots=True)
class Error:
    """An error message of the compiler: file, line and text."""

    file: str
    line: int
    what: str


def errors_in(log: str) -> list[Error]:
    """Parse the errors in a compiler's log, in order."""
    return [Error(one["file"], int(one["line"]), one["what"].strip()) for one in _ERROR.finditer(log)]


def without_host_code(texts: Mapping[str, str], errors: Iterable[Error]) -> tuple[dict[str, str], list[Error]]:
    """Remove the host declarations that have errors; returns the files, and the errors that lie in no host declaration.

    Parameters
    ----------
    texts : mapping of str to str
        Text by the compiler's name of the file.
    """
    marker, remaining = marker_of(texts.values()), list[Error]()
    edits: dict[str, dict[int, tuple[int, str]]] = {}  # by file and place: to where, and what stands there then
    for error in errors:
        text = texts.get(error.file, "")
        found = [] if error.file == PRELUDE else list(_host_at(text, error.line, marker))
        for piece in found:
            blank = re.sub(r"[^\n]", " ", text[piece.start : piece.end])
            edits.setdefault(error.file, {})[piece.start] = piece.end, blank
        shared = [] if found or not error.what.startswith(_UNMARKED) else _shared_at(text, error.line)
        for place in shared:
            edits.setdefault(error.file, {})[place] = place, "__device__ "
        remaining += [] if found or shared else [error]
    left = dict(texts)
    for file, some in edits.items():
        for start, (end, instead) in sorted(some.items(), reverse=True):
            left[file] = left[file][:start] + instead + left[file][end:]
    return left, remaining


def marker_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches device code: CUDA's words, and macros that expand to one."""
    defined = [(one[1], one[2]) for text in texts for one in _MACRO.finditer(text)]
    words, marker = {_DEVICE}, re.compile(_DEVICE)
    while more := {name for name, body in defined if marker.search(body) and rf"\b{name}\b" not in words}:
        words |= {rf"\b{name}\b" for name in more}
        marker = re.compile("|".join(words))
    return marker


def _host_at(text: str, line: int, marker: re.Pattern[str]) -> Iterator[Piece]:
    """Yield the outermost declarations on a line that hold only host code; in a struct with device code, functions."""

    def search(some: list[Piece], of_structure: bool = False) -> Iterator[Piece]:
        for one in _on(text, line, some):
            holds = _HOLDS_DECLARATIONS.search(one.head)
            structure = holds and "namespace" not in one.head and "extern" not in one.head
            if holds and (not structure or marker.search(text, one.start, one.end)):
                yield from search(one.body, bool(structure))
            elif text[one.start : one.end] != ";" and not marker.search(one.head) and not _SHARED.search(one.head):
                yield from [] if of_structure and "(" not in one.head else [one]

    yield from search(pieces(text))


def _shared_at(text: str, line: int) -> list[int]:
    """Positions of the word ``constexpr`` of functions on a line that carry no word of CUDA."""

    def search(some: list[Piece]) -> Iterator[int]:
        for one in _on(text, line, some):
            word = re.search(r"\bconstexpr\b", one.head)
            if word and "(" in one.head and not re.search(_DEVICE, one.head):
                yield one.start + word.start() - (len(one.head) - len(one.head.lstrip()))
            elif _HOLDS_DECLARATIONS.search(one.head):
                yield from search(one.body)

    return list(search(pieces(text)))


def _on(text: str, line: int, some: Iterable[Piece]) -> Iterator[Piece]:
    for one in some:
        first = text.count("\n", 0, one.start) + 1
        if first <= line <= first + text.count("\n", one.start, one.end):
            yield one


@functools.cache
def _host_headers() -> dict[str, str]:
    """Return the replacements for the headers of ``host_headers.csv``, by name; a * matches any rest of a name."""
    path = Path(__file__).with_name("host_headers.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return {row["name"]: _including(row["brings"].split()) for row in csv.DictReader(file)}


def _including(headers: Iterable[str]) -> str:
    return "".join(f"#if __has_include(<{one}>)\n#include <{one}>\n#endif\n" for one in headers)


def stand_in(header: str) -> str | None:
    """Return the replacement for a host header, mostly empty; None if the header is not a host header.

    Headers of the C++ library, which have no file ending, are replaced by nothing.
    """
    if re.fullmatch(r"\w+", header):
        return ""
    return next((text for name, text in _host_headers().items() if fnmatchcase(header, name)), None)


def headers_of(path: Path, text: str, folders: Sequence[Path]) -> dict[str, str]:
    """Return the text of each header that a file includes, by the name of the include.

    - Headers in the folder of the including file or in `folders`: their text.
    - Host headers: their replacement, mostly empty.
    - CUDA's device headers are left out, since the compiler finds them itself.
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
