"""The question of latent attention, FlashMLA's scheduler, and the refusals."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from typer.testing import CliRunner

from attnsim.api import compare, predict
from attnsim.api.tables import predict_case
from attnsim.cli.app import app
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import runs_on
from attnsim.models.implementations.latent.records import RECORDS as MLA
from attnsim.models.implementations.latent.records import absorbing_pays
from attnsim.models.implementations.latent.tiles import flash_mla_pieces, split_requests
from attnsim.models.mask.mask import Mask
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.workload import Latent, Workload

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb")
DEEPSEEK = Workload(16, 128, 1, 192, 128, 8192, 128, passes="decode", latent=Latent(512, 64))
PREFILL = Workload(1, 128, 2048, 192, head_dim_v=128, mask=Mask.causal(), latent=Latent(512, 64))


def test_the_text_form_says_latent() -> None:
    assert "head_dim 192/128, latent 512x64, bf16" in str(DEEPSEEK)
    assert Latent.parse(" 512X64 ") == Latent(512, 64) == Latent.parse(str(Latent(512, 64)))


@pytest.mark.parametrize("text", ["", "512", "512x", "x64", "512x64x2", "-512x64", "5.5x64", "a x b", "0x64", "512x0"])
def test_other_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match="latent") as error:
        Latent.parse(text)
    assert "\n" not in str(error.value)


def test_a_latent_goes_with_one_key_head_a_query_head() -> None:
    with pytest.raises(InputError, match="leave it at heads_q = 8"):
        Workload(1, 8, 16, 192, heads_kv=2, latent=Latent(512, 64))
    with pytest.raises(InputError, match="must be smaller"):
        Workload(1, 8, 16, 64, latent=Latent(512, 64))


def test_cache_bytes() -> None:
    """B Nk (r + dr) e of a latent; 2 B Nk G d e of keys and values."""
    assert DEEPSEEK.kv_cache_bytes == 16 * 8192 * (512 + 64) * 2
    assert Workload(4, 32, 1, 128, 8, 1000, passes="decode").kv_cache_bytes == 2 * 4 * 1000 * 8 * 128 * 2
    assert Workload(4, 32, 1, 128, 1, 1000, 64, dtype="fp8").kv_cache_bytes == 4 * 1000 * (128 + 64)


def greedy(blocks: list[int], parts: int) -> list[list[tuple[int, int]]]:
    """FlashMLA's loop, request by request: (request, blocks) of each part."""
    payload = -(-sum(n + 5 for n in blocks) // parts) + 5
    found, request, done = [], 0, 0
    for _ in range(parts):
        room, own = payload, []
        while request < len(blocks):
            left = blocks[request] - done
            if room < left + 5:
                if room > 5:
                    own.append((request, room - 5))
                    done += room - 5
                break
            own.append((request, left))
            room, request, done = room - left - 5, request + 1, 0
        found.append(own)
    assert (request, done) == (len(blocks), 0)
    return found


@pytest.mark.parametrize("alike", [True, False])
def test_shares_are_those_of_the_scheduler(alike: bool) -> None:
    draw = random.Random(0)
    for _ in range(300):
        batch, parts = draw.choice([1, 2, 16, 100, 700]), draw.choice([1, 13, 66, 132])
        blocks = [draw.randint(1, 300)] * batch if alike else [draw.randint(1, 300) for _ in range(batch)]
        expected = [piece for own in greedy(blocks, parts) for piece in own]
        pieces = flash_mla_pieces(blocks, parts)
        assert sorted((piece.request, piece.blocks) for piece in pieces) == sorted(expected)
        cut = Counter(request for request, _ in expected)
        assert split_requests(pieces) == Counter(count for count in cut.values() if count > 1)
        assert all(piece.whole == (cut[piece.request] == 1) for piece in pieces)
        assert Counter(piece.request for piece in pieces if piece.ends) == Counter(range(batch))


def test_the_form_with_fewer_flops_is_the_default() -> None:
    assert absorbing_pays(DEEPSEEK) and not absorbing_pays(PREFILL)
    for gpu, decode, prefill in (
        ("h100-sxm5-80gb", "flashmla.dense", "vllm.mla-flash-attn-3"),
        ("b200-sxm-180gb", "cutlass.mla", "vllm.mla-flash-attn-4"),
        ("a100-sxm4-80gb", "sglang.triton-mla-absorbed", "vllm.mla-flash-attn-2"),
    ):
        assert predict(DEEPSEEK, gpu, "mla", baseline=False).implementation == decode
        assert predict(PREFILL, gpu, "mla", baseline=False).implementation == prefill


def test_both_forms_can_be_asked_for() -> None:
    answers = compare(
        DEEPSEEK, "h100-sxm5-80gb", ("naive", "mla"), implementation=("flashmla.dense", "vllm.mla-flash-attn-3")
    )
    naive, absorbed, decompressed = answers
    assert (absorbed.implementation, decompressed.implementation) == ("flashmla.dense", "vllm.mla-flash-attn-3")
    assert naive.workload.latent is None and absorbed.workload.latent
    assert absorbed.time_s and decompressed.time_s and naive.time_s
    assert 10 * absorbed.time_s < decompressed.time_s, "decompressing the cache at every token"
    assert absorbed.speedup_vs_naive == pytest.approx(naive.time_s / absorbed.time_s)
    assert absorbed.flops_useful == decompressed.flops_useful
    json.dumps([answer.to_dict() for answer in answers])


def test_serving_calls_leave_the_projections_out_and_say_so() -> None:
    answer = predict(DEEPSEEK, "h100-sxm5-80gb", "mla", implementation="sglang.fa3-mla", baseline=False)
    assert any("W_UK" in note for note in answer.notes)
    whole = {record.name for record in MLA if record.form != "attention"}
    for record in MLA:
        gpu = next(gpu for gpu in GPUS if runs_on(record, load_gpu(gpu)))
        answer = predict(DEEPSEEK, gpu, "mla", implementation=record.name, baseline=False)
        names = {name for name, _ in answer.kernels}
        assert bool(names & {"absorb_q", "decompress"}) == (record.name in whole), record.name


@pytest.mark.parametrize(
    ("w", "implementation", "message"),
    [
        (Workload(1, 8, 1, 192, head_dim_v=128, seq_kv=64, passes="decode"), None, "needs a latent"),
        (Workload(1, 8, 64, 192, head_dim_v=128, passes="bwd", latent=Latent(512, 64)), None, "no bwd kernels"),
        (
            Workload(1, 8, 1, 192, 8, 64, 128, passes="decode", latent=Latent(256, 64)),
            "flashmla.dense",
            "512x64, not 256x64",
        ),
        (
            Workload(1, 8, 64, 192, mask=Mask.sliding_window(9), latent=Latent(512, 64)),
            "sglang.fa3-mla",
            "no sliding window",
        ),
    ],
)
def test_what_nobody_plays_is_refused(w: Workload, implementation: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        predict(w, "h100-sxm5-80gb", "mla", implementation=implementation)


def test_no_tile_can_be_chosen() -> None:
    with pytest.raises(InputError, match="leave"):
        predict(DEEPSEEK, "h100-sxm5-80gb", "mla", tile="64x64")


def test_a_case_table_carries_the_latent_in_its_options() -> None:
    cells = {
        "gpu": "h100-sxm5-80gb", "algorithm": "mla", "pass": "decode", "dtype": "bf16", "batch": "16",
        "heads_q": "128", "heads_kv": "128", "seq_q": "1", "seq_kv": "8192", "head_dim": "192", "head_dim_v": "128",
        "causal": "1", "cache": "warm",
    }  # fmt: skip
    answers = [predict_case(parse_row(cells | {"options": text})) for text in ("latent=512x64", "latent=512", "")]
    assert answers[0]["used_implementation"] == "flashmla.dense" and answers[0]["error"] == ""
    assert "write rank x width" in str(answers[1]["error"])
    assert "needs a latent" in str(answers[2]["error"])


def test_the_command_takes_a_latent() -> None:
    question = "predict --gpu h100-sxm5-80gb --heads 128 --head-dim 192 --head-dim-v 128 --seq 8192 --pass decode"
    result = CliRunner().invoke(app, [*question.split(), "--latent", "512x64", "--json"])
    naive, latent = json.loads(result.stdout)
    assert (naive["algorithm"], latent["algorithm"], latent["implementation"]) == ("naive", "mla", "flashmla.dense")
    assert latent["speedup_vs_naive"] == pytest.approx(naive["time_s"] / latent["time_s"])
    text = CliRunner().invoke(app, [*question.split(), "--latent", "512x64", "-v"]).stdout
    assert "latent 512x64" in text and "Only mla reads the latent" in " ".join(text.split())
