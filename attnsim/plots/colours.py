"""One colour for a tensor, for a unit and for an algorithm in every picture.

A style has a list of hues (:data:`attnsim.plots.styles.STYLES`); this file says which of them a thing has. What shares
a hue with another thing in one picture is told apart by its marker and its dashes.
"""

from __future__ import annotations

from attnsim.models.hardware.units import UNITS as HARDWARE
from attnsim.models.mechanisms import ALGORITHMS

BLUE, ORANGE, GREEN, MAGENTA, BROWN, SKY, WINE, INK = range(8)
"""Hues, as places in the list of a style; `INK` is that of text."""

TENSORS = {
    "Q": GREEN, "K": SKY, "V": BLUE, "S": ORANGE, "P": WINE, "O": BROWN,
    "State": MAGENTA, "Latent": MAGENTA,
    "dQ": GREEN, "dK": SKY, "dV": BLUE, "dS": ORANGE, "dP": WINE, "dO": BROWN,
}  # fmt: skip
"""Tensors; those of the rows (sums, masks, lists) have none and are grey. A gradient has its tensor's."""

UNITS = {
    "tensor": ORANGE, "exp": BROWN, "fp32": WINE, "issue": INK, "int32": WINE, "load_store": GREEN,
    "hbm": BLUE, "l2": SKY, "shared_memory": GREEN, "tensor_memory": MAGENTA,
}  # fmt: skip
"""Units: warm where they compute, cool where they move bytes. Integer lanes have the hue of the FP32 lanes, and
load/store units that of the shared memory which they reach."""

GROUPS = {"dense": INK, "sparse": MAGENTA, "linear": BROWN, "sharing": WINE}
"""Algorithms by their group, where `FAMILIAR` does not name them."""

FAMILIAR = {
    "naive": ORANGE, "flash": BLUE, "flash-1": SKY, "flash-2": GREEN, "flash-3": BLUE, "split-kv": SKY,
    "sliding-window": MAGENTA, "sparse": WINE, "sigmoid": INK, "longformer": INK, "bigbird": GREEN,
    "efficient": GREEN, "performer": MAGENTA, "linformer": WINE,
}  # fmt: skip
"""Algorithms that are often compared; flash has the hue of flash-3, which it is on GPUs that run that."""


def tensor_hue(name: str) -> int | None:
    """The hue of a tensor, its copies, transposes and parts included ("K'", "copy K", "O partial"); None: grey."""
    words = name.removeprefix("copy ").replace("(", " ").replace(")", " ").replace("'", "").split()
    return next((TENSORS[word] for word in words[:1] if word in TENSORS), None)


def unit_hue(name: str) -> int | None:
    """The hue of a unit; None: grey, as launches and waits are."""
    return UNITS.get(name)


def algorithm_hue(name: str) -> int:
    """The hue of an algorithm; ``NAME@N`` has that of ``NAME``."""
    base = name.partition("@")[0]
    if base in FAMILIAR:
        return FAMILIAR[base]
    return GROUPS[ALGORITHMS[base].group] if base in ALGORITHMS else INK


def figure_hue(figure: str) -> int | None:
    """The hue of the unit that a figure of the GPU belongs to ("l2.latency": the L2's); None: grey, as the clock is."""
    named = [name for name, unit in HARDWARE.items() if unit.figure == figure]
    group = figure.partition(".")[0]
    return unit_hue(named[0]) if named else unit_hue(group)
