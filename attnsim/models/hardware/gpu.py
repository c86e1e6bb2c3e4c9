"""The GPU: a frozen record of its sections, and the change of a figure.

Changes of a hypothetical GPU, and the text form of new values: "6 TB/s", "2x".
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from attnsim.by_hand import by_hand
from attnsim.errors import InputError, shown
from attnsim.models.hardware.sections import (
    FIELDS,
    L2,
    Clock,
    Features,
    Field,
    Figure,
    Hbm,
    Launch,
    Link,
    Power,
    Sm,
    Tensor,
    changeable,
    field_of,
    show,
)
from attnsim.tables import Table

FAR = by_hand(
    4.0,
    "a slip such as 1.5 for 1.5x is further off than that from every rate, latency and count of SMs of a real GPU; who "
    "wants a larger change writes its unit",
)
"""Ratio of a number without a unit to the present value, or its inverse, above which the number is taken for a slip."""
PERCENT = re.compile(r"\s*([+-]\d+(?:\.\d*)?)\s*%\s*")
BARE = re.compile(r"\s*(?:\d+(?:\.\d*)?|\.\d+)\s*")
TIMES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*[x×]\s*")


@dataclass(frozen=True, slots=True)
class Change:
    """A changed figure, with those that changed along with it; its text is a sentence.

    Parameters
    ----------
    key
        `hbm.bandwidth`.
    old, new
        Values in SI units.
    unit
        Unit of both.
    follows
        Changes of figures that follow this one.
    """

    key: str
    old: float
    new: float
    unit: str
    follows: tuple[Change, ...] = ()

    @property
    def setting(self) -> str:
        """The new value alone: "hbm.bandwidth = 6 TB/s"."""
        return f"{self.key} = {show(self.new, self.unit)}"

    @property
    def keys(self) -> set[str]:
        """All figures whose values changed."""
        return {self.key, *(one.key for one in self.follows)}

    def __str__(self) -> str:
        follows = [
            f"; {one.key} follows: {_short(one.new, one.unit)}, was {_short(one.old, one.unit)}" for one in self.follows
        ]
        return f"{self.setting} (was {show(self.old, self.unit)}{''.join(follows)})"


def changes_text(changes: Iterable[Change]) -> str:
    """Changes in one line."""
    return "; ".join(map(str, changes))


def decimal(value: float) -> float:
    """The value rounded to 12 digits, without the error of binary multiplication: 1.1 times 1590 MHz is 1749 MHz."""
    return float(f"{value:.12g}")


def new_value(field: Field, old: float, given: object, *, of_range: bool = False) -> float:
    """Parse the new value for a figure that is `old`: a value, or a factor such as "2x".

    In text, a number without a unit is refused if it differs from the present value by more than a factor `FAR`; "=2"
    is exactly 2. The end of a range (`of_range`) may be any value.

    Raises
    ------
    InputError
        If the value is not allowed; the message lacks the key, as in `Field.parse`.
    """
    if isinstance(given, str) and given.lstrip().startswith("="):
        return field.parse(given.lstrip()[1:])
    if isinstance(given, str) and (more := PERCENT.fullmatch(given)):
        raise InputError(f"is {shown(given)}; write {1 + float(more[1]) / 100:g}x, so many times what it is")
    match = TIMES.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        new = field.parse(given)
        if not of_range and isinstance(given, str) and BARE.fullmatch(given) and not near(new, old):
            raise InputError(_slip(field, old, given.strip()))
        return new
    text = match[0]
    if field.unit == "bool":
        raise InputError(f"is {shown(text)}; allowed: true or false")
    if old == 0:
        raise InputError(f"is {shown(text)}, but the present value is 0; give a value: {field.allowed()}")
    new = decimal(float(match[1]) * old)
    if not math.isfinite(new):
        raise InputError(f"is {shown(text)}; allowed: {field.allowed()}")
    if field.integer:
        new = float(round(new))  # "1.05x" of 108 SMs is allowed; the record shows the resulting 113
    field.check(new, f"{text.strip()} = {field.show(new)}")
    return new


Marks = Mapping[tuple[str, tuple[Change, ...]], str]
"""Suffix of a GPU's name in a table or a picture, by its id and changes."""


def marks(machines: Iterable[tuple[str, tuple[Change, ...]]]) -> Marks:
    """Suffixes: a star for a single changed GPU, or a letter for each of several: "h100-sxm5-80gb A"."""
    changed = [one for one in dict.fromkeys(machines) if one[1]]
    if len(changed) == 1:
        return {changed[0]: "*"}
    letters = string.ascii_uppercase
    return {one: f" {letters[at % len(letters)] * (1 + at // len(letters))}" for at, one in enumerate(changed)}


