"""Compares predicted bytes with a profiler's counts, for each implementation, shape and kernel."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from attnsim.errors import InputError
from attnsim.models.calibrations.choose import choose
from attnsim.models.question.case_row import Case
from attnsim.simulator.replay import KernelReplay, replay
from attnsim.validation.measured.datasets import Row, row_of
from attnsim.validation.measuring.counters import Counted

QUANTITIES = ("hbm_read_bytes", "hbm_write_bytes", "l2_bytes")

ALL = "all"
"""Name of the line for the sum over a call's kernels."""

Launches = tuple[tuple[str, int], ...]
"""Kernel and blocks of each launch of a call, in order."""


def _launches(one: Row) -> Launches:
    return tuple((kernel.name, kernel.blocks) for kernel in one.schedule.kernels)


def compare_io(counted: Sequence[Counted], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return predicted and counted bytes of every case; each kernel starts with a cold L2.

    ncu flushes the caches before every kernel, unless ``--cache-control none`` is given.

    Launches are matched by kernel and grid, and then by order: the profiled program must run the cases in the order of
    the table, and cases with equal launches equally often. Kernels that no case launches (fills, copies) are ignored.

    Parameters
    ----------
    counted : sequence of Counted
        In launch order, from :func:`attnsim.validation.measuring.counters.read_counters`.
    cases : sequence of Case
        Cases with `implementation`, in the order in which they ran.

    Returns
    -------
    list of dict
        ``implementation, workload, gpu, kernel, calls``; and for each of `QUANTITIES` the predicted value, the counted
        value (median over the calls, ``..._counted``), and ``..._error``: predicted over counted minus 1, None without
        a count. A call of several kernels has one line for each, and one for all.

    Raises
    ------
    InputError
        If launches and cases do not match.
    """
    asked = list(map(row_of, cases))
    known = {name for one in asked for name, _ in _launches(one)}
    calls = _calls([launch for launch in counted if launch.kernel in known], asked)
    return [line for one, each in zip(asked, calls, strict=True) for line in _lines(one, each, _predicted(one))]


def _calls(launches: Sequence[Counted], asked: Sequence[Row]) -> list[list[Sequence[Counted]]]:
    """Return the calls of each case, with one launch for every kernel of its schedule."""
    found: list[list[Sequence[Counted]]] = []
    at = 0
    for wanted, group in itertools.groupby(asked, key=_launches):
        alike, calls = list(group), []
        while at < len(launches) and _is_call(launches[at : at + len(wanted)], wanted):
            calls.append(launches[at : at + len(wanted)])
            at += len(wanted)
        if not calls or len(calls) % len(alike):
            raise InputError(_mismatch(alike, len(calls), launches[at : at + 1]))
        each = len(calls) // len(alike)
        found += [calls[number * each : (number + 1) * each] for number in range(len(alike))]
    if at < len(launches):
        raise InputError(
            f"launches left over after all {len(asked)} cases: {len(launches) - at}, the first {_named(launches[at])}; "
            "give the cases that ran, in their order"
        )
    return found


def _is_call(launches: Sequence[Counted], wanted: Launches) -> bool:
    return len(launches) == len(wanted) and all(
        launch.kernel == name and launch.blocks in (None, blocks)
        for launch, (name, blocks) in zip(launches, wanted, strict=True)
    )


def _mismatch(alike: Sequence[Row], calls: int, following: Sequence[Counted]) -> str:
    first = alike[0]
    wanted = ", ".join(f"{name} with {blocks} blocks" for name, blocks in _launches(first))
    if calls:
        return f"{len(alike)} cases in a row launch {wanted}, and {calls} such calls were counted; give as many of each"
    came = f"{_named(following[0])} came" if following else "nothing came"
    return f"{first.record.name} on {first.workload} launches {wanted}; {came} instead"


def _named(launch: Counted) -> str:
    return launch.kernel if launch.blocks is None else f"{launch.kernel} with {launch.blocks} blocks"


def _predicted(one: Row) -> list[dict[str, float]]:
    """Return the predicted bytes of each kernel."""
    numbers = choose(one.record, one.gpu).numbers
    alone = [replace(one.schedule, kernels=(kernel,)) for kernel in one.schedule.kernels]
    return [_bytes(replay(schedule, one.gpu, numbers, cache="cold").kernels[0]) for schedule in alone]


def _bytes(kernel: KernelReplay) -> dict[str, float]:
    return {
        "hbm_read_bytes": sum(row.hbm_bytes for row in kernel.traffic if not row.written),
        "hbm_write_bytes": sum(row.hbm_bytes for row in kernel.traffic if row.written),
        "l2_bytes": sum(row.l2_bytes for row in kernel.traffic),
    }


def _lines(one: Row, calls: Sequence[Sequence[Counted]], predicted: list[dict[str, float]]) -> Iterator[dict[str, Any]]:
    about = {"implementation": one.record.name, "workload": str(one.workload), "gpu": one.case.gpu}
    names = [kernel.name for kernel in one.schedule.kernels]
    parts = [(name, [number]) for number, name in enumerate(names)]
    for name, numbers in [*parts, (ALL, list(range(len(names))))] if len(names) > 1 else parts:
        line: dict[str, Any] = {**about, "kernel": name, "calls": len(calls)}
        for quantity in QUANTITIES:
            expected = sum(predicted[number][quantity] for number in numbers)
            found = statistics.median(sum(getattr(call[number], quantity) for number in numbers) for call in calls)
            line |= {
                quantity: round(expected),
                f"{quantity.removesuffix('_bytes')}_counted": round(found),
                f"{quantity.removesuffix('_bytes')}_error": expected / found - 1 if found else None,
            }
        yield line
