"""Vocabulary of questions: one reader for flags, Python, tables and study files.

The canonical names are the fields of `Workload` and the columns of tables: ``heads_q``, ``seq_q``, ``passes`` (column
``pass``). The short words of the command line (``heads``, ``seq``, ``causal``, ``prefill``, ``64k``) mean the same
everywhere.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest, shown
from attnsim.models.mask.mask import Mask

DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "e4m3": "fp8",
}
"""Other names of number formats: those of PyTorch, NumPy and tables."""

PASS_WORDS = {
    "forward": "fwd",
    "prefill": "fwd",
    "backward": "bwd",
    "training": "fwd+bwd",
    "forward+backward": "fwd+bwd",
    "generation": "decode",
}
"""Other names of passes."""

FLAG_WORDS = dict.fromkeys(("true", "1", "1.0", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "0.0", "no", "off", "none", ""), False
)
"""Words for yes and no."""

FIELD_WORDS = {"heads": "heads_q", "kv_heads": "heads_kv", "pass": "passes", "pass_": "passes"}
"""Other names of fields, each for exactly one field."""

COUNTS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v")
NEEDED = ("heads_q", "seq_q", "head_dim")
SHORT = {"heads_q": "heads", "seq_q": "seq"}
MULTIPLES = {"k": 1 << 10, "m": 1 << 20}
MOST_DIGITS = by_hand(15, "digits of a count; who knows what it counts says how large it may be")

T = TypeVar("T")


def read_dtype(text: str) -> str:
    """Canonical name of a number format; unknown names are returned unchanged."""
    key = text.strip().lower().removeprefix("torch.")
    return DTYPES.get(key, key)


def read_cache_dtype(text: str) -> str:
    """Canonical number format of a cache; "" if it is the model's own ("auto")."""
    return "" if text.strip().lower() in ("auto", "model") else read_dtype(text)


def read_pass(text: str) -> str:
    """Canonical name of a pass; unknown names are returned unchanged."""
    key = text.strip().lower()
    return PASS_WORDS.get(key, key)


def read_flag(text: str) -> bool:
    """Read yes or no in any of its spellings."""
    word = text.strip().lower()
    if word not in FLAG_WORDS:
        raise InputError(f"{text!r} given; allowed: true or false, 1 or 0")
    return FLAG_WORDS[word]


def whole(text: str) -> int | None:
    """Read a whole number: 65536, 65,536, 65_536, 64k (times 1024), 1M; None if it is not one."""
    word = text.strip().lower()
    unit = MULTIPLES.get(word[-1:], 1)
    digits = word[: -1 if unit > 1 else None].replace("_", "")
    if unit == 1 and in_thousands(digits):
        digits = digits.replace(",", "")
    return int(digits) * unit if digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS else None


def read_count(text: str, low: int = 1, high: int | None = None) -> int:
    """Read a count of at least `low`."""
    value = whole(text)
    if value is None or value < low or (high is not None and value > high):
        more = ", such as 65536 or 64k" if high is None else f" to {high}"
        raise InputError(f"{text!r} given; allowed: whole numbers from {low}{more}")
    return value


def read_number(text: str, low: float = 0.0) -> float:
    """Read a number of at least `low`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value < math.inf:
        raise InputError(f"{text!r} given; allowed: numbers from {low:g}")
    return value


KERNEL_OPTIONS: dict[str, Callable[[str], Any]] = {
    "kv_dtype": read_cache_dtype,
    "sinks": read_flag,
    "softcap": read_number,
}
"""Options of a call in addition to its shape, with their readers. Each is a field of a question, a flag, a column of
tables and a key of a page's state, and false if not requested. :mod:`attnsim.models.implementations.options` has their
costs.
"""


def cell_number(text: str, where: str) -> float:
    """Number in a cell or a word.

    Raises
    ------
    InputError
        Naming its place.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where} is {shown(text)}; give a number")
    return value


def in_thousands(text: str) -> bool:
    """Return whether a text is one number with commas between its thousands, such as 65,536."""
    first, *rest = text.split(",")
    return bool(rest) and 0 < len(first) <= 3 and all(len(one) == 3 for one in rest)


