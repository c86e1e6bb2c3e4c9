"""How fast attnsim answers: `python benchmarks/speed.py [--profile N | --mechanisms | --processes | --against COMMIT]`.

Four sets of questions (benchmarks/questions.py), masks classified anew each time, the best of two runs in two passes
over all of them, in CPU time of the one thread that answers: what others do on the machine changes it little; the
clock's time over it is given too. Targets (issue 15, "What it must show", 2 and 3): a question takes <= 5 ms in the
median, 20 ms at the 99th percentile and 40 ms at worst, memory stays the same over the second pass, `attnsim predict`
of one question <= 0.6 s of CPU time in a new process and `attnsim --help` 0.2 s (the median of ten, also over that of
`import numpy`; `--processes` measures these alone), `import attnsim` <= 50 ms, exact mode >= 3 M segment executions/s.
`--against COMMIT` puts the same questions to that commit and to this working tree by turns. The rate of sweeps is
measured by sweep_speed.py.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.append(str(Path(__file__).resolve().parents[1]))

from attnsim.api import playing
from attnsim.errors import InputError
from attnsim.models.closed_forms.columns import ShapeTable, costs
from attnsim.models.hardware.files import load_gpu
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.tile_counts import tile_counts
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import Mode, replay
from benchmarks.against import compare
from benchmarks.questions import A100, B200, H100, SETS, Question, mechanisms

REPOSITORY = Path(__file__).resolve().parents[1]
SLOW_MS = 40.0
TARGETS = {
    "all questions, median ms": 5.0,
    "all questions, p99 ms": 20.0,
    "all questions, worst ms": SLOW_MS,
    "memory after the second pass over the first": 1.05,
    "exact mode, segment executions/s": 3e6,
    "closed forms, points/s": 5e4,
    "import attnsim, ms": 50.0,
    "attnsim --help, CPU s": 0.2,
    "attnsim predict, CPU s": 0.6,
    "case table of 1,000 rows, s": 15.0,
}
AT_LEAST = ("exact mode, segment executions/s", "closed forms, points/s")
"""Targets that are reached from above."""

COMMAND = (sys.executable, "-c", "from attnsim.cli import main; main()")
"""The console script, whether or not the package is installed."""

Timed = list[tuple[float, Question]]
"""Milliseconds of each question."""


def answer(question: Question, mode: Mode = "fast") -> float:
    """Build and replay a question, nothing remembered of its mask, schedule and plays; its predicted time."""
    tile_counts.cache_clear()
    playing._built.cache_clear()
    schedule = question.schedule()
    return replay(schedule, question.gpu, question.numbers, mode=mode, cache=question.cache).time_s


def built(questions: list[Question]) -> list[Question]:
    """Those of them that their implementation builds: a few masks are not for every kernel of a mechanism."""
    found = []
    for question in questions:
        with suppress(InputError):
            question.schedule()
            found.append(question)
    return found


def milliseconds(question: Question, repeats: int) -> float:
    """The best of a few answers."""
    return seconds(partial(answer, question), repeats) * 1e3


def memory_mib() -> float:
    """Most memory that the process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def every_set() -> tuple[dict[str, Timed], dict[str, float]]:
    """Each set timed, the best of two passes over all of them, and what they did to the clock and to memory."""
    asked = {name: built(questions()) for name, questions in SETS.items()}
    for questions in asked.values():
        for question in questions[:: max(1, len(questions) // 10)]:
            answer(question)  # imports, files and compiled code
    gc.collect()
    gc.freeze()  # a process that asks one question does not look through thousands of them for garbage
    passes, memory = [], [memory_mib()]
    began, used = time.perf_counter(), time.process_time()
    for _ in range(2):
        passes.append({name: [milliseconds(one, 2) for one in questions] for name, questions in asked.items()})
        memory.append(memory_mib())
    slowed = (time.perf_counter() - began) / (time.process_time() - used)
    timed = {
        name: [(min(pair), one) for one, *pair in zip(questions, *(times[name] for times in passes), strict=True)]
        for name, questions in asked.items()
    }
    return timed, {
        "all questions, clock over CPU time": slowed,
        "memory after warming up, MiB": memory[0],
        "memory after the second pass, MiB": memory[2],
        "memory after the second pass over the first": memory[2] / memory[1],
    }


def table(timed: dict[str, Timed]) -> pd.DataFrame:
    """A row for each set, and one for all."""
    groups = timed | {"all": [item for items in timed.values() for item in items]}
    rows = []
    for name, items in groups.items():
        times = np.array([ms for ms, _ in items])
        row = {"questions": name, "count": len(times), "median_ms": np.median(times), "mean_ms": times.mean()}
        share = float((times > SLOW_MS).mean())
        rows.append(row | {"p99_ms": np.percentile(times, 99), "worst_ms": times.max(), "over_40_ms": share})
    return pd.DataFrame(rows)


def by_mechanism() -> pd.DataFrame:
    """Milliseconds of every implementation of every mechanism: median, worst, and at the longest that the GPU holds."""
    groups: dict[tuple[str, str], Timed] = {}
    for question in built(mechanisms()):
        timed = groups.setdefault((question.family, question.implementation), [])
        timed.append((milliseconds(question, 2), question))
    rows = []
    for (mechanism, implementation), timed in groups.items():
        times = [ms for ms, _ in timed]
        longest_ms, longest = max(timed, key=lambda item: item[1].workload.seq_kv)
        row = {"mechanism": mechanism, "implementation": implementation, "points": len(times)}
        row |= {"median_ms": statistics.median(times), "worst_ms": max(times)}
        rows.append(row | {"longest": longest.workload.seq_kv, "longest_ms": longest_ms})
    return pd.DataFrame(rows)


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the best of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


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
    """Segment executions a second: harmonic mean of fused kernels of one and of more warpgroups, GEMMs and decode."""
    w = Workload(4, 32, 4096, 128, 8, mask=Mask.causal())
    asked = [
        Question("flash-2", "flash-attn.2", load_gpu(A100), w),
        Question("flash-3", "flash-attn.3", load_gpu(H100), w),
        Question("flash-4", "flash-attn.4", load_gpu(B200), w),
        Question("naive", "torch.baddbmm", load_gpu(A100), Workload(4, 32, 2048, 128)),
        Question("decode", "vllm.flash-attn-2", load_gpu(A100), Workload(256, 32, 1, 128, 8, 32768, passes="decode")),
    ]
    answer(asked[0], "exact")
    rates = [one.executions() / seconds(partial(answer, one, "exact"), 2) for one in asked]
    return {"exact mode, segment executions/s": statistics.harmonic_mean(rates)}


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
    numpy, answered = _process([sys.executable, "-c", "import numpy"]), _process([*COMMAND, "predict", *predict])
    return {
        "import attnsim, ms": _scaled(_printed([sys.executable, "-c", code]), 1e3),
        "attnsim --help, CPU s": _process([*COMMAND, "--help"]),
        "attnsim predict, CPU s": answered,
        "attnsim predict over import numpy": answered / numpy if answered and numpy else None,
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _environment() -> dict[str, str]:
    """Of a user, whose modules have been compiled by the first run."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": ""}


def _printed(command: list[str]) -> float | None:
    runs = [subprocess.run(command, capture_output=True, text=True, check=False, env=_environment()) for _ in range(5)]
    return min(float(run.stdout) for run in runs) if all(run.returncode == 0 for run in runs) else None


def _process(command: list[str]) -> float | None:
    """CPU seconds of a new process, the median of ten after one that fills the caches."""
    times = []
    for _ in range(11):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, check=False, env=_environment(), cwd=REPOSITORY)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            return None
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(times[1:])


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


def profile(question: Question, lines: int = 8) -> str:
    """Where the time of one question goes, by own time."""
    recorder = cProfile.Profile()
    recorder.runcall(answer, question)
    entries = sorted(recorder.getstats(), key=lambda entry: -entry.inlinetime)
    total = sum(entry.inlinetime for entry in entries)
    out = []
    for entry in entries[:lines]:
        code = entry.code
        place = code if isinstance(code, str) else f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"
        out.append(f"      {100 * entry.inlinetime / total:5.1f} %  {entry.callcount:>8} calls  {place}")
    return "\n".join(out)


def shown(every: dict[str, float | None]) -> str:
    """The figures beside their targets, a line each."""
    lines = []
    for key, value in every.items():
        said = "not available" if value is None else f"{value:,.4g}"
        line = f"{key:44} {said:>14}"
        if (target := TARGETS.get(key)) is not None:
            met = value is not None and (value >= target if key in AT_LEAST else value <= target)
            line += f"   target {target:,g}{'' if met else ', missed'}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--profile", type=int, default=5, metavar="N", help="profile the N slowest questions")
    parser.add_argument("--mechanisms", action="store_true", help="every implementation of every mechanism instead")
    parser.add_argument("--against", metavar="COMMIT", help="beside that commit instead, one question in four")
    parser.add_argument("--processes", action="store_true", help="what new processes take instead")
    options = parser.parse_args()
    if options.processes:
        print(shown(processes()))
        return
    if options.against:
        print(compare(options.against))
        return
    if options.mechanisms:
        found = by_mechanism()
        print(found.to_json(orient="records", indent=1) if options.json else found.round(1).to_string(index=False))
        return
    timed, memory = every_set()
    rows = table(timed)
    whole = rows.iloc[-1]
    every: dict[str, float | None] = {
        **{f"all questions, {key} ms": float(whole[f"{key}_ms"]) for key in ("median", "p99", "worst")},
        **memory,
        **exact_mode(),
        **closed_forms(),
        **processes(),
        **case_table(),
    }
    slowest = sorted((item for items in timed.values() for item in items), key=lambda item: -item[0])[: options.profile]
    if options.json:
        sets, slow = rows.to_dict(orient="records"), [[ms, str(question)] for ms, question in slowest]
        print(json.dumps({"sets": sets, "figures": every, "targets": TARGETS, "slowest": slow}, indent=1))
        return
    print(f"{rows.round(3).to_string(index=False)}\n\n{shown(every)}")
    for ms, question in slowest:
        print(f"{ms:8.1f} ms  {question}\n{profile(question)}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"benchmark: {error}")
