"""What notebooks and frames show of predictions, GPUs and explanations."""

from __future__ import annotations

import html
import pickle
import re
from dataclasses import replace

import pytest

import attnsim
from attnsim.api.step import step
from attnsim.models.question.lengths import parse_lengths
from attnsim.models.question.workload import Tree
from attnsim.tables import Table
from attnsim.wording import beyond_text, spread_text

QUESTION = attnsim.Workload(heads_q=8, heads_kv=2, seq_q=1024, head_dim=64, mask=attnsim.Mask.causal())


@pytest.fixture(scope="module")
def found() -> attnsim.Answers:
    gpu = attnsim.load_gpu("a100-sxm4-80gb").replace({"hbm.bandwidth": "2x"})
    return attnsim.compare(QUESTION, gpu, ["naive", "flash"])


def test_a_frame_has_question_and_answer_as_plain_values(found: attnsim.Answers) -> None:
    frame = found.to_frame()
    assert list(frame["algorithm"]) == ["naive", "flash"] and list(frame["heads_kv"]) == [2, 2]
    assert list(frame["time_s"]) == [one.time_s for one in found] and set(frame["pass"]) == {"fwd"}
    assert set(frame["changes"]) == {"hbm.bandwidth = 4078 GB/s (was 2039 GB/s)"}
    assert frame["busy_tensor_s"].between(0, frame["time_s"]).all()
    assert list(found[1].to_frame().columns) == list(frame.columns)
    assert not any(isinstance(value, (dict, list, tuple)) for row in frame.to_dict("records") for value in row.values())


def test_a_row_says_all_of_its_question_and_which_sequences_decode() -> None:
    lengths = parse_lengths("1:4096 x 3, 512:512")
    mixed = attnsim.Workload(heads_q=8, head_dim=128, lengths=lengths, mask=attnsim.Mask.causal())
    draft = attnsim.Workload(
        batch=4, heads_q=8, seq_q=4, seq_kv=4096, head_dim=128, passes="decode", mask=attnsim.Mask.causal(),
        page_size=16, tree=Tree.parse("-1 0 0 1"),
    )  # fmt: skip
    for question, said in (
        (mixed, {"pass": "fwd", "decodes": 3, "lengths": "1:4096 x 3, 512:512", "tree": ""}),
        (draft, {"pass": "decode", "decodes": 0, "page_size": 16, "tree": "-1 0 0 1", "selection": ""}),
    ):
        row = attnsim.predict(question, "h100-sxm5-80gb", baseline=False).row()
        assert said.items() <= row.items()


def test_representations_are_short_and_say_the_answer(found: attnsim.Answers) -> None:
    text = repr(found[1])
    assert text.startswith("<Answer flash (flash-attn.2) on a100-sxm4-80gb; hbm.bandwidth = 4078 GB/s: ")
    assert "extrapolated" in text and len(text) < 200
    assert repr(found) == f"[{found[0]!r},\n {text}]"
    gpu = attnsim.load_gpu("a100-sxm4-80gb")
    assert repr(gpu) == "<Gpu a100-sxm4-80gb: ampere, 108 SMs, 80 GB, 2039 GB/s>"
    assert gpu.content() != gpu.replace("sm.exp_rate", "2x").content()


def test_tables_in_notebooks_hold_the_figures_and_escape_text(found: attnsim.Answers) -> None:
    explained = attnsim.explain(QUESTION, "a100-sxm4-80gb")
    for shown in (found, found[0], explained, attnsim.load_gpu("l4")):
        text = shown._repr_html_()
        assert len(re.findall("<tr>", text)) == len(re.findall("</tr>", text)) > 1
    rows = re.findall(r"<td>(.*?)</td>", found._repr_html_())
    assert rows[:2] == ["naive", "torch.baddbmm"] and "4078 GB/s" in rows[2]
    assert html.escape(explained.loop_nest) in explained._repr_html_()
    assert "<b>" not in Table("a <b>", [{"<b>": "<b>"}], remarks=["<b>"]).html


