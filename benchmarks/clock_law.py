"""Fit and test the clock law's one fitted constant a chip: ``python benchmarks/clock_law.py``.

Needs the extra ``datasets``. Calls of prefill and encoders from 0.4 ms up are drawn evenly by their length from every
table of A100, H100, H200, B200, GB200, L40S and RTX PRO 6000, and played at two clocks. `power_over_counted`
(``models/hardware/architectures.csv``) is what makes the mean error of calls above 10 ms least, on half of the
frameworks; the other half tests it, and the reverse. The level of each kernel and head_dim, which a calibration would
have met, is taken from its calls below 5 ms. H200, GB200 and RTX PRO 6000 choose nothing.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from joblib import Parallel, delayed

from attnsim.arrays import Floats
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.clock_law import clock_law, limit_felt, settled
from attnsim.simulator.replay import replay, spent_j
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row

SHORTEST_S, LEVEL_S, LONG_S = 0.4e-3, 5e-3, 10e-3
BANDS_S = (SHORTEST_S, 1e-3, 2e-3, LEVEL_S, LONG_S, np.inf)
SLOWER = 0.8
"""Second clock over the first."""
LEAST = 6
"""Calls below `LEVEL_S` that a level takes at least."""
TRIED = np.arange(0.8, 2.0, 0.02)

ONE_HALF, OTHER_HALF = ("trtllm", "sglang"), ("vllm",)
CHIPS = (
    ("a100-sxm4-80gb", ()),
    ("h100-sxm5-80gb", ("h200-sxm-141gb",)),
    ("b200-sxm-180gb", ("gb200",)),
    ("l40s", ("rtx-pro-6000-server",)),
)
"""GPUs whose rows fit, and those that only test."""


@dataclass(frozen=True)
class Call:
    """A measured call as played at the full clock.

    Parameters
    ----------
    gpu, framework, kind, kernel : str
        `kernel` has the head_dim.
    measured_s, played_s : float
    elasticity : float
        ``-d log time / d log clock``.
    chip_j, memory_j : float
        Counted, times nothing.
    power_w : float
        What the limit leaves beside static power.
    from_s, to_s : float
    """

    gpu: str
    framework: str
    kind: str
    kernel: str
    measured_s: float
    played_s: float
    elasticity: float
    chip_j: float
    memory_j: float
    power_w: float
    from_s: float
    to_s: float


def drawn(rows: Sequence[Row], sample: int) -> Iterator[Row]:
    """As many rows from each band of lengths; twice as many of the longest."""
    times = np.array([row.measured_s for row in rows])
    random = np.random.default_rng(3)
    for low, high in itertools.pairwise(BANDS_S):
        here = np.flatnonzero((low <= times) & (times < high))
        most = sample * (2 if high == np.inf else 1)
        yield from (rows[at] for at in random.choice(here, min(most, len(here)), replace=False))


def calls(table: aiconfigurator.Table, sample: int) -> list[Call]:
    """Calls of one kernel in one file."""
    every = partial(
        aiconfigurator.rows, gpu=table.gpu, framework=table.framework, implementation=table.implementation,
        kind=table.kind,
    )  # fmt: skip
    return [called(row, table) for row in drawn(every(dtype="bf16") or every(dtype="fp16"), sample)]


def called(row: Row, table: aiconfigurator.Table) -> Call:
    """A row, played at the full clock and below it."""
    gpu, numbers = row.gpu, choose(row.record, row.gpu).numbers
    law, full_hz = clock_law(gpu), gpu.clock.full_hz
    play = partial(replay, row.schedule, numbers=numbers, launch=row.case.launch or "stream")
    fast, slow = (play(gpu=gpu.at_clock(full_hz * factor)) for factor in (1.0, SLOWER))
    spent = [
        spent_j(law, gpu, kernel, row.schedule.useful_share, seen)
        for kernel, seen in zip(row.schedule.kernels, fast.kernels, strict=True)
    ]
    drawn_over_counted = architecture_of(law.capability).power_over_counted
    chip_j, memory_j = (sum(parts) / drawn_over_counted for parts in zip(*spent, strict=True))
    return Call(
        gpu=gpu.id,
        framework=table.framework,
        kind=table.kind,
        kernel=f"{table.name} {table.kernel} {row.case.head_dim} {row.case.window is not None}",
        measured_s=row.measured_s,
        played_s=fast.time_s,
        elasticity=float(np.log(slow.time_s / fast.time_s) / -np.log(SLOWER)),
        chip_j=chip_j,
        memory_j=memory_j,
        power_w=gpu.power.limit_w - law.static_w,
        from_s=law.from_s,
        to_s=law.to_s,
    )


def predicted_s(one: Call, factor: float) -> float:
    """The call's time where its work takes `factor` times the counted power; 0 for no law."""
    if not factor:
        return one.played_s
    felt = float(limit_felt(one.played_s, one.from_s, one.to_s))

    def time_at(share: Floats | float) -> tuple[Floats | float, Floats | float]:
        time_s = one.played_s * share**-one.elasticity
        return time_s, (1 - one.elasticity) * time_s

    share = settled(time_at(1.0), time_at, factor * one.chip_j, factor * one.memory_j, one.power_w, felt, 0.0)
    return float(time_at(share)[0])


