"""Bytes by tensor at each level of memory: what goes through HBM, what is asked of the L2, what shared memory moves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnsim.api.explaining import Explanation
from attnsim.models.errors import InputError
from attnsim.plots.roofline_labels import halo
from attnsim.plots.series import about, engineering, identity, names_of
from attnsim.plots.sheet import Panel, Picture, heading, plain_axes
from attnsim.plots.styles import Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("name", "algorithm", "implementation", "gpu", "changes", "level", "kernel", "tensor", "direction", "bytes")

LEVELS = {"hbm": "from and to HBM", "l2": "asked of the L2", "smem": "read and written in shared memory"}
STEP = 0.3
"""Inches of a bar and the room around it."""
LINEAR = 12.0
"""Ratio of totals up to which a level is drawn on a linear axis."""
LOADS = {"load": "", "store": "////"}

Parts = dict[tuple[str, str], int]
"""Bytes by tensor and direction."""


def traffic(explanations: Sequence[Explanation]) -> Picture:
    """Bytes by tensor: through HBM, asked of the L2, and in shared memory, a panel for each.

    Parameters
    ----------
    explanations : sequence of Explanation
        As `attnsim.api.explaining.explain` gives them, one for each algorithm.

    Raises
    ------
    InputError
        Without any.

    Examples
    --------
    >>> import attnsim
    >>> from attnsim.api.explaining import explain
    >>> question = attnsim.Workload(batch=1, heads_q=16, seq_q=1024, head_dim=128)
    >>> found = [explain(question, "a100-sxm4-80gb", name) for name in ("naive", "flash")]
    >>> [one.get_title(loc="left") for one in attnsim.plot.traffic(found).axes]
    ['from and to HBM, logarithmic', 'asked of the L2', 'read and written in shared memory']
    """
    if not explanations:
        raise InputError("no explanation to draw; give at least one, as attnsim.api.explaining.explain returns them")
    predictions = [one.prediction for one in explanations]
    names = names_of(predictions)
    bars = {level: [_parts(one, level) for one in explanations] for level in LEVELS}
    order = _order(bars["hbm"] + bars["l2"])
    tall = STEP * len(names) + 0.06
    panels = tuple(
        Panel(partial(_draw, level=level, names=names, bars=bars[level], order=order), tall) for level in LEVELS
    )
    return Picture(
        "Bytes by tensor and level of memory",
        _caption(explanations, order, any(_logarithmic(bars[level]) for level in LEVELS)),
        panels,
        COLUMNS,
        tuple(row for name, one in zip(names, explanations, strict=True) for row in _rows(name, one)),
        left=tuple(names),
        right=("xx123 GB",),
    )


def _parts(one: Explanation, level: str) -> Parts:
    """Bytes of each tensor by direction, the copies of a tensor counted with it, the largest first."""
    if level == "smem":
        return {("", "load"): one.prediction.smem_bytes or 0}
    found: Parts = {}
    for row in one.tensors:
        key = (row.tensor.rstrip("'"), row.direction)
        found[key] = found.get(key, 0) + (row.hbm_bytes if level == "hbm" else row.l2_bytes)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _order(bars: Sequence[Parts]) -> list[str]:
    """Tensors by the bytes that they move, which decides their colours."""
    total: dict[str, int] = {}
    for parts in bars:
        for (tensor, _), size in parts.items():
            total[tensor] = total.get(tensor, 0) + size
    return sorted(total, key=lambda tensor: -total[tensor])


def _logarithmic(bars: Sequence[Parts]) -> bool:
    totals = [sum(parts.values()) for parts in bars if sum(parts.values())]
    return bool(totals) and max(totals) > LINEAR * min(totals)


def _draw(
    axes: Axes, look: Style, *, level: str, names: Sequence[str], bars: Sequence[Parts], order: Sequence[str]
) -> None:
    from math import floor, log10

    totals = [sum(parts.values()) for parts in bars]
    log = _logarithmic(bars)
    high = max(*totals, 1)
    low = 10.0 ** (floor(log10(min(total for total in totals if total))) - 1) if log else 0.0
    axes.set_xlim(low, high * 1.001)
    axes.set_xscale("log" if log else "linear")

    def at(total: int, share: float) -> float:
        """Where a share of a bar ends: on a logarithmic axis in proportion to the bar as it is drawn."""
        return low * (total / low) ** share if log else total * share

    def across(x: float) -> float:
        return log10(x / low) / log10(high / low) if log else x / high

    figure = axes.get_figure(root=True)
    assert figure is not None
    wide = axes.get_position().width * figure.get_size_inches()[0]
    for number, (parts, total) in enumerate(zip(bars, totals, strict=True)):
        done, y = 0, -number
        for (tensor, direction), size in (parts if total else {}).items():  # all may lie in the L2
            left, right = at(total, done / total), at(total, (done + size) / total)
            done += size
            axes.barh(
                [y], [right - left], left=[left], height=0.66, color=_colour(tensor, order, look), zorder=3,
                edgecolor=look.page, linewidth=0.5, hatch=LOADS[direction],
            )  # fmt: skip
            word = tensor.split(" ")[0].rstrip(",")
            if word and wide * (across(right) - across(left)) > (0.7 * len(word) + 0.6) * look.size / 72:
                axes.text(
                    (left * right) ** 0.5 if log else (left + right) / 2, y, word, fontsize=look.size, va="center",
                    ha="center", fontweight="bold", path_effects=halo(look), zorder=4,
                )  # fmt: skip
        axes.text(high, y, f"  {engineering(total, 'B')}", fontsize=look.size, va="center", ha="left")
    plain_axes(axes, look, grid="x")
    axes.set_yticks([-number for number in range(len(names))], names)
    axes.set_ylim(-len(names) + 0.45, 0.55)
    axes.tick_params(axis="y", length=0)
    if not log:
        axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: engineering(value, "B") if value else "0")
    heading(axes, f"{LEVELS[level]}{', logarithmic' if log else ''}", look)


def _colour(tensor: str, order: Sequence[str], look: Style) -> str:
    return look.colour(order.index(tensor)) if tensor else look.faint


def _caption(explanations: Sequence[Explanation], order: Sequence[str], logarithmic: bool) -> str:
    text = (
        f"{about([one.prediction for one in explanations])} Hatched: written; plain: read; copies of a tensor count "
        "with it. Asked of the L2 is what every block asks for; through HBM goes what the L2 does not hold. Shared "
        "memory: operands of the tensor cores and staging, not told apart by tensor."
    )
    if logarithmic:
        text += (
            " Logarithmic: a bar's end is its total on the axis, and its inside is divided in proportion to the bytes, "
            "not by the axis."
        )
    long = [tensor for tensor in order if len(tensor) > 2]
    return text + (f" Names in full: {', '.join(long)}." if long else "")


def _rows(name: str, one: Explanation) -> list[dict[str, object]]:
    item = one.prediction
    here = {"name": name, **identity(item)}
    found = [
        here | {"level": level, "kernel": row.kernel, "tensor": row.tensor, "direction": row.direction, "bytes": size}
        for row in one.tensors
        for level, size in (("hbm", row.hbm_bytes), ("l2", row.l2_bytes))
    ]
    return [*found, here | {"level": "smem", "bytes": item.smem_bytes}]
