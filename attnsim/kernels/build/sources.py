"""Which text a kernel is made of: its source, the headers behind it, its constants; and the hash of all three."""

from __future__ import annotations

import functools
import hashlib
import re

from attnsim.kernels.build.variant import CUDA, Variant

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


@functools.cache
def files_of(source: str) -> tuple[str, ...]:
    """A source and the headers that it includes, directly or not, sorted by name."""
    found, pending = {source}, [source]
    while pending:
        text = (CUDA / pending.pop()).read_text(encoding="utf-8")
        new = set(_INCLUDE.findall(text)) - found
        found |= new
        pending += sorted(new)
    return tuple(sorted(found))


@functools.cache
def _text_hash(source: str) -> bytes:
    digest = hashlib.sha256()
    for name in files_of(source):
        digest.update(name.encode() + b"\0" + (CUDA / name).read_bytes() + b"\0")
    return digest.digest()


def source_hash(variant: Variant) -> str:
    """Hash of everything that decides what a variant compiles to, but the architecture and the compiler."""
    digest = hashlib.sha256(_text_hash(variant.source))
    # Where the folder of the sources lies must not matter.
    options = [option for option in variant.options if not option.startswith("-I")]
    digest.update("\0".join([variant.entry, *options]).encode())
    return digest.hexdigest()[:16]
