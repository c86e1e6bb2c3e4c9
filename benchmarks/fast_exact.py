"""How far the default mode is from the exact mode: run `python benchmarks/fast_exact.py [--quick]` in the repository.

1,200 cases (benchmarks/cases.py), small, middle and large kernels and whole questions, with the fitted numbers that a
user's question gets; a quarter of an hour on 2 cores, `--quick` less than a minute. Targets:
the difference of the kernels' time is <= 0.1 % in the median, 0.4 % in the mean, 1 % at the 90th percentile
and 3 % at worst, and the time that warpgroups wait for data is within 2 % of a kernel's time at the 90th percentile.

The exact mode itself jumps where residents of an SM fall into step or not, or where the last long blocks share an SM or
have one each. Of every case that is off by more than 3 % the reference is therefore played again with figures that
nobody knows to 1 %: all memory latencies, and the rate of the tensor cores, moved by 0.5 and 1 % up and down. What is
left of the times about the straight line through them is chance. A case does not count as a miss where that spans more
than it is off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.simulator.grid import BUDGET
from attnsim.simulator.replay import KernelReplay, Mode, Replay, replay
from benchmarks.cases import cases
from benchmarks.questions import Question

TARGETS = {"median": 0.001, "mean": 0.004, "p90": 0.01, "worst": 0.03}
WAITING_TARGETS = {"p90": 0.02}
FACTORS = (0.99, 0.995, 1.0, 1.005, 1.01)
"""Of figures with which the reference is played again."""
LATENCIES = ("l2.latency", "hbm.latency")
FIGURES: dict[str, Callable[[Sequence[float]], float]] = {
    "median": np.median,
    "mean": np.mean,
    "p90": partial(np.percentile, q=90),
    "p95": partial(np.percentile, q=95),
    "worst": max,
}

COLUMNS = ("kind", "family", "implementation", "gpu", "cache")

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case in both modes.

    Parameters
    ----------
    kind : str
    case : Question
    executions : int
        Segment executions that the exact mode played.
    exact_s, fast_s : float
        Time of its kernels.
    exact_took_s, fast_took_s : float
        CPU time that it took to say so.
    kernels : tuple of (KernelReplay, KernelReplay)
        In exact mode and in default mode.
    scatter : float
        Of the reference, see `scattered`; nan where it was not asked for.
    """

    kind: str
    case: Question
    executions: int
    exact_s: float
    fast_s: float
    exact_took_s: float
    fast_took_s: float
    kernels: tuple[tuple[KernelReplay, KernelReplay], ...]
    scatter: float = np.nan

    @property
    def difference(self) -> float:
        """Default mode over exact mode, minus one."""
        return self.fast_s / self.exact_s - 1

    @property
    def waiting(self) -> list[float]:
        """Of each kernel, how far off the time is that warpgroups waited for data, over the kernel's time."""
        return [abs(fast.exposed_s - exact.exposed_s) / exact.time_s for exact, fast in self.kernels]

    @property
    def off(self) -> bool:
        """Whether it is off by more than any case may be."""
        return abs(self.difference) > TARGETS["worst"]

    @property
    def missed(self) -> bool:
        """Whether it is off, and by more than the reference scatters."""
        return self.off and not self.scatter > abs(self.difference)

    def __str__(self) -> str:
        both = f"exact {self.exact_s * 1e6:10.2f} us  fast {self.fast_s * 1e6:10.2f} us"
        return f"{100 * self.difference:+6.2f} %  {both}  {self.executions:11,} executions  {self.case}"

    def details(self) -> str:
        """Its kernels, each with its own difference."""
        return "\n".join(
            f"    {100 * (fast.time_s / exact.time_s - 1):+6.2f} %  exact {exact.time_s * 1e6:10.2f} us  {exact.name}: "
            f"{exact.blocks} blocks, {exact.blocks_per_sm} per SM, {exact.waves:.2f} waves"
            for exact, fast in self.kernels
        )

    def row(self) -> dict[str, object]:
        """A row of the table."""
        case = self.case
        return {
            "kind": self.kind,
            "family": case.family,
            "implementation": case.implementation,
            "gpu": case.gpu.id,
            "changes": "; ".join(map(str, case.gpu.changes)),
            "cache": case.cache,
            "kernel": "" if case.kernel is None else self.kernels[0][0].name,
            "workload": str(case.workload),
            "executions": self.executions,
            "blocks": sum(exact.blocks for exact, _ in self.kernels),
            "waves": max(exact.waves for exact, _ in self.kernels),
            "exact_s": self.exact_s,
            "fast_s": self.fast_s,
            "difference": self.difference,
            "waiting_difference": max(self.waiting),
            "scatter": self.scatter,
            "exact_took_s": self.exact_took_s,
            "fast_took_s": self.fast_took_s,
        }


