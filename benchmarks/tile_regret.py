"""What the short list of `--tiles retuned` loses to replaying every tile that fits.

    python benchmarks/tile_regret.py

By the model alone, fp16, the implementation's own number of stages: relative time of the short list's best over the
exhaustive best, for each GPU, head_dim and question.
"""

from __future__ import annotations

import statistics

from attnsim.models.hardware.files import load_gpu
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.studies.search import search_tiles

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "l40s")
PREFILLS = ((1024, 16, 1), (4096, 16, 2), (16384, 32, 1))
"""Length, heads, batch."""


def questions(head_dim: int) -> list[Workload]:
    """Prefill, full and causal, and decode of a model with grouped heads."""
    found = [
        Workload(batch=batch, heads_q=heads, seq_q=seq, head_dim=head_dim, dtype="fp16", mask=mask)
        for seq, heads, batch in PREFILLS
        for mask in (Mask.causal(), Mask.full())
    ]
    found.append(
        Workload(
            batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=16384, head_dim=head_dim, dtype="fp16", passes="decode"
        )
    )
    return found


def main() -> None:
    """Print each regret, and their summary."""
    regrets = []
    for name in GPUS:
        for head_dim in (64, 128):
            for question in questions(head_dim):
                found = search_tiles(question, load_gpu(name), stages=())
                regrets.append(found.regret)
                print(f"{100 * found.regret:5.2f} %  {name}: {question}; best {found.best.tile}")
    small = sum(regret <= 0.001 for regret in regrets)
    print(
        f"{len(regrets)} questions: median {100 * statistics.median(regrets):.2f} %, "
        f"mean {100 * statistics.mean(regrets):.2f} %, largest {100 * max(regrets):.2f} %, {small} within 0.1 %"
    )


if __name__ == "__main__":
    main()
