"""Time of each step of a serving trace, and what the steps attend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.serving_steps import Served, Step
from attnsim.plots.layout import Panel
from attnsim.plots.roofline_labels import short
from attnsim.plots.sheet import Picture, heading, plain_axes
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {"prefill": 1, "mixed": 2, "decode": 0}
"""Kinds of step, and the hue of each."""


def serving(found: Served) -> Picture:
    """Time by step, beside prompt tokens, decodes and keys.

    Parameters
    ----------
    found : Served
        As :func:`attnsim.api.serving_steps.serve` gives it.
    """
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in found.steps)]
    quantities: tuple[tuple[str, Callable[[Step], float]], ...] = (
        (f"{found.of}, ms a step", lambda one: 1e3 * one.time_s),
        ("prompt tokens", lambda one: one.prefill_tokens),
        ("sequences that decode", lambda one: one.decodes),
        ("keys attended", lambda one: one.keys),
    )
    panels = tuple(
        Panel(
            partial(_draw, found=found, kinds=kinds, value=value, text=text, first=not number, last=number == 3),
            0.8 if number else 1.6,
        )
        for number, (text, value) in enumerate(quantities)
    )
    return Picture(
        "Attention's time by step of a serving trace" if found.of == "attention" else "A serving trace step by step",
        f"{len(found.steps)} steps, {found.predicted} of them predicted: while the same sequences decode, a step has "
        f"the time of one before it. Attention as {found.implementation} runs it. {found.left_out}",
        panels,
        tuple(found.rows()),
        left=("1,000k",),
        right=tuple(kinds),
        subtitle=f"{found.gpu}, {found.implementation}, {1e3 * found.time_s:.4g} ms of {found.of} in all",
    )


def _draw(
    axes: Axes,
    look: Style,
    *,
    found: Served,
    kinds: list[str],
    value: Callable[[Step], float],
    text: str,
    first: bool,
    last: bool,
) -> None:
    plain_axes(axes, look)
    for kind in kinds:
        mine = [one for one in found.steps if one.kind == kind]
        axes.plot(
            [one.number for one in mine],
            [value(one) for one in mine],
            linestyle="none",
            marker="o",
            label=kind,
            markersize=(0.45 if len(found.steps) < 200 else 0.25) * look.size,
            color=look.colour(KINDS[kind]),
            markeredgewidth=0,
            zorder=3,
        )
    axes.set_xlim(0, len(found.steps) + 1)
    axes.set_ylim(0, 1.08 * max(value(one) for one in found.steps) or 1)
    axes.yaxis.set_major_formatter(lambda number, _: short(number) if number else "0")
    heading(axes, text, look)
    if last:
        axes.set_xlabel("step", fontsize=look.size)
    if first:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=look.size)
