"""Common names of GPUs: "h100", "A100-80GB", "rtx4090"; and names of other vendors' processors.

Cards that differ from a known GPU in a few figures, one line each of ``variants.csv``; and inherited figures.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.attached import spoken_words
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS, Figure, Kind
from attnsim.tables import read_csv

OTHERS = (
    "mi", "radeon", "rx", "gfx", "instinct", "amd", "gaudi", "intel", "arc", "max", "tpu", "trainium", "inferentia",
    "ascend", "m",
)  # fmt: skip
"""Prefixes, up to the first digit, of other vendors' processor names."""
SUFFIXES = frozenset(("ti", "super", "d", "v2", "sff", "passive", "active", "cnx"))
"""Words that denote a different card: a name without one does not mean a card that has it."""


def called(name: str, known: Collection[str]) -> list[str]:
    """Ids that ``gpu_names.csv`` lists for a name, the most common one first; empty if it lists none.

    Raises
    ------
    InputError
        If the table gives a reason why there is none; the message names the nearest of the `known`.
    """
    listed, refused = _listed()
    words = spoken_words(name)
    if found := listed.get(frozenset(words)):
        return list(found)
    text = " ".join(words)
    for pattern, why in refused.items():
        if fnmatchcase(text, pattern):
            raise InputError(f"no GPU {shown(name)}: {why}; {nearest(_key(name), known)}")
    return []


@functools.cache
def _listed() -> tuple[dict[frozenset[str], tuple[str, ...]], dict[str, str]]:
    """Ids by the words of a name, and reasons by pattern."""
    rows = read_csv(Path(__file__).with_name("gpu_names.csv"))
    ids = {frozenset(spoken_words(row["name"])): tuple(row["gpu"].split("; ")) for row in rows if row["gpu"]}
    return ids, {row["name"]: row["why"] for row in rows if not row["gpu"]}


def named(name: str, known: Collection[str]) -> list[str]:
    """Ids that a name may mean: the id itself, or all ids of one chip; empty if no `known` id matches."""
    key = _key(name)
    if key in known:
        return [key]
    others = SUFFIXES.difference(key.split("-"))
    found = [one for one in known if _squashed(one) == _squashed(key)]
    found = found or [one for one in known if _covers(one, key) and others.isdisjoint(one.split("-"))]
    return found if len({one.split("-")[0] for one in found}) == 1 else []


def unknown(name: str, known: Collection[str]) -> InputError:
    """Error for a name that is none of the `known`: names the other vendor, or the nearest GPU."""
    key = _key(name)
    if is_anothers(name):
        return InputError(
            f"unknown GPU {shown(name)}: attnsim models GPUs of NVIDIA only; `attnsim gpus` lists them, a GPU file may "
            "describe a hypothetical one"
        )
    return InputError(
        f"unknown GPU {shown(name)}; {nearest(key, known)}; `attnsim gpus` lists all, a path ending in .yaml is read "
        "as a file"
    )


def is_anothers(name: str) -> bool:
    """Return whether a name begins like those of other vendors' processors."""
    return _letters(_key(name).split("-")[0]) in OTHERS


def _key(name: str) -> str:
    return "-".join(spoken_words(name)).lower()


def usual(candidates: Collection[str]) -> list[str]:
    """Candidates on an SXM board, if any, otherwise all: the common meaning of a chip's bare name."""
    return [one for one in candidates if any(part.startswith("sxm") for part in one.split("-"))] or list(candidates)


def _covers(known: str, key: str) -> bool:
    """Return whether every part of a name occurs in an id; letters alone may omit its number ("sxm" for "sxm5")."""
    parts = known.split("-")
    return all(
        any(one == word or (word.isalpha() and _letters(one) == word) for one in parts) for word in key.split("-")
    )


def _letters(text: str) -> str:
    """Letters before the first digit."""
    return text[: next((at for at, sign in enumerate(text) if sign.isdigit()), len(text))]


def _squashed(text: str) -> str:
    return text.replace("-", "")


_RATES = ("tensor.bf16", "tensor.tf32", "tensor.fp8")
"""Figures derived with ``tensor.fp16`` if that is stated: the ratios are the architecture's."""
_WITH = {"tensor.fp16": _RATES, "clock.boost": ("clock.tensor", "clock.base", "clock.free")}
"""Figures that keep their ratio to a figure stated in a line, unless the line states them too."""
_DERIVED = ("tensor.fp16", "clock.tensor")
_RECALLED = "~"


@dataclass(frozen=True, slots=True)
class Variant:
    """A card of the table.

    Parameters
    ----------
    extends : str
        Id of the file, or of the variant, that it differs from.
    capability : str
        "12.1"; "" if it is that of the GPU it extends.
    figures : mapping of str to Figure
        Figures stated in its line.
    """

    id: str
    name: str
    extends: str
    capability: str
    figures: Mapping[str, Figure]

    def of(self, base: Gpu) -> Gpu:
        """The card, made from the GPU that it extends."""
        given = {key: figure.value for key, figure in self.figures.items()}
        for key, others in _WITH.items():
            ratio = given.get(key, base.get(key)) / base.get(key)
            given = {other: round(base.get(other) * ratio, 3) for other in others if ratio != 1} | given
        stated = dict(self.figures)
        if rate := stated.get("tensor.fp16"):
            stated |= {key: dataclasses.replace(rate, value=given.get(key, base.get(key))) for key in _RATES}
        gpu = base
        for key, value in given.items():
            if value != gpu.get(key):
                gpu = gpu.with_change(key, value, keep=given)
        return dataclasses.replace(
            gpu,
            id=self.id,
            name=self.name,
            base_id=self.id,
            changes=(),
            compute_capability=self.capability or gpu.compute_capability,
            provenance=MappingProxyType({**inherited(gpu, base), **stated}),
        )


def inherited(gpu: Gpu, base: Gpu) -> dict[str, Figure]:
    """Figures of a GPU made from another one: assumed, except the limits of its compute capability."""
    limits = {one.key for one in architecture_of(base.compute_capability_number).figures if one.kind == "datasheet"}
    found = {}
    for key, figure in base.provenance.items():
        value, source = gpu.get(key), f"as on {base.id}: {figure.source}"
        if value != figure.value:
            source = f"in proportion to {base.id}'s {FIELDS[key].show(figure.value)}: {figure.source}"
        kept = key in limits and figure.kind == "datasheet"
        found[key] = figure if kept else Figure(value, figure.unit, "assumed", source)
    return found


def _variant(row: Mapping[str, str]) -> Variant:
    figures = {}
    for key, field in FIELDS.items():
        if cell := row.get(key, ""):
            kind: Kind = "assumed" if cell.startswith(_RECALLED) else "derived" if key in _DERIVED else "datasheet"
            figures[key] = Figure(field.parse(cell.removeprefix(_RECALLED)), field.unit, kind, row["source"])
    return Variant(row["id"], row["name"], row["extends"], row["capability"], figures)


VARIANTS = {row["id"]: _variant(row) for row in read_csv(Path(__file__).with_name("variants.csv"))}
"""Variants by id."""
