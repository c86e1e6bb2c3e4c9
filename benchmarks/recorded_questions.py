"""Recorded questions and their answers: `python benchmarks/recorded_questions.py [--write]`.

142 questions with the answers that were true when they were last written: every mechanism, the main job, points with
changed GPU figures, some in exact mode, kept of 1,160 that were drawn once from a seed so that they stand for all. A
change that is not meant to move predictions leaves every one equal to the last bit; the command lists those that
moved, and `--write` records the answers of today. They say "moved"; what is right is said by other tests. The
questions stand in `tests/golden/recorded_questions.jsonl` in plain words, so that they outlive names and modules.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attnsim

FILE = Path(__file__).resolve().parents[1] / "tests" / "golden" / "recorded_questions.jsonl"
ANSWER = (
    "time_s", "time_low_s", "time_high_s", "hbm_read_bytes", "hbm_write_bytes", "l2_bytes", "smem_bytes",
    "flops_useful", "flops_executed", "flops_dense", "exponentials", "peak_memory_bytes", "busiest", "blocks_per_sm",
    "waves", "speedup_vs_naive", "exposed_s", "launch_s",
)  # fmt: skip
"""Fields of :class:`attnsim.Answer` that are recorded, beside the kernels' times."""


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer of today, or the line that refuses the question."""
    asked = dict(question)
    gpu = attnsim.load_gpu(asked.pop("gpu"))
    changes = asked.pop("changes", {})
    shape = asked.pop("workload")
    try:
        workload = attnsim.Workload(**shape)
        for key, value in changes.items():
            gpu = gpu.replace(key, value)
        made = attnsim.predict(workload, gpu, **asked)
    except attnsim.InputError as error:
        return {"refused": str(error)}
    kernels = [[name, time] for name, time in made.kernels]
    return {**{name: getattr(made, name) for name in ANSWER}, "kernels": kernels}


def same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def write(rows: list[dict[str, Any]]) -> None:
    FILE.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record the answers of today")
    options = parser.parse_args()
    recorded = read()
    questions = [row["question"] for row in recorded]
    answers = [answer(question) for question in questions]
    rows = [{"question": q, "answer": a} for q, a in zip(questions, answers, strict=True)]
    if options.write:
        write(rows)
        print(f"{len(rows)} answers written to {FILE}")
        return
    moved = [
        (old["question"], old["answer"], new["answer"])
        for old, new in zip(recorded, rows, strict=True)
        if not same(old["answer"], json.loads(json.dumps(new["answer"])))
    ]
    for question, old, new in moved:
        told = [
            f"{key} {old.get(key)} -> {new.get(key)}" for key in (old | new) if not same(old.get(key), new.get(key))
        ]
        print(f"{json.dumps(question)}\n    " + "; ".join(told))
    print(f"{len(rows)} questions, {len(moved)} answers moved")
    sys.exit(bool(moved))


if __name__ == "__main__":
    main()
