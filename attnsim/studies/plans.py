"""Plans: the kernel properties that a closed form needs besides lengths and rates (tile, occupancy, work per visit).

Points that differ only in lengths, batch, heads and rates run the same kernels on the same tile. They share a plan,
which is read from one small schedule of the implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from attnsim.api.asking import Conditions, ask, read_algorithm, read_conditions
from attnsim.api.playing import scheduled, step_waits
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import built, choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.closed_forms.columns import UNFUSED
from attnsim.models.hardware.clock_law import ClockLaw, clock_law, joules
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.hardware.units import CONCURRENT, COUNTED, MMA_SYNC_STALL
from attnsim.models.implementations.frameworks.naive import UnfusedTile
from attnsim.models.implementations.fused.tile import FusedTiles
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mechanisms import Mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import with_borrowed_counts
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.studies.points import Point, changed

PREFILL_TOKENS, PREFILL_HEADS, DECODE_KEYS = 1024, 1 << 15, 8192
"""Sizes of the small schedule. They do not affect tiles, but keys are split if heads are few and keys many. So
a prefill call gets many heads, and a decode call few."""


PER_FLOP = ("smem_bytes", *(one.amount for one in COUNTED), "steps")
"""Work that grows with the FLOPs of the main kernel."""

WORK = ("flops", "useful", "lanes", "exps", "smem_bytes", "l2_bytes", "hbm_bytes")
"""Work that takes energy; of "useful" FLOPs, what random data takes beyond zeros."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The kernels of one group of points.

    Parameters
    ----------
    gpu : Gpu
        GPU for which kernels and tiles are chosen.
    numbers : Numbers
        Fitted numbers of the implementation and the GPU.
    law : ClockLaw
        Determines the clock of long calls.
    joules : mapping of str to float
        Energy per unit of each kind of `WORK`.
    schedule : Schedule
        The small schedule.
    main : Kernel
        Its kernel with most FLOPs.
    rows, keys : int
        The tile of that kernel; 0 for unfused attention.
    packed : bool
        True if the query heads of a group share the rows of a tile.
    vectorised : bool
        True if :func:`attnsim.models.closed_forms.columns.costs` has its closed form.
    w : Workload
        Workload of the small schedule, with the group's mask and number format.
    lanes_per_exp : float
        FP32-lane instructions of the main kernel's softmax per exponential.
    per_flop : mapping of str to float
        `PER_FLOP` of the main kernel per FLOP: operand bytes from shared memory, counted instructions of the schedulers
        and their pipes (0 if not counted), and waits for an inner step.
    per_pass_byte : tuple of float
        Exponentials, FP32 and integer instructions of kernels without products, per byte that they request from the
        L2; 0 if all work is counted from the schedule.
    """

    record: Implementation
    gpu: Gpu
    numbers: Numbers
    law: ClockLaw
    joules: Mapping[str, float]
    schedule: Schedule
    main: Kernel
    rows: int
    keys: int
    packed: bool
    vectorised: bool
    w: Workload
    blocks_per_sm: int
    lanes_per_exp: float
    per_flop: Mapping[str, float]
    per_pass_byte: tuple[float, ...]

    @property
    def stall(self) -> float:
        """Share of a product's time during which vector work of the same SM stalls."""
        return MMA_SYNC_STALL if self.main.path == "mma_sync" else 0.0

    @property
    def own_path(self) -> float:
        """Part of the vector work that a warpgroup runs serially, pipe by pipe, while products run asynchronously."""
        return 1 / self.main.in_step if self.main.path in CONCURRENT else 0.0

    @property
    def groups(self) -> int:
        """Resident warpgroups per SM."""
        return self.blocks_per_sm * self.main.warpgroups

    @property
    def kernels(self) -> int:
        """Launches of a call."""
        return len(self.schedule.kernels)


