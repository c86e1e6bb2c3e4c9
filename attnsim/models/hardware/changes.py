"""Hypothetical hardware: change one figure of a GPU and what hangs on it, keeping a record."""

from __future__ import annotations

import dataclasses
import math
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from attnsim.models.errors import InputError
from attnsim.models.hardware.figure import FIELDS, Field, field_of, get_value, shown

if TYPE_CHECKING:
    from attnsim.models.hardware.gpu import Gpu

_TIMES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*[x×]\s*")
_LANES = 32  # threads of a warp


def change(gpu: Gpu, key: str, value: str | float) -> Gpu:
    """`gpu` with the figure `key` set to `value`; see `Gpu.replace`."""
    field = field_of(key)
    old = get_value(gpu, key)
    try:
        new = _multiple(field, old, value) if isinstance(value, str) and _TIMES.fullmatch(value) else field.parse(value)
    except InputError as error:
        raise InputError(f"{key} {error}") from None
    if new == old:
        return gpu
    follow = followers(gpu, key, new)
    entry = f"{key} = {field.show(new)} (was {field.show(old)}"
    for other, number in follow.items():
        shown = FIELDS[other].show
        entry += f"; {other} follows: {shown(number)}, was {shown(get_value(gpu, other))}"
    changed = with_values(gpu, {key: new, **follow})
    problem = inconsistency(changed)
    if problem:
        raise InputError(f"{key} is {field.show(new)}: {problem}")
    return dataclasses.replace(changed, changes=(*gpu.changes, f"{entry})"))


def inconsistency(gpu: Gpu) -> str:
    """What two figures of `gpu` contradict each other, in words; empty when none do."""
    sm, show = gpu.sm, FIELDS["sm.shared_memory"].show
    if sm.shared_memory_per_block_bytes + sm.shared_memory_reserved_bytes > sm.shared_memory_bytes:
        return (
            f"a block's {show(sm.shared_memory_per_block_bytes)} of shared memory plus the reserved "
            f"{show(sm.shared_memory_reserved_bytes)} exceed sm.shared_memory, "
            f"{show(sm.shared_memory_bytes)}; raise it first or lower sm.shared_memory_per_block"
        )
    if sm.max_threads_per_block > sm.max_threads:
        return (
            f"sm.max_threads_per_block, {sm.max_threads_per_block}, exceeds sm.max_threads, "
            f"{sm.max_threads}; change the other one first"
        )
    if sm.max_warps * _LANES != sm.max_threads:
        return f"sm.max_threads, {sm.max_threads}, is not {_LANES} times sm.max_warps, {sm.max_warps}"
    if not any((gpu.tensor.fp16_flops_per_clk, gpu.tensor.bf16_flops_per_clk, gpu.tensor.fp8_flops_per_clk)):
        return "no tensor rate is left; give tensor.fp16, tensor.bf16 or tensor.fp8"
    return ""


def _multiple(field: Field, old: float, text: str) -> float:
    match = _TIMES.fullmatch(text)
    assert match is not None
    if field.unit == "bool":
        raise InputError(f"is {shown(text)}; allowed: true or false")
    if old == 0:
        raise InputError(f"is {shown(text)}, but the present value is 0; give a value: {field.allowed()}")
    new = float(match[1]) * old
    if not math.isfinite(new):
        raise InputError(f"is {shown(text)}; allowed: {field.allowed()}")
    if field.integer:
        new = float(round(new))  # "1.05x" of 108 SMs is a fair question; the record shows the 113 it became
    field.check(new, f"{text.strip()} = {field.show(new)}")
    return new


def followers(gpu: Gpu, key: str, new: float) -> dict[str, float]:
    """Figures that move along, because leaving them would make the change mean nothing."""
    match key:
        case "sm.shared_memory":
            # A block may use all of it but the reserve, as on every GPU since Volta. Rises and falls alike.
            room = new - gpu.sm.shared_memory_reserved_bytes
            return _if_changed(gpu, "sm.shared_memory_per_block", room)
        case "clock.tensor":
            # A faster tensor clock that the replay ignores would be no change: keep their ratio.
            scaled = gpu.clock.sustained_hz * (new / gpu.clock.tensor_hz)
            return _if_changed(gpu, "clock.sustained", float(round(scaled)))
        case "sm.max_threads":
            if new % _LANES:
                below = int(new // _LANES) * _LANES
                raise InputError(f"{key} is {int(new)}; allowed: multiples of {_LANES}, such as {below}")
            return _if_changed(gpu, "sm.max_warps", new / _LANES)
        case "sm.max_warps":
            return _if_changed(gpu, "sm.max_threads", new * _LANES)
    return {}


def _if_changed(gpu: Gpu, key: str, value: float) -> dict[str, float]:
    if value == get_value(gpu, key):
        return {}
    try:
        FIELDS[key].check(value, FIELDS[key].show(value))
    except InputError as error:
        raise InputError(f"{key}, which follows, {error}") from None
    return {key: value}


def with_values(gpu: Gpu, values: dict[str, float]) -> Gpu:
    """`gpu` with several figures set at once, nothing checked and nothing recorded but their provenance."""
    from attnsim.models.hardware.gpu import Figure

    provenance = dict(gpu.provenance)
    for key, value in values.items():
        field = FIELDS[key]
        section = key.split(".")[0]
        stored = bool(value) if field.unit == "bool" else int(value) if field.integer else value
        part = dataclasses.replace(getattr(gpu, section), **{field.attribute: stored})
        gpu = dataclasses.replace(gpu, **{section: part})
        provenance[key] = Figure(value, field.unit, "assumed", f"changed from {gpu.base_id}")
    return dataclasses.replace(gpu, provenance=MappingProxyType(provenance))
