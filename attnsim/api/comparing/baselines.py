"""The baseline of a table's ratios: the row or GPU that was named, or the first row that fits everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from attnsim.api.answer import Answer, Outcome
from attnsim.api.answering import compared
from attnsim.api.asking import Question, read_conditions
from attnsim.api.comparing.ratios import Ratio
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, shown
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Change, Gpu
from attnsim.models.implementations.choose import match
from attnsim.models.question.workload import Workload
from attnsim.wording import number

SLOWER = by_hand(0.995, "ratio below which a GPU with better figures is said to be slower")
UNFUSED, UNCHANGED = "naive", "base"
"""Baselines where nothing is named: unfused attention on the same GPU; of a changed GPU, the unchanged."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """A column of ratios.

    Parameters
    ----------
    over : str
        What they are over: an algorithm, ``algorithm/implementation``, a GPU, "naive" or "base".
    ratios : tuple of Ratio or None
        Of each prediction; None where it or its baseline does not fit the memory.
    note : str
        Why they are over something else than was asked for, or that a better GPU is slower; "" where neither holds.
    """

    over: str
    ratios: tuple[Ratio | None, ...]
    note: str = ""


def ratios_over(predictions: Sequence[Outcome], baseline: str | None = None, among: Sequence[Outcome] = ()) -> Ratios:
    """Ratios of predictions over one of their rows, each on the same GPU and of the same lengths.

    Parameters
    ----------
    predictions : sequence of Outcome
    baseline : str, optional
        An algorithm, an implementation, ``algorithm/implementation`` or a GPU of a row; by default unfused attention.
        Where that does not fit the memory everywhere, or a row that was named nowhere, the first row that fits
        everywhere takes its place, and the note says so.
    among : sequence of Outcome
        Where a GPU's rows are looked for; by default the same.

    Raises
    ------
    InputError
        When no row is called so.
    """
    everywhere = among or predictions
    if baseline is None:
        usual = tuple(one.vs_naive for one in predictions)
        if all(found is not None for found, one in zip(usual, predictions, strict=True) if one.fits):
            return Ratios(UNFUSED, usual)
        return _instead(predictions, UNFUSED)
    baseline = _meant(baseline, [(one.algorithm, one.implementation, one.gpu) for one in everywhere])
    if baseline in {one.gpu for one in everywhere}:
        machine = [one for one in everywhere if one.gpu == baseline and not one.changes]
        return Ratios(baseline, tuple(_over(_twin(one, machine), one) for one in predictions))
    found = _found(predictions, baseline)
    return found if any(found.ratios) else _instead(predictions, baseline)


def ratios_over_unchanged(predictions: Sequence[Outcome], unchanged: Sequence[Outcome]) -> Ratios:
    """Ratios of predictions on changed GPUs over the same on the unchanged ones; others are over themselves.

    Unchanged is a GPU as its first row has it: a file of a hypothetical GPU holds changes of its own.
    """
    own = {base.gpu: base.changes for base in reversed(unchanged)}
    bases = [base for base in unchanged if base.changes == own[base.gpu]]
    twins = [_twin(one, [base for base in bases if base.gpu == one.gpu]) for one in predictions]
    found = tuple(map(_over, twins, predictions))
    remarks = (why_slower(base, one) for base, one in zip(twins, predictions, strict=True) if base)
    return Ratios(UNCHANGED, found, "; ".join(filter(None, remarks)))


def why_slower(base: Outcome, one: Outcome) -> str:
    """In a sentence, what makes a call slower than `base` on a GPU of which every changed figure is better.

    Another tile, another number of splits, a lower clock, or the waves of blocks of the kernel that loses most;
    "" where the call is not slower, or a figure is worse.
    """
    changes = set(one.changes) - set(base.changes)
    if not isinstance(base, Answer) or not isinstance(one, Answer) or base.time_s >= SLOWER * one.time_s:
        return ""
    if not changes or not all(map(_better, changes)):
        return ""
    causes = list(_causes(base, one)) or [
        "blocks are handed out in another order, or fall in or out of step; do not trust the size"
    ]
    tiles = "" if one.tiles == "shipped" else f" ({one.tiles})"
    return f"{one.algorithm}{tiles} is slower with better figures: {', '.join(causes)}"


def _causes(base: Answer[Question], one: Answer[Question]) -> Iterator[str]:
    """The tile, the splits, the clock and the last wave, as far as they differ between two plays of a call."""
    before, after = base.run.schedule, one.run.schedule
    old, new = base.run.replay, one.run.replay
    if str(before.tile) != str(after.tile):
        yield f"the tile is {after.tile}, not {before.tile}"
    if before.splits != after.splits:
        yield f"the keys are cut into {str(after.splits) or '1 range'}, not {str(before.splits) or '1 range'}"
    if new.clock_hz < SLOWER * old.clock_hz:
        yield f"power holds the SMs at {new.clock_hz / 1e6:.0f} MHz, not {old.clock_hz / 1e6:.0f}"
    pairs = [(was, now) for was, now in zip(old.kernels, new.kernels, strict=False) if was.name == now.name]
    was, now = max(pairs, key=lambda pair: pair[1].time_s - pair[0].time_s, default=(old.main, old.main))
    if now.time_s > was.time_s and now.waves != was.waves and max(now.waves, was.waves) > 1:
        yield f"the blocks of {now.name} take {_waves(now.waves)}, not {_waves(was.waves)}"


def _waves(waves: float) -> str:
    """Waves of blocks, and how full the last one is: "3.24 waves (the last 24 % full)"."""
    last = 1 - (math.ceil(waves) - waves)
    return f"{number(waves)} waves (the last {100 * last:.0f} % full)"


def _better(change: Change) -> bool:
    """Whether a figure that changed is one of which more, or of a latency less, never makes a GPU worse."""
    rises = change.unit.endswith(("/s", "/clk")) or change.unit in ("Hz", "W", "B", "1")
    falls = change.unit in ("s", "clk") or change.key == "sm.shared_memory_reserved"
    return change.new < change.old if falls else rises and change.new > change.old


def check_baseline(
    baseline: str | None,
    workload: Workload,
    gpus: Sequence[Gpu],
    algorithms: Sequence[str],
    implementations: Sequence[str] = (),
) -> None:
    """Refuse a baseline that no row of `attnsim.compare` will be called by, before any is predicted.

    Raises
    ------
    InputError
        When no row will be called so.
    """
    if baseline is not None:
        asked = compared(workload, gpus, algorithms, implementations, read_conditions())
        _meant(baseline, [(one.mechanism.name, one.record.name, one.gpu.id) for one in asked])


def _meant(baseline: str, everywhere: Sequence[tuple[str, str, str]]) -> str:
    """A row's name for what may be called otherwise: "h100", "fa3"; rows are algorithm, implementation and GPU."""
    rows = dict.fromkeys(name for one in everywhere for name in one)
    if baseline in rows or any(baseline == f"{algorithm}/{name}" for algorithm, name, _ in everywhere):
        return baseline
    readers: tuple[Callable[[], str], ...] = (
        lambda: load_gpu(baseline).id,
        lambda: match(baseline).record.name,
    )
    for read in readers:
        with suppress(InputError):
            if (found := read()) in rows:
                return found
    raise InputError(f"baseline is {shown(baseline)}, which is no row; rows: {', '.join(rows)}")


