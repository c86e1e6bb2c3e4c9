"""What `attnsim search hardware` prints and writes: machines as rows, the front, how far to believe them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnsim.cli import show

if TYPE_CHECKING:
    from attnsim.studies.hardware_search import Design, HardwareSearch

SHOWN = 10
"""Machines printed at most."""


def rows_of(found: HardwareSearch) -> list[dict[str, Any]]:
    """Every machine as a plain record, SI units."""
    front = {id(one) for one in found.front}
    return [_row(number, one, id(one) in front) for number, one in enumerate(found.machines)]


def _row(number: int, one: Design, front: bool) -> dict[str, Any]:
    answer, used = one.prediction, one.energy
    joules = used.joules if used else None
    watts = used.watts if used else None
    return {
        "machine": number,
        **one.figures,
        "time_s": answer.time_s if answer else None,
        "time_low_s": answer.time_low_s if answer else None,
        "time_high_s": answer.time_high_s if answer else None,
        "energy_j": joules.typical if joules else None,
        "energy_low_j": joules.low if joules else None,
        "energy_high_j": joules.high if joules else None,
        "power_w": watts.typical if watts else None,
        "power_low_w": watts.low if watts else None,
        "power_high_w": watts.high if watts else None,
        "bound": answer.bound if answer else None,
        "tile": answer.tile if answer else "",
        "trust": answer.trust.level if answer else None,
        "feasible": not one.broken,
        "front": front,
        "breaks": "; ".join(one.broken),
    }


def plot_front(found: HardwareSearch, rows: list[dict[str, Any]], plot: Path, question: str, style: str) -> None:
    """Draw the two objectives, or the one against power (time against power where it is that)."""
    from attnsim.plots.pareto import pareto

    first = found.objectives[0]
    second = found.objectives[1] if len(found.objectives) == 2 else "power" if first != "power" else "time"
    caption = (
        f"{question}. Every machine that was answered; what varies: {', '.join(one.key for one in found.space.ranges)}"
        f"{', limits: ' if found.space.limits else ''}{'; '.join(one.text for one in found.space.limits)}. "
        "Power and energy from published constants, off by a third and more."
    )
    title = f"Hardware from {found.space.gpu.id}: {first} against {second}"
    pareto(rows, (first, second), title, caption).write(plot, style)


def print_search(found: HardwareSearch, rows: list[dict[str, Any]], question: str) -> None:
    """The best machines or the front, and how far to believe them."""
    out = show.console()
    space = found.space
    out.print(f"{question}\n", soft_wrap=True)
    how = "all" if found.exhaustive else f"{len(found.machines)} of"
    ranges = ", ".join(one.key for one in space.ranges)
    out.print(
        f"{space.gpu.described}: {how} {space.size} machines over {ranges}"
        f"{'; ' if space.limits else ''}{'; '.join(one.text for one in space.limits)}\n",
        soft_wrap=True,
    )
    if not found.feasible:
        nearest = min(found.machines, key=lambda one: sum(one.excess))
        out.print(f"no machine keeps the limits; the nearest breaks {'; '.join(nearest.broken)}")
        return
    two = len(found.objectives) == 2
    chosen = found.front if two else found.feasible[:SHOWN]
    table = [_line(found, rows[found.machines.index(one)]) for one in chosen[:SHOWN]]
    right = tuple(name for name in table[0] if name not in ("bound", "tile"))
    title = f"Pareto front, {' against '.join(found.objectives)}" if two else f"least {found.objectives[0]} first"
    show.print_rows(out, title, table, right=right, whole=("tile",))
    if len(chosen) > SHOWN and two:
        out.print(f"{len(chosen) - SHOWN} more on the front: --out FILE has all")
    _print_uncertainty(out, found, chosen[0], rows)


def _line(found: HardwareSearch, row: dict[str, Any]) -> dict[str, object]:
    from attnsim.models.hardware.sections import FIELDS

    return {
        **{one.key: _short(FIELDS[one.key].show(row[one.key]), one.key, row[one.key]) for one in found.space.ranges},
        "time": show.time_text(row["time_s"]),
        "90 %": show.interval_text(row["time_low_s"], row["time_high_s"], row["time_s"]),
        "energy J": show.number(row["energy_j"]),
        "low-high": f"{show.number(row['energy_low_j'])}-{show.number(row['energy_high_j'])}",
        "power W": f"{row['power_w']:.0f}",
        " low-high": f"{row['power_low_w']:.0f}-{row['power_high_w']:.0f}",
        "bound": show.bound_text(row["bound"]),
        "tile": row["tile"],
    }


def _short(text: str, key: str, value: float) -> str:
    """A figure in four digits where its exact text is longer."""
    from attnsim.models.hardware.sections import FIELDS

    exact = len(text) <= 10 or FIELDS[key].integer
    return text if exact else FIELDS[key].show(float(f"{value:.4g}"))


def _print_uncertainty(out: Any, found: HardwareSearch, best: Design, rows: list[dict[str, Any]]) -> None:
    from attnsim.models.hardware.sections import FIELDS

    first = best.objectives[0]
    near = [one for one in found.feasible if one.objectives[0] <= 1.02 * first]
    spans = []
    for one in found.space.ranges:
        ends = sorted({machine.figures[one.key] for machine in near})
        spans.append(
            f"{one.key} {' to '.join(_short(FIELDS[one.key].show(end), one.key, end) for end in (ends[0], ends[-1]))}"
        )
    others = f"{len(near)} machines, {', '.join(spans)}" if len(near) > 1 else "no other machine that was answered"
    out.print(f"within 2 % of the least {found.objectives[0]}, which the model cannot tell apart: {others}")
    row = rows[found.machines.index(best)]
    for limit in found.space.limits:
        if limit.name in ("power", "energy"):
            unit = "w" if limit.name == "power" else "j"
            low, high = row[f"{limit.name}_low_{unit}"], row[f"{limit.name}_high_{unit}"]
            out.print(
                f"{limit.text} holds for the typical constants; the first machine may take {show.number(low)} to "
                f"{show.number(high)} {unit.upper()}"
            )
    assumed = best.energy.assumed if best.energy else ()
    out.print(
        f"power and energy: published constants scaled to the process node, assumed for {', '.join(assumed)}. trust: "
        f"{best.prediction.trust.reason if best.prediction else ''}"
    )
