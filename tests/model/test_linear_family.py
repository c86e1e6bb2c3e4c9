"""The linear mechanisms as frameworks run them: time and memory grow with N."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from attnsim.api import predict
from attnsim.api.approximation import DEVIATIONS
from attnsim.api.comparing.breakeven import Crossover, crossover
from attnsim.errors import InputError
from attnsim.models.closed_forms.useful import Useful
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from tests.model.bounds import useful

A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
ENCODER = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=64)


@pytest.mark.parametrize("name", ["performer", "performer@64", "linformer", "efficient"])
def test_time_and_memory_grow_with_n(name: str) -> None:
    found = [
        predict(replace(ENCODER, seq_q=1 << log, seq_kv=1 << log), A100, name, launch="kernel", baseline=False)
        for log in (15, 16, 17)
    ]
    times = [item.time_s for item in found if item.time_s is not None]
    assert len(times) == 3
    assert all(1.8 < later / earlier < 2.1 for earlier, later in itertools.pairwise(times)), times
    peaks = [item.peak_memory_bytes for item in found]
    assert all(1.9 < later / earlier <= 2 for earlier, later in itertools.pairwise(peaks)), peaks
    assert peaks[-1] < 0.02 * 16 * (1 << 17) ** 2 * 2, "nothing of N x N"


def test_peak_memory_holds_the_largest_arrays_alive_together() -> None:
    w = Workload(2, 8, 1000, 64, 4, 3000, dtype="fp16")
    features = find_implementation("performer-pytorch.eager@256")
    arrays = 2 * 2 * 64 * (2 * 8 * 1000 + 2 * 4 * 3000)
    assert features.peak_bytes is not None
    least = arrays + 2 * 256 * 2 * (8 * 1000 + 4 * 3000)
    assert least < features.peak_bytes(w) < least + 2 * 256 * 2 * 4 * 3000 + 1e6
    for name in ("linformer.eager", "efficient-attention.eager", "performer-pytorch.fused"):
        record = find_implementation(name)
        assert record.peak_bytes is not None
        assert record.peak_bytes(w) == record.build(w, A100, None).peak_memory_bytes


def test_useful_work_is_what_the_definition_multiplies() -> None:
    b, h, g, nq, nk, d, dv = 2, 8, 4, 1000, 3000, 64, 128
    w = Workload(b, h, nq, d, g, nk, dv)
    for name, flops, exps in (
        ("performer-pytorch.fused@96", 2 * b * (h * nq + g * nk) * 96 * (d + dv), b * (h * nq + g * nk) * 96),
        ("linformer.eager@96", 2 * b * (g * nk + h * nq) * 96 * (d + dv), b * h * nq * 96),
        ("efficient-attention.eager", 2 * b * (h * nq + g * nk) * d * dv, b * (h * nq + g * nk) * d),
    ):
        schedule = find_implementation(name).build(w, A100, None)
        assert useful(w, name) == Useful(flops, flops, exps)
        # A pass shares its exponentials out over whole blocks. Those of a softmax are two or three special functions.
        lost = sum(kernel.blocks for kernel in schedule.kernels)
        assert flops <= schedule.total("flops") and exps - lost <= schedule.total("exps") <= 3 * exps


def test_eager_performer_goes_fourteen_times_over_the_features_of_q() -> None:
    """A GEMM writes them; eleven more passes of the chain; D; the GEMM with S."""
    w = Workload(1, 8, 4096, 64)
    eager, fused = (
        sum(size for (_, _, tensor), size in built.requested().items() if tensor == "Q'")
        for built in (
            find_implementation(f"performer-pytorch.{name}@256").build(w, A100, None) for name in ("eager", "fused")
        )
    )
    assert eager == 14 * 8 * 4096 * 256 * 2 and fused == 5 / 14 * eager


def test_long_sums_are_split_until_every_sm_has_a_block() -> None:
    w = Workload(1, 4, 65536, 64)
    for name, kernel in (("efficient-attention.eager", "S = K'^T V"), ("linformer.eager", "E K")):
        blocks = {one.name: one.blocks for one in find_implementation(name).build(w, A100, None).kernels}
        assert A100.sm.count <= blocks[kernel] <= 3 * A100.sm.count
    few = replace(w, seq_kv=60)
    assert len(find_implementation("efficient-attention.eager").build(few, A100, None).kernels) == 4, "nothing to split"


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("linformer", {"mask": Mask.causal()}, "mixes all keys before the softmax.*allowed: no mask"),
        ("efficient", {"mask": Mask.causal()}, "none can be hidden: the mask is causal"),
        ("performer", {"mask": Mask.causal(), "seq_kv": 600}, "causal with as many queries as keys"),
        ("performer", {"mask": Mask.sliding_window(100)}, "whole sequences: the mask is"),
        ("performer", {"passes": "bwd"}, "no bwd kernels; allowed: fwd"),
        ("linformer", {"dropout": True}, "dropout; allowed: no mask, no dropout"),
        ("efficient", {"passes": "decode"}, "no decode kernels"),
        ("performer", {"dtype": "fp8"}, "no fp8 kernels"),
    ],
    ids=str,
)
def test_what_has_no_such_form_is_refused(name: str, changes: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        predict(replace(Workload(1, 8, 512, 64), **changes), H100, name)  # type: ignore[arg-type]


def test_none_has_a_tile_to_choose() -> None:
    w = Workload(1, 8, 512, 64)
    for name in ("performer", "linformer", "efficient"):
        with pytest.raises(InputError, match="leave --tile out"):
            predict(w, H100, name, tile="128x64")
        assert predict(w, H100, name, tiles="retuned", baseline=False).tiles == "shipped"
    with pytest.raises(InputError, match=r"efficient-attention.eager has no number to choose"):
        find_implementation("efficient-attention.eager@8")


def test_a_numbered_twin_is_the_same_implementation_with_another_size() -> None:
    answer = predict(ENCODER, A100, "performer@512", baseline=False)
    assert (answer.algorithm, answer.implementation) == ("performer@512", "performer-pytorch.fused@512")
    same = predict(ENCODER, A100, "performer", implementation="performer-pytorch.fused@512", baseline=False)
    assert same.time_s == answer.time_s
    assert predict(ENCODER, A100, "performer@272", baseline=False).time_s == pytest.approx(
        predict(ENCODER, A100, "performer", baseline=False).time_s
    )
    assert "torch.baddbmm" in answer.trust.reason, "the twin has the calibration of its like"


def test_predictions_carry_their_error_and_exact_ones_none() -> None:
    flash, linear, decode = (
        predict(w, A100, name, baseline=False)
        for w, name in (
            (ENCODER, "flash"),
            (ENCODER, "linear"),
            (replace(ENCODER, seq_q=1, passes="decode"), "linear"),
        )
    )
    assert flash.approximation == () and flash.to_dict()["approximation"] == []
    errors = linear.to_dict()["approximation"]
    assert isinstance(errors, list) and [error["score_deviation"] for error in errors] == list(DEVIATIONS)
    state = 16 * (64 * 64 + 64) * 4
    assert any(f"state of {state:,} bytes" in note for note in decode.notes)
    assert not any("state of" in note for note in linear.notes)


def found(
    faster: str,
    head_dim: int = 64,
    *,
    shortest: int = 64,
    longest: int = 1 << 20,
    step: int = 64,
    launch: str = "stream",
) -> Crossover:
    question = replace(ENCODER, head_dim=head_dim, head_dim_v=head_dim)
    return crossover("flash", faster, question, A100, shortest=shortest, longest=longest, step=step, launch=launch)


def test_linear_overtakes_flash_where_theory_and_overheads_say() -> None:
    """Useful FLOPs are equal at N = d; bytes and launches move the crossover up, and by less than to 16 d.

    Launches move a narrow head's further than a wide one's, whose kernels take longer; by the kernels alone they are in
    order.
    """
    narrow, wide = (found("linear", head_dim, longest=8192) for head_dim in (64, 128))
    for one, head_dim in ((narrow, 64), (wide, 128)):
        assert one.seq_by_flops == head_dim
        assert one.seq is not None and head_dim < one.seq < 16 * head_dim
    narrow, wide = (found("linear", head_dim, longest=8192, launch="kernel") for head_dim in (64, 128))
    assert narrow.seq is not None and wide.seq is not None and narrow.seq <= wide.seq


def test_crossover_is_where_the_times_cross() -> None:
    one = found("efficient", longest=8192)
    assert one.seq is not None
    for seq, wins in ((one.seq, True), (one.seq - 64, False)):
        w = replace(ENCODER, seq_q=seq, seq_kv=seq)
        flash, fast = (predict(w, A100, name, baseline=False).time_s for name in ("flash", "efficient"))
        assert flash is not None and fast is not None
        assert (fast < flash) == wins
        assert not wins or fast == one.time_s


def test_crossover_at_the_ends_of_the_lengths() -> None:
    assert found("performer", longest=1024).seq is None
    assert found("linear", shortest=8192, longest=16384).seq == 8192
    with pytest.raises(InputError, match="lengths are 64 to 32"):
        found("linear", longest=32)


def test_the_taps_of_a_convolution_are_read_from_memory_once() -> None:
    """Four 16-bit taps a channel, the same for every chunk and sequence; they were counted anew for each."""
    w = Workload(2, 16, 4096, 128, mask=Mask.causal())
    (kernel,) = find_implementation("causal-conv1d.triton").build(w, load_gpu("h100-sxm5-80gb"), None).kernels
    taps = next(use for use in kernel.uses if use.tensor == "taps")
    assert taps.unique_bytes == 16 * 128 * 4 * 2
    assert kernel.requested()["load", "taps"] == taps.unique_bytes * 2 * 4096 // 8
