"""How fast attnsim answers: run `python benchmarks/speed.py [--json] [--profile N | --mechanisms]` in the repository.

Targets (issue "What it must show", 4): default mode median <= 10 ms and worst <= 60 ms a point, closed forms
>= 50,000 points/s, `attnsim predict` <= 1.5 s in a new process, `import attnsim` <= 50 ms, `attnsim --help`
<= 0.4 s, a case table of 1,000 rows <= 15 s on 2 cores. With `--mechanisms`, instead, every implementation of every
mechanism over 128 to 1 M tokens on A100 and H100: median <= 10 ms a point, a sparse pattern of 1 M tokens <= 200 ms.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from attnsim.api.building import peak_bytes
from attnsim.models.calibrations.choose import choose
from attnsim.models.closed_forms.cost import ShapeTable, cost_of, costs
from attnsim.models.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import (
    IMPLEMENTATIONS,
    find_implementation,
)
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import tile_counts
from attnsim.models.mechanisms import MECHANISMS, Mechanism
from attnsim.models.mechanisms.choosing import check_runs, default_implementation
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Mode, replay

REPOSITORY = Path(__file__).resolve().parents[1]
GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb")
LENGTHS = tuple(2**n for n in range(7, 21))  # 128 to 1 M tokens
POINTS = 200
TARGETS = {
    "default mode, median ms/point": 10.0,
    "default mode, worst ms/point": 60.0,
    "closed forms, points/s": 5e4,
    "attnsim predict, s": 1.5,
    "import attnsim, ms": 50.0,
    "attnsim --help, s": 0.4,
    "case table of 1,000 rows, s": 15.0,
}

COMMAND = (sys.executable, "-c", "from attnsim.cli import main; main()")
"""The console script, whether or not the package is installed."""

Point = tuple[str, str, Workload]
"""Algorithm, GPU id, question."""


def grid() -> list[Point]:
    """200 points, always the same: algorithms x GPUs x masks x lengths, naive where it fits the card."""
    return sample(list(_all()), POINTS)


def _all() -> Iterator[Point]:
    algorithms = ("naive", "flash-1", "flash-2", "flash-3", "sliding-window", "split-kv")
    for algorithm, gpu, causal, n in itertools.product(algorithms, GPUS, (False, True), LENGTHS):
        if algorithm == "flash-3" and gpu.startswith("a100"):
            continue
        mask = Mask.causal() if causal else Mask.full()
        if algorithm == "sliding-window":
            mask = Mask.sliding_window(1024, causal)
        if algorithm == "split-kv":
            w = Workload(4, 32, 1, 128, 8, n, passes="decode", mask=mask)
        elif algorithm == "flash-1":
            w = Workload(1, 16, n, 64, dtype="fp16", mask=mask)
        else:
            w = Workload(1, 32, n, 128, 8, mask=mask)
        schedule = build(algorithm, load_gpu(gpu), w)
        if schedule.peak_memory_bytes < load_gpu(gpu).hbm.capacity_bytes:
            yield algorithm, gpu, w


def sample(points: list[Point], count: int) -> list[Point]:
    """Evenly spaced points of a list, the list repeated with batch 2, 3, ... where it is too short."""
    longer = list(points)
    batch = 2
    while len(longer) < count:
        more = [(a, g, _batched(w, batch)) for a, g, w in points if a != "naive" and w.seq_kv <= 1 << 18]
        longer += more
        batch += 1
    return [longer[i] for i in np.linspace(0, len(longer) - 1, count).round().astype(int)]


def _batched(w: Workload, batch: int) -> Workload:
    return replace(w, batch=w.batch * batch)


def build(algorithm: str, gpu: Gpu, w: Workload) -> Schedule:
    """The schedule of the default implementation."""
    return default_implementation(MECHANISMS[algorithm], w, gpu).build(w, gpu, None)


def answer(point: Point, mode: Mode = "fast") -> float:
    """Build and replay one point; its predicted time."""
    algorithm, gpu_id, w = point
    gpu = load_gpu(gpu_id)
    record = default_implementation(MECHANISMS[algorithm], w, gpu)
    schedule = record.build(w, gpu, None)
    cost_of(w, schedule)
    numbers = choose(record, gpu).numbers
    return replay(schedule, gpu, numbers, mode=mode).time_s


def by_mechanism() -> list[dict[str, object]]:
    """Milliseconds a point, masks classified anew each time: median, worst, and at the longest that the GPU holds."""
    rows = []
    for mechanism in MECHANISMS.values():
        for record in (find_implementation(item) for item in mechanism.implementations):
            times = {
                (n, gpu.id): seconds(partial(anew, record, w, gpu), 2) * 1e3
                for gpu in map(load_gpu, GPUS)
                for n, w in lengths(mechanism)
                if answerable(record, w, gpu)
            }
            if times:
                longest = max(times)
                rows.append(
                    {
                        "mechanism": mechanism.name,
                        "implementation": record.name,
                        "points": len(times),
                        "median_ms": statistics.median(times.values()),
                        "worst_ms": max(times.values()),
                        "longest": longest[0],
                        "longest_ms": times[longest],
                    }
                )
    return rows


def lengths(mechanism: Mechanism) -> Iterator[tuple[int, Workload]]:
    """The mechanism's own example at other lengths; lists of blocks stay as they are."""
    for n in LENGTHS if mechanism.name != "block-list" else (mechanism.question(mechanism.example).seq_kv,):
        yield n, at_length(mechanism, n)


