"""What the area and cost of a search's machines are made of, and what they leave out, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnsim.errors import InputError

if TYPE_CHECKING:
    from attnsim.models.hardware.gpu import Gpu

_PARTS = {"sms": "SMs", "memory": "memory interface", "l2": "L2 cells", "crossbar": "crossbar", "links": "links"}


def told_of_area(base: Gpu, machines: Sequence[Gpu]) -> list[str]:
    """Lines on the die of the unchanged machine, and on those of others."""
    from attnsim.models.hardware.area import die_of, table, typical_shares, without_area
    from attnsim.models.hardware.cost import beyond_reticle

    try:
        name, die = die_of(base)
    except InputError as error:
        return [f"area: {error}"]
    shares = typical_shares(die)
    made = ", ".join(f"{word} {100 * shares[part]:.0f} %" for part, word in _PARTS.items())
    rest = table().parts["rest"]
    lines = [
        f"area: {name} has {die.area.typical:g} mm2 ({die.area.kind}): {made}; {100 * shares['rest']:.0f} % "
        f"({100 * rest.low:.0f}-{100 * rest.high:.0f}) is not modelled and stays. Shares by published constants, "
        "within an SM assumed"
    ]
    free = dict.fromkeys(key for machine in machines for key in without_area(machine))
    if free:
        lines.append(f"no area is known of {', '.join(free)}, whose change looks free here")
    large = [str(number) for number, machine in enumerate(machines) if number and beyond_reticle(machine)]
    if large:
        reticle = f"{table().reticle_mm2.typical:g} mm2"
        lines.append(f"larger than the reticle, {reticle}, so not made in one piece: {', '.join(large)}")
    return lines


def told_of_cost(prices: str) -> str:
    """What a cost is."""
    if prices:
        return f"cost: {prices}"
    return (
        "cost: dies of wafers by yield, memory and package, by published prices of 2020 to 2025, in US dollars; "
        "without tests, board, design and margin"
    )
