"""The study file: what is read, what is refused and how, and the points that axes make."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.mask.mask import Mask
from attnsim.studies.points import RATES, changed, counts, figures, point
from attnsim.studies.study_file import read_study, study_of
from tests.unit.answering import refusal

EXAMPLE = Path(__file__).parents[2] / "examples" / "study.yaml"
WORKLOAD = {"batch": 1, "heads_q": 8, "seq_q": 1024, "head_dim": 64}
PLAIN: dict[str, Any] = {"gpu": "a100-sxm4-80gb", "workload": WORKLOAD}


def study(**keys: Any) -> dict[str, Any]:
    return {**PLAIN, **keys}


def workload(**fields: Any) -> dict[str, Any]:
    return study(workload={**WORKLOAD, **fields})


def test_the_example_is_read() -> None:
    found = read_study(EXAMPLE)
    assert len(found) == 720
    assert [axis.column for axis in found.varying] == [
        "gpu", "hbm.bandwidth", "sm.count", "tensor.bf16", "algorithm", "shape", "batch",
    ]  # fmt: skip
    first = point(found.columns(0, 1), 0)
    assert first.workload().mask.is_causal and first.gpu() == load_gpu("h100-sxm5-80gb")


STEPS = {"from": "0.5x", "to": "2x", "steps": 9999}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "gpu is missing"),
    ({"gpu": "a100-sxm4-80gb"}, "workload is missing"),
    (study(gpus="a100"), "unknown key 'gpus'; nearest: gpu"),
    (study(gpu="a101"), "gpu: unknown GPU 'a101'"),
    (study(gpu=[]), "gpu is an empty list"),
    (study(gpu=["l4", "l4"]), "gpu names 'l4' twice"),
    (study(gpu=3), "gpu is 3"),
    (study(workload=3), "workload is 3; write fields"),
    (study(change=3), "change is 3"),
    (study(change={"hbm.bandwith": "6 TB/s"}), "change.hbm.bandwith: unknown key"),
    (study(change={"hbm.bandwidth": "6"}), "change.hbm.bandwidth is '6', which has no unit"),
    (study(change={"hbm.bandwidth": ["6 TB/s", "6 PB"]}), "change.hbm.bandwidth is '6 PB'"),
    (study(change={"hbm.bandwidth": ["2x", "6 TB/s"]}), "change.hbm.bandwidth mixes multiples with values"),
    (study(change={"hbm.bandwidth": ["6 TB/s", "6000 GB/s"]}), "change.hbm.bandwidth lists 6 TB/s twice"),
    (study(change={"hbm.bandwidth": []}), "change.hbm.bandwidth is an empty list"),
    (study(change={"hbm.bandwidth": None}), "change.hbm.bandwidth is None; write a value"),
    (study(change={"hbm.bandwidth": {"from": "1 TB/s"}}), "change.hbm.bandwidth.to is missing"),
    (study(change={"hbm.bandwidth": {"from": "1x", "to": "2x", "by": 3}}), "unknown key 'change.hbm.bandwidth.by'"),
    (study(change={"hbm.bandwidth": {"from": "1x", "to": "1x", "steps": 3}}), "change.hbm.bandwidth runs from 1 to 1"),
    (study(change={"hbm.bandwidth": {"from": "1x", "to": "2x", "steps": 1}}), "change.hbm.bandwidth.steps is 1"),
    (study(change={"hbm.bandwidth": {"from": "1x", "to": "2x"}}), "change.hbm.bandwidth is a range without steps"),
    (study(change={"sm.count": {"from": 100, "to": 102, "steps": 9}}), "sm.count.steps is 9, but the range holds 3"),
    (study(change={"hbm.latency": {"from": "0 clk", "to": "9 clk", "steps": 2, "scale": "log"}}), "on a log scale"),
    (study(change={"features.wgmma": "2x"}), "change.features.wgmma is '2x'"),
    (workload(seq_q=0), "workload.seq_q is 0; allowed: whole numbers from 1"),
    (workload(seq_q=True), "workload.seq_q is True"),
    (workload(heads_q=[8, "8q"]), "workload.heads_q is '8q'"),
    (workload(dtype="int8"), "workload.dtype is 'int8'; allowed: fp32, fp16"),
    (workload(mask="causl"), "workload.mask: mask 'causl'"),
    (workload(dropout="yes"), "workload.dropout is 'yes'"),
    (workload(head=8), "unknown key 'workload.head'; nearest: "),
    (workload(latent=[1]), "workload.latent is [1]"),
    (workload(dtype={"from": "fp16", "to": "fp32"}), "workload.dtype is a range"),
    (study(workload={"batch": 1, "heads_q": 8, "seq_q": 1024}), "workload.head_dim is missing"),
    (study(workload={"batch": 1, "heads_q": 8, "head_dim": 64}), "workload.seq_q is missing"),
    (workload(shape=["llama-9"]), "workload.shape: "),
    (workload(shape=[1]), "workload.shape is [1]"),
    (workload(shape={"a": {"batch": 2}}), "workload.batch is given and is a field of workload.shape too"),
    (workload(shape={"a": {"dtype": "bf16"}, "b": {"mask": "full"}}), "workload.shape: a and b have other fields"),
    (workload(shape={"a": {"seq": 2}}), "unknown key 'workload.shape.a.seq'"),
    (study(algorithm="flsh"), "algorithm: "),
    (study(implementation="flsh"), "implementation: "),
    (study(tile="1x1"), "tile: tile is 1x1"),
    (study(combine="zip"), "combine is 'zip'; allowed: 'cartesian', 'list', 'sobol'"),
    (study(points=8), "points is 8, but combine is cartesian"),
    (study(combine="sobol"), "points is missing"),
    (study(combine="sobol", points=12), "points is 12; a Sobol sample is balanced at powers of two: give 8 or 16"),
    (study(replays=3, method="replay"), "replays is 3, but method is replay"),
    (study(seed=-1), "seed is -1; allowed: 0 or more"),
    (study(combine="list", gpu=["l4", "l40s"], algorithm=["flash", "naive", "flash-2"]), "but gpu has 2 values and"),
    (study(change=dict.fromkeys(("sm.exp_rate", "l2.bandwidth", "hbm.bandwidth"), STEPS)), "1e+12 points; allowed"),
    (study(workload={"batch": 1, "heads_q": 8, "seq_q": 1, "head_dim": 64, "pass": "decode"}), "seq_kv is missing"),
    (study(tile="retuned", method="closed-form"), "tile retuned takes replays"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_a_wrong_study_is_refused_in_one_line_that_names_the_key(content: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        study_of(content)
    text = str(refused.value)
    assert said in text and "\n" not in text and len(text) < 500


def test_a_wrong_file_is_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(study(method="guess")))
    assert refusal(capsys, "sweep", str(wrong), "--out", str(tmp_path / "out")).startswith(
        "error: wrong.yaml: method is 'guess'; allowed: "
    )
    assert list(tmp_path.iterdir()) == [wrong]


def test_the_last_axis_varies_fastest() -> None:
    found = study_of(workload(seq_q=[512, 1024], head_dim=[64, 128]) | {"algorithm": ["flash", "naive"]})
    asked = [point(found.columns(0, len(found)), row) for row in range(len(found))]
    seen = [(item.algorithm, item.fields["seq_q"], item.fields["head_dim"]) for item in asked]
    assert seen == [(a, n, d) for a in ("flash", "naive") for n in (512, 1024) for d in (64, 128)]


def test_a_model_is_a_shape() -> None:
    fields = {"batch": 1, "seq_q": 4096, "shape": ["llama-3-8b", "mistral-7b", "bert-base"]}
    found = study_of(study(workload=fields))
    asked = [point(found.columns(0, 3), row).workload() for row in range(3)]
    assert [(w.heads_q, w.heads_kv, w.head_dim) for w in asked] == [(32, 8, 128), (32, 8, 128), (12, 12, 64)]
    assert [str(w.mask) for w in asked] == ["causal", "causal window 4096", "full"]
    fields = {"batch": 1, "seq_kv": 4096, "pass": "decode", "mask": "full", "shape": "llama-3-8b"}
    decode = study_of(study(workload=fields))
    assert point(decode.columns(0, 1), 0).workload().mask == Mask.full()


def test_lists_go_side_by_side() -> None:
    found = study_of(workload(seq_q=[512, 1024, 2048], batch=[4, 2, 1]) | {"combine": "list"})
    sizes = counts(found.columns(0, 3))
    assert list(zip(sizes["seq_q"], sizes["batch"], strict=True)) == [(512, 4), (1024, 2), (2048, 1)]


def test_a_log_range_of_lengths_has_the_powers_of_two() -> None:
    found = study_of(workload(seq_q={"from": 1024, "to": 131072, "steps": 8, "scale": "log"}))
    assert counts(found.columns(0, 8))["seq_q"].tolist() == [1024 << n for n in range(8)]


def test_a_sample_is_the_same_however_it_is_cut() -> None:
    keys = {
        "combine": "sobol",
        "points": 64,
        "seed": 7,
        "change": {"hbm.bandwidth": {"from": "1 TB/s", "to": "4 TB/s"}},
    }
    found = study_of(workload(seq_q={"from": 512, "to": 65536, "scale": "log"}) | keys)
    whole = found.columns(0, 64).columns
    cut = [found.columns(first, first + 8).columns for first in range(0, 64, 8)]
    for name in ("seq_q", "hbm.bandwidth"):
        assert np.concatenate([part[name].array() for part in cut]).tolist() == whole[name].array().tolist()
    lengths = np.log2(whole["seq_q"].array())
    in_quarters = np.histogram(lengths, bins=np.linspace(9, 16, 5))[0]
    assert (abs(in_quarters - 16) <= 1).all()  # balanced: a (0, m, s)-net, up to rounding to whole tokens
    assert study_of({**workload(seq_q={"from": 512, "to": 65536}), **keys, "seed": 8}).digest() != found.digest()


def test_points_far_into_a_large_study_cost_what_the_first_do() -> None:
    ranges = {
        key: {"from": "0.5x", "to": "2x", "steps": 1000} for key in ("hbm.bandwidth", "l2.bandwidth", "sm.exp_rate")
    }
    found = study_of(study(change=ranges))
    assert len(found) == 10**9
    last = found.columns(10**9 - 5, 10**9)
    assert last.columns["sm.exp_rate"].codes.tolist() == [995, 996, 997, 998, 999]


def test_queries_of_a_decode_call_may_be_left_out() -> None:
    fields = {"batch": 1, "heads_q": 8, "head_dim": 64, "seq_kv": [512, 1024], "pass": ["decode", "fwd"]}
    found = study_of(study(workload=fields))
    points = found.columns(0, 4)
    asked = [point(points, row).workload() for row in range(4)]
    assert [(w.seq_q, w.seq_kv, w.passes) for w in asked] == [
        (1, 512, "decode"), (512, 512, "fwd"), (1, 1024, "decode"), (1024, 1024, "fwd"),
    ]  # fmt: skip
    assert counts(points)["seq_q"].tolist() == [w.seq_q for w in asked]


FACTORS = st.floats(0.5, 2.0).map(lambda value: round(value, 3))


@settings(max_examples=30, deadline=None)
@given(
    keys=st.permutations(RATES).map(lambda names: names[:4]),
    factors=st.lists(FACTORS, min_size=4, max_size=4),
    seed=st.booleans(),
)
def test_columns_of_figures_are_those_of_single_gpus(keys: list[str], factors: list[float], seed: bool) -> None:
    """What `figures` does for arrays, `Gpu.replace` does for one GPU: followers, rounding and order of changes."""
    gpu = load_gpu("h100-sxm5-80gb" if seed else "a100-sxm4-80gb")
    some = [key for key in keys if not key.endswith(("fraction", "share")) and gpu.get(key)]  # none above 1, nor of 0
    made = {key: f"{factor}x" for key, factor in zip(some, factors, strict=False)}
    found = study_of(study(gpu=gpu.id, change=made))
    points = found.columns(0, 1)
    columns = figures(points)
    single = changed(gpu, point(points, 0).changes)
    for key in RATES:
        assert columns[key][0] == pytest.approx(single.get(key), rel=1e-12), key


def test_every_figure_can_be_an_axis() -> None:
    for key, field in FIELDS.items():
        values = [True, False] if field.unit == "bool" else ["1x", "0.9x"]
        if field.read == "nobody":
            with pytest.raises(InputError, match=f"change.{key}: {key} is read by no prediction"):
                study_of(study(change={key: values}))
        else:
            assert len(study_of(study(change={key: values}))) == 2


def test_lengths_are_an_axis_of_replays(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    text = (
        "gpu: a100-sxm4-80gb\nalgorithm: flash\nimplementation: vllm.flash-attn-2\nmethod: replay\n"
        "workload:\n  pass: decode\n"
        "  heads_q: 8\n  head_dim: 64\n  lengths: ['lognormal 8 median 200 sigma 1', '1:9 x 3, 1:70']\n"
    )
    path.write_text(text)
    points = counts(read_study(path).columns(0, 2))
    assert points["batch"].tolist() == [8, 4] and points["seq_kv"][1] == 70
    path.write_text(text.replace("replay", "auto"))
    with pytest.raises(InputError, match=r"workload\.lengths takes replays; write method: replay"):
        read_study(path)
