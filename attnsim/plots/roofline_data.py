"""Numbers of a roofline picture: rooflines per GPU, points per prediction, rows of its CSV."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attnsim.api.answer import Outcome
from attnsim.api.roofline import LEVELS, Level, Point, Roofline
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu, Marks, changes_text, marks


@dataclass(frozen=True, slots=True)
class Drawn:
    """A GPU of the picture with its roofline and the label under which it is shown."""

    gpu: Gpu
    label: str
    roofline: Roofline
    short: str = ""
    """The label as a point has it: "h100*"."""
    mark: str = ""
    """Mark of a changed GPU: "*", or " A" of several."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A prediction of the picture.

    Parameters
    ----------
    number : int
        From 1, in the order given.
    prediction : Answer or TooLarge
    machine : int
        Index of its GPU.
    points : mapping of level to Point
        Empty when the call does not fit the GPU's memory.
    roof_flops_per_s : float or None
        Lowest roof at its intensities.
    busiest : str
        The prediction's own answer, else the roof's.
    measured_s : float or None
        What the same call took on the GPU.
    base : Entry or None
        The same prediction on the unchanged GPU.
    """

    number: int
    prediction: Outcome
    machine: int
    points: Mapping[Level, Point]
    roof_flops_per_s: float | None
    busiest: str
    measured_s: float | None = None
    base: Entry | None = None

    @property
    def flops_per_s(self) -> float | None:
        """Useful FLOP/s."""
        return next((point.flops_per_s for point in self.points.values()), None)

    @property
    def measured_flops_per_s(self) -> float | None:
        """Useful FLOP/s of the measured call."""
        return self.prediction.flops_useful / self.measured_s if self.measured_s else None

    @property
    def interval_flops_per_s(self) -> tuple[float, float] | None:
        """Useful FLOP/s at the ends of the prediction's interval, the lower first."""
        one = self.prediction
        if not one.time_low_s or not one.time_high_s:
            return None
        return one.flops_useful / one.time_high_s, one.flops_useful / one.time_low_s


def machines(gpus: Sequence[Gpu], predictions: Sequence[Outcome], marked: Marks | None = None) -> list[Drawn]:
    """Rooflines of the GPUs, for the number format and the FLOPs per exponential of the predictions on each.

    Raises
    ------
    InputError
        Without a GPU, or when a prediction's GPU is not among them.
    """
    if not gpus:
        raise InputError("no GPU to draw; give at least one, such as --gpu h100-sxm5-80gb")
    for item in predictions:
        if not any(_same(item, gpu) for gpu in gpus):
            known = ", ".join(gpu.id for gpu in gpus)
            raise InputError(f"a prediction is for {item.gpu}, which is not among the GPUs drawn: {known}")
    out = []
    families = short_names({gpu.id for gpu in gpus})
    of = marked or marks((gpu.id, gpu.changes) for gpu in gpus)
    for gpu in gpus:
        mine = [item for item in predictions if _same(item, gpu)]
        mark = of.get((gpu.id, gpu.changes), "")
        roofline = Roofline(gpu, _dtype(gpu, mine), _flops_per_exp(mine or predictions))
        out.append(Drawn(gpu, gpu.id + mark, roofline, families[gpu.id] + mark, mark))
    return out


def short_names(ids: Collection[str]) -> dict[str, str]:
    """Short names of GPUs, up to the first dash, where that is enough to tell them apart: "h100"."""
    first = [one.partition("-")[0] for one in ids]
    return {one: one if first.count(short := one.partition("-")[0]) > 1 else short for one in ids}


def entries(
    drawn: Sequence[Drawn], predictions: Sequence[Outcome], measured: Sequence[float | None] = ()
) -> list[Entry]:
    """Numbered predictions with their points at each memory level.

    Parameters
    ----------
    drawn : sequence of Drawn
    predictions : sequence of Answer
    measured : sequence of float or None
        Seconds that each took, where that is known; empty where nothing is.

    Raises
    ------
    InputError
        When there are not as many as predictions.
    """
    if measured and len(measured) != len(predictions):
        raise InputError(
            f"{len(measured)} measured times for {len(predictions)} predictions; give one for each, or None"
        )
    taken: Sequence[float | None] = measured or [None] * len(predictions)
    out: list[Entry] = []
    for number, item in enumerate(predictions, 1):
        index = next(i for i, machine in enumerate(drawn) if _same(item, machine.gpu))
        points: dict[Level, Point] = {}
        if item.time_s:
            rate = item.flops_useful / item.time_s
            traffic = {
                "hbm": (item.hbm_read_bytes or 0) + (item.hbm_write_bytes or 0),
                "l2": item.l2_bytes or 0,
                "smem": item.smem_bytes or 0,
            }
            points = {
                level: Point(f"{number} {item.algorithm}", level, item.flops_useful / traffic[level], rate)
                for level in LEVELS
                if traffic[level] > 0
            }
        roof, limit = drawn[index].roofline.roof({level: p.intensity for level, p in points.items()})
        busiest = (item.busiest or limit) if points else "does not fit"
        base = next((one for one in out if _is_base(one.prediction, item)), None)
        out.append(Entry(number, item, index, points, roof if points else None, busiest, taken[number - 1], base))
    return out


