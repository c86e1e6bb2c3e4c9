"""The share of the datasheet's memory bandwidth that products of few rows reach, by GPU: GEMMs that only read weights.

What `hbm.achievable_fraction` of a GPU's file rests on where no copy of that very card was timed. Nothing of attention
enters. Needs the `datasets` extra.

    python benchmarks/memory_share.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.models.hardware.files import load_gpu
from attnsim.validation.measured.aiconfigurator_files import SYSTEMS, installed_folder

ROWS = 16
"""Of A: products of more are no longer decided by the weights."""
WEIGHTS = 300e6
"""Bytes: smaller matrices stay in the L2."""
FEWEST = 100


def main() -> None:
    import pandas as pd

    folder = installed_folder()
    if folder is None:
        raise SystemExit('memory_share: the GEMM tables are not installed; pip install "attnsim[datasets]"')
    for system, gpu in SYSTEMS.items():
        bandwidth = load_gpu(gpu).hbm.bandwidth_bytes_per_s
        for path in sorted(folder.glob(f"{system}/gemm/*/*/gemm_perf.parquet")):
            rows = pd.read_parquet(path).query("gemm_dtype == 'bfloat16'")
            rows = rows[(rows.m <= ROWS) & (2 * rows.n * rows.k > WEIGHTS)]
            if len(rows) < FEWEST:
                continue
            moved = 2 * (rows.m * rows.k + rows.n * rows.k + rows.m * rows.n)
            share = (moved / (rows.latency * 1e-3) / bandwidth).quantile([0.5, 0.9, 0.99])
            told = ", ".join(f"{name} {value:.3f}" for name, value in zip(("median", "p90", "p99"), share, strict=True))
            print(f"{gpu:20} {' '.join(path.parts[-3:-1]):20} {len(rows):4} rows  {told}")


if __name__ == "__main__":
    main()
