"""Recorded questions and their answers: `python benchmarks/recorded_questions.py [--write | --only MECHANISM]`.

1,160 questions drawn once from a seed (`--draw`), with the answers that were true when they were last written: every
mechanism on 20 shapes, 200 questions of the main job, 256 points with changed GPU figures, 24 in exact mode. A change
that is not meant to move predictions leaves every one equal to the last bit; the command lists those that moved, and
`--write` records the answers of today. The questions stand in `tests/golden/recorded_questions.jsonl` in plain words,
so that they outlive names and modules of the code.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attnsim

FILE = Path(__file__).resolve().parents[1] / "tests" / "golden" / "recorded_questions.jsonl"
GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-4090", "b200-sxm-180gb", "l40s")
FIGURES = ("hbm.bandwidth", "sm.count", "tensor.bf16", "l2.bandwidth", "l2.capacity", "sm.shared_memory", "sm.exp_rate")
ANSWER = (
    "time_s", "time_low_s", "time_high_s", "hbm_read_bytes", "hbm_write_bytes", "l2_bytes", "smem_bytes",
    "flops_useful", "flops_executed", "flops_dense", "exponentials", "peak_memory_bytes", "bound", "blocks_per_sm",
    "waves", "speedup_vs_naive", "exposed_s", "launch_s",
)  # fmt: skip
"""Fields of :class:`attnsim.Prediction` that are recorded, beside the kernels' times."""


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The answer of today, or the line that refuses the question."""
    asked = dict(question)
    gpu = attnsim.load_gpu(asked.pop("gpu"))
    changes = asked.pop("changes", {})
    shape = asked.pop("workload")
    latent = shape.get("latent")
    try:
        from attnsim.models.workload import Latent

        read = {"mask": attnsim.Mask.parse(shape["mask"]), "latent": Latent.parse(latent) if latent else None}
        workload = attnsim.Workload(**{**shape, **read})
        for key, value in changes.items():
            gpu = gpu.replace(key, value)
        made = attnsim.predict(workload, gpu, **asked)
    except attnsim.InputError as error:
        return {"refused": str(error)}
    kernels = [[name, time] for name, time in made.kernels]
    return {**{name: getattr(made, name) for name in ANSWER}, "kernels": kernels}


def shape_of(w: attnsim.Workload) -> dict[str, Any]:
    """A workload in plain words."""
    names = ("batch", "heads_q", "seq_q", "head_dim", "heads_kv", "seq_kv", "head_dim_v", "dtype", "passes")
    shape: dict[str, Any] = {name: getattr(w, name) for name in names}
    return {**shape, "mask": str(w.mask)} | ({"latent": str(w.latent)} if w.latent else {})


def draw(seed: int = 14) -> list[dict[str, Any]]:
    """The questions, anew; written down once, since mechanisms come and go."""
    from dataclasses import replace

    from attnsim.models.registry import ALGORITHMS, MECHANISMS
    from benchmarks.speed import grid

    chance = random.Random(seed)
    questions: list[dict[str, Any]] = []
    lengths = (60, 128, 500, 512, 1000, 1024, 2048, 4096, 8192, 16384)
    for mechanism in MECHANISMS.values():
        kept = 0
        for _ in range(400):
            if kept == 20:
                break
            w = mechanism.example
            n = chance.choice(lengths)
            if mechanism.name != "block-list":
                queries = w.seq_q if w.passes == "decode" else n if w.seq_q == w.seq_kv else min(w.seq_q, n)
                w = replace(w, seq_q=queries, seq_kv=n)
            w = replace(w, batch=chance.choice((1, 2, 4)), dtype=chance.choice((w.dtype, w.dtype, "fp16")))
            if not w.latent and mechanism.name not in ("mqa", "gqa"):
                d = chance.choice((w.head_dim, 64, 128))
                w = replace(w, head_dim=d, head_dim_v=d)
            if mechanism.name in ("flash-2", "naive", "causal", "mha", "gqa"):
                w = replace(w, passes=chance.choice(("fwd", "fwd", "bwd", "fwd+bwd")))
            algorithm = mechanism.name if mechanism.name in ALGORITHMS else chance.choice(("flash", "naive"))
            if mechanism.name == "mla":
                algorithm = "mla"
            question: dict[str, Any] = {"gpu": chance.choice(GPUS), "workload": shape_of(w), "algorithm": algorithm}
            if mechanism.name in ALGORITHMS and chance.random() < 0.6:
                question["implementation"] = chance.choice(mechanism.implementations)
            if chance.random() < 0.15:
                question["cache"] = "cold"
            if chance.random() < 0.15:
                question["launch"] = chance.choice(("graph", "kernel"))
            if "refused" in answer(question):
                continue
            questions.append(question)
            kept += 1
    for algorithm, gpu, w in grid():
        questions.append({"gpu": gpu, "workload": shape_of(w), "algorithm": algorithm})
    rng = chance
    while len(questions) < 34 * 20 + 200 + 256:
        changes = {key: f"{rng.choice((0.5, 0.75, 1.5, 2, 3))}x" for key in rng.sample(FIGURES, rng.choice((1, 2)))}
        w = attnsim.Workload(
            rng.choice((1, 4, 16)), 32, rng.choice((512, 1000, 2048, 8192)), rng.choice((64, 128)),
            heads_kv=rng.choice((4, 8, 32)), mask=attnsim.Mask.causal(),
        )  # fmt: skip
        question = {
            "gpu": rng.choice(GPUS),
            "changes": changes,
            "workload": shape_of(w),
            "algorithm": rng.choice(("flash", "flash", "naive", "sliding-window", "linear")),
            "tiles": rng.choice(("shipped", "shipped", "retuned")),
        }
        if "refused" not in answer(question):
            questions.append(question)
    small = [one for one in questions if one["workload"]["seq_kv"] <= 1024 and one["workload"]["batch"] <= 2]
    questions += [{**one, "mode": "exact", "baseline": False} for one in rng.sample(small, 24)]
    return questions


def same(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def write(rows: list[dict[str, Any]]) -> None:
    FILE.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the questions anew")
    parser.add_argument("--write", action="store_true", help="record the answers of today")
    options = parser.parse_args()
    questions = draw() if options.draw else [row["question"] for row in read()]
    answers = [answer(question) for question in questions]
    rows = [{"question": q, "answer": a} for q, a in zip(questions, answers, strict=True)]
    if options.draw or options.write:
        write(rows)
        print(f"{len(rows)} answers written to {FILE}")
        return
    moved = [
        (old["question"], old["answer"], new["answer"])
        for old, new in zip(read(), rows, strict=True)
        if not same(old["answer"], json.loads(json.dumps(new["answer"])))
    ]
    for question, old, new in moved:
        told = [f"{key} {old.get(key)} -> {new.get(key)}" for key in (old | new) if not same(old.get(key), new.get(key))]
        print(f"{json.dumps(question)}\n    " + "; ".join(told))
    print(f"{len(rows)} questions, {len(moved)} answers moved")
    sys.exit(bool(moved))


if __name__ == "__main__":
    main()