def _is_base(one: Outcome, item: Outcome) -> bool:
    """Whether `one` is the same call on the GPU that `item`'s was made of."""
    same = (one.algorithm, one.implementation, one.gpu) == (item.algorithm, item.implementation, item.gpu)
    return same and bool(item.changes) and not one.changes and one.workload == item.workload


def rows(drawn: Sequence[Drawn], shown: Sequence[Entry]) -> list[dict[str, object]]:
    """The picture as a tidy table: one row per ceiling, diagonal, ridge and point."""
    out: list[dict[str, object]] = []
    for machine in drawn:
        here: dict[str, object] = {"kind": "", "gpu": machine.gpu.id, "changes": changes_text(machine.gpu.changes)}
        roofline = machine.roofline
        for c in roofline.ceilings:
            rate = {"flops_per_s": c.flops_per_s, "achievable_flops_per_s": c.achievable_flops_per_s or ""}
            out.append(here | rate | {"kind": "ceiling", "name": ceiling_name(c.unit, roofline.dtype)})
        for d in roofline.diagonals:
            rates = {"bytes_per_s": d.bytes_per_s, "achievable_bytes_per_s": d.achievable_bytes_per_s}
            out.append(here | rates | {"kind": "diagonal", "name": d.level, "level": d.level})
            ridge = {"intensity_flop_per_byte": roofline.ridge(d.level), "flops_per_s": roofline.ceiling("tensor")}
            out.append(here | ridge | {"kind": "ridge", "name": f"{d.level} tensor", "level": d.level})
    for entry in shown:
        machine, item = drawn[entry.machine], entry.prediction
        common: dict[str, object] = {
            "kind": "point",
            "gpu": machine.gpu.id,
            "changes": changes_text(machine.gpu.changes),
            "number": entry.number,
            "algorithm": item.algorithm,
            "implementation": item.implementation,
            "time_s": "" if item.time_s is None else item.time_s,
            "time_low_s": item.time_low_s or "",
            "time_high_s": item.time_high_s or "",
            "measured_s": entry.measured_s or "",
            "roof_flops_per_s": entry.roof_flops_per_s or "",
            "busiest": entry.busiest,
        }
        for level, point in entry.points.items():
            place = {"intensity_flop_per_byte": point.intensity, "flops_per_s": point.flops_per_s}
            out.append(common | place | {"name": point.name, "level": level})
        if not entry.points:
            out.append(common | {"name": f"{entry.number} {item.algorithm}"})
    return out


def ceiling_name(unit: str, dtype: str) -> str:
    """A ceiling in words."""
    return {"tensor": f"tensor {dtype}", "mma_sync": f"mma.sync {dtype}"}.get(unit, unit)


def _same(item: Outcome, gpu: Gpu) -> bool:
    return item.gpu == gpu.id and item.changes == gpu.changes


def _dtype(gpu: Gpu, predictions: Sequence[Outcome]) -> str:
    if predictions:
        return predictions[0].workload.dtype
    return "bf16" if gpu.supports_dtype("bf16") else "fp16"


def _flops_per_exp(predictions: Sequence[Outcome]) -> float:
    """Useful FLOPs per exponential needed, or per one executed where an approximation needs none."""
    found = []
    for item in predictions:
        w = item.workload
        if not item.approximation:
            needed = w.heads_q * w.visible_pairs * len(w.directions)
            found.append(item.flops_useful / max(needed, 1))
        elif item.exponentials:
            found.append(item.flops_useful / item.exponentials)
    return max(found, default=4.0 * 128)  # head_dim 128 forward: 2 (d + dv)