def _short(value: float, unit: str) -> str:
    """A figure's value with four significant digits; one that follows has twelve, which say nothing more."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.{max(4, found[0].index('.'))}g}", show(value, unit))


def near(new: float, old: float) -> bool:
    """Return whether a number without a unit is plausible as a new value."""
    return new == 0 or old == 0 or 1 / FAR <= new / old <= FAR


def _slip(field: Field, old: float, given: str) -> str:
    meant = f"={given}" if field.unit == "1" else f"{given} {field.unit}"
    return (
        f"is {shown(given)}, more than {FAR:g} times off the present {field.show(old)}; write {given}x for a "
        f"multiple of it, or '{meant}' for exactly that"
    )


_LANES = 32  # threads of a warp

IN_PROPORTION = {
    "clock.tensor": ("clock.free", "clock.sustained"),
    "clock.boost": ("clock.free",),
    "clock.free": ("l2.bandwidth",),
    "sm.count": ("l2.bandwidth",),
    "power.tdp": ("power.limit",),
}
"""Figures that keep their ratio to another when that one changes: an L2 gives the same bytes per SM and clock."""

SLOWEST_HZ = 1e6
LIMITS = (0.25, 3.0)
"""Least and largest power limit over the design power: no card can be set below a quarter of it."""


def _no_provenance() -> Mapping[str, Figure]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, real or hypothetical.

    Parameters
    ----------
    id, name, architecture, compute_capability
        `h100-sxm5-80gb`, "NVIDIA H100 SXM5 80GB", "hopper", "9.0".
    changes
        What `replace` changed, each as text one line: `hbm.bandwidth = 6 TB/s (was 3.35 TB/s)`.
    base_id
        Id of the unmodified GPU; equals `id` when nothing was changed.
    provenance
        Key (`hbm.bandwidth`) to `Figure`. Not part of equality, hash or repr.

    Examples
    --------
    >>> from attnsim.models.hardware.files import load_gpu
    >>> gpu = load_gpu("h100-sxm5-80gb").replace("hbm.bandwidth", "6TB/s")
    >>> print(*gpu.changes)
    hbm.bandwidth = 6 TB/s (was 3.35 TB/s)
    """

    id: str
    name: str
    architecture: str
    compute_capability: str
    sm: Sm
    tensor: Tensor
    l2: L2
    hbm: Hbm
    clock: Clock
    launch: Launch
    power: Power
    features: Features
    link: Link = field(repr=False)
    changes: tuple[Change, ...] = ()
    base_id: str = ""
    provenance: Mapping[str, Figure] = field(default_factory=_no_provenance, compare=False, hash=False, repr=False)

    def __post_init__(self) -> None:
        if not self.base_id:
            object.__setattr__(self, "base_id", self.id)

    def __reduce__(self) -> tuple[object, ...]:
        # A mappingproxy cannot be pickled, but process pools send GPUs: they are sent with a plain dict.
        values = [getattr(self, item.name) for item in dataclasses.fields(self)]
        return (_rebuild, (*values[:-1], dict(self.provenance)))

    def __repr__(self) -> str:
        changed = "".join(f"; {change.setting}" for change in self.changes)
        memory = ", ".join(FIELDS[key].show(self.get(key)) for key in ("hbm.capacity", "hbm.bandwidth"))
        return f"<Gpu {self.id}: {self.architecture}, {self.sm.count} SMs, {memory}{changed}>"

    def _repr_html_(self) -> str:
        rows = [
            {"figure": key, "value": FIELDS[key].show(one.value), "kind": one.kind, "source": one.source}
            for key, one in self.provenance.items()
        ]
        return Table(f"{self.name}: {self.described}", rows).html

    def content(self) -> str:
        """Text of all figures that answers depend on; its hash distinguishes two GPUs."""
        figures = [f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr]
        return f"Gpu({', '.join(figures)})"

    @property
    def compute_capability_number(self) -> int:
        """80 for compute capability 8.0, 120 for 12.0."""
        major, minor = self.compute_capability.split(".")
        return int(major) * 10 + int(minor)

    @property
    def sm_arch(self) -> str:
        """The compiler's name of the architecture, "sm_80"."""
        return f"sm_{self.compute_capability_number}"

    def tensor_flops_per_clk(self, dtype: str) -> float:
        """Matrix FLOPs per SM and clock for `dtype`: fp16, bf16, fp8, tf32, or fp32 on the FMA lanes.

        Raises
        ------
        InputError
            For any other dtype.
        """
        if dtype == "fp32":
            return self.sm.fp32_flops_per_clk
        if dtype in ("fp16", "bf16", "fp8", "tf32"):
            return float(getattr(self.tensor, f"{dtype}_flops_per_clk"))
        raise InputError(f"dtype is {dtype!r}; allowed: fp16, bf16, fp8, tf32, fp32")

    def mma_sync_flops_per_clk(self, dtype: str) -> float:
        """Matrix FLOPs per SM and clock by warp-level ``mma.sync``; fp32 runs on the FMA lanes at their full rate."""
        return self.tensor_flops_per_clk(dtype) * (1 if dtype == "fp32" else self.tensor.mma_sync_fraction)

    def supports_dtype(self, dtype: str) -> bool:
        """Whether the GPU multiplies matrices of `dtype` (bf16 needs Ampere, fp8 Ada or later)."""
        return self.tensor_flops_per_clk(dtype) > 0

    def peak_tensor_flops_per_s(self, dtype: str) -> float:
        """Dense peak in FLOP/s at `clock.tensor_hz`, the datasheet's figure."""
        return self.tensor_flops_per_clk(dtype) * self.sm.count * self.clock.tensor_hz

    @property
    def fp32_flops_per_s(self) -> float:
        """FP32 rate of the FMA lanes in FLOP/s at `clock.tensor_hz`."""
        return self.sm.fp32_flops_per_clk * self.sm.count * self.clock.tensor_hz

    @property
    def exp_per_s(self) -> float:
        """Exponentials per second of the special-function units at `clock.tensor_hz`."""
        return self.sm.exp_per_clk * self.sm.count * self.clock.tensor_hz

    @property
    def described(self) -> str:
        """Id and changes in one line."""
        return "; ".join((self.id, *map(str, self.changes)))

    @property
    def unchanged(self) -> Gpu:
        """The GPU without its changes. Conditions of a call, such as a held clock, are kept."""
        old = {one.key: one.old for change in reversed(self.changes) for one in (*change.follows, change)}
        return dataclasses.replace(self.with_values(old), id=self.base_id, changes=()) if self.changes else self

    @property
    def alone(self) -> Gpu:
        """The GPU without changes of its links to other GPUs, which none of its kernels reads."""
        kept = tuple(one for one in self.changes if field_of(one.key).read != "links")
        if kept == self.changes:
            return self
        old = {one.key: one.old for one in reversed(self.changes) if one not in kept}
        return dataclasses.replace(self.with_values(old), changes=kept)

    @property
    def tiled_for(self) -> Gpu:
        """The GPU that a shipped library's tiles are chosen for: unchanged, except for instructions and number formats.

        Kernels are compiled for instructions and formats, and no tile was chosen for a format that the unchanged GPU
        lacks.
        """
        base, keys = self.unchanged, {key for change in self.changes for key in change.keys}
        new = {key for key in keys if key.startswith("tensor.") and not base.get(key)}
        own = {key: self.get(key) for key in keys if key.startswith("features.") or key in new}
        return base.with_values(own) if own else base

    def get(self, key: str) -> float:
        """The figure under a key such as `hbm.bandwidth`, in SI units; truth values are 1.0 or 0.0.

        Raises
        ------
        InputError
            For an unknown key, naming the nearest.
        """
        return float(getattr(getattr(self, key.partition(".")[0], None), field_of(key).attribute))

    def replace(self, key: str | Mapping[str, str | float], value: str | float | None = None) -> Gpu:
        """A hypothetical GPU with one or several figures changed, and with the figures that depend on them.

        A figure that was given is kept if a figure that it would follow is changed after it.

        Parameters
        ----------
        key
            `hbm.bandwidth`, `sm.shared_memory`, `sm.count`, ... : the keys of the GPU files; or a mapping of keys to
            values, changed in order.
        value
            "6 TB/s", "2x" (times the present value), "160", or a number in SI units.

        Raises
        ------
        InputError
            Unknown key (names the nearest), a figure that no prediction reads, wrong unit, or a value outside the
            allowed range.

        Examples
        --------
        >>> from attnsim.models.hardware.files import load_gpu
        >>> load_gpu("l4").replace({"sm.count": "2x", "l2.capacity": "96 MB"}).sm.count
        116
        """
        if isinstance(key, Mapping):
            if value is not None:
                raise InputError(f"replace is given a mapping and the value {value!r}; leave the value out")
            return functools.reduce(lambda gpu, one: gpu.replace(*one), key.items(), self)
        if value is None:
            raise InputError(f"replace is given {key} and the value None; give one, such as '2x'")
        asked, old = changeable(key), self.get(key)
        try:
            new = new_value(asked, old, value)
        except InputError as error:
            raise InputError(f"{key} {error}") from None
        if new == old:
            return self
        changed = self.with_change(key, new, keep=[change.key for change in self.changes])
        if problem := inconsistency(changed):
            raise InputError(f"{key} is {asked.show(new)}: {problem}")
        return changed

    def at_clock(self, clock_hz: float) -> Gpu:
        """The GPU held at a clock; this is a condition of a call, not recorded as a change."""
        return dataclasses.replace(self, clock=dataclasses.replace(self.clock, held_hz=clock_hz))

    def with_change(self, key: str, new: float, keep: Collection[str] = ()) -> Gpu:
        """The GPU with a figure set to an allowed value, recorded; followers change too, except figures to keep.

        Raises
        ------
        InputError
            If a figure that follows leaves its range.
        """
        follow = followers(self, key, new, keep)
        changes = [Change(one, self.get(one), to, FIELDS[one].unit) for one, to in {key: new, **follow}.items()]
        change = dataclasses.replace(changes[0], follows=tuple(changes[1:]))
        return dataclasses.replace(self.with_values({key: new, **follow}), changes=(*self.changes, change))

    def with_values(self, values: Mapping[str, float]) -> Gpu:
        """The GPU with several figures set at once; nothing is checked, and only their provenance is recorded."""
        provenance, stored = dict(self.provenance), dict[str, dict[str, Any]]()
        for key, value in values.items():
            declared = FIELDS[key]
            stored.setdefault(key.partition(".")[0], {})[declared.attribute] = declared.stored(value)
            provenance[key] = Figure(value, declared.unit, "assumed", f"changed from {self.base_id}")
        sections = {name: dataclasses.replace(getattr(self, name), **of) for name, of in stored.items()}
        return dataclasses.replace(self, **sections, provenance=MappingProxyType(provenance))


