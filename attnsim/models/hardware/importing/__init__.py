"""Import of other tools' hardware descriptions: LLMCompass, AIConfigurator, ``nvidia-smi -q -x``.

Every figure keeps its kind and source. Figures missing from the file follow by :mod:`attnsim.models.hardware.rules`.
Figures without a rule are taken from the most similar known GPU. Both are marked assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from attnsim.errors import InputError
from attnsim.models.hardware.architectures import modelled
from attnsim.models.hardware.attached import MEMORY_MARGIN
from attnsim.models.hardware.file_format import CAPABILITIES
from attnsim.models.hardware.files import gpus_called, known_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu, inconsistency
from attnsim.models.hardware.importing.nvidia_smi import Card, read_nvidia_smi
from attnsim.models.hardware.importing.sections import Found, Imported, read_aiconfigurator, read_llmcompass, read_text
from attnsim.models.hardware.names import inherited
from attnsim.models.hardware.rules import REQUIRED, gpu_of_figures, with_rules
from attnsim.models.hardware.sections import FIELDS, Figure

Format = Literal["llmcompass", "aiconfigurator", "nvidia-smi"]
SUFFIXES: dict[str, Format] = {
    ".json": "llmcompass",
    ".yaml": "aiconfigurator",
    ".yml": "aiconfigurator",
    ".xml": "nvidia-smi",
}
FORMATS = tuple(dict.fromkeys(SUFFIXES.values()))


def import_hardware(path: Path, kind: str | None = None, like: Gpu | None = None) -> Imported:
    """Read another tool's description of a GPU.

    Parameters
    ----------
    kind : {"llmcompass", "aiconfigurator", "nvidia-smi"}, optional
        By default derived from the file's suffix.
    like : Gpu, optional
        Supplies figures missing from both file and rules; by default the most similar built-in GPU.

    Raises
    ------
    InputError
        If the file is wrong or incomplete, in one line.
    """
    if kind is None:
        kind = SUFFIXES.get(path.suffix.lower())
    if kind not in FORMATS:
        raise InputError(
            f"{path.name}: not a known format; give --format {', '.join(FORMATS)}; XML of nvidia-smi is what "
            "nvidia-smi -q -x writes"
        )

    def by(rule: Callable[..., Gpu]) -> Callable[..., Gpu]:
        return rule if like is None else lambda *_: like

    if kind == "aiconfigurator":
        found = read_aiconfigurator(path, by(_of_capability))
        return _checked(path.name, kind, found)
    text = read_text(path)
    try:
        llmcompass = kind == "llmcompass"
        found = read_llmcompass(text, by(_of_rate)) if llmcompass else read_nvidia_smi(text, _of_name, like)
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None
    return _checked(path.name, kind, found)


def _checked(file: str, kind: str, found: Found) -> Imported:
    try:
        gpu, lacking = _same(found) if kind == "nvidia-smi" else _new(found, Path(file).stem)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    problem = inconsistency(gpu)
    if problem:
        raise InputError(f"{file}: {problem}")
    remarks = found.remarks
    if gpu.compute_capability_number != found.capability:
        remarks += (f"compute capability {found.capability / 10} is modelled as {gpu.compute_capability}",)
    return Imported(gpu, kind, found.like.id, lacking, remarks)


def _same(found: Found) -> tuple[Gpu, tuple[str, ...]]:
    """The known GPU with this card's settings; if the card is only similar to it, all figures are assumed."""
    gpu = found.like
    for key, figure in found.figures.items():
        # The highest settable clock; GeForce cards do not run at it.
        gpu = gpu.with_change(key, figure.value, keep=("clock.free", *found.figures))
    kept = inherited(gpu, found.like) if found.likened else gpu.provenance
    lacking = tuple(key for key in FIELDS if found.likened and key not in found.figures)
    return replace(gpu, name=found.name, provenance=MappingProxyType({**kept, **found.figures})), lacking


def _new(found: Found, stem: str) -> tuple[Gpu, tuple[str, ...]]:
    """A new GPU, completed by rules and from the similar known one."""
    like, figures = found.like, dict(found.figures)
    needed = (*REQUIRED, "clock.boost", *(() if found.memory else ("hbm.achievable_fraction",)))
    lacking = tuple(key for key in needed if key not in figures)
    for key in lacking:
        figures[key] = Figure(like.get(key), FIELDS[key].unit, "assumed", f"as on {like.id}: the file is silent")
    capability = found.capability if f"{found.capability / 10}" in CAPABILITIES else modelled(found.capability) or 0
    name = found.name or stem
    figures = with_rules(capability, found.memory, figures)
    gpu = gpu_of_figures(
        re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64] or "imported",
        name,
        f"{capability // 10}.{capability % 10}",
        figures,
    )
    return gpu, lacking


def _known() -> Iterable[Gpu]:
    return map(load_gpu, known_gpu_ids())


def _of_capability(capability: int, peak: float, bandwidth: float) -> Gpu:
    """Built-in GPU of the compute capability, or the next older one, nearest in 16-bit peak and bandwidth."""
    gpus = list(_known())
    newest = max(gpu.compute_capability_number for gpu in gpus if gpu.compute_capability_number <= capability)

    def distance(gpu: Gpu) -> float:
        rates = math.log(gpu.peak_tensor_flops_per_s("fp16") / peak)
        return abs(rates) + abs(math.log(gpu.hbm.bandwidth_bytes_per_s / bandwidth))

    return min((gpu for gpu in gpus if gpu.compute_capability_number == newest), key=distance)


def _of_rate(flops_per_clk: float, bandwidth: float) -> Gpu:
    """Built-in GPU nearest in tensor rate of an SM, then in bandwidth."""

    def distance(gpu: Gpu) -> tuple[float, float]:
        rate = abs(math.log(gpu.tensor.fp16_flops_per_clk / flops_per_clk))
        return round(rate, 6), abs(math.log(gpu.hbm.bandwidth_bytes_per_s / bandwidth))

    return min(_known(), key=distance)


def _of_name(card: Card) -> Gpu:
    """Known GPU of an nvidia-smi name; among several of equal memory, the one with this clock and power limit."""

    def same(gpu: Gpu) -> bool:
        return card.memory_bytes is None or abs(card.memory_bytes / gpu.hbm.capacity_bytes - 1) <= MEMORY_MARGIN

    def unlike(gpu: Gpu) -> float:
        pairs = ((card.boost_hz, gpu.clock.boost_hz), (card.power_w, gpu.power.tdp_w))
        return sum(abs(math.log(found / known)) for found, known in pairs if found)

    why = "its memory is not that of the card of this name"
    try:
        best = min(filter(same, gpus_called(card.name)), key=unlike, default=None)
    except InputError as error:
        best, why = None, str(error)
    if best is None:
        raise InputError(
            f"{card.name!r} is not a built-in GPU ({why}), and nvidia-smi tells neither SMs nor rates; give --like ID "
            "for these"
        )
    return best
