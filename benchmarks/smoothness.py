"""How smoothly predictions follow a GPU's figures: run `python benchmarks/smoothness.py` in the repository.

Sixty questions out of the sets that speed is measured on; each figure that the replay reads is moved by +-1 % in 21
steps, and the scatter is the root mean square of the residuals about a straight line, over the mean time. Fits,
crossovers and `--set` ask for small changes, and whatever scatters hides them. The number of SMs is left out: whole
waves make steps of it. Target: <= 0.1 % in the mean.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.errors import InputError
from attnsim.models.hardware.sections import FIELDS
from attnsim.simulator.replay import Mode, replay
from benchmarks.questions import SETS, Question

FIGURES = tuple(
    key
    for key, field in FIELDS.items()
    if field.read in ("rate", "replay") and not field.integer and field.unit not in ("s", "1")
    if key not in ("clock.sustained", "clock.free")  # of which none is held; follows clock.tensor
)
"""Rates, latencies and the clock; no shares, which end at 1, and no launches."""
QUESTIONS = 60
FACTORS = np.linspace(0.99, 1.01, 21)
EXECUTIONS = 1_000_000
"""Segment executions that a question may have, so that `--mode exact` can be asked too."""
TARGET = 0.001


def questions() -> list[Question]:
    """As many of each set."""
    draw = random.Random(17)
    found = []
    for asked in SETS.values():
        shuffled = asked()
        draw.shuffle(shuffled)
        able = filter(short, shuffled)
        found += [next(able) for _ in range(QUESTIONS // len(SETS))]
    return found


def short(question: Question) -> bool:
    """Whether it can be asked and is soon played."""
    try:
        return question.executions() <= EXECUTIONS
    except InputError:  # a prefix is shared that the question does not have, or a tile does not fit
        return False


def scatters(question: Question, mode: Mode) -> dict[str, float]:
    """The scatter by figure, of those that change anything."""
    schedule, numbers, found = question.schedule(), question.numbers, {}
    for key in FIGURES:
        if not (usual := question.gpu.get(key)):
            continue
        gpus = [question.gpu.replace(key, factor * usual) for factor in FACTORS]
        times = np.array([replay(schedule, gpu, numbers, mode=mode, launch="kernel").time_s for gpu in gpus])
        if np.ptp(times):
            line = np.polynomial.Polynomial.fit(FACTORS, times, 1)(FACTORS)
            found[key] = float(np.sqrt(np.mean((times - line) ** 2)) / times.mean())
    return found


def main() -> int:
    """Print the scatter by figure and the worst; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mode", choices=("fast", "exact"), default="fast", help="exact takes some minutes")
    parser.add_argument("--jobs", type=int, default=-1, help="processes; default: one a core")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    options = parser.parse_args()
    asked = questions()
    every = Parallel(n_jobs=options.jobs)(delayed(scatters)(question, options.mode) for question in asked)
    rows = [(size, key, question) for question, found in zip(asked, every, strict=True) for key, size in found.items()]
    sizes = np.array([size for size, _, _ in rows])
    by_figure = {key: np.array([size for size, of, _ in rows if of == key]) for key in FIGURES}
    table = {
        key: {"questions": len(some), "median": np.median(some), "mean": some.mean(), "worst": some.max()}
        for key, some in {**by_figure, "all": sizes}.items()
        if len(some)
    }
    if options.json:
        print(json.dumps({"figures": table, "target": {"mean": TARGET}}, indent=1, default=float))
        return int(sizes.mean() > TARGET)
    print(f"{'scatter in %':28} questions  median    mean   worst")
    for key, row in table.items():
        print(f"{key:28} {row['questions']:9} " + " ".join(f"{100 * row[x]:7.4f}" for x in ("median", "mean", "worst")))
    print("\nthe worst:")
    for size, key, question in sorted(rows, key=lambda row: -row[0])[:10]:
        print(f"{100 * size:7.3f} %  {key:16} {question}")
    missed = sizes.mean() > TARGET
    print(f"mean {100 * sizes.mean():.4f} %, target {100 * TARGET:g} %{', missed' if missed else ''}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
