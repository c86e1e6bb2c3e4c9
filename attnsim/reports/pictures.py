"""The pictures of a report, with what each shows in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING

from attnsim.api.prediction import Prediction
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.models.wording import number, time_text
from attnsim.plots import roofline, timeline, units
from attnsim.plots.document import Image
from attnsim.plots.document import Picture as Shown
from attnsim.plots.files import csv_text
from attnsim.plots.roofline_data import Entry, entries, machines
from attnsim.plots.sheet import DPI
from attnsim.plots.styles import applied, find_style
from attnsim.reports.answers import Answered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOOKS = ((True, True), (True, False), (False, True), (False, False))
"""Dark and narrow, in the order in which a browser looks for the first that suits."""


TOGETHER = 3
"""GPUs that one roofline shows; of more, each unchanged one gets a picture with those made of it."""
FRAMES = 4
"""Calls whose units one picture shows; of more, each GPU gets a picture."""


def roofline_pictures(case: Answered, name: str) -> list[Shown]:
    """The predictions of a case under the rooflines of their GPUs, numbered as in its table where all are in one."""
    if len(case.machines) <= TOGETHER:
        return [_roofline(case.machines, case.predictions, name, case.case.label)]
    found = []
    for place, base in enumerate(dict.fromkeys(gpu.id for gpu in case.machines), 1):
        gpus = [gpu for gpu in case.machines if gpu.id == base]
        mine = [one for one in case.predictions if one.gpu == base]
        found.append(_roofline(gpus, mine, f"{name}-{place}", f"{case.case.label}, {base}, numbered by itself"))
    return found


def _roofline(gpus: Sequence[Gpu], predictions: Sequence[Prediction], name: str, label: str) -> Shown:
    drawn = machines(gpus, predictions)
    shown = entries(drawn, predictions)

    picture = roofline.roofline(predictions, gpus)
    points = " ".join(_point(one, drawn[one.machine].label) for one in shown if one.points)
    return Shown(
        name=name,
        caption=f"{label}. {picture.caption}",
        alt=f"Rooflines of {_listed([one.label for one in drawn])}, useful FLOP/s over FLOPs a byte. {points}",
        images=_images(lambda style, _: picture.figure(style, "column"), narrow=False),
        table=csv_text(picture.columns, picture.rows).encode(),
        widest=34,
    )


def _point(entry: Entry, machine: str) -> str:
    rate, roof = entry.flops_per_s or 0.0, entry.roof_flops_per_s or 1.0
    hbm = entry.points.get("hbm")
    at = f" at {number(hbm.intensity)} FLOPs a byte of HBM" if hbm else ""
    return (
        f"{entry.number}, {entry.prediction.algorithm} on {machine}: {number(rate / 1e12)} TFLOP/s{at}, "
        f"{100 * rate / roof:.0f} % of its roof, bound by {unit_text(entry.bound)}."
    )


def units_pictures(case: Answered, name: str) -> list[Shown]:
    """Busy times of the units on the unchanged GPUs, none where nothing fits their memory."""
    predictions = [one for one in case.predictions if not one.changes and one.tiles != "retuned"]
    timed = [one for one in predictions if one.time_s]
    if len(timed) <= FRAMES:
        return [_units(predictions, name)] if timed else []
    found = dict.fromkeys(one.gpu for one in timed)
    return [
        _units([one for one in predictions if one.gpu == gpu], f"{name}-{place}") for place, gpu in enumerate(found, 1)
    ]


def _units(predictions: Sequence[Prediction], name: str) -> Shown:
    drawn = units.units(predictions)
    bare = replace(drawn, title="", caption="")  # the page has them as text
    told = " ".join(
        f"{one.algorithm} on {one.gpu} takes {time_text(one.time_s)}: "
        + ", ".join(
            f"{unit_text(unit)} {100 * busy / (one.time_s or 1.0):.0f} %"
            for unit, busy in one.units_s.items()
            if unit in UNITS and busy
        )
        + "."
        for one in predictions
        if one.time_s
    )
    return Shown(
        name=name,
        caption=f"{drawn.title}. {drawn.caption}",
        alt=f"Bars: the share of each call's time in which a unit is busy. {told}",
        images=_images(bare.figure, narrow=True),
        table=csv_text(drawn.columns, drawn.rows).encode(),
    )


def timeline_pictures(case: Answered, name: str) -> list[Shown]:
    """The first turns of one SM, a panel an algorithm; none where nothing was traced."""
    named = [(title, one) for title, one in case.traces if any(kernel.slices for kernel in one.kernels)]
    if not named:
        return []
    titles, found = [title for title, _ in named], [one for _, one in named]
    picture = timeline.timeline(found, titles)
    figure = picture.figure()
    span = 1e-6 * figure.axes[0].get_xlim()[1]
    told = []
    for title, one in named:
        kernel = max(one.kernels, key=lambda item: item.time_s)
        tensor, softmax, both = (f"{100 * part:.0f} %" for part in timeline.overlap(kernel, span))
        told.append(f"{title}, {kernel.name}: tensor cores {tensor}, softmax {softmax}, both at once {both}.")
    shown = Shown(
        name=name,
        caption=f"What one SM of {case.machines[0].id} does first, by unit: {case.case.label}. Bars that stand above "
        "one another at the same time overlap.",
        alt=f"Bars on the tracks {_listed(timeline.LANES)} over the first {time_text(span)}. Busy from the first "
        f"multiplication on: {' '.join(told)}",
        images=(Image(_png(figure, 150)),),
        table=csv_text(picture.columns, picture.rows).encode(),
        widest=68,
    )
    return [shown]


def _images(draw: Callable[[str, str], Figure], narrow: bool) -> tuple[Image, ...]:
    found = []
    for dark, small in LOOKS:
        if small and not narrow:
            continue
        style, width = "dark" if dark else "light", "column" if small else "page"
        with applied(find_style(style)):
            found.append(Image(_png(draw(style, width), DPI[width if narrow else "column"]), dark, small))
    return tuple(found)


def _png(figure: Figure, dpi: int) -> bytes:
    out = BytesIO()
    figure.savefig(out, format="png", dpi=dpi)
    return out.getvalue()


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
