"""A picture of what a search over hardware found."""

from __future__ import annotations

from attnsim.models.hardware.merits import RESULTS
from attnsim.plots.pareto import pareto
from attnsim.plots.sheet import Picture
from attnsim.studies.hardware_search import HardwareSearch, rows_of


def front(found: HardwareSearch, question: str) -> Picture:
    """Two objectives, or one against the first result that is limited (power where none is)."""
    first = found.objectives[0]
    limited = [limit.name for limit in found.space.limits if limit.name in RESULTS and limit.name != first]
    usual = "power" if first != "power" else "time"
    second = found.objectives[1] if len(found.objectives) == 2 else (*limited, usual)[0]
    caption = (
        f"Every machine that was answered, and {found.space.gpu.id} unchanged; what varies: "
        f"{', '.join(one.key for one in found.space.ranges)}"
        f"{'. Limits: ' if found.space.limits else ''}{'; '.join(one.text for one in found.space.limits)}. "
        "Power, energy, area and cost by published constants, off by a tenth to a third; the table has every range."
    )
    title = f"Hardware from {found.space.gpu.id}: {first} against {second}"
    limits = {limit.name: limit.value for limit in found.space.limits}
    rows = rows_of(found)
    keys = [one.key for one in found.space.ranges]
    mixed = len(found.mix.cases) > 1
    return pareto(rows, (first, second), title, question, caption, keys=keys, limits=limits, mixed=mixed)
