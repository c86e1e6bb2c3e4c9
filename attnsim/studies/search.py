"""Searches for the best tile for a question on a GPU: replays every fitting tile, and checks the short list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Unpack

from attnsim.api.answering import answer
from attnsim.api.asking import Given, ask, read_conditions
from attnsim.api.comparing.ratios import Ratio, speedup_of_tiles
from attnsim.api.playing import REPLAYED_CANDIDATES, fitting, replayed, shipped
from attnsim.errors import InputError
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.gpu.measuring import Bench, attached_bench
from attnsim.kernels.gpu.prepared import inputs
from attnsim.models.calibrations.choose import built, choose
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.implementations.own import flash as own_flash
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay

STAGES = (1, 2, 3, 4)
"""Numbers of K and V buffers to try besides the implementation's own."""
SAMPLES = 30
LIMIT_S = 0.4
"""Samples of a measured tile, and the GPU time in seconds after which no further burst begins."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One replayed tile.

    Parameters
    ----------
    tile : str
        Description: rows x keys, warps, stages.
    blocks_per_sm : int
        Resident blocks per SM.
    limited_by : str
        Resource that limits the resident blocks.
    busiest : str
        Unit with the longest busy time.
    own_stages : bool
        True if the number of buffers is the implementation's own.
    listed : bool
        True if the short list of `--tiles retuned` has it.
    shipped : bool
        True for the implementation's own choice.
    """

    tile: str
    time_s: float
    blocks_per_sm: int
    limited_by: str
    waves: float
    busiest: str
    own_stages: bool
    listed: bool
    shipped: bool


@dataclass(frozen=True, slots=True)
class TileSearch:
    """All fitting tiles, the fastest first.

    Parameters
    ----------
    own : str
        How timings of one's own corrected all times, or that they did not.
    """

    implementation: str
    tiles: tuple[Tile, ...]
    own: str = ""

    @property
    def best(self) -> Tile:
        """The fastest tile."""
        return self.tiles[0]

    @property
    def shipped(self) -> Tile | None:
        """The implementation's own choice, None if it does not fit."""
        return next((one for one in self.tiles if one.shipped), None)

    @property
    def gain(self) -> Ratio | None:
        """Speedup of the best tile over the implementation's own choice; None if they are the same."""
        own = self.shipped
        return None if own is None or own is self.best else speedup_of_tiles(own.time_s, self.best.time_s)

    @property
    def regret(self) -> float:
        """Relative time loss of the short list against the best tile with the implementation's own stages."""
        return self._listed / min(one.time_s for one in self.tiles if one.own_stages) - 1

    @property
    def regret_with_stages(self) -> float:
        """Relative time loss of the short list against the best tile of all."""
        return self._listed / self.best.time_s - 1

    @property
    def _listed(self) -> float:
        return min(one.time_s for one in self.tiles if one.listed or one.shipped)


