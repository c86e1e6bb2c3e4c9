"""How wrong predictions of AIConfigurator's serving tables are: ``python benchmarks/serving_errors.py``.

Needs the extra ``datasets``. Every framework, GPU, kind of call and window, `--sample` rows each, drawn evenly from
bands of lengths, few and many heads and head_dim. No row is left out; those of the committed samples are few among
them; they are 16-bit. ``vllm.flash-attn-3 sglang.fa3`` shows these kernels only.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from joblib import Parallel, delayed

from attnsim.models.calibrations.choose import choose
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row

Cell = tuple[str, str, str, str, bool]
"""Framework, GPU, implementation, kind of table, whether there is a window."""


def cells(implementations: Sequence[str]) -> Iterator[Cell]:
    """What there are rows of."""
    for table in aiconfigurator.tables():
        if table.kept and (not implementations or table.implementation in implementations):
            for windowed in (False, True) if table.kind != "encoder" else (False,):
                yield table.framework, table.gpu, table.implementation, table.kind, windowed


def predicted(cell: Cell, sample: int) -> tuple[list[Row], list[float], str]:
    """Rows of a cell, what is predicted for each, and whose numbers that rests on."""
    framework, gpu, name, kind, windowed = cell
    drawn = partial(
        aiconfigurator.rows,
        gpu=gpu, framework=framework, implementation=name, kind=kind, windowed=windowed, sample=sample,
    )  # fmt: skip
    rows = list(drawn(dtype="bf16") or drawn(dtype="fp16"))
    found, numbers = [], ""
    for row in rows:
        chosen = choose(row.record, row.gpu)
        source = chosen.calibration
        numbers = (
            "own" if chosen.own else "none" if source is None else f"{source.implementation}, {source.architecture}"
        )
        found.append(row.predict_s(chosen.numbers))
    return rows, found, numbers


def line(cell: Cell, rows: Sequence[Row], times_s: Sequence[float], numbers: str) -> str:
    """A line of the table: errors in %, over all rows and over those from 512 tokens up."""
    ratio = np.array([time / row.measured_s - 1 for time, row in zip(times_s, rows, strict=True)])
    long = np.array([max(row.case.seq_q, row.case.seq_kv) >= 512 for row in rows])
    framework, gpu, name, kind, windowed = cell
    parts = [f"{framework}, {gpu}, {kind}{', window' if windowed else ''}", name, str(len(rows))]
    for some in (ratio, ratio[long]):
        error = 100 * np.abs(some)
        parts += [f"{error.mean():.1f}", f"{np.median(error):.1f}", f"{100 * np.median(some):+.0f}"]
    return f"| {' | '.join([*parts, numbers])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("implementations", nargs="*", help="only these")
    parser.add_argument("--sample", type=int, default=200, help="rows of each cell (200)")
    asked = parser.parse_args()
    errors = ("mean", "median", "bias")
    heads = ("framework, GPU, call", "implementation", "rows", *errors, ">= 512: mean", *errors[1:], "numbers")
    print(f"| {' | '.join(heads)} |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---|")
    every = sorted(set(cells(asked.implementations)))
    done = Parallel(n_jobs=min(2, os.cpu_count() or 1))(delayed(predicted)(cell, asked.sample) for cell in every)
    for cell, (rows, times_s, numbers) in zip(every, done, strict=True):
        if rows:
            print(line(cell, rows, times_s, numbers))


if __name__ == "__main__":
    main()