def test_answers_of_every_kind_are_sent_to_other_processes_and_shown_in_notebooks(found: attnsim.Answers) -> None:
    gpu = attnsim.load_gpu("h100-sxm5-80gb")
    layer = attnsim.layer("llama-3-8b", gpu, seq=4096)
    drawn = attnsim.predict(attnsim.Workload(batch=1, heads_q=8, seq_q=4096, head_dim=64), gpu, "performer@128")
    for one in (found[0], layer, step("llama-3-8b", gpu, "1:4096 x 4"), attnsim.energy(drawn, gpu)):
        assert pickle.loads(pickle.dumps(one)) == one
    assert pickle.loads(pickle.dumps(drawn)).to_dict() == drawn.to_dict()
    assert layer.to_frame().loc[0, "time_s"] == layer.time_s
    assert "<caption>a layer of llama-3-8b</caption>" in layer._repr_html_()


def test_studies_are_asked_at_the_top() -> None:
    decode = attnsim.Workload(batch=8, heads_q=32, heads_kv=8, seq_q=1, seq_kv=4096, head_dim=128, passes="decode")
    assert attnsim.sensitivity(decode, "h100-sxm5-80gb")[0].figure == "hbm.bandwidth"
    assert attnsim.trace(QUESTION, "a100-sxm4-80gb").kernels
    gpu = attnsim.load_gpu("a100-sxm4-80gb")
    assert attnsim.search_tiles(QUESTION, gpu).tiles
    space = attnsim.Space.read(gpu, ["sm.count=100:120:20"], [])
    assert len(attnsim.search_hardware(QUESTION, space).machines) == 2


@pytest.mark.parametrize(
    ("low", "high", "text"), [(0.94, 1.06, "±6 %"), (0.82, 1.22, "-18 to +22 %"), (1.0, 1.0, "±0 %")]
)
def test_a_range_in_words(low: float, high: float, text: str) -> None:
    assert spread_text(low, high) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (32768, "seq_q of 32,768 is twice the largest that was measured, 16,384"),
        (20000, "seq_q of 20,000 is 1.2 times the largest that was measured, 16,384"),
        (1 << 20, "seq_q of 1,048,576 is 64 times the largest that was measured, 16,384"),
        (256, "seq_q of 256 is half of the smallest that was measured, 512"),
    ],
)
def test_how_far_a_size_lies_outside(value: int, text: str) -> None:
    assert beyond_text("seq_q", value, 512, 16384) == text


def test_what_does_not_fit_has_the_names_of_an_answer_and_no_figures(found: attnsim.Answers) -> None:
    large = attnsim.predict(replace(QUESTION, batch=64, heads_q=64, heads_kv=64, seq_q=65536, seq_kv=65536), "l4")
    assert isinstance(large, attnsim.TooLarge) and not isinstance(found[0], attnsim.TooLarge)
    content = large.to_dict()
    assert content.keys() == found[1].to_dict().keys() and large.row().keys() == found[1].row().keys()
    unknown = {name for name, value in content.items() if value is None}
    assert {"time_s", "time_high_s", "floor_s", "waves", "clock_by", "speedup_vs_naive", "hbm_read_bytes"} <= unknown
    assert not unknown & {"gpu", "flops_useful", "peak_memory_bytes", "trust", "notes", "mode", "fits"}
    assert large.peak_memory_bytes > 24e9 and large.notes[0] == large.too_large and large.bound is None
    assert large.speedup_over(found[1]) is None and found[1].speedup_over(large) is None
    assert repr(large).startswith("<TooLarge flash (vllm.flash-attn-2) on l4: too large (-), ")
    with pytest.raises(AttributeError, match="'TooLarge' object has no attribute 'time_ms'"):
        large.time_ms  # noqa: B018


def test_answers_are_equal_where_question_and_figures_are() -> None:
    once, again, other = (attnsim.predict(QUESTION, gpu) for gpu in ("l4", "l4", "l40s"))
    assert once == again and once is not again and once != other
    assert once != attnsim.predict(QUESTION, "l4", baseline=False), "without a speedup over naive attention"
