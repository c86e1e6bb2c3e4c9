"""Errors of predictions for batches of unequal sequences: prefill with decodes, skewed decode, packed calls.

Only properties of the GPU (its clock, the fixed time of a call) and of the kernel on its architecture (the latency of a
block) are fitted here, and never on the rows that are judged: mixed calls leave out a band of chunks or caches. No
prediction of the model uses these fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attnsim.arrays import Floats, Ints
from attnsim.by_hand import by_hand
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.schedule.schedule import Schedule
from attnsim.validation.measured.datasets import Row, batches, error_summary, played_s, timed
from attnsim.validation.measured.sources import batch_sources

MIXED, SKEWED, PACKED = "mixed_rtx4090", "skewed_decode_rtx_pro_6000", "varlen_a6000"
CHUNKS, CACHES = (65, 513), (129, 1025, 4097)
"""Lower ends of the bands of mixed calls: queries of the prefill, and keys of the decodes."""
CLOCKS = by_hand(
    (0.9, 1.06), "shares of the clock in the GPU's file at which mixed calls are played; between them by 1/clock"
)
BLOCKS = by_hand((0.4, 1.0), "shares of a block's latency at which they are played; between them in proportion")
FORWARDS = 3
"""Forward passes that LLMServingSim's profiler times together (``measurement_iterations``). A later version says an
earlier one reported, for other layers, their sum as the time of one (``profiler/core/hooks/timings.py``,
`extract_samples`). We infer the same fault for skewed decode: as reported, no call reads faster than a third of the
HBM bandwidth."""
SKEWED_FROM = 1.1
"""Smallest ratio of times at which a batch counts as slowed by skew."""

Line = dict[str, Any]


def batch_tables() -> dict[str, list[Line]]:
    """Return each table of measured batches: ``mean, median, p90`` of ``|predicted / measured - 1|`` by kind.

    ``role`` is the source's use in ``split.yaml``; "choose" rows are no test.
    """
    found = {"mixed": (MIXED, mixed()), "skewed decode": (SKEWED, skewed()), "packed": (PACKED, packed())}
    roles = {table: source.role for source in batch_sources().values() for table in source.tables}
    return {name: [row | {"role": roles[table]} for row in rows] for name, (table, rows) in found.items()}


def mixed() -> list[Line]:
    """Return errors of calls with one prefill chunk and decodes: unfitted, held out by chunk or cache, and two guesses.

    The guesses predict the parts as separate calls, and take their sum or the longest.
    """
    rows = batches(MIXED)
    measured = np.array([row.measured_s for row in rows])
    whole = [timed(row) for row in rows]
    parts = [[timed(row, row.workload.of(one)) for one in row.workload.parts] for row in rows]
    numbers = _numbers(rows[0])
    unfitted = np.array([played_s(one, rows[0].gpu, numbers) for one in whole]) + numbers.implementation.call_s
    play = _play_mixed(rows[0], whole)
    lengths = np.array([(row.workload.seq_q, row.workload.parts[-1].keys) for row in rows])
    out = [_line("nothing fitted", unfitted, measured)]
    for what, edges, column in (("chunk", CHUNKS, 0), ("cache", CACHES, 1)):
        bands = np.digitize(lengths[:, column], edges)
        out.append(_line(f"a band of {what}s left out", _held_out(play, measured, bands), measured))
    every = _fitted(play, measured, np.ones(len(rows), dtype=np.bool_))
    clock, block, fixed = every
    gpu, own = _changed(rows[0], clock, block)
    alone = [[played_s(one, gpu, own) + fixed for one in both] for both in parts]
    out.append(_line("sum of its parts", np.array([sum(both) for both in alone]), measured))
    out.append(_line("longest of its parts", np.array([max(both) for both in alone]), measured))
    fit = f"{clock * rows[0].gpu.clock.full_hz / 1e6:.0f} MHz, block latency x {block:.2f}, {fixed * 1e6:.1f} us a call"
    return [
        line | {"with": "" if line is out[0] else f"of each rest: {fit}" if line in out[1:3] else fit} for line in out
    ]


Numbers3 = tuple[float, float, float]
"""Share of the file's clock, share of a block's latency, fixed seconds per call."""


def _numbers(row: Row) -> Numbers:
    """Return the fitted numbers for a question on the row's GPU."""
    return choose(row.record, row.gpu).numbers


