"""One token more or less is one token more or less: no cliff where a length is no multiple of a tile."""

from dataclasses import replace

import pytest

from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import Replay, replay

H100 = load_gpu("h100-sxm5-80gb")


def played(name: str, w: Workload) -> Replay:
    return replay(IMPLEMENTATIONS[name].build(w, H100, None), H100, Numbers())


@pytest.mark.parametrize(
    "name",
    ["fla.gla-chunk", "fla.retention-chunk", "fla.delta-net-chunk", "mamba-ssm.ssd", "sglang.gdn-chunk",
     "vllm.kda-chunk", "causal-conv1d.triton"],
)  # fmt: skip
def test_a_shorter_last_chunk_moves_no_more_bytes(name: str) -> None:
    """2 x 16 heads of 65,535 tokens took up to 20 % longer than 65,536: all blocks read what neighbours share anew."""
    w = Workload(2, 16, 65536, 128, mask=Mask.causal())
    whole, shorter = (played(name, replace(w, seq_q=n, seq_kv=n)) for n in (65536, 65535))
    assert shorter.time_s == pytest.approx(whole.time_s, rel=0.01)
    moved, less = (one.hbm_read_bytes + one.hbm_write_bytes for one in (whole, shorter))
    assert less == pytest.approx(moved, rel=1e-3)
