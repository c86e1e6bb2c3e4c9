"""Record of an attached GPU, made from what its driver reports.

On a machine with the packages that GPU files need, the built-in file of the same chip is used. Otherwise, and for a
chip without a file, the limits are the driver's and the rest follows by :mod:`attnsim.models.hardware.rules`; that
needs only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnsim.errors import InputError
from attnsim.models.hardware.architectures import ARCHITECTURES, modelled
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.rules import gpu_of_figures, with_rules
from attnsim.models.hardware.sections import FIELDS, Figure

MEMORY_MARGIN = 0.10
"""A card sold with 80 GB reports 80 GiB less what the driver keeps: up to 7.4 % more."""

_NARROWEST_HBM_BITS = 1024

# Keys and the CUDA device attributes that give them (CUDA Runtime API, cudaDeviceAttr), with the factor to SI units.
_FROM_ATTRIBUTES = {
    "sm.count": ("MultiProcessorCount", 1.0),
    "sm.max_threads": ("MaxThreadsPerMultiProcessor", 1.0),
    "sm.max_blocks": ("MaxBlocksPerMultiprocessor", 1.0),
    "sm.max_threads_per_block": ("MaxThreadsPerBlock", 1.0),
    "sm.registers": ("MaxRegistersPerMultiprocessor", 1.0),
    "sm.shared_memory": ("MaxSharedMemoryPerMultiprocessor", 1.0),
    "sm.shared_memory_per_block": ("MaxSharedMemoryPerBlockOptin", 1.0),
    "sm.shared_memory_reserved": ("ReservedSharedMemoryPerBlock", 1.0),
    "l2.capacity": ("L2CacheSize", 1.0),
    "clock.boost": ("ClockRate", 1e3),
}


@dataclass(frozen=True, slots=True)
class Attached:
    """One GPU as its driver reports it.

    Parameters
    ----------
    name : str
        "NVIDIA H100 80GB HBM3".
    capability : int
        90 for compute capability 9.0.
    memory_bytes : int
        Device memory, all of it.
    attributes : mapping of str to int
        CUDA device attributes by the name of the enumerator without ``cudaDevAttr``.
    """

    name: str
    capability: int
    memory_bytes: int
    attributes: Mapping[str, int]


def gpu_of_attached(attached: Attached, known: Iterable[Gpu] = ()) -> Gpu:
    """The GPU among `known` that this is; otherwise a record made from its attributes.

    Parameters
    ----------
    known : iterable of Gpu
        Of files. One matches when compute capability, number of SMs and the model's name agree, and memory within
        :data:`MEMORY_MARGIN`; of several the one whose name shares the most words.

    Raises
    ------
    InputError
        When the GPU is older than any that is modelled.
    """
    return _match(attached, known) or _from_attributes(attached)


def _match(attached: Attached, known: Iterable[Gpu]) -> Gpu | None:
    def same(gpu: Gpu) -> bool:
        memory = attached.memory_bytes / gpu.hbm.capacity_bytes
        return (
            gpu.compute_capability_number == attached.capability
            and gpu.sm.count == attached.attributes.get("MultiProcessorCount")
            and abs(memory - 1) <= MEMORY_MARGIN
            and not model_words(words).isdisjoint(model_words(words_of(gpu.name)))
        )

    words = words_of(attached.name)
    return max(filter(same, known), key=lambda gpu: len(words & words_of(gpu.name)), default=None)


def gpu_of_name(name: str, known: Iterable[Gpu]) -> Gpu | None:
    """The GPU with this driver name, "NVIDIA H100 80GB HBM3"; None if none matches, or several.

    Model and memory agree and no word is left over. The name of a PCIe card says so ("PCIe"); without that word, it is
    the module.
    """
    words = words_of(" ".join(spoken_words(name)))
    size = {word for word in words if re.fullmatch(r"\d+GB", word)}
    plain = {word for word in words if re.fullmatch(r"SXM|HBM\d?E?|AC", word)}

    def same(gpu: Gpu) -> bool:
        theirs = words_of(gpu.name)
        fits = all(abs(int(word[:-2]) * 1e9 / gpu.hbm.capacity_bytes - 1) <= MEMORY_MARGIN for word in size)
        agree = model_words(words) == model_words(theirs) != set() and ("PCIE" in words) == ("PCIE" in theirs)
        return agree and fits and words - theirs - size <= plain

    found = [gpu for gpu in known if same(gpu)]
    unlike = {gpu.id: len(words_of(gpu.name) ^ words) for gpu in found}
    best = [gpu for gpu in found if unlike[gpu.id] == min(unlike.values())]
    return best[0] if len(best) == 1 else None


_EVERYBODYS = (
    *("NVIDIA", "TESLA", "GEFORCE", "DGX", "HGX", "GPU", "TENSOR", "CORE", "GRACE", "HOPPER", "SUPERCHIP"),
    *("GENERATION", "GRAPHICS", "CARD", "ACCELERATOR"),
)


def spoken_words(name: str) -> tuple[str, ...]:
    """Words of a name in capitals, without words common to all cards: ("A100", "PCIE", "40GB")."""
    text = re.sub(r"\b([RG]TX)(?=\d)|(?<=\d{4})(?=(?:TI|SUPER|D)\b)", r"\1 ", name.upper().replace("_", " "))
    words = re.findall(r"[\w.]+", re.sub(r"\b(\d+) ?G(I?B)?\b", r"\1GB", text))
    return tuple(word for word in words if word not in _EVERYBODYS)


def words_of(name: str) -> set[str]:
    """Words of a GPU's name that distinguish it from others."""
    return set(re.findall(r"[A-Z]+\d*[A-Z]*|\d+[A-Z]*", name.upper())).difference(_EVERYBODYS)


