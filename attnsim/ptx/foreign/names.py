"""Demangles kernel names: ``flash::twice<2>`` for ``_ZN5flash5twiceILi2EEEvPfi``.

C++ compilers mangle names by the Itanium C++ ABI (section 5.1, "External Names"). This module reads names, namespaces,
and template arguments that are numbers, fundamental types, classes, or pointers to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TYPES = {
    "v": "void", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short",
    "t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long",
    "y": "unsigned long long", "f": "float", "d": "double",
}  # fmt: skip
_LOCAL = "_GLOBAL__N_"
"""Start of the mangled name of an unnamed namespace."""


def readable(mangled: str) -> str:
    """Demangle the name of a kernel, without its parameters; returns the mangled name if that fails."""
    if not mangled.startswith("_Z"):
        return mangled
    try:
        return _name(mangled, 2)[0] or mangled
    except (IndexError, ValueError):
        return mangled


def _name(text: str, at: int) -> tuple[str, int]:
    nested = text[at] == "N"
    at += nested
    parts: list[str] = []
    while True:
        if text[at] in "KL" and not parts:
            at += 1
        elif text[at].isdigit():
            digits = re.match(r"\d+", text[at:])
            assert digits is not None  # it begins with one
            begin = at + digits.end()
            at = begin + int(digits[0])
            part = text[begin:at]
            if len(part) < int(digits[0]):
                raise ValueError(text)
            parts += [] if part.startswith(_LOCAL) else [part]
        elif text[at] == "I":
            arguments, at = _arguments(text, at + 1)
            parts[-1] += f"<{', '.join(arguments)}>"
        elif nested and text[at] == "E":
            return "::".join(parts), at + 1
        elif not nested and parts:
            return parts[0], at
        else:
            raise ValueError(text)
        if not nested and parts and (at == len(text) or text[at] != "I"):
            return parts[0], at


def _arguments(text: str, at: int) -> tuple[list[str], int]:
    found: list[str] = []
    while text[at] != "E":
        if text[at] == "J":  # a pack
            more, at = _arguments(text, at + 1)
            found += more
            continue
        one, at = _argument(text, at)
        found.append(one)
    return found, at + 1


def _argument(text: str, at: int) -> tuple[str, int]:
    if text[at] == "L":
        end = text.index("E", at)
        number = text[at + 2 : end].replace("n", "-")
        return {"b0": "false", "b1": "true"}.get(text[at + 1 : end], number), end + 1
    if text[at] in "PK":
        inner, end = _argument(text, at + 1)
        return (f"{inner}*" if text[at] == "P" else f"const {inner}"), end
    if text[at] in _TYPES:
        return _TYPES[text[at]], at + 1
    return _name(text, at)


def matching(requested: str, names: Iterable[str]) -> list[str]:
    """Return the kernels that a name may mean: the mangled name itself, else those with that readable name.

    Namespaces may be left out, and template arguments too if the rest of the name is unique.
    """
    known = {name: readable(name).replace(" ", "") for name in names}
    wanted = requested.replace(" ", "").removeprefix("::")
    plain = {name: _plain(one) for name, one in known.items()}
    for found in (
        [name for name in known if name == requested],
        [name for name, one in known.items() if one == wanted],
        [name for name, one in known.items() if one.rpartition("::")[2] == wanted and "<" not in one],
        [name for name, one in known.items() if one.endswith(f"::{wanted}")],
        [name for name, one in plain.items() if wanted in (one, one.rpartition("::")[2])],
    ):
        if found:
            return found
    return []


def _plain(name: str) -> str:
    """Strip template arguments from a name."""
    while "<" in name:
        name = re.sub(r"<[^<>]*>", "", name)
    return name