def long_errors(some: Sequence[Call], factor: float) -> Floats:
    """Log of predicted over measured time of the long calls, the level of each kernel taken off."""
    kernels: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in some:
        kernels[one.kernel].append((one.measured_s, float(np.log(predicted_s(one, factor) / one.measured_s))))
    found: list[float] = []
    for pairs in kernels.values():
        short = [error for time_s, error in pairs if time_s < LEVEL_S]
        if len(short) >= LEAST:
            found += [error - float(np.median(short)) for time_s, error in pairs if time_s >= LONG_S]
    return np.array(found)


def mean_error(errors: Floats) -> float:
    """Mean of the relative errors, %."""
    return 100 * float(np.abs(np.expm1(errors)).mean()) if len(errors) else float("nan")


def fitted(some: Sequence[Call]) -> float:
    """The factor with the least error of long calls."""
    return float(min(TRIED, key=lambda factor: mean_error(long_errors(some, factor))))


def line(what: str, factor: float, some: Sequence[Call]) -> str:
    """A row of the table."""
    before, after = long_errors(some, 0.0), long_errors(some, factor)
    bias = [100 * float(np.median(errors)) if len(errors) else float("nan") for errors in (before, after)]
    cells = (what, f"{factor:.2f}", f"{len(after)}", f"{mean_error(before):.1f} -> {mean_error(after):.1f}")
    return f"| {' | '.join(cells)} | {bias[0]:+.1f} -> {bias[1]:+.1f} |"


def report(every: Sequence[Call]) -> Iterator[str]:
    """The table."""
    yield "| fitted on; tested on | factor | calls >= 10 ms | mean error, % | bias, % |"
    yield "|---|---:|---:|---|---|"

    def of(gpus: Collection[str], frameworks: Collection[str] = (*ONE_HALF, *OTHER_HALF)) -> list[Call]:
        return [one for one in every if one.gpu in gpus and one.framework in frameworks]

    for gpu, others in CHIPS:
        for half, rest in ((ONE_HALF, OTHER_HALF), (OTHER_HALF, ONE_HALF)):
            yield line(f"{gpu} {', '.join(half)}; {', '.join(rest)}", fitted(of([gpu], half)), of([gpu], rest))
        whole = fitted(of([gpu]))
        yield line(f"{gpu}, all; the same", whole, of([gpu]))
        for other in others:
            yield line(f"{gpu}, all; {other}", whole, of([other]))
    served = [one for one in of(["l40s"], ["vllm"]) if one.kind == "context"]
    encoders = [one for one in of(["l40s"], ["vllm"]) if one.kind == "encoder"]
    yield line("l40s vllm prefill; its encoders", fitted(served), encoders)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=25, help="calls of each length of each table (25)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    asked = parser.parse_args()
    gpus = {gpu for one, others in CHIPS for gpu in (one, *others)}
    tables = [
        one for one in aiconfigurator.tables() if one.kept and one.gpu in gpus and one.kind in ("context", "encoder")
    ]
    found = Parallel(n_jobs=asked.jobs)(delayed(calls)(one, asked.sample) for one in tables)
    for text in report([one for part in found for one in part]):
        print(text)


if __name__ == "__main__":
    main()
