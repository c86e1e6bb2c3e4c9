"""Write the samples of AIConfigurator's tables that are committed for TensorRT-LLM's and FlashAttention-4's kernels.

Needs the extra `datasets`. The same command gives the same files:

    python benchmarks/serving_samples.py attnsim/validation/measurements/published
"""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

from attnsim.models.case_table import COLUMNS
from attnsim.validation import aiconfigurator

SEED = 1
"""Other rows than those that errors are reported on by default, of seed 0."""


@dataclass(frozen=True, slots=True)
class Sample:
    """So many rows of one kind of one framework's table, without windows."""

    table: str
    source: str
    gpu: str
    framework: str
    implementation: str
    kind: str
    rows: int


H100, B200 = "h100-sxm5-80gb", "b200-sxm-180gb"
TRTLLM, VLLM = "aic_attention_trtllm_1.3.0rc20", "aic_trtllm_gen_vllm_0.24.0"
SAMPLES = (
    Sample("trtllm_h100", TRTLLM, H100, "trtllm", "trtllm", "context", 60),
    Sample("trtllm_h100", TRTLLM, H100, "trtllm", "trtllm", "generation", 60),
    Sample("trtllm_h100", TRTLLM, H100, "trtllm", "trtllm", "encoder", 30),
    Sample("trtllm_b200", TRTLLM, B200, "trtllm", "trtllm", "context", 30),
    Sample("trtllm_b200", TRTLLM, B200, "trtllm", "trtllm", "generation", 30),
    Sample("trtllm_b200", TRTLLM, B200, "trtllm", "trtllm", "encoder", 20),
    Sample("trtllm_b200", VLLM, B200, "vllm", "vllm_trtllm", "context", 40),
    Sample("trtllm_b200", VLLM, B200, "vllm", "vllm_trtllm", "generation", 30),
    Sample("flash_attention_4", "aic_encoder_vllm_0.24.0", B200, "vllm", "vllm_vit_flash_attn_fa4", "encoder", 40),
    Sample("flash_attention_4", "aic_encoder_sglang_0.5.14", B200, "sglang", "flash_attn_v4", "encoder", 40),
)


def lines(sample: Sample) -> list[dict[str, object]]:
    """The rows of a sample as lines of a published table."""
    found = aiconfigurator.rows(
        gpu=sample.gpu,
        framework=sample.framework,
        implementation=sample.implementation,
        kind=sample.kind,
        windowed=False,
        dtype="bf16",
        sample=sample.rows,
        seed=SEED,
    )
    return [
        {
            "source": sample.source,
            "gpu": case.gpu,
            "implementation": case.implementation,
            "algorithm": "flash",
            "pass": case.passes,
            "dtype": case.dtype,
            "batch": case.batch,
            "heads_q": case.heads_q,
            "heads_kv": case.heads_kv,
            "seq_q": case.seq_q,
            "seq_kv": case.seq_kv,
            "head_dim": case.head_dim,
            "head_dim_v": case.head_dim_v,
            "causal": int(case.causal),
            "window": "",
            "cache": case.cache,
            "time_s": f"{case.time_s:.6g}",
            "notes": "",
            "launch": case.launch,
        }
        for case in (row.case for row in found)
    ]


def main(folder: Path) -> None:
    """Write every table of `SAMPLES`."""
    for table in dict.fromkeys(sample.table for sample in SAMPLES):
        rows = [line for sample in SAMPLES if sample.table == table for line in lines(sample)]
        path = folder / f"{table}.csv"
        with path.open("w", encoding="utf-8", newline="") as handle:
            writer = csv.DictWriter(handle, [*COLUMNS, "launch"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