def _changed(row: Row, clock: float, block: float) -> tuple[Gpu, Numbers]:
    gpu, numbers = row.gpu, _numbers(row)
    own = replace(numbers.implementation, block_clks=numbers.implementation.block_clks * block)
    return gpu.replace("clock.sustained", gpu.clock.full_hz * clock), replace(numbers, implementation=own)


def _play_mixed(row: Row, schedules: Sequence[Schedule]) -> Callable[[float, float], Floats]:
    """Return a function for the times at a clock and a block latency, interpolated between replays at the ends."""
    ends = {
        (clock, block): np.array([played_s(one, *_changed(row, clock, block)) for one in schedules])
        for clock, block in product(CLOCKS, BLOCKS)
    }
    (slow, fast), (short, long) = CLOCKS, BLOCKS

    def play(clock: float, block: float) -> Floats:
        a = (1 / clock - 1 / slow) / (1 / fast - 1 / slow)
        b = (block - short) / (long - short)
        at = [(1 - b) * ends[one, short] + b * ends[one, long] for one in CLOCKS]
        return np.asarray((1 - a) * at[0] + a * at[1])

    return play


def _fitted(play: Callable[[float, float], Floats], measured: Floats, chosen: Any) -> Numbers3:
    """Return the three numbers with the smallest mean log error on the chosen rows."""
    clocks, blocks = np.linspace(0.85, 1.1, 26), np.linspace(0.1, 1.3, 13)
    fixed = np.arange(0, 6.1e-6, 0.5e-6)
    best: tuple[float, Numbers3] = (np.inf, (1.0, 1.0, 0.0))
    for clock, block in product(clocks.tolist(), blocks.tolist()):
        errors = np.abs(np.log((play(clock, block)[chosen] + fixed[:, None]) / measured[chosen])).mean(axis=1)
        best = min(best, (float(errors.min()), (clock, block, float(fixed[errors.argmin()]))))
    return best[1]


def _held_out(play: Callable[[float, float], Floats], measured: Floats, bands: Ints) -> Floats:
    predicted = np.empty_like(measured)
    for band in np.unique(bands):
        clock, block, fixed = _fitted(play, measured, bands != band)
        predicted[bands == band] = (play(clock, block) + fixed)[bands == band]
    return predicted


def skewed() -> list[Line]:
    """Return errors of decode steps of unequal lengths: of their time over that of equal ones, and of the time itself.

    Nothing is fitted. Times are taken to be those of three forward passes together, each with a cold cache: the model's
    weights, which exceed the L2, are read between two calls.
    """
    rows = batches(SKEWED)
    measured = np.array([row.measured_s for row in rows])
    gpu, numbers = rows[0].gpu, _numbers(rows[0])
    played = np.array([played_s(timed(row), gpu, numbers, "cold") for row in rows])
    predicted = played + numbers.implementation.call_s
    mean, longest, skew = measured.reshape(-1, 3).T
    ours, _, unequal = predicted.reshape(-1, 3).T
    ratio, slowed = skew / mean, skew / mean > SKEWED_FROM
    return [
        line | {"with": ""}
        for line in (
            _line("ratio to the mean length", unequal / ours, ratio),
            _line(f"the same, above {SKEWED_FROM}", (unequal / ours)[slowed], ratio[slowed]),
            _line("guess: as the mean length", np.ones_like(ratio), ratio),
            _line(f"the same, above {SKEWED_FROM}", np.ones(int(slowed.sum())), ratio[slowed]),
            _line("guess: as the longest", longest / mean, ratio),
            _line("absolute times, as three forwards", predicted, measured / FORWARDS),
            _line("absolute times, as they stand", predicted, measured),
        )
    ]


def packed() -> list[Line]:
    """Return errors of `flash_attn_varlen_func` on an RTX A6000, with sequences of one length; nothing is fitted."""
    rows = batches(PACKED)
    numbers = _numbers(rows[0])
    predicted = np.array([played_s(timed(row), row.gpu, numbers) for row in rows])
    measured = np.array([row.measured_s for row in rows])
    decode = np.array([row.case.passes == "decode" for row in rows])
    kinds = (("prefill", ~decode), ("decode", decode))
    return [_line(f"{what}, nothing fitted", predicted[which], measured[which]) | {"with": ""} for what, which in kinds]


def _line(what: str, predicted: Floats, measured: Floats) -> Line:
    return {"what": what} | error_summary(np.abs(predicted / measured - 1))
