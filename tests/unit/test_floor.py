"""The floor of a call: what it is made of, where it is shown, and that no range reaches below it."""

import csv
import json
import re
from dataclasses import replace

import pytest

import attnsim
from attnsim.api import answer as answers
from attnsim.api.answering import answer
from attnsim.api.asking import read_conditions
from attnsim.api.bounds import BEYOND, LEAST_ROWS, TABLE, Fastest, fastest, floor_s
from attnsim.cli import main
from attnsim.models.closed_forms.useful import softmax
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.validation.measured.datasets import published_rows
from benchmarks import fastest as record

H100 = attnsim.load_gpu("h100-sxm5-80gb")
PREFILL = attnsim.Workload(4, 32, 4096, 128)
DECODE = attnsim.Workload(64, 32, 1, 128, heads_kv=8, seq_kv=8192, passes="decode")


def floor(w: attnsim.Workload, name: str, cache: str = "warm", launch: str = "kernel") -> float:
    return floor_s(
        IMPLEMENTATIONS[name].build(w, H100, None), softmax(w), H100, read_conditions(cache=cache, launch=launch)
    )


def test_a_long_prefill_is_held_by_its_flops_at_boost_and_a_launch() -> None:
    flops, peak = 4 * 4 * 32 * 4096**2 * 128, 4096 * 132 * 1.98e9
    assert floor(PREFILL, "flash-attn.3") == pytest.approx(flops / peak)
    assert floor(PREFILL, "torch.baddbmm") == floor(PREFILL, "flash-attn.2") == floor(PREFILL, "flash-attn.3")
    assert floor(PREFILL, "flash-attn.3", launch="stream") == pytest.approx(flops / peak + 2.43e-6)
    assert floor(PREFILL, "flash-attn.3", launch="graph") == pytest.approx(flops / peak + 1.26e-6)


@pytest.mark.parametrize("name", ["flash-attn.3", "vllm.flash-attn-3"])
def test_a_decode_reads_its_cache_less_what_a_warm_l2_holds(name: str) -> None:
    """Of vLLM's call the cache, too, into which a kernel before has put the new tokens."""
    cache, l2 = 2 * 64 * 8 * 8192 * 128 * 2, 50 * 2**20
    assert floor(DECODE, name, "cold") * 3.35e12 == pytest.approx(cache, rel=1e-3)
    assert floor(DECODE, name, "cold") - floor(DECODE, name) == pytest.approx(l2 / 3.35e12)


def test_narrow_heads_are_held_by_their_exponentials() -> None:
    w = attnsim.Workload(4, 32, 4096, 16)
    assert floor(w, "flash-attn.3") == pytest.approx(4 * 32 * 4096**2 / (16 * 132 * 1.98e9), rel=0.01)


def test_no_published_time_that_a_fit_rests_on_lies_below_its_floor() -> None:
    for row in published_rows()[::25]:
        if row.case.algorithm == "flash":
            conditions = read_conditions(cache=row.case.cache, launch=row.case.launch)
            least = floor_s(row.schedule, softmax(row.workload), row.gpu, conditions)
            assert least < row.measured_s, row.case


def test_a_range_that_would_reach_below_the_floor_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attnsim.predict(PREFILL, H100, baseline=False)
    assert plain.time_s and plain.time_low_s and plain.floor_s and plain.floor_s < plain.time_low_s
    monkeypatch.setattr(answers, "fastest", lambda *_: None)
    monkeypatch.setattr(answers, "floor_s", lambda *_: 0.99 * plain.time_s)
    higher = attnsim.predict(PREFILL.with_passes("fwd"), H100, baseline=False, cache="cold")
    assert higher.time_low_s == pytest.approx(higher.floor_s) and not higher.notes
    monkeypatch.setattr(answers, "floor_s", lambda *_: 2 * plain.time_s)
    below = attnsim.predict(PREFILL, H100, baseline=False, launch="graph")
    answer.cache_clear()  # others may ask the same
    assert below.time_low_s == below.time_s and "below its floor" in below.notes[-1]


def test_predict_and_explain_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--gpu", H100.id, "--heads", "32", "--seq", "4096", "--head-dim", "128"]
    assert main(["predict", *words, "--algorithm", "flash", "-v"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "floor" in told and re.search(
        r"of its floor: flash 0\.\d\d; measured calls of fwd on h100-sxm5-80gb: at", told
    )
    assert main(["explain", "flash", *words]) == 0
    told = capsys.readouterr().out
    assert "which no schedule undercuts" in told
    assert "on h100-sxm5-80gb in this pass the nearest of" in told
    assert main(["predict", *words, "--algorithm", "flash", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert 0 < found["floor_s"] < found["time_low_s"]
    nearest = fastest(H100, "fwd")
    assert nearest and found["best_share"] == nearest.share


def test_compulsory_bytes_have_the_rest_of_a_cache_that_is_written_in_part() -> None:
    moved = IMPLEMENTATIONS["vllm.flash-attn-3"].build(DECODE, H100, None).compulsory()
    for tensor in ("K", "V"):
        read, put = moved["flash_fwd", "load", tensor], moved["cache_write", "store", tensor]
        assert read + put == 64 * 8 * 8192 * 128 * 2 and put == 64 * 8 * 128 * 2


def test_best_shares_are_those_of_the_published_rows() -> None:
    """Of two chips, row by row anew; `python benchmarks/fastest.py --write`."""
    chips = ("h20", "l40s")
    lines, left = record.best(row for row in record.measured() if row.gpu.base_id in chips)
    with TABLE.open(encoding="utf-8", newline="") as file:
        committed = list(csv.DictReader(file))
    assert lines == [row for row in committed if row["gpu"] in chips] and not left
    assert all(0 < float(row["share"]) <= 1 and int(row["rows"]) > 0 for row in committed)


def test_rows_below_their_floor_make_no_record() -> None:
    row = next(row for row in published_rows() if row.case.source == "fa3_fig5" and row.case.algorithm == "flash")
    quick = replace(row, case=replace(row.case, time_s=0.5 * record.share(row) * row.measured_s))
    lines, left = record.best([row, quick])
    assert [line["rows"] for line in lines] == ["1"] and len(left) == 1 and "2.00 of its floor" in left[0]


def test_a_record_is_of_many_rows_on_the_unchanged_chip() -> None:
    assert fastest(H100.replace("hbm.bandwidth", "4 TB/s"), "fwd") is None
    assert fastest(attnsim.load_gpu("t4"), "fwd") is None
    few = attnsim.load_gpu("h20")
    assert fastest(few, "fwd") is None and LEAST_ROWS > 12
    assert attnsim.predict(PREFILL, few, baseline=False).best_share is None


def test_an_answer_beyond_the_record_says_so_and_keeps_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attnsim.predict(DECODE, H100, baseline=False)
    assert plain.time_s and plain.floor_s and not any("nobody" in note for note in plain.notes)
    share = plain.floor_s / plain.time_s
    monkeypatch.setattr(answers, "fastest", lambda *_: Fastest(0.99 * share / BEYOND, 40, "a", "b", "c"))
    answer.cache_clear()
    beyond = attnsim.predict(DECODE, H100, baseline=False)
    answer.cache_clear()  # others may ask the same
    assert f"{share:.2f} of its floor; nobody has been this fast: the nearest of 40 measured" in beyond.notes[-1]
    assert (beyond.time_low_s, beyond.time_s, beyond.time_high_s) == (plain.time_low_s, plain.time_s, plain.time_high_s)
