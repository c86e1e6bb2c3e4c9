"""From the words of a question to its records: which mechanism, whose implementation, under which conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack, get_args

from attnsim.api.adapting.own import OwnTimings, read_own
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest, shown
from attnsim.models.closed_forms.useful import Useful
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import Match, match
from attnsim.models.implementations.implementation import Implementation, TileRequest
from attnsim.models.llm.model import Model
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS, Mechanism, find_mechanism, playing, running
from attnsim.models.mechanisms.choosing import choose_implementation, default_implementation
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.instructions import LiftedCall
from attnsim.simulator.grid import BUDGET
from attnsim.simulator.program import Cache
from attnsim.simulator.replay import LaunchMode, Mode, Progress

OF_LENGTHS = by_hand(4_000_000, "budget times sequences of different lengths: few have no usual block to go by")
"""A smaller grid stands for the whole by its usual blocks; two dozen unequal sequences have none, 512 have."""
BUDGETS = (1_000, 10**12)
"""The least and the most of a budget: less plays too little of a grid to say anything, more would take days."""

Calibrated = OwnTimings | str | Path | None
"""One's own timings, or the file that holds them."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a prediction is made, apart from what and where.

    Parameters
    ----------
    tiles : {"shipped", "retuned", "given"}
    tile : TileRequest or None
        Query rows x keys, for "given".
    mode, cache, launch, budget, progress, within_s
        As for `attnsim.simulator.replay.replay`.
    own : OwnTimings or None
        Timings by which answers are corrected.
    """

    tiles: str = "shipped"
    tile: TileRequest | None = None
    mode: Mode = "fast"
    cache: Cache = "warm"
    launch: LaunchMode = "stream"
    budget: int = BUDGET
    progress: Progress | None = field(default=None, compare=False)
    within_s: float = 0.0
    own: OwnTimings | None = None

    @property
    def limit(self) -> int | None:
        """The budget where there is one: None in exact mode."""
        return None if self.mode == "exact" else self.budget


USUAL = Conditions()
"""The conditions where a caller names none."""


class Given(TypedDict, total=False):
    """Conditions as a caller names them; :func:`attnsim.predict` says what each means."""

    tiles: str
    tile: str | tuple[int, int] | None
    mode: str
    cache: str
    launch: str
    budget: int | None
    progress: Progress | None
    calibration: Calibrated


ALLOWED = {"tiles": ("shipped", "retuned")} | {
    name: get_args(kind) for name, kind in (("mode", Mode), ("cache", Cache), ("launch", LaunchMode))
}
"""Values of conditions that are words."""


def read_conditions(*, of: str = "what is asked", without: Iterable[str] = (), **given: Unpack[Given]) -> Conditions:
    """Check and collect the conditions; without a budget it is the usual one.

    Parameters
    ----------
    of, without : str, iterable of str
        What is asked, and conditions that it does not depend on or sets itself: they are refused.
    given
        As for :func:`attnsim.predict`. `calibration` is a file of one's own timings, as `attnsim adapt` writes it, or
        what it holds.

    Raises
    ------
    InputError
        Naming what was given and what is allowed.
    """
    known: dict[str, Any] = {**given}
    if unused := sorted({*without} & known.keys()):
        raise InputError(f"{', '.join(unused)} is not for {of}; leave it out")
    for name, allowed in ALLOWED.items():
        if name in known and known[name] not in allowed:
            raise InputError(f"{name} is {shown(known[name])}; allowed: {', '.join(allowed)}")
    calibration, shape = known.pop("calibration", None), _shape(known.pop("tile", None))
    if shape is not None and known.get("tiles") == "retuned":
        raise InputError(f"tile {shape} is given and tiles are to be retuned; leave one of them out")
    known |= {"tiles": "given"} if shape else {}
    own = read_own(calibration) if isinstance(calibration, (str, Path)) else calibration
    if not isinstance(own, OwnTimings | None):
        raise InputError(f"calibration is {shown(calibration)}; give a file of attnsim adapt, or what it holds")
    budget = _budget(known.pop("budget", None), known.get("mode", USUAL.mode))
    return replace(USUAL, tile=shape, own=own, budget=budget, **known)


def _budget(budget: int | None, mode: str) -> int:
    if budget is None:
        return BUDGET
    least, most = BUDGETS
    if isinstance(budget, bool) or not isinstance(budget, int) or not least <= budget <= most:
        raise InputError(
            f"budget is {shown(budget)}; allowed: whole numbers from {least:,} to {most:,}, or mode exact without one"
        )
    if mode == "exact":
        raise InputError(f"budget is {budget} and mode is exact, which has no limit; leave one of them out")
    return budget


def _shape(tile: str | tuple[int, int] | None) -> TileRequest | None:
    if tile is None:
        return None
    parts = tile.lower().replace("×", "x").split("x") if isinstance(tile, str) else list(tile)
    try:
        rows, keys = (int(part) for part in parts)
    except (TypeError, ValueError):
        raise InputError(f"tile is {shown(tile)}; write query rows x keys, such as 128x64") from None
    if not (16 <= rows <= 512 and rows % 16 == 0 and 8 <= keys <= 512 and keys % 8 == 0):
        raise InputError(f"tile is {rows}x{keys}; allowed: rows 16 to 512 in steps of 16, keys 8 to 512 in steps of 8")
    return TileRequest(rows, keys)


def read_gpu(gpu: Gpu | str | Path) -> Gpu:
    """The GPU itself, or the one with this id or in this file.

    Raises
    ------
    InputError
        When no GPU is called so.
    """
    if isinstance(gpu, Gpu):
        return gpu
    return load_gpu(gpu)


def read_gpus(gpu: Gpu | str | Path | Iterable[Gpu | str | Path]) -> list[Gpu]:
    """One GPU or several.

    Raises
    ------
    InputError
        When no GPU is called so.
    """
    if isinstance(gpu, (Gpu, str, Path)) or not isinstance(gpu, Iterable):
        return [read_gpu(gpu)]
    return [read_gpu(one) for one in gpu]


def read_mechanism(name: str) -> Mechanism:
    """The record behind a mechanism's name.

    Raises
    ------
    InputError
        Naming the nearest.
    """
    return _read(name, MECHANISMS)


def read_algorithm(name: str) -> Mechanism:
    """The record behind the name of a mechanism that a question can ask for.

    Raises
    ------
    InputError
        Naming the nearest.
    """
    if isinstance(name, str) and name.strip().lower() in MECHANISMS.keys() - ALGORITHMS.keys():
        raise InputError(
            f"algorithm {shown(name)} is a property of the question, not a schedule; ask for a schedule such as flash "
            "with the flags that make it so (attnsim algorithms lists both)"
        )
    return _read(name, ALGORITHMS)


def _read(name: str, known: Mapping[str, Mechanism]) -> Mechanism:
    key = name.strip().lower() if isinstance(name, str) else str(name)
    if key.partition("@")[0] not in known:
        raise InputError(f"algorithm {shown(name)} is not known; {_instead(key, known)}; all: attnsim algorithms")
    return known[key] if key in known else find_mechanism(key)


def _instead(key: str, known: Mapping[str, Mechanism]) -> str:
    """A name that a person may have meant: an implementation where it is one, else the nearest algorithm."""
    try:
        record = match(key).record
    except InputError:
        return nearest(key, known)
    return f"it is the name of an implementation, so --implementation {key}, or the algorithm {record.runs}"


_NAMES = (
    *("algorithm", "implementation", "gpu", "architecture", "changes", "tiles", "mode", "budget", "cache", "launch"),
    *("time_s", "time_low_s", "time_high_s", "floor_s", "best_share", "spread", "hbm_read_bytes", "hbm_write_bytes"),
    *("l2_bytes", "smem_bytes", "flops_useful", "flops_executed", "flops_dense", "exponentials", "peak_memory_bytes"),
    *("fits", "busiest", "blocks_per_sm", "waves", "speedup_vs_naive", "speedup_vs_naive_low", "speedup_vs_naive_high"),
    *("trust", "units_s", "clock_hz", "clock_by", "exposed_s", "launch_s", "kernels", "tile", "notes", "approximation"),
)


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that decides an answer.

    Parameters
    ----------
    w : Workload
        What the mechanism makes of the workload that was asked about.
    gpu : Gpu
    mechanism : Mechanism
    record : Implementation
        Whose kernels are imitated.
    conditions : Conditions
    assumed : tuple of str
        What was left open, and how it was filled in.
    """

    w: Workload
    gpu: Gpu
    mechanism: Mechanism
    record: Implementation
    conditions: Conditions
    assumed: tuple[str, ...] = ()

    names: ClassVar[Mapping[str, str]] = {name: name for name in _NAMES}
    """Keys of an answer in JSON, in order, and the attributes of :class:`attnsim.Answer` that they hold."""

    @property
    def implementation(self) -> str:
        """The code that is imitated."""
        return self.record.name

    @property
    def title(self) -> str:
        """The algorithm, and whose code it is."""
        return f"{self.mechanism.name} ({self.implementation})"

    @property
    def call(self) -> tuple[str, Workload]:
        """Whose code, and what it works on: one call on two GPUs shares most errors of its times."""
        return self.implementation, self.w

    @property
    def dtype(self) -> str:
        """Number format of the call."""
        return self.w.dtype

    @property
    def useful(self) -> Useful:
        """The work that no schedule does without."""
        return self.mechanism.useful(self.w)


