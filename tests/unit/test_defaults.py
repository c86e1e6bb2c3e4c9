"""Whose kernels a question gets where it names none: those whose times were checked on its pass, before others."""

from dataclasses import replace

import pytest

from attnsim.api import predict
from attnsim.api.tables import predict_case
from attnsim.models.calibrations.choose import checked, choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.mechanisms.choosing import default_implementation
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.workload import Workload

DECODE = Workload(batch=16, heads_q=64, heads_kv=8, seq_q=1, seq_kv=8192, head_dim=128, passes="decode",
                  mask=Mask.causal())  # fmt: skip
FORWARD = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
CALIBRATED = ("a100-sxm4-80gb", "h100-sxm5-80gb", "h200-sxm-141gb", "b200-sxm-180gb")


@pytest.mark.parametrize("name", CALIBRATED)
def test_decoding_gets_a_kernel_that_was_measured_decoding(name: str) -> None:
    gpu = load_gpu(name)
    record = default_implementation(MECHANISMS["flash"], DECODE, gpu)
    chosen = choose(record, gpu)
    assert chosen.own and chosen.calibration is not None and "decode" in chosen.calibration.domain.passes


def test_the_decode_call_of_a_known_model_is_validated_on_h100() -> None:
    found = predict(DECODE, "h100-sxm5-80gb", baseline=False)
    assert found.trust.level == "validated"
    library = predict(DECODE, "h100-sxm5-80gb", implementation="flash-attn.3", baseline=False)
    assert library.trust.level == "extrapolated" and library.trust.components["pass"] > 0


@pytest.mark.parametrize("name", CALIBRATED)
@pytest.mark.parametrize("passes", ["fwd", "bwd", "fwd+bwd"])
def test_other_passes_keep_the_library_itself(name: str, passes: str) -> None:
    record = default_implementation(MECHANISMS["flash"], replace(FORWARD, passes=passes), load_gpu(name))
    assert record.library == "flash-attn"


def test_without_a_calibration_the_best_comes_first() -> None:
    assert default_implementation(MECHANISMS["flash"], DECODE, load_gpu("rtx-5090")).name == "flash-attn.2"


def test_both_directions_count_as_checked_where_each_was() -> None:
    hopper, record = load_gpu("h100-sxm5-80gb"), IMPLEMENTATIONS["flash-attn.3"]
    assert all(checked(record, hopper, passes) for passes in ("fwd", "bwd", "fwd+bwd"))
    assert not checked(record, hopper, "decode") and not checked(record, load_gpu("a100-sxm4-80gb"), "fwd")


def test_patterns_run_the_kernel_of_the_gpu() -> None:
    w = replace(FORWARD, mask=Mask.parse("causal, random 10 % x128"))
    names = [default_implementation(MECHANISMS["sparse"], w, load_gpu(name)).name for name in CALIBRATED]
    assert names == ["attnsim.sparse", "flash-attn.4-sparse", "flash-attn.4-sparse", "attnsim.sparse"]
    few = replace(w, passes="decode", seq_q=1)
    wide = replace(w, head_dim=256, head_dim_v=256)
    for question in (few, wide):
        assert default_implementation(MECHANISMS["sparse"], question, load_gpu("h100-sxm5-80gb")).name == names[0]


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"page_size": 16, "seq_q": 4096}, "vllm.flash-attn-2"),
        ({"prefix": 1024, "seq_q": 1}, "flashinfer.cascade"),
        ({"tree": "-1 0 0", "seq_q": 3, "causal": 1}, "flashinfer.tree"),
    ],
)
def test_a_table_chooses_what_flags_choose_and_says_the_same(told: dict[str, object], name: str) -> None:
    shape = {"batch": 4, "heads_q": 32, "heads_kv": 8, "seq_kv": 4096, "head_dim": 128, "dtype": "fp16"}
    row = parse_row({"gpu": "a100-sxm4-80gb", **shape, **told})
    by_flags = predict(Workload(**shape, **told), "a100-sxm4-80gb", baseline=False)  # type: ignore[arg-type]
    by_row = predict_case(row)
    assert (by_row["used_implementation"], by_row["predicted_s"]) == (by_flags.implementation, by_flags.time_s)
    assert by_flags.implementation == name
