"""What is written in a figure."""

from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.text import Text


def texts_of(figure: Figure) -> Iterator[Text]:
    """Everything that is written, but the labels of ticks beyond the axes, which are not drawn."""
    beyond = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                beyond |= {tick.label1, tick.label2}
    for one in figure.findobj(Text):
        if isinstance(one, Text) and one.get_text().strip() and one.get_visible() and one not in beyond:
            yield one
