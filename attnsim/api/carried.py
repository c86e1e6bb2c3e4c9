"""What separates a question from the measurements behind its numbers: the components that its answer carries."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from attnsim.by_hand import by_hand
from attnsim.models.calibrations.calibration import Calibration
from attnsim.models.calibrations.components import COMPONENTS
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.workload import Workload

NEAR = by_hand(2.0, "factor beyond a calibration's ranges of lengths and rows that still counts as near")

DIRECTIONS = {"fwd": ("fwd",), "bwd": ("bwd",), "fwd+bwd": ("fwd", "bwd"), "decode": ("decode",)}
"""What a measured pass says something about."""


def carried(
    w: Workload,
    gpu: Gpu,
    record: Implementation,
    calibration: Calibration | None,
    *,
    tiles: str = "shipped",
    laboratory: bool = True,
    version: bool = True,
    operations: bool = False,
) -> tuple[str, ...]:
    """The components that an answer carries, in the order of `attnsim.models.calibrations.components`.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
    record : Implementation
        What is asked about.
    calibration : Calibration or None
        Whose numbers are used; None for priors.
    tiles : {"shipped", "retuned", "given"}
    laboratory : bool
        Whether the question is about another laboratory's machine than the measurements are of: a user's always is.
        Where no clock is given, its clock is another unknown.
    version : bool
        Whether the version or build is unknown, or another than the measured one.
    operations : bool
        Whether the operations of unfused attention are known.
    """
    found = {"laboratory": laboratory, "clock": laboratory and not gpu.clock.held_hz, "version": version}
    found["operations"] = record.unfused and laboratory and not operations
    if calibration is None:
        return _named(found | {"priors": True})
    domain = calibration.domain
    elsewhere = calibration.architecture != gpu.architecture or bool(gpu.changes)
    directions = {direction for one in domain.passes for direction in DIRECTIONS[one]}
    summed = w.passes not in domain.passes and not (
        w.passes == "fwd+bwd" and set(DIRECTIONS[w.passes]) <= {*domain.passes}
    )
    other_format = in_unmeasured_format(w, record)
    unlike = other_format or w.head_dim_v != w.head_dim or not w.mask.is_band or (w.dropout and not domain.dropout)
    return _named(
        found
        | {
            "shape": far_shape(w, calibration) or bool(w.lengths),
            "chip": not elsewhere and gpu.base_id not in domain.gpus,
            "pass": summed or not set(DIRECTIONS[w.passes]) <= directions or unlike or tiles != "shipped",
            "window": w.mask.is_windowed and not domain.windowed,
            "kernel": other_format or calibration.implementation not in record.calibrated_as,
            "architecture": elsewhere,
        }
    )


def in_unmeasured_format(w: Workload, record: Implementation) -> bool:
    """Whether the call runs kernels of a number format of which no row was measured."""
    return w.dtype == "fp8" and record.fp8_backward


def _named(found: dict[str, bool]) -> tuple[str, ...]:
    return tuple(name for name in COMPONENTS if found.get(name))


def far_shape(w: Workload, calibration: Calibration) -> bool:
    """Whether head_dim, lengths or rows lie far outside what a calibration has seen."""
    dims = calibration.domain.head_dims
    return not min(dims) <= w.head_dim <= max(dims) or any(far for _, _, _, far in beyond(w, calibration))


def beyond(w: Workload, calibration: Calibration) -> list[tuple[str, int, tuple[int, int], bool]]:
    """Lengths and rows outside a calibration's ranges: name, value, the range, and whether by more than `NEAR`."""
    domain, rows = calibration.domain, w.heads_q * w.queries
    sizes = (("seq_q", w.seq_q, domain.seq_q), ("seq_kv", w.seq_kv, domain.seq_kv))
    return [
        (name, value, (low, high), not low / NEAR <= value <= high * NEAR)
        for name, value, (low, high) in (*sizes, ("batch x heads x seq_q", rows, domain.rows))
        if not low <= value <= high
    ]


def spread_of(w: Workload, calibration: Calibration | None) -> float:
    """Mean size of a calibration's log errors on held-out rows like these; 0 without a calibration.

    Of head_dims, if this question's was not measured, of bands of lengths otherwise; of this pass, if it was measured.
    """
    if calibration is None:
        return 0.0
    split = "band" if w.head_dim in calibration.domain.head_dims else "head_dim"
    spread = calibration.spread
    return spread.get(f"{split}, {w.passes}") or spread.get(split) or max(spread.values())


def same_version(one: str, others: Iterable[str]) -> bool:
    """Whether a version is among others, as far as both are told: "9.27" is "nvidia 9.27.0"."""
    return any(_agree(_parts(one), _parts(other)) for other in others)


def _parts(version: str) -> tuple[str, ...]:
    """The numbers of a version's last word: "1", "3" of "tensorrt-llm 1.3.0rc20"."""
    return tuple(takewhile(str.isdigit, version.rpartition(" ")[2].split(".")))


def _agree(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    common = min(len(one), len(other))
    return common > 1 and one[:common] == other[:common]
