"""What products of mma.sync cost the vector work beside them: errors at each share, with the latencies fitted anew.

The share is a figure of the instruction path, `MMA_SYNC_STALL` of `attnsim/models/hardware/units.py`; no kernel has one
of its own.

    python benchmarks/stall.py
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np

from attnsim.validation.fitting.fit import _on, _problem
from attnsim.validation.fitting.jobs import Job, jobs, separate
from attnsim.validation.fitting.solver import fit_free

KERNELS = (
    "papers-a100:flash-attn.2",
    "papers-h100:flash-attn.2",
    "papers-a100:triton.ops",
    "sglang-a100:sglang.fa3-sm80",
)
SHARES = (0.0, 0.2, 0.4, 0.48, 0.6, 0.8)


def error(job: Job, share: float) -> float:
    """Mean of ``|predicted / measured - 1|`` over the rows of a job, fitted with a share."""
    with patch("attnsim.simulator.unit_costs.MMA_SYNC_STALL", share):
        problem = _problem(job)
        numbers = fit_free(_on(problem, problem.rows)).numbers
        return float(
            np.mean([abs(row.predict_s(numbers[row.record.name]) / row.measured_s - 1) for row in problem.rows])
        )


def main() -> None:
    print(f"{'share':30}" + "".join(f"{share:8.2f}" for share in SHARES))
    for job in separate(jobs()):
        if job.name in KERNELS:
            print(f"{job.name:30}" + "".join(f"{error(job, share):8.1%}" for share in SHARES), flush=True)


if __name__ == "__main__":
    main()