@lru_cache(maxsize=64)
def _joules(capability: int, dtype: str) -> dict[str, float]:
    none = dict.fromkeys(WORK, 0.0)
    found = {name: sum(joules(capability, dtype, **none | {name: 1.0})) for name in WORK}
    on_data = sum(joules(capability, dtype, **none | {"flops": 1.0, "useful": 1.0}))
    return found | {"useful": on_data - found["flops"]}


def plan(point: Point) -> Plan:
    """Return the plan of a point's group.

    Raises
    ------
    InputError
        If there are no such kernels, or the tile does not fit or can only be chosen by replays.
    """
    # A figure may decide which kernels run, and on what tile, as a limit or as a number format that the GPU lacks.
    limits = {key for key, field in FIELDS.items() if field.read == "limit"}
    lacking = {key for key, *_ in point.changes if key.startswith("tensor.") and point.base.get(key) == 0}
    gpu = changed(point.base, tuple(change for change in point.changes if change[0] in limits | lacking))
    mechanism = read_algorithm(point.algorithm)
    small = _small(mechanism.question(point.workload()), mechanism)
    return _plan(mechanism, point.implementation, read_conditions(**point.tiles()), small, gpu)


def _small(w: Workload, mechanism: Mechanism) -> Workload:
    """Reduce a workload to the parts that determine its kernels and their tile."""
    if w.passes == "decode":
        return replace(w, batch=1, heads_q=2, heads_kv=1, seq_q=1, seq_kv=DECODE_KEYS)
    queries = w.seq_q if mechanism.splits else PREFILL_TOKENS  # which is refused where there are many
    return replace(w, batch=1, heads_q=PREFILL_HEADS, heads_kv=PREFILL_HEADS, seq_q=queries, seq_kv=PREFILL_TOKENS)


@lru_cache(maxsize=4096)
def _plan(mechanism: Mechanism, implementation: str | None, conditions: Conditions, small: Workload, gpu: Gpu) -> Plan:
    record = ask(small, gpu, mechanism, implementation, conditions).record
    if conditions.tiles == "retuned":
        raise InputError("tile retuned takes replays; write method: replay")
    schedule = scheduled(record, small, gpu, conditions)
    numbers = built(choose(record, gpu), record, small, gpu).numbers
    main = with_borrowed_counts(schedule.main, numbers.counts, gpu)
    main_tile = schedule.tile.forward if isinstance(schedule.tile, FusedTiles) else None
    known = main_tile.rescale == "always" if main_tile else schedule.tile == UnfusedTile(UNFUSED)
    plain = small.latent is None and not small.dropout and small.operations is None
    plain = plain and small.selection is None
    flops, exps = max(1, main.total("flops")), max(1, main.total("exps"))
    lanes = main.total("fp32")
    vectorised = known and plain and small.mask.is_band and small.directions == ("fwd",)
    passes = [kernel for kernel in schedule.kernels if vectorised and not kernel.total("flops")]
    moved = max(1, sum(kernel.total("bytes") for kernel in passes))
    return Plan(
        record=record,
        gpu=gpu,
        numbers=numbers,
        law=clock_law(gpu),
        joules=_joules(gpu.compute_capability_number, main.dtype),
        schedule=schedule,
        main=main,
        rows=main_tile.rows if main_tile else 0,
        keys=main_tile.keys if main_tile else 0,
        packed=main_tile is not None and main_tile.pack_gqa and small.group > 1,
        vectorised=vectorised,
        w=small,
        blocks_per_sm=occupancy(main, gpu).blocks_per_sm,
        lanes_per_exp=lanes / exps if main.total("exps") else 0.0,
        per_flop={
            "smem_bytes": main.total("smem_bytes") / flops,
            **{one.amount: main.total(one.amount) / flops * main.counted for one in COUNTED},
            "steps": step_waits(main) / flops,
        },
        per_pass_byte=tuple(sum(kernel.total(name) for kernel in passes) / moved for name in ("exps", "fp32", "int32")),
    )
