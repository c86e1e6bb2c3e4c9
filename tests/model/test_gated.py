"""Linear attention with gates: closed form, stream and replay are equal; what the physics asks; what is refused."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

import attnsim
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.closed_forms.cost import cost_of
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.gated import FAMILY, GATED
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay

H100, B200 = load_gpu("h100-sxm5-80gb"), load_gpu("b200-sxm-180gb")
KERNELS = [name for one in GATED for name in one.implementations]
SHAPES = 20


def gpu_of(record: Implementation) -> Gpu:
    return H100 if record.compute_capability[0] <= 90 else B200


def shapes(record: Implementation) -> Iterator[Workload]:
    """Random shapes that a kernel takes, the same at every run: ragged last chunks, one token, shared keys."""
    draw, gpu = random.Random(record.name), gpu_of(record)
    found = 0
    while found < SHAPES:
        passes = record.passes[0]
        seq = draw.choice([1, 2, 5]) if passes == "decode" else draw.choice([1, 7, 16, 63, 64, 65, 128, 200, 513])
        heads_kv, d = draw.choice([1, 2, 3]), draw.choice([64, 128, 128, 256])
        w = Workload(
            batch=draw.choice([1, 2, 3]),
            heads_q=heads_kv * draw.choice([1, 1, 2, 4]),
            heads_kv=heads_kv,
            seq_q=seq,
            head_dim=d,
            head_dim_v=draw.choice([d, d, 64, 128]),
            dtype=draw.choice(["fp16", "bf16"]),
            passes=passes,
            mask=Mask.causal(),
        )
        try:
            record.build(w, gpu, None)
        except InputError:
            continue
        found += 1
        yield w


@pytest.mark.parametrize("name", KERNELS)
def test_closed_form_stream_and_exact_replay_are_equal(name: str) -> None:
    record = IMPLEMENTATIONS[name]
    gpu = gpu_of(record)
    few = gpu.replace("sm.count", 3)
    for number, w in enumerate(shapes(record)):
        schedule = record.build(w, gpu, None)
        form = cost_of(w, schedule)
        assert dict(form.requested_bytes) == schedule.requested(), str(w)
        assert form.flops_executed == schedule.total("flops"), str(w)
        assert form.exponentials == schedule.total("exps"), str(w)
        assert form.smem_bytes == schedule.total("smem_bytes"), str(w)
        if number % 4 == 0:
            played = replay(schedule, few, Numbers(), mode="exact", cache="cold")
            for kernel, shown in zip(schedule.kernels, played.kernels, strict=True):
                assert shown.requested == kernel.requested(), f"{kernel.name}: {w}"
            assert played.hbm_read_bytes + played.hbm_write_bytes >= 0.999 * form.compulsory_bytes
            assert played.hbm_read_bytes + played.hbm_write_bytes <= form.no_reuse_bytes


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