@dataclass(frozen=True, slots=True, eq=False)
class KernelQuestion:
    """A lifted kernel on a GPU.

    Parameters
    ----------
    call : LiftedCall
    gpu : Gpu
    conditions : Conditions
    """

    call: LiftedCall
    gpu: Gpu
    conditions: Conditions

    names: ClassVar[Mapping[str, str]] = {
        "kernel": "implementation",
        **{name: name for name in ("gpu", "changes", "like", "time_s", "time_low_s", "time_high_s")},
        **{name: name for name in ("busiest", "hbm_read_bytes", "hbm_write_bytes", "l2_bytes", "smem_bytes")},
        **{"flops": "flops_executed", "exponentials": "exponentials", "memory_bytes": "peak_memory_bytes"},
        **{name: name for name in ("blocks_per_sm", "waves", "units_s", "clock_hz", "exposed_s", "launch_s", "spread")},
        **{"kernels": "kernels", "trust": "trust"},
    }
    """Keys of its answer in JSON, as :class:`Question` has them."""

    @property
    def implementation(self) -> str:
        """The kernels of the file, by name."""
        return self.call.name

    title = implementation

    @property
    def dtype(self) -> str:
        """Number format of the first kernel."""
        return self.call.kernels[0].kernel.dtype


@dataclass(frozen=True, slots=True)
class LayerQuestion:
    """A layer of a model on a GPU.

    Parameters
    ----------
    model : Model
        As one GPU computes it, where several share it.
    gpus : int
        GPUs that share each layer.
    gpu : Gpu
    w : Workload
        The attention call.
    algorithm, implementation : str or None
        Of the attention, as they were asked for.
    conditions : Conditions
    """

    model: Model
    gpus: int
    gpu: Gpu
    w: Workload
    algorithm: str | None
    implementation: str | None
    conditions: Conditions

    names: ClassVar[Mapping[str, str]] = {
        **{"model": "model.id", "tp": "gpus", "gpu": "gpu", "changes": "changes"},
        **{"seq_q": "workload.seq_q", "seq_kv": "workload.seq_kv"},
        **{name: name for name in ("time_s", "attention_share", "model_time_s", "model_attention_share", "hbm_bytes")},
        **{name: name for name in ("flops_useful", "mode", "budget", "cache", "launch", "trust", "parts", "dense")},
        **{"head": "head", "attention": "attention"},
    }
    """Keys of its answer in JSON, as :class:`Question` has them."""

    @property
    def title(self) -> str:
        """The model's name."""
        return f"a layer of {self.model.id}"


