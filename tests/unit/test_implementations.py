"""Names of implementations: old and new, versions, page sizes, and the command that finds the right one."""

from __future__ import annotations

import json
import re

import pytest

from attnsim.api.tables import predict_case
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation, match
from attnsim.models.implementations.implementation import facts
from attnsim.models.implementations.registry import check_pages
from attnsim.models.question.case_row import parse_row

ROW = {"gpu": "h100-sxm5-80gb", "batch": "1", "heads_q": "8", "seq_q": "1024", "head_dim": "128", "causal": "1"}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_name_is_a_library_and_a_kernel_and_no_other_record_has_it(name: str) -> None:
    one = IMPLEMENTATIONS[name]
    assert re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", one.name)
    assert one.calls or one.library == "ideal", "which call launches it?"
    for known in (one.name, *one.aliases):
        assert known.endswith("*") or find_implementation(known) is one


def test_the_file_of_records_has_those_that_are_built_and_no_others() -> None:
    assert set(facts()) == set(IMPLEMENTATIONS)


@pytest.mark.parametrize(
    ("name", "version", "found", "taken"),
    [
        ("vllm.flash-attn-3@0.24", "", "vllm.flash-attn-3", ""),
        ("vllm_flash_attn", "vllm 0.14.0", "vllm.flash-attn-2", ""),
        ("vllm.flash-attn-2@0.11", "", "vllm.flash-attn-2", "version 0.14 taken for 0.11"),
        ("flash_attn", "", "flash-attn.2", ""),
        ("flash_attn", "1.0.9", "flash-attn.1", ""),
        ("flash-attn", "3.0.0b1", "flash-attn.3", ""),
        ("flash_attn", "2.5.6", "flash-attn.2", "version 2.8.3 taken for 2.5.6"),
        ("flash_attn_v2", "vllm 0.24.0", "flash-attn.2", "taken for vllm 0.24.0"),
        ("nvidia.cudnn@9.1", "", "nvidia.cudnn", ""),
        ("cudnn_8.9", "", "nvidia.cudnn", "version 9.1 taken for 8.9"),
        ("fa3_no_gemm_softmax_pipelining", "", "flash-attn.3", "flash-attn.3 taken for fa3_no_gemm"),
        ("attnsim.flash", "9f3a71", "attnsim.flash", "taken for 9f3a71"),
    ],
)
def test_a_name_is_matched_by_alias_then_by_library_and_nearest_version(
    name: str, version: str, found: str, taken: str
) -> None:
    told = match(name, version)
    assert told.record.name == found
    assert taken in told.taken if taken else told.taken == ""


def test_what_follows_an_at_sign_is_a_number_where_there_is_one_to_choose_and_a_version_elsewhere() -> None:
    assert find_implementation("performer_pytorch@64").name == "performer-pytorch.eager@64"
    assert find_implementation("flash-attn.2@2.8") is find_implementation("flash-attn.2")


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("flash-atn.2", "", "nearest: flash-attn.2"),
        ("natten", "", "name one of its kernels: "),
        ("flash-attn.2@new", "", "write a version such as 0.24"),
        ("torch.eager@3", "", "no number to choose and no versions"),
        ("flash-attn.2", "newest", "write numbers, such as 2.8.3"),
    ],
)
def test_what_no_name_or_version_is_is_said_in_one_line(name: str, version: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as error:
        match(name, version)
    assert "\n" not in str(error.value)


def test_a_row_says_which_version_was_taken() -> None:
    answer = predict_case(parse_row(ROW | {"implementation": "flash_attn", "version": "3.1"}))
    assert (answer["used_implementation"], answer["error"]) == ("flash-attn.3", "")
    assert "flash-attn.3 of version 3.0 taken for 3.1" in str(answer["trust"])
    unnamed = predict_case(parse_row(ROW | {"version": "2.8.3"}))
    assert "flash-attn.3 of version 3.0 taken for 2.8.3" in str(unnamed["trust"])
    assert "write numbers" in str(predict_case(parse_row(ROW | {"version": "latest"}))["error"])


def test_a_page_size_is_that_of_the_implementation_or_refused() -> None:
    paged = ROW | {"implementation": "vllm_flash_attn_fa3", "page_size": "64"}
    assert predict_case(parse_row(paged))["error"] == ""
    assert predict_case(parse_row(paged | {"page_size": "256"}))["error"] == ""
    odd = str(predict_case(parse_row(paged | {"page_size": "24"}))["error"])
    assert "vllm.flash-attn-3 takes pages of 16 or more, multiples of 16, keys" in odd
    listed = ROW | {"gpu": "b200", "implementation": "vllm.trtllm-gen", "page_size": "48"}
    assert "takes pages of 16, 32, 64 keys" in str(predict_case(parse_row(listed))["error"])
    chosen = predict_case(parse_row(ROW | {"page_size": "64"}))
    assert (chosen["used_implementation"], chosen["error"]) == ("vllm.flash-attn-3", "")
    whole = str(predict_case(parse_row(ROW | {"implementation": "flash-attn.1", "page_size": "64"}))["error"])
    assert "flash-attn.1 has no page table" in whole and "vllm.flash-attn-2" in whole
    check_pages(IMPLEMENTATIONS["flash-attn.3"], None)


def run(capsys: pytest.CaptureFixture[str], *flags: str, fails: bool = False) -> str:
    assert main(["implementations", *flags]) == (2 if fails else 0)
    out, err = capsys.readouterr()
    return err if fails else out


def test_the_command_finds_what_a_call_launches_and_whose_code_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = "torch.nn.functional.scaled_dot_product_attention"
    found = json.loads(run(capsys, "--for", call, "--json"))
    assert {one["implementation"] for one in found} == {
        "torch.sdpa", "torch.sdpa-flash", "torch.sdpa-efficient", "torch.sdpa-cudnn", "torch.sdpa-math",
        "torch.sdpa-math-16bit", "torch.sdpa-flash-1",
    }  # fmt: skip
    assert [one["implementation"] for one in json.loads(run(capsys, "--for", call, "--gpu", "v100-sxm2-32gb", "--json"))
            ] == ["torch.sdpa-math", "torch.sdpa-efficient", "torch.sdpa-math-16bit", "torch.sdpa"]  # fmt: skip
    monkeypatch.setattr("attnsim.cli.show.WIDTH", 80)
    text = run(capsys, "--for", "flash_mla.flash_mla_with_kvcache", "--pass", "decode")
    assert "deepseek-ai/FlashMLA" in text and max(map(len, text.splitlines())) <= 80
    everything = run(capsys)
    assert all(name in everything for name in IMPLEMENTATIONS) and max(map(len, everything.splitlines())) <= 80


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--for", "flash_attn_funk"), "nearest: flash_attn_func"),
        (("--pass", "decoding"), "nearest: decode"),
        (("--gpu", "v100-sxm2-32gb", "--for", "flash_mla"), "nearest: flashmla.dense (sm_90"),
    ],
)
def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str) -> None:
    text = run(capsys, *flags, fails=True)
    assert said in text and text.count("\n") == 1


def test_two_versions_of_one_row_are_refused() -> None:
    with pytest.raises(InputError, match=r"'flash-attn\.2@2\.8' and version '2\.7' name two versions"):
        match("flash-attn.2@2.8", "2.7")
    assert match("flash-attn.2@2.8", "2.8").record.name == "flash-attn.2"
