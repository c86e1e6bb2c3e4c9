"""Linear attention with gates: what the physics asks; what is refused."""

from dataclasses import replace

import pytest

import attnsim
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.linear import FAMILY
from attnsim.models.question.workload import Workload

H100, B200 = load_gpu("h100-sxm5-80gb"), load_gpu("b200-sxm-180gb")
DECODE = Workload(batch=16, heads_q=32, seq_q=1, seq_kv=4096, head_dim=128, passes="decode")


@pytest.mark.parametrize("name", FAMILY)
def test_decoding_costs_the_same_at_every_length(name: str) -> None:
    short = attnsim.predict(DECODE, H100, algorithm=name)
    long = attnsim.predict(replace(DECODE, seq_kv=1 << 20), H100, algorithm=name)
    assert short.time_s is not None and short.hbm_bytes is not None
    assert short.time_s == long.time_s
    state = DECODE.batch * DECODE.heads_q * DECODE.head_dim * DECODE.head_dim_v * 4
    assert short.hbm_bytes <= 2.2 * state  # read and written once; the new tokens are little beside it
    assert short.time_s > 0.8 * 2 * (state - H100.l2.capacity_bytes) / H100.hbm.bandwidth_bytes_per_s


@pytest.mark.parametrize("name", FAMILY)
def test_prefill_grows_with_the_tokens(name: str) -> None:
    w = MECHANISMS[name].example
    few, many = (replace(w, batch=8, seq_q=seq, seq_kv=seq) for seq in (16384, 65536))
    times = [attnsim.predict(one, H100, algorithm=name).time_s or 0.0 for one in (few, many)]
    assert 3.6 < times[1] / times[0] < 6  # more than 4 where keys that heads share no longer stay in the L2


@pytest.mark.parametrize(
    ("asked", "algorithm", "why"),
    [
        ({"mask": Mask.sliding_window(128)}, "gdn", "sums all tokens before into a state; the mask is"),
        ({"head_dim": 96}, "gdn", "has no kernels of head_dim 96; allowed: 128"),
        ({"head_dim": 512}, "gdn", "512"),
        ({"seq_kv": 9000}, "gdn", "takes in whole sequences: seq_q is 4096, seq_kv 9000; make them equal"),
        ({"heads_kv": 4}, "kda", "has gates for every head of K: heads_kv is 4, heads_q 16; make them equal"),
        ({"heads_kv": 4}, "short-convolution", "allowed: as many kv_heads as heads"),
        ({"passes": "bwd"}, "gdn", "has no bwd kernels"),
        ({"dropout": True}, "gdn", "without window, patterns and dropout"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(asked: dict[str, object], algorithm: str, why: str) -> None:
    w = replace(Workload(heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal()), head_dim_v=0, **asked)  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        attnsim.predict(w, H100, algorithm=algorithm)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_state_that_fits_no_sm_is_refused() -> None:
    """FlashInfer's block holds the state and two chunks: 24 KiB less shared memory than it needs is too little."""
    small = H100.replace("sm.shared_memory_per_block", 96 * 1024)
    w = Workload(heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
    with pytest.raises(InputError, match=r"Shared memory: delta_rule_fwd needs .* KiB"):
        attnsim.predict(w, small, algorithm="gdn", implementation="flashinfer.gdn-chunk")