def _names(one: Outcome) -> tuple[str, ...]:
    return one.algorithm, one.implementation, f"{one.algorithm}/{one.implementation}"


def _place(one: Outcome) -> tuple[object, ...]:
    return one.gpu, one.changes, one.workload.batch, one.workload.seq_q, one.workload.seq_kv


def _over(base: Outcome | None, one: Outcome) -> Ratio | None:
    return one.speedup_over(base) if base else None


def _twin(one: Outcome, others: Iterable[Outcome]) -> Outcome | None:
    """The row of other ones that has its implementation, or else its algorithm."""
    alike = [base for base in others if base.algorithm == one.algorithm and _place(base)[2:] == _place(one)[2:]]
    return next((base for base in alike if base.implementation == one.implementation), next(iter(alike), None))


def _found(predictions: Sequence[Outcome], name: str) -> Ratios:
    bases: dict[tuple[object, ...], Outcome] = {}
    for one in predictions:
        if name in _names(one):
            bases.setdefault(_place(one), one)
    return Ratios(name, tuple(_over(bases.get(_place(one)), one) for one in predictions))


def _instead(predictions: Sequence[Outcome], wanted: str) -> Ratios:
    """Ratios over the first row that fits wherever any does, or else over the one that fits most often."""
    names = dict.fromkeys(one.algorithm for one in predictions if one.fits)
    found = [_found(predictions, name) for name in names]
    if len(found) < 2:
        return Ratios(wanted, (None,) * len(predictions))
    best = max(found, key=lambda one: sum(ratio is not None for ratio in one.ratios))
    return Ratios(
        best.over, best.ratios, f"Ratios are over {best.over}: {wanted} does not fit the memory, or does not run"
    )
