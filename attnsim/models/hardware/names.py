"""What people call a GPU: "h100", "A100-80GB", "rtx4090"; and what is no GPU of NVIDIA's."""

from __future__ import annotations

from collections.abc import Collection

from attnsim.errors import InputError, nearest, shown

OTHERS = (
    "mi", "radeon", "rx", "gfx", "instinct", "amd", "gaudi", "intel", "arc", "max", "tpu", "trainium", "inferentia",
    "ascend", "m",
)  # fmt: skip
"""How the names of other vendors' processors begin, up to the first digit."""


def named(name: str, known: Collection[str]) -> list[str]:
    """The ids that a name may mean: the id itself, or all of one chip.

    Raises
    ------
    InputError
        When there is none, naming the nearest.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removeprefix("geforce-")
    if key in known:
        return [key]
    found = [one for one in known if _squashed(one) == _squashed(key)] or [one for one in known if _covers(one, key)]
    if found and len({one.split("-")[0] for one in found}) == 1:
        return found
    if _letters(key.split("-")[0]) in OTHERS:
        raise InputError(
            f"unknown GPU {shown(name)}: attnsim models GPUs of NVIDIA only; `attnsim gpus` lists them, a GPU file may "
            "describe a hypothetical one"
        )
    raise InputError(
        f"unknown GPU {shown(name)}; {nearest(key, known)}; `attnsim gpus` lists all, a path ending in .yaml is read "
        "as a file"
    )


def usual(candidates: Collection[str]) -> list[str]:
    """Those on an SXM board, where there are any: what a chip's bare name usually means."""
    return [one for one in candidates if any(part.startswith("sxm") for part in one.split("-"))] or list(candidates)


def _covers(known: str, key: str) -> bool:
    """Whether every part of a name is a part of an id; letters alone may leave out its number ("sxm" of "sxm5")."""
    parts = known.split("-")
    return all(
        any(one == word or (word.isalpha() and _letters(one) == word) for one in parts) for word in key.split("-")
    )


def _letters(text: str) -> str:
    """The letters before the first digit."""
    return text[: next((at for at, sign in enumerate(text) if sign.isdigit()), len(text))]


def _squashed(text: str) -> str:
    return text.replace("-", "")
