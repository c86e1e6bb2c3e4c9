"""Energy of a predicted call: work counted by the replay times picojoules per unit of work, and static power.

The constants are of three sorts, and each says which: *derived* from published board measurements, scaled from another
process node, or assumed. None is fitted to attention. Their intervals are wide because the literature is: energies per
byte and per instruction are published for few chips, tensor energies only as whole-board power at full rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TypeVar

from attnsim.api.prediction import Prediction
from attnsim.models.errors import InputError
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import HBM
from attnsim.models.tables import read_csv

PICO = 1e-12

FORMAT_FACTORS = {"fp16": 1.0, "bf16": 1.0, "fp8": 0.5, "tf32": 2.0}
"""Energy of a FLOP over fp16's, assumed: every halving of the width doubles the rate of the same units."""

_Ends = TypeVar("_Ends", bound="Interval")


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and how far off it may be; all three in one unit."""

    low: float
    typical: float
    high: float

    def over(self, divisor: float) -> Interval:
        """Every end divided."""
        return Interval(self.low / divisor, self.typical / divisor, self.high / divisor)

    def times(self: _Ends, other: Interval) -> _Ends:
        """Each end by that of the other."""
        return replace(
            self, low=self.low * other.low, typical=self.typical * other.typical, high=self.high * other.high
        )


@dataclass(frozen=True, slots=True)
class Constant(Interval):
    """One row of ``models/hardware/energy.csv``, which has the sources.

    Parameters
    ----------
    unit : str
        "pJ/FLOP", "pJ/instruction", "pJ/B", or "of TDP".
    kind : {"derived", "assumed"}
    source : str
    """

    unit: str
    kind: str
    source: str


@cache
def _table() -> dict[str, Constant]:
    table = {}
    for row in read_csv(resources.files("attnsim.models.hardware").joinpath("energy.csv")):
        low, typical, high = (float(row[end]) for end in ("low", "typical", "high"))
        table[row["name"]] = Constant(low, typical, high, row["unit"], row["kind"], row["source"])
    return table


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy of one call.

    Parameters
    ----------
    joules, watts : Interval
        Of the call, and averaged over its time.
    units_j : mapping of str to Interval
        By tensor, padding (tensor FLOPs beyond the useful ones), fp32, exp, shared_memory, l2, hbm and static, joules.
    tdp_w : float
        Thermal design power of the GPU (of the unchanged one, where it is hypothetical).
    assumed : tuple of str
        Units whose constant is assumed for this architecture, rather than derived from a measurement of it.
    """

    joules: Interval
    watts: Interval
    units_j: Mapping[str, Interval]
    tdp_w: float
    assumed: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Plain types, intervals as ``[low, typical, high]``."""

        def ends(one: Interval) -> list[float]:
            return [one.low, one.typical, one.high]

        return {
            "joules": ends(self.joules),
            "watts": ends(self.watts),
            "units_j": {name: ends(one) for name, one in self.units_j.items()},
            "tdp_w": self.tdp_w,
            "assumed": list(self.assumed),
        }


def energy(prediction: Prediction, gpu: Gpu | str) -> Energy:
    """Energy of a predicted call.

    ``E = static power x time + sum over units of work x energy per unit``. Errors of the constants are taken as
    independent, so that the intervals of the units add in quadrature; the error of the time is left out (it enters by
    the static share alone).

    Parameters
    ----------
    prediction : Prediction
    gpu : Gpu or str
        The GPU of the prediction, with its changes.

    Raises
    ------
    InputError
        When the call does not fit the memory, or the GPU is another one.

    Examples
    --------
    >>> import attnsim
    >>> gpu = attnsim.load_gpu("h100-sxm5-80gb")
    >>> question = attnsim.Workload(batch=1, heads_q=32, seq_q=8192, head_dim=128)
    >>> used = attnsim.energy(attnsim.predict(question, gpu), gpu)
    >>> used.watts.low < used.watts.typical < used.watts.high
    True
    """
    if isinstance(gpu, str):
        gpu = load_gpu(gpu)
    if (prediction.gpu, prediction.changes) != (gpu.id, gpu.changes):
        raise InputError(
            f"the prediction is for {'; '.join((prediction.gpu, *map(str, prediction.changes)))}, the GPU is "
            f"{gpu.described}; give the GPU that was predicted"
        )
    if prediction.time_s is None:
        raise InputError(prediction.notes[0])
    found = constants(gpu)
    base = _base(gpu)
    scale = voltage_factor(gpu, base)
    units = {
        name: _product(found[name] if name == HBM.name else found[name].times(scale), amount * PICO)
        for name, amount in work(prediction, gpu).items()
    }
    units["static"] = _product(found["static"], _static_scale_w(gpu, base) * prediction.time_s)
    joules = _sum(units.values())
    return Energy(
        joules=joules,
        watts=joules.over(prediction.time_s),
        units_j=MappingProxyType(units),
        tdp_w=base.power.tdp_w,
        assumed=tuple(name for name in units if found[name].kind == "assumed"),
    )


def work(prediction: Prediction, gpu: Gpu) -> dict[str, float]:
    """Work of each unit: FLOPs as if in fp16, FP32-lane instructions, exponentials, bytes.

    Instructions of the FP32 lanes are their busy seconds times their rate. Executed FLOPs beyond the useful ones are
    padding: rows of zeros, masked pairs.
    """
    flops = float(prediction.flops_executed or 0)
    useful = min(flops, float(prediction.flops_useful))
    rate = gpu.sm.count * gpu.clock.sustained_hz * gpu.sm.fp32_flops_per_clk / 2
    lanes = prediction.units_s.get("fp32", 0.0) * rate
    if prediction.workload.dtype == "fp32":
        flops, useful, lanes = 0.0, 0.0, lanes + flops / 2
    factor = FORMAT_FACTORS.get(prediction.workload.dtype, 1.0)
    return {
        "tensor": useful * factor,
        "padding": (flops - useful) * factor,
        "fp32": lanes,
        "exp": float(prediction.exponentials or 0),
        "shared_memory": float(prediction.smem_bytes or 0),
        "l2": float(prediction.l2_bytes or 0),
        "hbm": float(prediction.hbm_bytes or 0),
    }


def _base(gpu: Gpu) -> Gpu:
    """The unchanged GPU, whose design power and clock the constants belong to."""
    return load_gpu(gpu.base_id) if gpu.base_id in builtin_gpu_ids() else gpu


def _static_scale_w(gpu: Gpu, base: Gpu) -> float:
    """Design power of the unchanged GPU, half of it following the SMs and half the bandwidth of the memory.

    The halves are assumed: leakage and clocks grow with the die, refresh and interfaces with the stacks of memory.
    """
    sms = gpu.sm.count / base.sm.count
    memory = gpu.hbm.bandwidth_bytes_per_s / base.hbm.bandwidth_bytes_per_s
    return base.power.tdp_w * (sms + memory) / 2


def _product(one: Interval, amount: float) -> Interval:
    return Interval(one.low * amount, one.typical * amount, one.high * amount)


def _sum(parts: Iterable[Interval]) -> Interval:
    items = list(parts)
    typical = sum(one.typical for one in items)
    down = math.hypot(*(one.typical - one.low for one in items))
    up = math.hypot(*(one.high - one.typical for one in items))
    return Interval(typical - down, typical, typical + up)


def constants(gpu: Gpu) -> dict[str, Constant]:
    """The constants of a GPU by unit: tensor (fp16), padding, fp32, exp, shared_memory, l2, hbm and static."""
    row, table = architecture_of(gpu.compute_capability_number), _table()
    tensor, node = table[f"tensor on {row.name}"], table[f"node of {row.name}"]
    return {
        "tensor": tensor,
        "padding": replace(tensor.times(table["padding"]), kind="assumed"),
        **{name: table[name].times(node) for name in ("fp32", "exp", "shared_memory", "l2")},
        HBM.name: table["hbm" if row.hbm else "gddr"],
        "static": table["static"],
    }


def voltage_factor(gpu: Gpu, base: Gpu) -> Interval:
    """Energy of an operation on the chip over that at the unchanged clock."""
    ratio, exponent = gpu.clock.sustained_hz / base.clock.sustained_hz, _table()["voltage exponent"]
    low, typical, high = (ratio**end for end in (exponent.low, exponent.typical, exponent.high))
    return Interval(min(low, high), typical, max(low, high))
