"""Properties of all GPUs of a compute capability: one column each of ``architectures.csv``, which has the sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from attnsim.models.hardware.sections import FIELDS, Kind
from attnsim.tables import read_csv


@dataclass(frozen=True, slots=True)
class Assumed:
    """A figure that a GPU's file may leave out: its value, or its ratio to another figure, with kind and rule."""

    key: str
    over: str
    value: float
    kind: Kind
    rule: str


@dataclass(frozen=True, slots=True)
class Architecture:
    """One column of the table.

    Parameters
    ----------
    name : str
        "hopper"; several capabilities may have one name.
    cards : tuple of str
        Well-known GPUs of the architecture.
    borrows : tuple of str
        Architectures whose calibrations it borrows, the most similar first.
    hbm : str
        Kind of memory of data-centre cards with HBM; "" if all cards have GDDR.
    small_shared_memory : bool
        Whether libraries keep separate tiles for its 99 KiB per block (FlashAttention's ``is_sm8x``).
    fp16_flops_per_clk : float
        Tensor rate of an SM; half of it on consumer cards that accumulate in fp32.
    mma_sync_flops_per_clk : float or None
        Rate that ``mma.sync`` reaches; None if it is 0.95 of the tensor rate.
    power_over_counted : float
        Power of the work over the power that its counts and ``energy.csv`` give.
    slowed_from_s, slowed_to_s : float
        Length of a call at which the power limit begins to slow it, and at which the limit applies in full.
    least_clock_hz : float
        Lowest SM clock that the power limit leads to.
    figures : tuple of Assumed
        In the order in which they are filled in.
    """

    name: str
    cards: tuple[str, ...]
    borrows: tuple[str, ...]
    hbm: str
    small_shared_memory: bool
    fp16_flops_per_clk: float
    mma_sync_flops_per_clk: float | None
    l2_bytes_per_clk_sm: float
    power_over_counted: float
    slowed_from_s: float
    slowed_to_s: float
    least_clock_hz: float
    figures: tuple[Assumed, ...]


def _read() -> dict[int, Architecture]:
    rows = {row["figure"]: row for row in read_csv(Path(__file__).with_name("architectures.csv"))}

    def items(key: str, column: str) -> tuple[str, ...]:
        return tuple(filter(None, rows[key][column].split("; ")))

    def assumed(key: str, columns: tuple[str, ...]) -> Assumed:
        cell = next(rows[key][column] for column in columns if rows[key][column])
        name, _, over = key.partition(" / ")
        kind = cast(Kind, rows[key]["kind"])
        if cell == "none":
            return Assumed(name, over, 0.0, kind, "rule: none on this architecture")
        return Assumed(name, over, float(cell) if over else FIELDS[name].parse(cell), kind, rows[key]["source"])

    def architecture(column: str) -> Architecture:
        mma_sync = rows["mma_sync_flops_per_clk"][column]
        return Architecture(
            name=rows["name"][column],
            cards=items("cards", column),
            borrows=items("borrows", column),
            hbm=rows["hbm"][column],
            small_shared_memory=rows["small_shared_memory"][column] == "true",
            fp16_flops_per_clk=float(rows["fp16_flops_per_clk"][column]),
            mma_sync_flops_per_clk=float(mma_sync) if mma_sync else None,
            l2_bytes_per_clk_sm=float(rows["l2_bytes_per_clk_sm"][column]),
            power_over_counted=float(rows["power_over_counted"][column]),
            slowed_from_s=float(rows["slowed_from_s"][column]),
            slowed_to_s=float(rows["slowed_to_s"][column]),
            least_clock_hz=float(rows["least_clock_hz"][column]),
            figures=tuple(assumed(key, (column, *items("nearest", column))) for key in rows if "." in key),
        )

    return {int(column): architecture(column) for column in rows["name"] if column.isdigit()}


ARCHITECTURES = _read()
"""Architectures by compute capability times ten."""


def modelled(capability: int) -> int | None:
    """Newest capability with a column that is not newer than `capability`; None if all are newer."""
    return max((number for number in ARCHITECTURES if number <= capability), default=None)


def architecture_of(capability: int) -> Architecture:
    """The column that models a capability (90 for 9.0); the oldest column if all are newer."""
    return ARCHITECTURES[modelled(capability) or min(ARCHITECTURES)]