def _rebuild(*values: Any) -> Gpu:
    figures: list[Any] = [*values[:-1], MappingProxyType(values[-1])]
    return Gpu(*figures)


def inconsistency(gpu: Gpu) -> str:
    """Describe two figures of `gpu` that contradict each other; empty if none do."""
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
    return _impossible_clock(gpu)


def _impossible_clock(gpu: Gpu) -> str:
    show = FIELDS["power.limit"].show
    if 0 < gpu.clock.held_hz < SLOWEST_HZ:
        return f"a clock is at least {FIELDS['clock.sustained'].show(SLOWEST_HZ)}; give one, such as '1.7 GHz'"
    least, most = (round(times * gpu.power.tdp_w) for times in LIMITS)
    if not least <= gpu.power.limit_w <= most:
        what = f"{LIMITS[0]:g} to {LIMITS[1]:g} times the design power"
        return f"allowed: {show(least)} to {show(most)}, {what}; give a value in this range"
    return ""


def in_proportion(key: str, keep: Collection[str] = ()) -> Iterator[str]:
    """Figures that keep their ratio to `key`, directly or through another figure; without those to keep."""
    for one in IN_PROPORTION.get(key, ()):
        if one not in keep:
            yield from (one, *in_proportion(one, keep))


def followers(gpu: Gpu, key: str, new: float, keep: Collection[str] = ()) -> dict[str, float]:
    """Figures that change along with `key`, except those to keep: otherwise the change would have no effect.

    Raises
    ------
    InputError
        If one of them would leave its range.
    """
    match key:
        case "sm.shared_memory":
            # A block may use all but the reserve, as on every GPU since Volta, when it rises and when it falls.
            found = {"sm.shared_memory_per_block": new - gpu.sm.shared_memory_reserved_bytes}
        case "sm.max_threads":
            if new % _LANES:
                below = int(new // _LANES) * _LANES
                raise InputError(f"{key} is {int(new)}; allowed: multiples of {_LANES}, such as {below}")
            found = {"sm.max_warps": new / _LANES}
        case "sm.max_warps":
            found = {"sm.max_threads": new * _LANES}
        case _:
            found = {one: float(round(gpu.get(one) * new / gpu.get(key))) for one in in_proportion(key, keep)}
    found = {other: value for other, value in found.items() if other not in keep and value != gpu.get(other)}
    for other, value in found.items():
        try:
            FIELDS[other].check(value, FIELDS[other].show(value))
        except InputError as error:
            raise InputError(f"{other}, which follows, {error}") from None
    return found