def play(case: Question, mode: Mode, budget: int = BUDGET) -> Replay:
    """A case in one mode, of the default mode with this budget."""
    schedule, numbers = case.schedule(), case.numbers
    return replay(schedule, case.gpu, numbers, mode=mode, budget=budget, cache=case.cache, launch="kernel")


def compare(case: Question, kind: str = "", budget: int = BUDGET) -> Outcome:
    """A case in both modes."""
    began = time.process_time()
    exact = play(case, "exact")
    between = time.process_time()
    fast = play(case, "fast", budget)
    took = between - began, time.process_time() - between
    pairs = tuple(zip(exact.kernels, fast.kernels, strict=True))
    return Outcome(kind, case, case.executions(), exact.time_s, fast.time_s, *took, pairs)


def scattered(outcome: Outcome) -> Outcome:
    """The outcome with the scatter of its reference.

    It is the range of the times about a straight line, over the usual time, as figures are moved by `FACTORS`: the
    larger of that by the latencies of the memory and of that by the rate of the tensor cores.
    """
    case = outcome.case
    schedule, numbers = case.schedule(), case.numbers
    ranges = []
    for keys in (LATENCIES, (f"tensor.{case.workload.dtype}",)):
        times = []
        for factor in FACTORS:
            gpu = case.gpu
            for key in keys:
                gpu = gpu.replace(key, factor * gpu.get(key))
            times.append(replay(schedule, gpu, numbers, mode="exact", cache=case.cache, launch="kernel").time_s)
        line = np.polynomial.Polynomial.fit(FACTORS, times, 1)(np.array(FACTORS))
        ranges.append(float(np.ptp(times - line)) / outcome.exact_s)
    return replace(outcome, scatter=max(ranges))


def figures(sizes: Sequence[float]) -> dict[str, float]:
    """Median, mean, percentiles and worst of some differences."""
    return {name: float(figure(sizes)) for name, figure in FIGURES.items()}


