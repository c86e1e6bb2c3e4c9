"""The roofline picture: where calls stand under what a GPU could do, and how predictions stand to measured calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.answer import Outcome
from attnsim.api.roofline import LEVELS, Level
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu, Marks, changes_text
from attnsim.plots import roofline_labels
from attnsim.plots.roofline_data import Drawn, Entry, entries, machines, rows
from attnsim.plots.roofline_labels import Shown
from attnsim.plots.series import FLOPS, shared_words
from attnsim.plots.sheet import Panel, Picture, heading, named_rows, side_text, whisker
from attnsim.plots.styles import Style, algorithm_hue
from attnsim.wording import and_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FURTHER: tuple[str, ...] = ("exp", "fp32", "mma_sync")
"""Rates of arithmetic that can be drawn beside the tensor cores'."""
BAND = 0.1
"""Errors within this share are inside the grey band."""
ROW = 0.17
"""Inches of a measured call."""


def roofline(
    predictions: Sequence[Outcome],
    gpus: Sequence[Gpu | str] | None = None,
    *,
    measured: Sequence[float | None] = (),
    levels: Sequence[Level] = ("hbm",),
    ceilings: Sequence[str] = (),
    marked: Marks | None = None,
) -> Picture:
    """Draw calls under the roof of a GPU's datasheet and under the one that kernels reach.

    An arrow leads from a call to the same one on a GPU made of its own, where that is elsewhere. Measured calls stand
    beside their predictions, and below them the ratios of the two.

    Parameters
    ----------
    predictions : sequence of Answer
        On those GPUs; one that does not fit is told in the caption.
    gpus : sequence of Gpu or str, optional
        By default those of the predictions, which have to be built in and unchanged.
    measured : sequence of float or None
        Seconds that each call took; empty where none was measured.
    levels : sequence of {"hbm", "l2", "smem"}
        Levels of memory with a roof; calls are named at the first.
    ceilings : sequence of {"exp", "fp32", "mma_sync"}
        Rates of arithmetic with a roof, beside the tensor cores'.
    marked : mapping, optional
        What stands behind the name of a changed GPU, by its id and changes; by default a star, or letters of several.

    Raises
    ------
    InputError
        No GPU, a prediction for another GPU, or a level or rate that there is not.

    Examples
    --------
    >>> import attnsim
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> figure = attnsim.plot.roofline(attnsim.compare(question, "a100-sxm4-80gb"))
    >>> figure.axes[0].get_xlabel()
    'useful FLOPs per byte of HBM'
    """
    drawn = machines(_gpus(predictions, gpus), predictions, marked)
    shown = Shown(drawn, entries(drawn, predictions, measured), _levels(levels), _ceilings(ceilings, drawn))
    panels = [Panel(partial(roofline_labels.draw, shown=shown), 3.6)]
    compared = [one for one in shown.placed if one.measured_s]
    if compared:
        panels.append(Panel(partial(_ratios, compared=compared, shown=shown), ROW * len(compared) + 0.15, apart=True))
    changed = (f"{one.label}: {changes_text(one.gpu.changes)}" for one in drawn if one.gpu.changes)
    return Picture(
        f"{'Measured and predicted calls' if compared else 'Predicted attention'} under the roofline of "
        f"{and_text([one.label for one in drawn])}",
        _caption(shown),
        tuple(panels),
        tuple(rows(drawn, shown.entries)),
        left=("1,000 x",),
        subtitle="; ".join(filter(None, (*_asked(drawn, predictions), *changed))),
    )


def _gpus(predictions: Sequence[Outcome], gpus: Sequence[Gpu | str] | None) -> list[Gpu]:
    if gpus is not None:
        return [load_gpu(one) if isinstance(one, str) else one for one in gpus]
    changed = next((one for one in predictions if one.changes), None)
    if changed is not None:
        raise InputError(f"a prediction is for {changed.gpu} with {changed.changes[0]}; give that GPU with gpus=[...]")
    return [load_gpu(name) for name in dict.fromkeys(one.gpu for one in predictions)]


def _asked(drawn: Sequence[Drawn], predictions: Sequence[Outcome]) -> list[str]:
    """Words that all questions share, by GPU where GPUs were asked different questions."""
    words = {
        one.short: shared_words([item for item in predictions if item.gpu == one.gpu.id])
        for one in drawn
        if not one.gpu.changes
    }
    if len(set(words.values())) <= 1:
        return [shared_words(predictions)]
    return [f"{name}: {text}" for name, text in words.items()]


def _levels(levels: Sequence[Level]) -> tuple[Level, ...]:
    other = [one for one in levels if one not in LEVELS]
    if other or not levels:
        raise InputError(f"levels are {', '.join(levels) or 'none'}; allowed: some of {', '.join(LEVELS)}")
    return tuple(dict.fromkeys(levels))