def search_tiles(
    w: Workload,
    gpu: Gpu,
    algorithm: str = "flash",
    *,
    implementation: str | None = None,
    stages: Sequence[int] = STAGES,
    done: Callable[[], object] = lambda: None,
    **given: Unpack[Given],
) -> TileSearch:
    """Replay every tile of an implementation that fits a GPU.

    Parameters
    ----------
    w : Workload
        A forward pass or a decode call.
    algorithm, implementation
        As in `attnsim.predict`.
    stages : sequence of int
        Numbers of buffers to try, if the implementation's loop supports them.
    done : callable
        Called after each replay.
    given
        Conditions as for `attnsim.predict`, without tiles. Timings of one's own correct all tiles alike, as they do the
        shipped one.

    Raises
    ------
    InputError
        If the implementation has no choice of tiles, or none fits.
    """
    conditions = read_conditions(of="a search of tiles", without=("tiles", "tile"), **given)
    question = ask(w, gpu, algorithm, implementation, conditions)
    w, record = question.w, question.record
    if not record.tunable or "fwd" not in w.directions or "bwd" in w.directions:
        raise InputError(f"{record.name} has no forward tile to choose for pass {w.passes}; give fwd or decode")
    numbers = built(choose(record, gpu), record, w, gpu).numbers
    schedules, listed, own_tile = {}, set(), ""
    staged = fitting(record, w, gpu, numbers, stages) if stages else ()  # the most first, should they be too many
    for number, one in enumerate(fitting(record, w, gpu, numbers)):
        schedules[one.schedule.tile_text] = one.schedule
        if number < REPLAYED_CANDIDATES:
            listed.add(one.schedule.tile_text)
    with suppress(InputError):  # where it no longer fits a changed GPU
        schedule = shipped(record, w, gpu)
        own_tile = schedule.tile_text
        schedules[own_tile] = schedule
        listed.add(own_tile)
    own_stages = set(schedules)
    for one in staged:
        schedules.setdefault(one.schedule.tile_text, one.schedule)
    if not schedules:
        raise InputError(f"no tile of {record.name} fits {gpu.id}; take another implementation or head_dim")
    found, usual = [], answer(question) if conditions.own and own_tile else None
    factor = usual.correction if usual else 1.0
    for text, schedule in schedules.items():
        result = replayed(schedule, gpu, numbers, conditions)
        main, own = result.main, text in own_stages
        held = (main.blocks_per_sm, main.limited_by, main.waves, result.busiest)
        found.append(Tile(text, result.time_s * factor, *held, own, text in listed, text == own_tile))
        done()
    told = "; ".join(str(one) for one in usual.trust.reasons if one.kind == "own") if usual else ""
    return TileSearch(record.name, tuple(sorted(found, key=lambda one: one.time_s)), told)


@dataclass(frozen=True, slots=True)
class MeasuredTile:
    """A compiled tile of our flash kernel: predicted and measured seconds, kernel only, L2 warm."""

    tile: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class MeasuredTiles:
    """The compiled tiles on this machine's GPU, the fastest measured first."""

    gpu: str
    tiles: tuple[MeasuredTile, ...]

    @property
    def choice(self) -> MeasuredTile:
        """The tile that the model chooses."""
        return min(self.tiles, key=lambda one: one.predicted_s)

    @property
    def regret(self) -> float:
        """Relative time loss of the model's choice against the fastest measured tile."""
        return self.choice.measured_s / self.tiles[0].measured_s - 1


def measure_tiles(w: Workload, bench: Bench | None = None, seed: int = 0) -> MeasuredTiles:
    """Time every compiled tile of our flash kernel on this machine's GPU, and predict each.

    Parameters
    ----------
    bench : Bench, optional
        Default: the GPU of this machine.
    seed : int
        Of the random inputs.

    Raises
    ------
    InputError
        Without CuPy or a GPU, or if no tile is compiled for the question.
    """
    if w.passes != "fwd" or w.head_dim not in own_flash.TILES or w.dtype not in ("fp16", "bf16"):
        allowed = ", ".join(map(str, own_flash.TILES))
        raise InputError(f"{own_flash.NAME} is compiled for fwd in fp16 and bf16 with head_dim {allowed}")
    here = bench or attached_bench(seed)
    gpu = here.device.gpu
    numbers = choose(IMPLEMENTATIONS[own_flash.NAME], gpu).numbers
    q, k, v = inputs(w, here.random)
    found = []
    for rows, keys in dict.fromkeys((tile.rows, tile.keys) for tile in own_flash.TILES[w.head_dim]):
        try:
            schedule = own_flash.build(w, gpu, TileRequest(rows, keys))
        except InputError:
            continue  # does not fit this GPU

        def call(shape: tuple[int, int] = (rows, keys)) -> object:
            return flash_forward(here.device, q, k, v, mask=w.mask, tile=shape)

        measured = here.watch.time(call, "warm", samples=SAMPLES, limit_s=LIMIT_S)
        predicted = replay(schedule, gpu, numbers, launch="kernel").time_s
        found.append(MeasuredTile(schedule.tile_text, predicted, measured.median_s))
    return MeasuredTiles(gpu.id, tuple(sorted(found, key=lambda one: one.measured_s)))