Q = TypeVar("Q", bound=Question | KernelQuestion | LayerQuestion)
"""A question that has an answer."""


def ask(
    workload: Workload,
    gpu: Gpu | str,
    mechanism: Mechanism | str,
    implementation: str | Match | None = None,
    conditions: Conditions = Conditions(),
    assumed: Iterable[str] = (),
    *,
    version: str = "",
    in_comparison: bool = False,
) -> Question:
    """The question that is played: what the mechanism makes of a workload, by the implementation named or the best.

    A name means what it does on the GPU, in the version, for the workload (`models.implementations.choose.match`). A
    mechanism that is a property of the question is shown by the implementation's own. With `in_comparison` the workload
    is asked of several mechanisms, see `Mechanism.in_comparison`.

    Raises
    ------
    InputError
        When the mechanism does not answer the workload, or the implementation does not run it there.
    """
    if not isinstance(workload, Workload):
        raise InputError(f"workload is {shown(workload)}; give an attnsim.Workload")
    if not isinstance(mechanism, (str, Mechanism)):
        raise InputError(
            f"algorithm is {shown(mechanism)}; give one name, such as 'flash'; attnsim.compare takes several"
        )
    asked = read_algorithm(mechanism) if isinstance(mechanism, str) else mechanism
    gpu, said = read_gpu(gpu).alone, tuple(assumed)
    w = asked.in_comparison(workload) if in_comparison else asked.question(workload)
    if asked.mask and w.mask != workload.mask:
        said += (f"mask {w.mask}: the default of {asked.name}",)
    if asked.selection and w.selection != workload.selection:
        said += (f"selection {w.selection}: the default of {asked.name}",)
    elif w.selection != workload.selection:
        if not in_comparison:
            check_selected(workload, [w])
        said += (f"all keys of the mask attended, none selected by {asked.name}",)
    if w.latent != workload.latent:
        said += ("keys and values of every head cached, not the latent",)
    named = _named(implementation, version, asked, w, gpu)
    if named and named.caller and asked.run_by(named.caller) and not asked.run_by(named.record):
        asked = running(named.record)[0]
    record = choose_implementation(asked, named.record if named else None, w, gpu)
    found = named or match(record.name, version)
    if named is None and "bwd" in w.directions:
        forward = default_implementation(asked, w.with_passes("fwd"), gpu).name
        if forward != record.name:
            said += (f"fwd alone is answered as {forward}: fwd and bwd by themselves do not add up to fwd+bwd",)
    if not asked.selectable or record.number != asked.number:
        asked = running(record)[0]
    if w.lengths and conditions.budget == BUDGET:
        conditions = replace(conditions, budget=max(BUDGET, OF_LENGTHS // len(w.lengths)))
    return Question(w, gpu, asked, record, conditions, (*said, *filter(None, [found.taken])))


def check_selected(workload: Workload, played: Iterable[Workload]) -> None:
    """Refuse a selection where none of what the mechanisms made of the question has one.

    Raises
    ------
    InputError
        When none has it.
    """
    if workload.selection is not None and all(w.selection is None for w in played):
        raise InputError(
            f"selection is '{workload.selection}', and what is asked attends to all keys of the mask; take --algorithm "
            f"{playing(workload).name}, or leave it out"
        )


def _named(name: str | Match | None, version: str, mechanism: Mechanism, w: Workload, gpu: Gpu) -> Match | None:
    """The implementation that a name stands for; with a number, the mechanism's where the name has none."""
    if not name or isinstance(name, Match):
        return name or None
    numbered = f"{name}@{mechanism.number}" if mechanism.number and "@" not in name else name
    return match(numbered, version, gpu, w)
