"""Predicted against measured times of dense GEMMs: how wrong the projections of a layer are.

The measurements are the bf16 GEMMs of vLLM in aiconfigurator-core 0.12.0 (extra `datasets`), `SAMPLE` of each GPU with
n and k of at least `SMALLEST`; prediction cold and from a graph. Nothing is fitted here.
"""

from __future__ import annotations

import argparse
import math
import statistics
from importlib import resources
from pathlib import Path

import pandas as pd

from attnsim.api.layer import gemm_numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.frameworks.projection import Product
from attnsim.models.implementations.frameworks.step import Step, step_schedule
from attnsim.simulator.replay import replay

TABLES = {
    "a100-sxm4-80gb": "a100_sxm/gemm/vllm/0.14.0",
    "h100-sxm5-80gb": "h100_sxm/gemm/vllm/0.24.0",
    "h200-sxm-141gb": "h200_sxm/gemm/vllm/0.24.0",
    "b200-sxm-180gb": "b200_sxm/gemm/vllm/0.24.0",
    "l40s": "l40s/gemm/vllm/0.24.0",
}
SAMPLE, SMALLEST = 250, 512
BANDS = (("m to 64", 1, 64), ("m to 1,024", 65, 1024), ("more", 1025, 1 << 30))


def log_errors(gpu_id: str, sample: int, seed: int) -> list[tuple[int, float]]:
    """(m, log of predicted over measured) of a GPU's sample."""
    folder = Path(str(resources.files("aiconfigurator_core"))) / "systems" / "data" / TABLES[gpu_id]
    table = pd.read_parquet(folder / "gemm_perf.parquet")
    table = table[(table["gemm_dtype"] == "bfloat16") & (table["n"] >= SMALLEST) & (table["k"] >= SMALLEST)]
    gpu = load_gpu(gpu_id)
    found = []
    for row in table.sample(min(sample, len(table)), random_state=seed).to_dict("records"):
        shape = (int(row["m"]), int(row["n"]), int(row["k"]))
        step = Step("GEMM", (Product("GEMM", shape, ("A", "B", "C")),))
        played = replay(step_schedule(step, gpu, "bf16"), gpu, gemm_numbers(gpu), cache="cold", launch="graph")
        found.append((shape[0], math.log(played.time_s / (float(row["latency"]) * 1e-3))))
    return found


def main() -> None:
    """Print mean error, bias and 90th percentile by GPU and rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="GEMMs of each GPU")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    given = parser.parse_args()
    everything: list[float] = []
    print(f"{'gpu':16} {'rows':12} {'GEMMs':>6} {'mean |log|':>11} {'median':>8} {'90 % within':>12}")
    for gpu_id in TABLES:
        found = log_errors(gpu_id, given.sample, given.seed)
        for name, low, high in BANDS:
            _line(gpu_id, name, [error for m, error in found if low <= m <= high])
        everything += [error for _, error in found]
    _line("all", "", everything)


def _line(gpu_id: str, band: str, errors: list[float]) -> None:
    sizes = sorted(map(abs, errors))
    mean, median, within = statistics.fmean(sizes), statistics.median(errors), sizes[int(0.9 * (len(sizes) - 1))]
    print(f"{gpu_id:16} {band:12} {len(errors):6} {mean:11.3f} {median:+8.3f} {math.exp(within):11.2f}x")


if __name__ == "__main__":
    main()