def model_words(words: Iterable[str]) -> set[str]:
    """Words that identify a model: letters with digits, without sizes (``H100``, ``4090``, ``L40S``)."""
    return {
        word for word in words if re.fullmatch(r"[A-Z]+\d+[A-Z]*|\d{4}", word) and not word.startswith(("HBM", "SXM"))
    }


def _from_attributes(attached: Attached) -> Gpu:
    capability = modelled(attached.capability)
    if capability is None:
        raise InputError(
            f"{attached.name} has compute capability {attached.capability / 10}; attnsim knows GPUs from "
            f"{min(ARCHITECTURES) / 10} (V100)"
        )
    row = ARCHITECTURES[capability]
    values = {
        key: attached.attributes[name] * factor
        for key, (name, factor) in _FROM_ATTRIBUTES.items()
        if attached.attributes.get(name, 0) > 0
    }
    values["hbm.capacity"] = float(attached.memory_bytes)
    bits = attached.attributes.get("GlobalMemoryBusWidth", 0)
    # Two transfers a clock.
    bandwidth = 2 * attached.attributes.get("MemoryClockRate", 0) * 1e3 * bits / 8
    figures = {
        key: Figure(value, FIELDS[key].unit, "measured", "CUDA device attribute") for key, value in values.items()
    }
    assumed = {
        "tensor.fp16": (float(row.fp16_flops_per_clk), "rule: of this compute capability"),
        "hbm.bandwidth": (bandwidth, "CUDA device attributes: twice the memory clock times the bus")
        if bandwidth
        else (936e9, "rule: that of an RTX 3090; the driver does not tell"),
        "l2.capacity": (40.0 * 2**20, "rule: that of an A100; the driver does not tell"),
        "clock.boost": (1.5e9, "rule: the driver does not tell"),
        "power.tdp": (400.0, "rule: the driver was not asked"),
    }
    for key, (value, source) in assumed.items():
        figures.setdefault(key, Figure(value, FIELDS[key].unit, "assumed", source))
    memory = row.hbm if row.hbm and bits >= _NARROWEST_HBM_BITS else "GDDR6"
    return gpu_of_figures(
        re.sub(r"[^a-z0-9]+", "-", attached.name.lower()).strip("-") or "gpu",
        attached.name,
        f"{attached.capability // 10}.{attached.capability % 10}",
        with_rules(capability, memory, figures),
    )
