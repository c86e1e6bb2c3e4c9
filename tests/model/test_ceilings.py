"""Every mechanism at batch 1 and 4: its work grows with the batch, and no rate exceeds what the GPU is rated at.

No range reaches below the floor of the call either.
"""

from dataclasses import replace

import pytest

from attnsim import load_gpu, predict
from attnsim.api.answer import Outcome
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mechanisms import ALGORITHMS

H100 = load_gpu("h100-sxm5-80gb")
"""A GPU that has kernels of every mechanism."""


def rates(found: Outcome) -> dict[str, float]:
    """Shares of the peak of the tensor cores and of the bandwidths."""
    assert found.time_s and found.l2_bytes and found.hbm_bytes and found.flops_executed is not None
    peak = found.time_s * H100.peak_tensor_flops_per_s(found.workload.dtype)
    return {
        "useful FLOPs": found.flops_useful / peak,
        "executed FLOPs": found.flops_executed / peak,
        "HBM": found.hbm_bytes / (found.time_s * H100.hbm.bandwidth_bytes_per_s),
        "L2": found.l2_bytes / (found.time_s * H100.l2.bandwidth_bytes_per_s),
    }


@pytest.mark.parametrize("name", ALGORITHMS)
def test_four_sequences_are_four_times_the_work_and_no_rate_exceeds_its_ceiling(name: str) -> None:
    example = ALGORITHMS[name].example
    one, four = (predict(replace(example, batch=batch), H100, name) for batch in (1, 4))
    assert (four.flops_useful, four.flops_dense) == (4 * one.flops_useful, 4 * one.flops_dense)
    built = [IMPLEMENTATIONS[one.implementation].build(found.workload, H100, None) for found in (one, four)]
    on_data = [schedule.useful_flops for schedule in built if schedule.useful_flops is not None]
    assert on_data[1:] == [4 * flops for flops in on_data[:1]]
    for found in (one, four):
        above = {what: share for what, share in rates(found).items() if share > 1}
        assert not above, f"batch {found.workload.batch}"
        assert found.floor_s and found.time_s and found.time_low_s
        assert found.floor_s <= found.time_low_s <= found.time_s
