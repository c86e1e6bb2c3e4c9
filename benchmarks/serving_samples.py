"""Write the committed samples of AIConfigurator's serving tables anew: ``python benchmarks/serving_samples.py``.

Needs the extra ``datasets``. Rows are drawn evenly from bands of lengths, few and many heads, head_dim and window
(`attnsim.validation.measured.datasets`), from those that a fit may use: 16-bit, and prefill from 512 tokens up, which
leaves out what times launches. The measured times are the package's, in seconds.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

import attnsim.validation
from attnsim.models.question.case_file import COLUMNS
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.groups import even_sample, strata, usable
from attnsim.writing import write_whole

FOLDER = Path(attnsim.validation.__file__).parent / "measurements" / "published"
SEED = 1

# Rows by table: (framework, GPU), then by kind and whether there is a window.
SAMPLES = {
    "vllm_h100_sxm5": (
        ("vllm", "h100-sxm5-80gb"),
        (
            *(("context", False, 60), ("context", True, 50)),
            *(("generation", False, 60), ("generation", True, 50)),
            ("encoder", False, 30),
        ),
    ),
    "sglang_h100_sxm5": (
        ("sglang", "h100-sxm5-80gb"),
        (
            *(("context", False, 60), ("context", True, 40)),
            *(("generation", False, 60), ("generation", True, 40)),
            ("encoder", False, 30),
        ),
    ),
    "sglang_a100_sxm4": (("sglang", "a100-sxm4-80gb"), (("context", False, 75), ("generation", False, 75))),
    "trtllm_h100": (
        ("trtllm", "h100-sxm5-80gb"),
        (("context", False, 60), ("generation", False, 50), ("generation", True, 15), ("encoder", False, 25)),
    ),
    "trtllm_b200": (
        ("trtllm", "b200-sxm-180gb"),
        (("context", False, 25), ("generation", False, 25), ("generation", True, 10), ("encoder", False, 15)),
    ),
    "trtllm_b200_vllm": (
        ("vllm", "b200-sxm-180gb"),
        (("context", False, 40), ("generation", False, 25), ("generation", True, 10)),
    ),
    "flash_attention_4": (("vllm", "b200-sxm-180gb"), (("encoder", False, 40),)),
    "flash_attention_4_sglang": (("sglang", "b200-sxm-180gb"), (("encoder", False, 40),)),
    "vllm_l40s": (
        ("vllm", "l40s"),
        (("context", False, 30), ("context", True, 20), ("generation", False, 30), ("generation", True, 20)),
    ),
}  # fmt: skip


def main() -> None:
    """Write every table."""
    for table, ((framework, gpu), parts) in SAMPLES.items():
        text = io.StringIO()
        writer = csv.DictWriter(text, [*COLUMNS, "launch"], lineterminator="\n")
        writer.writeheader()
        for kind, windowed, size in parts:
            rows = aiconfigurator.rows(gpu=gpu, framework=framework, kind=kind, windowed=windowed, dtype="bf16")
            writer.writerows(_line(row, framework) for row in _sample([row for row in rows if usable(row)], size))
        write_whole(FOLDER / f"{table}.csv", text.getvalue())


def _sample(rows: list[Row], size: int) -> Iterator[Row]:
    columns = ("batch", "heads_q", "seq_q", "seq_kv", "head_dim")
    frame = pd.DataFrame({name: [getattr(row.case, name) for row in rows] for name in columns})
    frame["window"] = [row.case.window or 0 for row in rows]
    chosen = even_sample(strata(frame), size, SEED)
    return (row for row, taken in zip(rows, chosen, strict=True) if taken)


def _line(row: Row, framework: str) -> dict[str, object]:
    case = row.case
    version = (case.version or "").removeprefix(f"{framework} ")
    values = {name: getattr(case, name, "") for name in COLUMNS}
    return values | {
        "source": f"aic_attention_{framework}_{version}_{case.gpu.split('-')[0]}",
        "pass": case.passes,
        "causal": int(case.causal),
        "window": "" if case.window is None else case.window,
        "time_s": f"{case.time_s:.6g}",
        "notes": "",
        "launch": case.launch,
    }


if __name__ == "__main__":
    main()