def listed(text: str, flag: str) -> list[str]:
    """Parts of a list with commas; ``65,536`` is refused if it may be one number or two."""
    parts = text.split(",")
    if not (in_thousands(text) and all(part.isdigit() for part in parts)):
        return [part.strip() for part in parts]
    if any(part.startswith("0") for part in parts[1:]):
        return [text]
    if len(parts[0]) == 3 and all(int(a) < int(b) for a, b in itertools.pairwise(parts)):
        return parts
    joined = "".join(parts)
    raise InputError(f"{flag}: {text} may be one number or several; write {joined}, or '{', '.join(parts)}'")


def mask_of(given: str | None, causal: bool, window: int | None, own: Mask) -> Mask:
    """The given mask; otherwise `own` within the given limits, where a window replaces its window.

    Raises
    ------
    InputError
        If the mask is given as text and also by `causal` or `window`.
    """
    if given is not None:
        if causal or window is not None:
            raise InputError(
                f"mask {given!r} says all of the mask; put causal and window into it, and leave the flags out"
            )
        return Mask.parse(given)
    if window is not None:
        return Mask.sliding_window(window, causal or own.is_causal)
    return own & Mask.causal() if causal else own


def understanding(cls: type[T]) -> type[T]:
    """Class decorator: a dataclass of a question also accepts the short words; its fields keep the canonical names."""
    plain: Callable[..., None] = cls.__init__
    names = [one.name for one in fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(plain)
    def __init__(self: T, *values: Any, **given: Any) -> None:
        twice = [name for name in names[: len(values)] if name in given]
        if twice or len(values) > len(names):
            raise InputError(f"{cls.__name__} is given {twice[0] if twice else 'too much'} twice; give each field once")
        plain(self, **_read(cls.__name__, dict(zip(names, values, strict=False)) | given, names))

    setattr(cls, "__init__", __init__)  # noqa: B010 mypy forbids the plain assignment
    return cls


def _read(owner: str, given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Fields that the given words mean."""
    found: dict[str, Any] = {}
    for word, value in given.items():
        name = FIELD_WORDS.get(word, word)
        if name in found:
            raise InputError(f"{word} and {name} are the same; give one of them")
        found[name] = value
    for name in (name for name in COUNTS if isinstance(found.get(name), str)):
        number = whole(found[name])
        found[name] = found[name] if number is None else number
    for name, read in (("dtype", read_dtype), ("passes", read_pass)):
        if isinstance(found.get(name), str):
            found[name] = read(found[name])
    found |= _lengths(found.pop("seq", None), found)
    mask, causal, window = found.pop("mask", None), found.pop("causal", False), found.pop("window", None)
    if isinstance(mask, str) or causal or window is not None:
        text, own = (mask, Mask.full()) if isinstance(mask, str) else (None, mask or Mask.full())
        found["mask"] = mask_of(text, bool(causal), window, own)
    elif mask is not None:
        found["mask"] = mask
    for name in found:
        if name not in names:
            allowed = [*names, *FIELD_WORDS, "seq", "causal", "window"]
            raise InputError(f"{owner} has no {name!r}; {nearest(name, allowed)}")
    for name in NEEDED:
        if name in names and name not in found:
            short = f", or {SHORT[name]}" if name in SHORT else ""
            raise InputError(f"{name} is missing; give {name}=N{short}")
    return found


def _lengths(seq: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Meaning of a single length: queries and keys; in decode, the keys of the cache with one query."""
    if found.get("lengths"):
        if seq is not None:
            raise InputError("lengths say the length of every sequence; leave seq out")
        return {"seq_q": found.get("seq_q", 0)}
    if seq is None:
        return {}
    if "seq_q" in found:
        raise InputError("seq and seq_q are the same; give one of them")
    length = whole(seq) if isinstance(seq, str) else seq
    length = seq if length is None else length
    if found.get("passes") == "decode" and "seq_kv" not in found:
        return {"seq_q": 1, "seq_kv": length}
    return {"seq_q": length}
