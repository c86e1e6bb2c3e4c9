"""Energy of a predicted call: work counted by the replay times picojoules per unit of work, and static power."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attnsim.api.answer import Outcome
from attnsim.api.layer_answer import LayerAnswer, LayerPart
from attnsim.errors import InputError
from attnsim.models.hardware.energy import PICO, constants, voltage_factor
from attnsim.models.hardware.energy import work as counted
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import Interval
from attnsim.models.hardware.units import HBM


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


def energy(prediction: Outcome | LayerAnswer, gpu: Gpu | str) -> Energy:
    """Energy of a predicted call, or of a layer.

    ``E = static power x time + sum over units of work x energy per unit``, at the clock of the prediction (of a layer:
    of each part). Errors of the constants are taken as independent, so that the intervals of the units add in
    quadrature; the error of the time is left out (it enters by the static share alone).

    Parameters
    ----------
    prediction : Answer or LayerAnswer
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
    found = constants(gpu.compute_capability_number)
    base, dtype = gpu.unchanged, prediction.workload.dtype
    units: dict[str, Interval] = {}
    for part in prediction.parts if isinstance(prediction, LayerAnswer) else (prediction,):
        scale = voltage_factor(part.clock_hz or 0.0, base)
        for name, amount in work(part, dtype, gpu).items():
            spent = _product(found[name] if name == HBM.name else found[name].times(scale), amount * PICO)
            units[name] = _added(units[name], spent) if name in units else spent
    units["static"] = _product(found["static"], _static_scale_w(gpu, base) * prediction.time_s)
    joules = _sum(units.values())
    return Energy(
        joules=joules,
        watts=joules.over(prediction.time_s),
        units_j=units,
        tdp_w=base.power.tdp_w,
        assumed=tuple(name for name in units if found[name].kind == "assumed"),
    )


def work(part: Outcome | LayerPart, dtype: str, gpu: Gpu) -> dict[str, float]:
    """Work of each unit, as `attnsim.models.hardware.energy.work` names it.

    Instructions of the FP32 lanes are their busy seconds times their rate.
    """
    rate = gpu.sm.count * (part.clock_hz or 0.0) * gpu.sm.fp32_flops_per_clk / 2
    return counted(
        dtype,
        flops=float(part.flops_executed or 0),
        useful=float(part.flops_useful),
        lanes=part.units_s.get("fp32", 0.0) * rate,
        exps=float(part.exponentials or 0),
        smem_bytes=float(part.smem_bytes or 0),
        l2_bytes=float(part.l2_bytes or 0),
        hbm_bytes=float(part.hbm_bytes or 0),
    )


def _static_scale_w(gpu: Gpu, base: Gpu) -> float:
    """Design power of the unchanged GPU, half of it following the SMs and half the bandwidth of the memory.

    The halves are assumed: leakage and clocks grow with the die, refresh and interfaces with the stacks of memory.
    """
    sms = gpu.sm.count / base.sm.count
    memory = gpu.hbm.bandwidth_bytes_per_s / base.hbm.bandwidth_bytes_per_s
    return base.power.tdp_w * (sms + memory) / 2


def _product(one: Interval, amount: float) -> Interval:
    return Interval(one.low * amount, one.typical * amount, one.high * amount)


def _added(one: Interval, other: Interval) -> Interval:
    """Energies by the same constant, which are off in the same direction."""
    return Interval(one.low + other.low, one.typical + other.typical, one.high + other.high)


def _sum(parts: Iterable[Interval]) -> Interval:
    items = list(parts)
    typical = sum(one.typical for one in items)
    down = math.hypot(*(one.typical - one.low for one in items))
    up = math.hypot(*(one.high - one.typical for one in items))
    return Interval(typical - down, typical, typical + up)