def differences(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures of their times."""
    return figures([abs(outcome.difference) for outcome in outcomes])


def waits(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures of their waiting times, kernel by kernel."""
    return figures([size for outcome in outcomes for size in outcome.waiting])


def misses(outcomes: Sequence[Outcome]) -> list[str]:
    """The targets that are not met, a line each."""
    found = []
    for what, have, targets in (
        ("difference", differences(outcomes), {k: v for k, v in TARGETS.items() if k != "worst"}),
        ("waiting for data", waits(outcomes), WAITING_TARGETS),
    ):
        for name, target in targets.items():
            if have[name] > target:
                found.append(f"{what}, {name}: {100 * have[name]:.2f} %, target {100 * target:g} %")
    if beyond := [outcome for outcome in outcomes if outcome.missed]:
        worst = max(abs(outcome.difference) for outcome in beyond)
        found.append(
            f"difference, worst: {100 * worst:.2f} %, target {100 * TARGETS['worst']:g} %; {len(beyond)} cases are off "
            "by more, and by more than their reference scatters"
        )
    return found


def everywhere(
    ask: Callable[[Asked], Answered], asked: Sequence[Asked], sizes: Sequence[int], jobs: int, what: str
) -> list[Answered]:
    """The answers in the order of the questions, asked longest first, with a progress bar."""
    order = sorted(range(len(asked)), key=lambda number: -sizes[number])
    workers = Parallel(n_jobs=jobs, return_as="generator", batch_size=1)
    answers: dict[int, Answered] = {}
    err = Console(stderr=True)
    with Progress(transient=True, console=err, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=sum(sizes))
        for number, answer in zip(order, workers(delayed(ask)(asked[number]) for number in order), strict=True):
            bar.advance(task, sizes[number])
            answers[number] = answer
    return [answers[number] for number in range(len(asked))]


def _compare(asked: tuple[Question, str], budget: int) -> Outcome:
    return compare(*asked, budget)


def grouped(outcomes: Sequence[Outcome], by: str) -> dict[str, list[Outcome]]:
    """The outcomes by a column of the table, and all of them."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(str(outcome.row()[by]), []).append(outcome)
    return groups | {"all": list(outcomes)}


def report(outcomes: Sequence[Outcome], by: str, kernels: bool) -> str:
    """The figures of every group in %, the worst ten, and those off by more than any may be beside their reference."""
    lines = [f"{by:24} cases {' '.join(f'{name:>7}' for name in FIGURES)} %   waiting: median    mean     p90 %"]
    for name, group in grouped(outcomes, by).items():
        times, waited = differences(group), waits(group)
        shown = " ".join(f"{100 * value:7.3f}" for value in times.values())
        waiting = " ".join(f"{100 * waited[one]:7.3f}" for one in ("median", "mean", "p90"))
        lines.append(f"{name:24} {len(group):5} {shown}             {waiting}")
    worst = sorted(outcomes, key=lambda outcome: -abs(outcome.difference))
    lines.append("\nthe worst ten:")
    for outcome in worst[:10]:
        lines += [str(outcome), *([outcome.details()] if kernels else [])]
    off = [outcome for outcome in worst if outcome.off]
    lines.append(f"\noff by more than {100 * TARGETS['worst']:g} %: {len(off)}")
    for outcome in off:
        verdict = "not" if outcome.missed else "reference scatters by more"
        lines.append(
            f"{100 * outcome.difference:+6.2f} %, reference {100 * outcome.scatter:.2f} %: {verdict}  {outcome.case}"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the figures; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one case in eight, all of them short")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases in whose line or kind TEXT stands")
    parser.add_argument("--by", default="kind", choices=COLUMNS, help="column of the table to group by")
    parser.add_argument("--kernels", action="store_true", help="list the kernels of the worst cases")
    parser.add_argument("--budget", type=int, default=BUDGET, help="of the default mode; default: the usual one")
    parser.add_argument("--jobs", type=int, default=-1, help="processes; default: one a core")
    parser.add_argument("--out", type=Path, metavar="CSV", help="write the table there")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    began = time.perf_counter()
    asked = [(case, kind) for kind, case in cases(options.quick) if options.only in f"{kind} {case}"]
    if not asked:
        parser.error(f"no case has {options.only!r} in its line")
    sizes = [case.executions() for case, _ in asked]
    outcomes = everywhere(partial(_compare, budget=options.budget), asked, sizes, options.jobs, "both modes")
    write(outcomes, options.out)
    off = [number for number, outcome in enumerate(outcomes) if outcome.off]
    of = [outcomes[number] for number in off]
    again = everywhere(scattered, of, [one.executions for one in of], options.jobs, "scatter of the reference")
    for number, outcome in zip(off, again, strict=True):
        outcomes[number] = outcome
    write(outcomes, options.out)
    missed = misses(outcomes)
    if options.json:
        groups = grouped(outcomes, options.by).items()
        shown = {name: {"cases": len(some), **differences(some), "waiting": waits(some)} for name, some in groups}
        rows = [outcome.row() | {"missed": outcome.missed} for outcome in outcomes if outcome.off]
        print(json.dumps({"figures": shown, "targets": TARGETS, "off": rows, "missed": missed}, indent=1))
        return int(bool(missed))
    print(report(outcomes, options.by, options.kernels))
    played, took = (sum(getattr(one, name) for one in outcomes) for name in ("executions", "exact_took_s"))
    print(
        f"\n{len(outcomes)} cases in {time.perf_counter() - began:.0f} s; exact mode: {played:,} segment executions, "
        f"{played / took / 1e6:.2f} M a CPU second"
    )
    print(*(f"missed: {line}" for line in missed), sep="\n")
    return int(bool(missed))


def write(outcomes: Sequence[Outcome], path: Path | None) -> None:
    """The table as CSV."""
    if path is not None:
        pd.DataFrame([outcome.row() for outcome in outcomes]).to_csv(path, index=False)


if __name__ == "__main__":
    raise SystemExit(main())
