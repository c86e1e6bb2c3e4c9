"""Operations of unfused attention and around fused kernels: what each moves, and the host's time of a call."""

from dataclasses import replace

import pytest

from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS, ImplementationNumbers, Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.options import CALL_S, KERNEL_S, RECORDED_S
from attnsim.models.question.operations import Operations
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import replay

A100 = load_gpu("a100-sxm4-80gb")
W = Workload(2, 8, 512, 64, dtype="fp16")
PAIRS, TOKENS = 2 * 8 * 512 * 512, 2 * 8 * 512 * 64


def built(name: str, w: Workload) -> Schedule:
    return IMPLEMENTATIONS[name].build(w, A100, None)


def moved(name: str, w: Workload, text: str, kernel: str) -> int:
    """Bytes that a kernel asks for under a list of operations."""
    asked = built(name, replace(w, operations=Operations.parse(text))).requested()
    return sum(size for (found, _, _), size in asked.items() if found == kernel)


def test_each_operation_moves_what_its_page_says() -> None:
    both = replace(W, passes="fwd+bwd")
    everything = "copies, scale, softmax, dropout 0.1, accumulate"
    for kernel, size in {
        "copy Q": 2 * 2 * TOKENS,
        "scale": 2 * 2 * PAIRS,
        "scale bwd": 2 * 2 * PAIRS,
        "dropout": (2 + 2 + 1) * PAIRS,
        "dropout bwd": (2 + 2 + 1) * PAIRS,
        "accumulate dQ": 3 * 2 * TOKENS,
        "accumulate dK": 3 * 2 * TOKENS,
        "accumulate dV": 3 * 2 * TOKENS,
    }.items():
        assert moved("torch.eager", both, everything, kernel) == size, kernel
    assert moved("torch.eager", W, "copies fp32, softmax", "copy Q") == (2 + 4) * TOKENS
    assert moved("torch.eager", W, "softmax fp32", "cast P") == (4 + 2) * PAIRS
    assert moved("torch.eager", W, "softmax, row check", "where") == 4 * PAIRS + 2 * 8 * 512  # and which rows


def test_keys_are_repeated_for_the_heads_of_a_group() -> None:
    grouped = replace(W, heads_kv=2)
    assert moved("torch.eager", grouped, "expand, softmax", "expand K") == 2 * (TOKENS // 4 + TOKENS)
    wide, plain = (
        built("torch.eager", replace(grouped, operations=Operations.parse(text))).peak_memory_bytes
        for text in ("expand, softmax", "softmax")
    )
    assert wide - plain == 2 * 2 * TOKENS
    alone = [
        kernel.name
        for kernel in built("torch.eager", replace(W, operations=Operations.parse("expand, softmax"))).kernels
    ]
    assert alone == ["S = Q K^T", "softmax", "O = P V"]


def test_a_list_named_by_the_question_takes_the_place_of_the_implementations_own() -> None:
    own = built("torch.baddbmm", W)
    named = built("torch.eager", replace(W, operations=Operations.parse("copies, softmax")))
    assert [kernel.name for kernel in own.kernels] == [kernel.name for kernel in named.kernels]
    assert own.requested() == named.requested()


def test_pytorchs_fused_call_of_2023_copies_around_flash_attention_1() -> None:
    inner, outer = (
        [kernel.name for kernel in built(name, replace(W, passes="fwd+bwd")).kernels]
        for name in ("flash-attn.1", "torch.sdpa-flash-1")
    )
    assert [name for name in outer if not name.startswith("copy")] == inner
    assert outer[:3] == ["copy Q", "copy K", "copy V"] and len(outer) == len(inner) + 3 + 4 + 3


def test_copies_of_strided_tensors_are_bound_by_integer_divisions() -> None:
    w = Workload(64, 24, 1024, 64, dtype="fp16", operations=Operations.parse("copies, scale, softmax"))
    played = {kernel.name: kernel for kernel in replay(built("torch.eager", w), A100, Numbers(), cache="cold").kernels}
    busiest, *others = sorted(played["copy Q"].units_s.items(), key=lambda one: -one[1])
    assert busiest[0] == "int32" and 0.9 < busiest[1] / played["copy Q"].time_s < 1 and busiest[1] > 2 * others[0][1]
    assert played["scale"].time_s < 1.1 * played["scale"].units_s["hbm"]


def test_the_copies_around_a_kernel_run_at_the_rates_of_the_chip() -> None:
    """Whose kernel it is changes nothing, and its waits nothing but the one that a copy has."""
    w = Workload(16, 16, 1024, 64, dtype="fp16", operations=Operations.parse("copies, softmax"))
    copies = {}
    for name, asked in (("torch.sdpa-flash-1", replace(w, operations=None)), ("torch.eager", w)):
        for end in ("low", "high"):
            every = {number: getattr(one, end) for number, one in IMPLEMENTATION_NUMBERS.items()}
            numbers = Numbers(ImplementationNumbers(**every))
            # Whole: a copy's part of the budget goes by what the other kernels take.
            played = replay(built(name, asked), A100, numbers, mode="exact", cache="cold").kernels
            copies[name, end] = next(one for one in played if one.name == "copy Q")
    for end in ("low", "high"):
        assert copies["torch.sdpa-flash-1", end].time_s == copies["torch.eager", end].time_s
    integers = 50 * w.batch * w.heads_q * w.seq_q * w.head_dim
    busy = integers / A100.sm.int32_per_clk / A100.sm.count / A100.clock.full_hz
    assert [one.units_s["int32"] for one in copies.values()] == pytest.approx([busy] * 4, rel=1e-6)


def test_a_stream_is_no_faster_than_the_host() -> None:
    """Floors of 105 and 550 us were published for these calls on an A100, whatever the shape."""
    for text, passes, kernel_s, floor_s in (
        ("copies, scale, softmax", "fwd", KERNEL_S, 105e-6),
        ("copies, scale, softmax, dropout 0.1", "fwd+bwd", RECORDED_S, 550e-6),
    ):
        w = Workload(8, 12, 64, 64, dtype="fp16", passes=passes, operations=Operations.parse(text))
        schedule = built("torch.eager", w)
        found = {launch: replay(schedule, A100, Numbers(), launch=launch) for launch in ("stream", "graph", "kernel")}
        host_s = CALL_S + kernel_s * len(schedule.kernels)
        assert found["stream"].time_s == pytest.approx(host_s) == pytest.approx(floor_s, rel=0.1)
        assert found["stream"].busiest == "launch" and found["stream"].host_wait_s > 0
        assert found["kernel"].time_s < found["graph"].time_s < 0.5 * host_s
        long = replay(built("torch.eager", replace(w, seq_q=2048, seq_kv=2048)), A100, Numbers())
        assert long.host_wait_s == 0


def test_a_fused_call_waits_for_python_only_where_the_question_says_so() -> None:
    """A floor of 38 us was published for FlashAttention-1, of 57 us for PyTorch's call of it."""
    w = Workload(8, 12, 64, 64, dtype="fp16")
    fused, called = (built(name, w) for name in ("flash-attn.1", "torch.sdpa-flash-1"))
    assert replay(fused, A100, Numbers()).host_wait_s == 0
    assert replay(fused, A100, Numbers(), launch="host").time_s == pytest.approx(38e-6, rel=0.15)
    for launch in ("stream", "host"):
        assert replay(called, A100, Numbers(), launch=launch).time_s == pytest.approx(57e-6, rel=0.25)
