"""How fast sweeps answer: run `python benchmarks/sweep_speed.py [--json] [--accuracy]` in the repository.

Targets, on 2 cores: closed forms of a whole sweep >= 1 M points/s (points made, closed forms, times and the Arrow table
inside; starting processes and writing Parquet apart), replay >= 200 points/s a core at default settings, and a sweep of
100,000 closed-form and 2,000 replayed points, everything inside, <= 60 s. CPU time is given beside the clock's, for
machines that do something else meanwhile. `--accuracy` holds closed forms against replays, which takes a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from attnsim.studies import load, run
from attnsim.studies.answers import answer, replay
from attnsim.studies.closed_answers import closed_forms, uncertainty
from attnsim.studies.points import Point, point
from attnsim.studies.study import Study
from attnsim.studies.study_file import study_of

sys.path.append(str(Path(__file__).resolve().parents[1]))

from benchmarks.questions import SWEEP, SWEEP_POINTS

CORES = 2
GPUS = ["a100-sxm4-80gb", "h100-sxm5-80gb"]
TARGETS = {
    "closed forms over GPU figures, points/s": 1e6,
    "closed forms all different, points/s": 1e6,
    "replay, points/s a core": 200.0,
    "102,000 points, s": 60.0,
}

OVER_FIGURES: dict[str, Any] = {
    "gpu": GPUS,
    "change": {
        "hbm.bandwidth": {"from": "0.5x", "to": "4x", "steps": 32, "scale": "log"},
        "sm.count": {"from": "0.5x", "to": "2x", "steps": 16},
    },
    "algorithm": ["naive", "flash"],
    "workload": {
        "batch": [1, 4, 16],
        "heads_q": 32,
        "heads_kv": [4, 8, 32],
        "head_dim": [64, 128],
        "seq_q": {"from": 512, "to": 65536, "steps": 32, "scale": "log"},
        "mask": ["causal", "full"],
    },
    "method": "closed-form",
}
"""2.4 M points; those that differ in figures alone share their counts."""

MIXED: dict[str, Any] = {
    "gpu": GPUS[:1],
    "change": {
        "hbm.bandwidth": {"from": "1x", "to": "2x", "steps": 17},
        "sm.count": {"from": "1x", "to": "2x", "steps": 5},
    },
    "algorithm": ["flash", "naive"],
    "workload": {
        "batch": [1, 4],
        "heads_q": 32,
        "heads_kv": [8, 32],
        "head_dim": [64, 128],
        "seq_q": {"from": 512, "to": 16384, "steps": 75, "scale": "log"},
    },
    "replays": 2000,
}
"""102,000 points, of which 2,000 are replayed: the most uncertain of each chunk."""


def seconds() -> tuple[float, float]:
    """Clock, and CPU time of this process and of those that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(item.ru_utime + item.ru_stime for item in used)


def closed_rate(content: dict[str, Any]) -> tuple[float, float]:
    """Points a second on `CORES` processes that are already running, and points a CPU-second."""
    study = study_of(content)
    numbers = range(study.chunks())

    def work(part: int) -> float:
        began = time.process_time()
        for number in list(numbers)[part::CORES]:
            answer(study, study.chunk(number))
        return time.process_time() - began

    workers = Parallel(n_jobs=CORES)
    workers(delayed(answer)(study, study.chunk(number)) for number in range(CORES))  # imports, plans
    began = time.perf_counter()
    used = workers(delayed(work)(part) for part in range(CORES))
    return len(study) / (time.perf_counter() - began), len(study) / sum(used)


def replayed() -> tuple[float, float]:
    """Replays a second of one core: of its clock and of its CPU time; the points of `SWEEP`, few tokens to many.

    The best of four goes over them, which is what the machine does when nobody else is at it.
    """
    study = study_of({**SWEEP, "points": SWEEP_POINTS})
    points = study.columns(0, len(study))
    asked = [point(points, row) for row in range(points.count)]
    for item in asked[:4]:
        replay(item, "warm", "stream")
    rates, used_rates = [], []
    for _ in range(4):
        began, used = time.perf_counter(), time.process_time()
        answered = sum(bool(replay(item, "warm", "stream").get("predicted_s")) for item in asked)
        rates.append(answered / (time.perf_counter() - began))
        used_rates.append(answered / (time.process_time() - used))
    return max(rates), max(used_rates)


