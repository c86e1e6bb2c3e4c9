"""Bytes by tensor at each level of memory: what goes through HBM, what is asked of the L2, what shared memory moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnsim.api.explaining import Explanation
from attnsim.errors import InputError
from attnsim.plots.series import about, engineering, identity, names_of
from attnsim.plots.sheet import Panel, Picture, bar, heading, key, longest, named_rows, note, size_of
from attnsim.plots.styles import TENSORS, Style, ink_on, tensor_hue

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEVELS = {"hbm": "from and to HBM", "l2": "asked of the L2", "smem": "read and written in shared memory"}
STEP = 0.3
"""Inches of a bar and the room around it."""
TOGETHER = 12.0
"""Ratio of totals up to which the bars of a level are lengths of bytes; beyond, shares of each call's total."""
WRITTEN = "////"
"""Hatch of the bars of written bytes."""

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
    ['from and to HBM, % of each total', 'asked of the L2', 'read and written in shared memory']
    """
    if not explanations:
        raise InputError("no explanation to draw; give at least one, as attnsim.api.explaining.explain returns them")
    names = names_of([one.prediction for one in explanations])
    bars = {level: [_parts(one, level) for one in explanations] for level in LEVELS}
    tensors = sorted({tensor for parts in bars["l2"] for tensor, _ in parts}, key=_rank)
    tall = STEP * len(names) + 0.06
    panels = tuple(
        Panel(partial(_draw, level=level, names=names, bars=bars[level], tensors=tensors), tall) for level in LEVELS
    )
    return Picture(
        "Bytes by tensor and level of memory",
        _caption(any(_far_apart(bars[level]) for level in LEVELS)),
        panels,
        tuple(row for name, one in zip(names, explanations, strict=True) for row in _rows(name, one)),
        left=tuple(names),
        right=("xx123 GB",),
        subtitle=about([one.prediction for one in explanations]),
    )


def _rank(tensor: str) -> tuple[int, str]:
    """Q, K, V, S, P, O, and what is small after them."""
    named = list(TENSORS)
    word = tensor.split(" ", maxsplit=1)[0]
    return (named.index(word) if word in named else len(named), tensor)


def _parts(one: Explanation, level: str) -> Parts:
    """Bytes of each tensor by direction, in one order in every bar, the copies of a tensor counted with it."""
    if level == "smem":
        return {("", "load"): one.prediction.smem_bytes or 0}
    found: Parts = {}
    for row in one.tensors:
        name = (row.tensor.rstrip("'"), row.direction)
        found[name] = found.get(name, 0) + (row.hbm_bytes if level == "hbm" else row.l2_bytes)
    return dict(sorted(found.items(), key=lambda item: (_rank(item[0][0]), item[0][1])))


def _far_apart(bars: Sequence[Parts]) -> bool:
    totals = [sum(parts.values()) for parts in bars if sum(parts.values())]
    return bool(totals) and max(totals) > TOGETHER * min(totals)


def _draw(
    axes: Axes, look: Style, *, level: str, names: Sequence[str], bars: Sequence[Parts], tensors: Sequence[str]
) -> None:
    totals = [sum(parts.values()) for parts in bars]
    shares = _far_apart(bars)
    whole = 100.0 if shares else float(max(*totals, 1))
    axes.set_xlim(0, whole * 1.001)
    wide = size_of(axes)[0]
    for number, (parts, total) in enumerate(zip(bars, totals, strict=True)):
        scale = 100.0 / total if shares and total else 1.0
        for tensor, direction, start, size in _stacked(parts):
            colour, hatch = look.colour(tensor_hue(tensor)), WRITTEN if direction == "store" else ""
            ends = start * scale, (start + size) * scale
            bar(axes, -number, *ends, colour, height=0.66, hatch=hatch, edgecolor=look.page, linewidth=0.5)
            if tensor and wide * size * scale / whole > longest([tensor], look) + 0.5 * look.size / 72:
                behind = {"facecolor": colour, "linewidth": 0, "pad": 1} if hatch else None
                how: Any = {"ha": "center", "fontweight": "bold", "color": ink_on(colour), "zorder": 4, "bbox": behind}
                note(axes, tensor, ((start + size / 2) * scale, -number), look, **how)
        axes.text(whole, -number, f"  {engineering(total, 'B')}", fontsize=look.size, va="center", ha="left")
    named_rows(axes, [-number for number in range(len(names))], names, look)
    axes.spines["left"].set_visible(True)
    axes.set_ylim(-len(names) + 0.45, 0.55)
    axes.locator_params(axis="x", nbins=5)
    top = max(totals)
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value:g} %" if shares else engineering(value, "B", like=top) if value else "0"
    )
    heading(axes, f"{LEVELS[level]}{', % of each total' if shares else ''}", look)
    if level == next(iter(LEVELS)):
        key(axes, [(tensor, look.colour(tensor_hue(tensor))) for tensor in tensors if tensor in TENSORS], look)


def _stacked(parts: Parts) -> Iterator[tuple[str, str, int, int]]:
    """Tensor, direction, where its bytes begin, and how many."""
    done = 0
    for (tensor, direction), size in parts.items():
        if size:
            yield tensor, direction, done, size
        done += size


def _caption(shares: bool) -> str:
    text = (
        "Hatched: written; plain: read; copies of a tensor count "
        "with it; grey: sums and lists. Asked of the L2 is what every block asks for; through HBM goes what the L2 "
        "does not hold. Shared memory: operands of the tensor cores and staging, not told apart by tensor."
    )
    if shares:
        text += f" Where totals differ by more than {TOGETHER:g} times, a bar is its call's whole; the numbers compare."
    return text


def _rows(name: str, one: Explanation) -> list[dict[str, object]]:
    item = one.prediction
    here = {"name": name, **identity(item)}
    found = [
        here | {"level": level, "kernel": row.kernel, "tensor": row.tensor, "direction": row.direction, "bytes": size}
        for row in one.tensors
        for level, size in (("hbm", row.hbm_bytes), ("l2", row.l2_bytes))
    ]
    return [*found, here | {"level": "smem", "bytes": item.smem_bytes}]
