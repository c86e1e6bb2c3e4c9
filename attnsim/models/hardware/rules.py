"""Completion of a GPU from its figures by key: for files, imported descriptions and an attached GPU.

Figures without a citable source follow by rule: they are marked "assumed" and have the rule as their source. Limits
that the CUDA Programming Guide states for all GPUs of a compute capability are "datasheet". Rules by compute capability
are rows of ``architectures.csv``; rules that compute are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from attnsim.errors import InputError
from attnsim.models.hardware.architectures import Architecture, architecture_of
from attnsim.models.hardware.gpu import Change, Gpu
from attnsim.models.hardware.sections import FIELDS, SECTIONS, Figure, Kind, fields_of

MEMORY_KINDS = ("HBM2", "HBM2e", "HBM3", "HBM3e", "GDDR6", "GDDR6X", "GDDR7")

# No rule gives these: a file states them or extends one that does. One of the two clocks is enough.
REQUIRED = ("sm.count", "tensor.fp16", "l2.capacity", "hbm.capacity", "hbm.bandwidth", "power.tdp")

Values = Mapping[str, float]


def _mma_sync_fraction(row: Architecture, memory: str, values: Values) -> float:
    reached, rate = row.mma_sync_flops_per_clk, values["tensor.fp16"]
    return min(0.95, reached / rate) if reached and rate else 0.95


COMPUTED: dict[str, tuple[Callable[[Architecture, str, Values], float], str]] = {
    "sm.shared_memory_per_block": (
        lambda row, memory, values: values["sm.shared_memory"] - values["sm.shared_memory_reserved"],
        "rule: the shared memory of an SM less the reserve of a block",
    ),
    "tensor.mma_sync_fraction": (
        _mma_sync_fraction,
        "rule: 0.95 as on A100; 0.629 on Hopper; on data-centre Blackwell Hopper's mma.sync FLOP/clk per SM "
        "(Luo et al., arXiv 2402.13499)",
    ),
    "l2.bandwidth": (
        lambda row, memory, values: round(row.l2_bytes_per_clk_sm * values["sm.count"] * values["clock.boost"], -9),
        "rule: bytes per clock and SM of the nearest architecture, times SMs and boost clock",
    ),
    "hbm.achievable_fraction": (
        lambda row, memory, values: 0.92 if memory in ("HBM3", "HBM3e") else 0.85,
        "rule: copy bandwidth 0.92 of the datasheet's with HBM3 and HBM3e, 0.85 with HBM2e and GDDR",
    ),
}
"""Rules as functions of (architecture, kind of memory, values so far), with the sentences that describe them."""


def with_rules(capability: int, memory: str, figures: Mapping[str, Figure]) -> dict[str, Figure]:
    """Complete the figures by rules.

    Parameters
    ----------
    capability : int
        90 for compute capability 9.0.
    memory : str
        Kind of memory, of `MEMORY_KINDS`.
    figures : mapping of str to Figure
        By key, ``hbm.bandwidth``.

    Raises
    ------
    InputError
        If a rule's value is out of range.
    """
    row, found = architecture_of(capability), dict(figures)
    values = {key: figure.value for key, figure in figures.items()}

    def add(key: str, value: float, rule: str, kind: Kind = "assumed") -> None:
        field = FIELDS[key]
        try:
            field.check(value, field.show(value))
        except InputError as error:
            raise InputError(f"{key} is not given and by {rule} {error}") from None
        values[key], found[key] = value, Figure(value, field.unit, kind, rule)

    for one in row.figures:
        if one.key not in found:
            add(one.key, one.value * values[one.over] if one.over else one.value, one.rule, one.kind)
    for key, (rule, text) in COMPUTED.items():
        if key not in found:
            add(key, float(rule(row, memory, values)), text)
    return found


def gpu_of_figures(
    gpu_id: str,
    name: str,
    compute_capability: str,
    figures: Mapping[str, Figure],
    *,
    changes: tuple[Change, ...] = (),
    base_id: str = "",
) -> Gpu:
    """Make the record of a GPU from its complete figures."""
    return Gpu(
        id=gpu_id,
        name=name,
        architecture=architecture_of(int(compute_capability.replace(".", ""))).name,
        compute_capability=compute_capability,
        changes=changes,
        base_id=base_id,
        provenance=MappingProxyType({key: figures[key] for key in FIELDS}),
        **{section: _section(section, kind, figures) for section, kind in SECTIONS.items()},
    )


def _section(name: str, kind: type, figures: Mapping[str, Figure]) -> Any:
    return kind(**{one.attribute: one.stored(figures[f"{name}.{one.name}"].value) for one in fields_of(kind).values()})