def sweep() -> dict[str, float]:
    """A whole sweep of 102,000 points into a folder, worker processes started and Parquet written."""
    study = study_of(MIXED)
    with tempfile.TemporaryDirectory() as folder:
        began, used = seconds()
        run(study, folder, jobs=CORES)
        ended, after = seconds()
        methods = load(folder)["method"].value_counts().to_dict()
    return {
        "102,000 points, s": ended - began,
        "102,000 points, replayed": float(methods["replay"]),
        "102,000 points, in closed form": float(methods["closed-form"]),
        "102,000 points, CPU s here": after - used,
        "peak memory of this process, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


ACCURACY: dict[str, dict[str, Any]] = {
    "prefill": {
        "algorithm": ["flash", "flash-2"],
        "change": {
            "hbm.bandwidth": {"from": "0.5x", "to": "2x", "scale": "log"},
            "sm.count": {"from": "0.5x", "to": "2x"},
            "tensor.bf16": {"from": "0.5x", "to": "2x", "scale": "log"},
        },
        "workload": {
            "batch": {"from": 1, "to": 16, "scale": "log"},
            "heads_q": [8, 16, 32, 64],
            "heads_kv": 8,
            "seq_q": {"from": 256, "to": 65536, "scale": "log"},
            "head_dim": [64, 128],
            "mask": ["full", "causal", "causal, window 1024"],
        },
    },
    "decode": {
        "algorithm": ["flash", "flash-2"],
        "change": {"hbm.bandwidth": {"from": "0.5x", "to": "2x", "scale": "log"}},
        "workload": {
            "batch": {"from": 1, "to": 256, "scale": "log"},
            "heads_q": [8, 16, 32, 64],
            "heads_kv": 8,
            "pass": "decode",
            "seq_kv": {"from": 256, "to": 262144, "scale": "log"},
            "head_dim": [64, 128],
        },
    },
    "unfused": {
        "algorithm": "naive",
        "change": {"hbm.bandwidth": {"from": "0.5x", "to": "2x", "scale": "log"}},
        "workload": {
            "batch": {"from": 1, "to": 16, "scale": "log"},
            "heads_q": [8, 16, 32, 64],
            "heads_kv": 8,
            "seq_q": {"from": 256, "to": 16384, "scale": "log"},
            "head_dim": [64, 128],
            "mask": ["full", "causal"],
        },
    },
}


def time_of(asked: Point) -> float:
    return float(replay(asked, "warm", "stream").get("predicted_s") or np.nan)  # type: ignore[arg-type]


def accuracy() -> dict[str, float]:
    """Closed forms over replays, 256 points a kind, those that are certain and the others."""
    figures: dict[str, float] = {}
    for kind, content in ACCURACY.items():
        study: Study = study_of({"gpu": GPUS, "combine": "sobol", "points": 256, "seed": 3, **content})
        points = study.columns(0, len(study))
        closed = closed_forms(points, "warm", "stream")
        times = Parallel(n_jobs=CORES)(delayed(time_of)(point(points, int(row))) for row in closed.rows)
        errors = np.abs(np.log(closed.estimate.time_s / np.array(times)))
        certain = (uncertainty(closed) <= 1) & np.isfinite(errors)
        figures[f"{kind}: share that is certain"] = float(certain.mean())
        for name, rows in (("certain", certain), ("uncertain", ~certain & np.isfinite(errors))):
            figures[f"{kind}, {name}: median error"] = float(np.median(errors[rows]))
            figures[f"{kind}, {name}: share within 10 %"] = float((errors[rows] < 0.1).mean())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--accuracy", action="store_true", help="hold closed forms against replays too")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for name, content in (("over GPU figures", OVER_FIGURES), ("all different", SWEEP)):
        rate, per_cpu = closed_rate(content)
        figures[f"closed forms {name}, points/s"] = rate
        figures[f"closed forms {name}, points/CPU s"] = per_cpu
    figures["replay, points/s a core"], figures["replay, points/CPU s"] = replayed()
    figures |= sweep()
    figures["load average"] = os.getloadavg()[0]
    if options.accuracy:
        figures |= accuracy()
    if options.json:
        print(json.dumps({"figures": figures, "targets": TARGETS}, indent=1))
        return
    for name, value in figures.items():
        target = TARGETS.get(name)
        print(f"{name:46} {value:>12,.4g}" + (f"   target {target:,g}" if target else ""))


if __name__ == "__main__":
    main()