def _ceilings(ceilings: Sequence[str], drawn: Sequence[Drawn]) -> tuple[str, ...]:
    for one in ceilings:
        if one not in FURTHER:
            raise InputError(f"ceiling {one!r} is not known; allowed: {', '.join(FURTHER)}")
        if not any(ceiling.unit == one for machine in drawn for ceiling in machine.roofline.ceilings):
            raise InputError(f"{one} is no ceiling of {drawn[0].gpu.id}, whose tensor peak it reaches; leave it out")
    return tuple(dict.fromkeys(ceilings))


def _named(compared: Sequence[Entry]) -> list[str]:
    """Calls by implementation and by what tells them from the others."""
    alike = shared_words([one.prediction for one in compared]).split(", ")
    machines_ = {one.prediction.gpu for one in compared}
    return [
        ", ".join(
            (
                one.prediction.implementation,
                *([one.prediction.gpu] if len(machines_) > 1 else []),
                *(part for part in str(one.prediction.workload).split(", ") if part not in alike),
            )
        )
        for one in compared
    ]


def _ratios(axes: Axes, look: Style, *, compared: Sequence[Entry], shown: Shown) -> None:
    """Predicted over measured time, a row a call."""
    spans = []
    for row, entry in enumerate(compared):
        one, taken = entry.prediction, entry.measured_s or 1.0
        colour, ratio = look.colour(algorithm_hue(one.algorithm)), (one.time_s or 0.0) / taken
        low, high = ((end or one.time_s or 0.0) / taken for end in (one.time_low_s, one.time_high_s))
        how = {"fmt": shown.shape(entry), "color": colour, "markersize": 0.6 * look.size, "capsize": 0.0}
        whisker(axes, -row, (low, ratio, high), look, **how)
        side_text(axes, -row, f"{100 * (ratio - 1):+.1f} %", look)
        spans += [low, high]
    named_rows(axes, [-row for row in range(len(compared))], _named(compared), look)
    axes.spines["left"].set_visible(True)
    axes.axvspan(1 - BAND, 1 + BAND, color=look.grid, zorder=0)
    axes.axvline(1.0, color=look.text, linewidth=0.1 * look.size, zorder=1)
    axes.set_ylim(0.6 - len(compared), 0.6)
    wide = max(BAND, max(spans) - 1, 1 - min(spans)) * 1.08
    axes.set_xlim(1 - wide, 1 + wide)
    axes.set_xlabel("predicted over measured time", fontsize=look.size)
    heading(axes, f"bar: 90 % range; grey: within {100 * BAND:.0f} %", look)


def _runs(predictions: Sequence[Outcome]) -> list[str]:
    """Whose kernels run each algorithm: "flash is flash-attn.3."; with the GPUs where they have different ones."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for one in predictions:
        found.setdefault(one.algorithm, {}).setdefault(one.implementation, {})[one.gpu] = None
    return [
        f"{algorithm} is "
        + ", ".join(f"{name}{f' on {and_text(list(gpus))}' * (len(runs) > 1)}" for name, gpus in runs.items())
        + "."
        for algorithm, runs in found.items()
    ]


def _caption(shown: Shown) -> str:
    """Caption: roofs, marks, FLOP convention, clocks, caches."""
    clocks = ", ".join(f"{one.label} at {one.roofline.clock_hz / 1e6:.0f} MHz" for one in shown.machines)
    text = [f"Solid: datasheet ({clocks}); dashed: what kernels reach of it."]
    if any(one.measured_s for one in shown.entries):
        text.append("Filled: measured; hollow: predicted.")
    text.append("Bar: 90 % range of the prediction.")
    text += _runs([one.prediction for one in shown.entries if one.points])
    if any(one.base for one in shown.placed):
        text.append("Hollow: the changed GPU, with the speedup and its range.")
    if shown.moved:
        text.append("Arrow: from the GPU as it is to the changed one.")
    if any(not one.base and not one.measured_s for one in shown.placed):
        text.append("In brackets: share of the dashed roof.")
    if len(shown.levels) > 1:
        text.append("Small: the same call at its intensity of the other levels.")
    if "exp" in shown.ceilings:
        rates = ", ".join(sorted({f"{one.roofline.flops_per_exp:.4g}" for one in shown.machines}))
        text.append(f"exp: at {rates} useful FLOPs per exponential.")
    caches = sorted({one.prediction.cache for one in shown.entries})
    text.append(FLOPS + (f" L2 {' and '.join(caches)}." if caches else ""))
    text += [f"{one.prediction.algorithm}: does not fit the memory." for one in shown.entries if not one.points]
    return " ".join(dict.fromkeys(text))