def at_length(mechanism: Mechanism, n: int) -> Workload:
    """The mechanism's own example with so many keys, and as many queries where it has as many."""
    example = mechanism.question(mechanism.example)
    if example.passes == "decode":
        return replace(example, seq_kv=n)
    if example.seq_q == example.seq_kv:
        return replace(example, seq_q=n, seq_kv=n)
    return replace(example, seq_kv=max(n, example.seq_q))  # a chunk of queries, an encoder's keys


def answerable(record: Implementation, w: Workload, gpu: Gpu) -> bool:
    """Whether the implementation runs there and what it needs fits the card."""
    try:
        check_runs(record, w, gpu)
        return peak_bytes(record, w) <= gpu.hbm.capacity_bytes
    except InputError:
        return False


def anew(record: Implementation, w: Workload, gpu: Gpu) -> None:
    """Build and replay a question, nothing remembered of its mask."""
    tile_counts.cache_clear()
    schedule = record.build(w, gpu, None)
    replay(schedule, gpu, choose(record, gpu).numbers)


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """Best of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def name(point: Point) -> str:
    algorithm, gpu, w = point
    return f"{algorithm} on {gpu}: {w}"


def default_mode(points: list[Point]) -> tuple[dict[str, float], list[tuple[float, Point]]]:
    for point in points[:: len(points) // 10]:
        answer(point)  # imports and files
    timed = sorted(((seconds(partial(answer, point), 2) * 1e3, point) for point in points), key=lambda x: -x[0])
    times = [ms for ms, _ in timed]
    figures = {
        "default mode, points": float(len(points)),
        "default mode, median ms/point": statistics.median(times),
        "default mode, worst ms/point": times[0],
    }
    return figures, timed


def closed_forms() -> dict[str, float]:
    n = 200_000
    draw = np.random.default_rng(0)

    def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return draw.choice(np.array(values, dtype=np.int64), n)

    kv = column(1, 2, 4, 8)
    seq = 2 ** draw.integers(7, 21, n)
    d = column(64, 128)
    table = ShapeTable(
        column(1, 2, 4), kv * column(1, 2, 4), kv, seq, seq, d, d, column(2), column(-1, 511, 1023),
        column(-1, 0),
        column(0, 64, 128), column(64, 128),
    )  # fmt: skip
    return {"closed forms, points/s": n / seconds(lambda: costs(table))}


def exact_mode() -> dict[str, float]:
    """Key tiles x query tiles played per second, every SM."""
    gpu = load_gpu("a100-sxm4-80gb")
    w = Workload(2, 16, 2048, 128)
    schedule = build("flash-2", gpu, w)
    kernel = schedule.kernels[0]
    turns = kernel.executions
    steps = sum(int(n) for n, s in zip(turns, kernel.segments, strict=True) if "step" in s.name)
    numbers = choose(IMPLEMENTATIONS["flash-attn.2"], gpu).numbers
    took = seconds(lambda: replay(schedule, gpu, numbers, mode="exact"), 2)
    return {"exact mode, tile steps/s": steps / took}


def processes() -> dict[str, float | None]:
    """Times of new processes, the file cache warm; None where a command fails."""
    predict = [
        "--gpu",
        "h100-sxm5-80gb",
        "--seq",
        "8192",
        "--head-dim",
        "128",
        "--heads",
        "32",
        "--batch",
        "1",
    ]
    code = "import time; t = time.perf_counter(); import attnsim; print(time.perf_counter() - t)"
    return {
        "import attnsim, ms": _scaled(_printed([sys.executable, "-c", code]), 1e3),
        "attnsim --help, s": _process([*COMMAND, "--help"]),
        "attnsim predict, s": _process([*COMMAND, "predict", *predict]),
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def _printed(command: list[str]) -> float | None:
    runs = [subprocess.run(command, capture_output=True, text=True, check=False, env=_environment()) for _ in range(5)]
    return min(float(run.stdout) for run in runs) if all(run.returncode == 0 for run in runs) else None


def _process(command: list[str]) -> float | None:
    times = []
    for _ in range(4):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, check=False, env=_environment(), cwd=REPOSITORY)
        if done.returncode:
            return None
        times.append(time.perf_counter() - start)
    return min(times[1:])


def case_table() -> dict[str, float | None]:
    """1,000 rows of the published measurements, predicted through the command line."""
    folder = REPOSITORY / "attnsim" / "validation" / "measurements" / "published"
    rows: list[dict[str, str]] = []
    for path in sorted(folder.glob("*.csv")):
        if path.name != "sources.csv":
            with path.open(newline="", encoding="utf-8") as file:
                rows += list(csv.DictReader(file))
    columns = list(dict.fromkeys(key for row in rows for key in row))
    rows = [rows[i] for i in np.linspace(0, len(rows) - 1, 1000).round().astype(int)]
    with tempfile.TemporaryDirectory() as scratch:
        cases, out = Path(scratch) / "in.csv", Path(scratch) / "out.csv"
        with cases.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, columns, restval="")
            table.writeheader()
            table.writerows(rows)
        start = time.perf_counter()
        command = [*COMMAND, "predict", "--cases", str(cases), "--out", str(out)]
        done = subprocess.run(command, capture_output=True, check=False, env=_environment(), cwd=REPOSITORY)
        took = time.perf_counter() - start
        return {"case table of 1,000 rows, s": took if done.returncode == 0 and out.exists() else None}


def profile(point: Point, lines: int = 8) -> str:
    """Where the time of one point goes, by own time."""
    recorder = cProfile.Profile()
    recorder.runcall(answer, point)
    entries = sorted(recorder.getstats(), key=lambda entry: -entry.inlinetime)
    total = sum(entry.inlinetime for entry in entries)
    out = []
    for entry in entries[:lines]:
        code = entry.code
        place = code if isinstance(code, str) else f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"
        out.append(f"      {100 * entry.inlinetime / total:5.1f} %  {entry.callcount:>8} calls  {place}")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--profile", type=int, default=5, metavar="N", help="profile the N slowest points")
    parser.add_argument("--mechanisms", action="store_true", help="time every mechanism instead")
    options = parser.parse_args()
    if options.mechanisms:
        table = pd.DataFrame(by_mechanism())
        print(table.to_json(orient="records", indent=1) if options.json else table.round(1).to_string(index=False))
        return
    figures, timed = default_mode(grid())
    every: dict[str, float | None] = {
        **figures,
        **closed_forms(),
        **exact_mode(),
        **processes(),
        **case_table(),
    }
    slowest = timed[: options.profile]
    if options.json:
        print(
            json.dumps(
                {"figures": every, "targets": TARGETS, "slowest": [[t, name(p)] for t, p in slowest]},
                indent=1,
            )
        )
        return
    for key, value in every.items():
        target = TARGETS.get(key)
        shown = "not available" if value is None else f"{value:,.4g}"
        print(f"{key:36} {shown:>14}" + (f"   target {target:,g}" if target else ""))
    over = sum(ms > TARGETS["default mode, worst ms/point"] for ms, _ in timed)
    print(f"\n{over} of {len(timed)} points over {TARGETS['default mode, worst ms/point']:g} ms; the slowest:")
    for ms, point in slowest:
        print(f"{ms:8.1f} ms  {name(point)}\n{profile(point)}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"benchmark: {error}")
