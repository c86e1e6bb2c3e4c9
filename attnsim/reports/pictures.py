"""The pictures of a report, with what each shows in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import inf
from typing import TYPE_CHECKING

from attnsim.api.answer import Outcome
from attnsim.api.roofline import LEVELS
from attnsim.models.hardware.gpu import Gpu, Marks
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.plots import roofline, timeline, units
from attnsim.plots.document import Image
from attnsim.plots.document import Picture as Shown
from attnsim.plots.roofline_data import Entry, entries, machines
from attnsim.plots.sheet import DPI, Picture
from attnsim.plots.styles import applied, find_style
from attnsim.reports.answers import Answered
from attnsim.tables import csv_text
from attnsim.wording import and_text, number, time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = ((True, True), (True, False), (False, True), (False, False))
"""Dark and narrow, in the order in which a browser looks for the first that suits."""


TOGETHER = 3
"""GPUs that one picture shows; of more, each unchanged one with those made of it that gain most."""
FRAMES = 4
"""Calls whose units one picture shows; of more, each GPU gets a picture with those made of it."""


@dataclass(frozen=True, slots=True)
class Group:
    """The calls of one picture, on the tiles that their code ships where the study asks for these.

    Parameters
    ----------
    name : str
        Of the picture's files.
    label : str
        Its case, and what is left out.
    gpus : tuple of Gpu
        Unchanged ones and those made of them.
    predictions : tuple of Answer
    """

    name: str
    label: str
    gpus: tuple[Gpu, ...]
    predictions: tuple[Outcome, ...]


def groups(case: Answered, name: str, together: bool) -> list[Group]:
    """The GPUs of each picture: all where they go together, else an unchanged GPU and its changed ones."""
    if together:
        return [_group(case, name, case.case.name, case.machines)]
    found = []
    gain = {one.after.gpu: one.ratio.value for one in case.gains}
    for place, base in enumerate(dict.fromkeys(gpu.id for gpu in case.machines), 1):
        mine = [gpu for gpu in case.machines if gpu.id == base]
        best = sorted(mine, key=lambda gpu: -gain.get(gpu, 0.0) if gpu.changes else -inf)[:TOGETHER]
        left = f", without {len(mine) - TOGETHER} that gain less" if len(mine) > TOGETHER else ""
        label = ", ".join(filter(None, (case.case.name, base))) + left
        found.append(_group(case, f"{name}-{place}", label, [gpu for gpu in mine if gpu in best]))
    return found


def _group(case: Answered, name: str, label: str, gpus: Sequence[Gpu]) -> Group:
    here = [one for one in case.answers if one.gpu in gpus and one.prediction is not None]
    shown = [one for one in here if one.question.tile != "retuned"] or here
    return Group(name, label, tuple(gpus), tuple(one.prediction for one in shown if one.prediction is not None))


def roofline_pictures(case: Answered, name: str) -> list[Shown]:
    """The predictions of a case under the rooflines of their GPUs, in one picture where these are few."""
    return [_roofline(one, case.marked) for one in groups(case, name, len(case.machines) <= TOGETHER)]


def _roofline(group: Group, marked: Marks) -> Shown:
    drawn = machines(group.gpus, group.predictions, marked)
    shown = entries(drawn, group.predictions)
    timed = [one for one in shown if one.points]
    level = next((level for level in LEVELS if all(level in one.points for one in timed)), LEVELS[0])
    picture = roofline.roofline(
        group.predictions, group.gpus, levels=(level,), marked=marked
    )  # small calls stay in a warm L2
    points = " ".join(_point(one, drawn[one.machine].label) for one in timed)
    alt = f"Rooflines of {and_text([one.label for one in drawn])}, useful FLOP/s over FLOPs a byte. {points}"
    return on_page(picture, group.name, group.label, alt)


def _point(entry: Entry, machine: str) -> str:
    rate, roof = entry.flops_per_s or 0.0, entry.roof_flops_per_s or 1.0
    hbm = entry.points.get("hbm")
    at = f" at {number(hbm.intensity)} FLOPs a byte of HBM" if hbm else ""
    return (
        f"{entry.prediction.algorithm} on {machine}: {number(rate / 1e12)} TFLOP/s{at}, "
        f"{100 * rate / roof:.0f} % of its roof, busiest {unit_text(entry.busiest)}."
    )


def units_pictures(case: Answered, name: str) -> list[Shown]:
    """Busy times of the units, changed GPUs beside unchanged ones; none where nothing fits their memory."""
    (whole,) = groups(case, name, together=True)
    calls = {(one.algorithm, one.implementation, one.gpu) for one in whole.predictions if one.time_s}
    few = len(case.machines) <= TOGETHER and len(calls) <= FRAMES
    return [_units(one, case) for one in groups(case, name, few) if any(item.time_s for item in one.predictions)]


def _units(group: Group, case: Answered) -> Shown:
    predictions = group.predictions
    words = " ".join(
        f"{one.algorithm} on {case.machine(one)} takes {time_text(one.time_s)}: "
        + ", ".join(
            f"{unit_text(unit)} {100 * busy / (one.time_s or 1.0):.0f} %"
            for unit, busy in one.units_s.items()
            if unit in UNITS and busy
        )
        + "."
        for one in predictions
        if one.time_s
    )
    alt = f"Bars: the share of each call's time in which a unit is busy. {words}"
    return on_page(units.units(predictions, case.marked), group.name, group.label, alt)


def timeline_pictures(case: Answered, name: str) -> list[Shown]:
    """The first turns of one SM, a panel a trace; none where nothing was traced."""
    named = [(one, made) for one, made in case.traces if any(kernel.slices for kernel in made.kernels)]
    if not named:
        return []
    titles = [f"{one.question.algorithm}, {case.names[one.gpu]}" if one.gpu else "" for one, _ in named]
    found = [made for _, made in named]
    picture = timeline.timeline(found, titles, f"One SM, all panels on one scale of time; {case.case.workload}")
    span = timeline.span_of(found)
    words = []
    for title, made in zip(titles, found, strict=True):
        kernel = max(made.kernels, key=lambda item: item.time_s)
        tensor, softmax, both = (f"{100 * part:.0f} %" for part in timeline.overlap(kernel, span))
        words.append(f"{title}, {kernel.name}: tensor cores {tensor}, softmax {softmax}, both at once {both}.")
    alt = (
        f"Bars by warpgroup and by copied tensor over the first {time_text(span)}. Busy from the first multiplication "
        f"on: {' '.join(words)}"
    )
    return [on_page(picture, name, case.case.name, alt)]


def on_page(picture: Picture, name: str, label: str, alt: str) -> Shown:
    """A picture for a page, light and dark, wide and narrow; the page has its title and caption as text."""
    bare = replace(picture, title="", subtitle="", caption="")
    title = f"{label}: {picture.title}" if label else picture.title
    words = (f"{text.rstrip('.')}." for text in (title, picture.subtitle) if text)
    return Shown(
        name=name,
        caption=f"{' '.join(words)} {picture.caption}",
        alt=alt,
        images=_images(bare.figure),
        table=csv_text(picture.columns, picture.rows).encode(),
    )


def _images(draw: Callable[[str, str], Figure]) -> tuple[Image, ...]:
    found = []
    for dark, small in LOOKS:
        style, width = "dark" if dark else "light", "column" if small else "page"
        with applied(find_style(style)):
            found.append(Image(_png(draw(style, width), DPI[width]), dark, small))
    return tuple(found)


def _png(figure: Figure, dpi: int) -> bytes:
    out = BytesIO()
    figure.savefig(out, format="png", dpi=dpi)
    return out.getvalue()
