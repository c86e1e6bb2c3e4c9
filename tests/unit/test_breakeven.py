"""The density below which sparse attention pays, and the length from which on a fixed budget does."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attnsim
from attnsim.api import predict
from attnsim.api.comparing.breakeven import BreakEven, breakeven, crossover, verdict
from attnsim.api.comparing.densities import PATTERNS
from attnsim.cli.app import app
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from tests.unit.answering import refusal

A100, H100, B200 = "a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb"
HEADS = Workload(batch=1, heads_q=16, seq_q=1, head_dim=128)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["breakeven", "--gpu", H100, "--seq", "1024", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def ratio(row: BreakEven, blocks: int) -> float:
    """Sparse over dense time with so many blocks a row."""
    w = replace(HEADS, seq_q=row.at.seq, seq_kv=row.at.seq, mask=PATTERNS[row.pattern](blocks, row.block, Mask.full()))
    tile = row.at.tile.split(",")[0].replace(" ", "")
    time = predict(w, row.at.gpu, "sparse", implementation=row.at.sparse, tile=tile, baseline=False).time_s
    assert time is not None
    return time / row.at.dense_s


@pytest.mark.parametrize("sparse", ["attnsim.sparse", "flash-attn.4-sparse"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_below_the_density_sparse_is_faster_and_above_it_slower(pattern: str, sparse: str) -> None:
    (row,) = breakeven(HEADS, H100, [4096], pattern=pattern, tiles=["128x64"], sparse=[sparse])
    assert 0 < row.density < 1 and row.at.sparse_s <= row.at.dense_s
    most = 4096 // 64
    below = [ratio(row, max(1, round(row.density * most * part))) for part in (0.25, 0.5)]
    # Not all blocks: row tiles that are all alike may share their SMs better than those of which a few are masked.
    above = [ratio(row, round(most * (row.density + part * (1 - row.density)))) for part in (0.5, 0.9)]
    assert below[0] < below[1] < 1 < above[0] < above[1]


def test_the_range_of_the_density_is_where_the_ends_of_the_speedup_are_one() -> None:
    for row in breakeven(HEADS, H100, [8192]):
        assert 0 < row.density_low < row.density < row.density_high <= 1
        for point in row.points:
            assert point.speedup.low < point.speedup.value < point.speedup.high
            assert (point.speedup.low >= 1) == (point.density <= row.density_low)
            assert (point.speedup.high >= 1) == (point.density <= row.density_high)
            assert (point.sparse_s <= point.dense_s) == (point.density <= row.density)


def test_the_best_for_the_gpu_and_our_own_kernel_are_answered_where_they_differ() -> None:
    names = {gpu: [row.at.sparse for row in breakeven(HEADS, gpu, [1024])] for gpu in (A100, H100, B200)}
    assert names == {A100: ["attnsim.sparse"], H100: ["flash-attn.4-sparse", "attnsim.sparse"],
                     B200: ["attnsim.sparse"]}  # fmt: skip
    (wide,) = breakeven(replace(HEADS, head_dim=256, head_dim_v=256), H100, [1024])
    assert wide.at.sparse == "attnsim.sparse"


def test_in_blocks_of_its_tile_the_hopper_kernel_wins_and_in_finer_ones_it_does_not() -> None:
    fine, coarse = ({row.at.sparse: row for row in breakeven(HEADS, H100, [8192], block=size)} for size in (64, 128))
    assert fine["flash-attn.4-sparse"].density < fine["attnsim.sparse"].density
    assert coarse["flash-attn.4-sparse"].density > coarse["attnsim.sparse"].density
    assert coarse["flash-attn.4-sparse"].density > 1.5 * fine["flash-attn.4-sparse"].density
    told = [" ".join(verdict(list(rows.values()))) for rows in (fine, coarse)]
    assert "its tiles of 128 x 128; better are blocks as large as a tile" in told[0]
    assert "as flash-attn.4-sparse runs it on tiles of 128 x 128" in told[1] and "Visited for them" not in told[1]


def test_a_mask_of_ones_own_is_answered_beside_the_pattern() -> None:
    mask = Mask.parse("causal, random 10 % x128")
    question = replace(HEADS, heads_q=32, heads_kv=8, mask=mask)
    hopper, own = breakeven(question, H100, [16384], block=128)
    assert hopper.yours is not None and own.yours is not None
    asked = replace(question, seq_q=16384, seq_kv=16384)
    alone = predict(asked, H100, "sparse", baseline=False)
    dense = predict(replace(asked, mask=Mask.causal()), H100, baseline=False)
    assert hopper.yours.sparse_s == alone.time_s and hopper.yours.dense_s == dense.time_s == hopper.at.dense_s
    assert hopper.yours.density == pytest.approx(0.1, abs=0.01) and hopper.yours.mask == str(mask)
    assert hopper.yours.speedup.value > own.yours.speedup.value > 1
    assert Mask.parse(hopper.at.mask).is_causal
    (told,) = verdict([hopper, own])
    assert "Your mask shows 10" in told and "It pays: expect " in told


def test_causal_density_is_of_the_causal_pairs() -> None:
    (row,) = breakeven(replace(HEADS, mask=Mask.causal()), H100, [2048], pattern="window", tiles=["64x64"])
    mask = Mask.parse(row.at.mask)
    assert mask.is_causal
    assert row.density == pytest.approx(mask.visible_pairs(2048, 2048) / Mask.causal().visible_pairs(2048, 2048))


def test_a_row_says_whose_numbers_it_is_made_with() -> None:
    hopper, own = attnsim.breakeven(HEADS, H100, [1024])
    assert "no calibration of flash-attn.4-sparse on hopper; nearest: flash-attn.3 on hopper" in hopper.trust
    assert "no calibration of attnsim.sparse on hopper; nearest: flash-attn.2 on hopper" in own.trust
    assert all("flash-attn.3: its own numbers on hopper" in row.trust for row in (hopper, own))


def test_where_one_block_a_row_is_already_all_sparse_pays_or_never_does() -> None:
    (row,) = breakeven(HEADS, A100, [64])
    assert (row.at.mask, row.density, row.at.tiles, row.at.all_tiles) == ("full", 1.0, 1, 1)
    (never,) = breakeven(HEADS, H100, [768], pattern="bigbird", sparse=["attnsim.sparse"])
    assert (
        never.density == never.density_low == 0
        and never.at.sparse_s > never.at.dense_s
        and "random 1x64" in never.at.mask
    )
    assert "sparse attention does not pay, not even one block of 64 keys a row" in verdict([never])[0]


def sparse_over_dense(question: Workload, implementation: str, seq: int) -> float:
    """Ratio of times at a length."""
    w = replace(question, seq_q=seq, seq_kv=seq)
    sparse = predict(w, H100, "sparse", implementation=implementation, baseline=False).time_s
    dense = predict(replace(w, mask=Mask.full()), H100, baseline=False).time_s
    assert sparse is not None and dense is not None
    return sparse / dense


@pytest.mark.parametrize("mask", [Mask.longformer(), Mask.bigbird()], ids=str)
@pytest.mark.parametrize(
    ("implementation", "earliest", "latest"), [("attnsim.sparse", 2560, 5120), ("gather", 8192, 32768)]
)
def test_a_fixed_budget_crosses_dense_attention_once(
    mask: Mask, implementation: str, earliest: int, latest: int
) -> None:
    question = Workload(batch=1, heads_q=12, seq_q=1, head_dim=64, mask=mask)
    found = crossover("flash", f"sparse/{implementation}", question, H100, shortest=1024, longest=1 << 17, step=512)
    assert found.seq is not None and found.seq < latest
    ratios = [sparse_over_dense(question, implementation, seq) for seq in (1024, 8192, 32768, 131072)]
    # Our kernel runs on mma.sync: it visits half of 1,024 tokens, and its steps wait twice as long as those on wgmma.
    assert found.seq >= earliest and ratios[0] > 1
    wins = [ratio < 1 for ratio in ratios]
    assert wins == sorted(wins)  # it crosses once
    assert ratios[-2] / ratios[-1] == pytest.approx(4, rel=0.1)  # N against N squared


def test_a_crossover_that_does_not_come_is_none() -> None:
    question = Workload(batch=1, heads_q=12, seq_q=1, head_dim=64, mask=Mask.longformer())
    assert crossover("flash", "sparse/gather", question, H100, shortest=512, longest=1024, step=512).seq is None


def test_the_command_prints_a_row_for_each_gpu_length_and_tile(tmp_path: Path) -> None:
    out = tmp_path / "breakeven.png"
    shown = run("--gpu", A100, "--tile", "64x64,128x64", "--pattern", "window", "--plot", str(out), "-v")
    assert len([line for line in shown.splitlines() if line.split()[:1] == ["1024"]]) == 5
    assert "nearest: flash-attn.2 on hopper" in " ".join(shown.split())
    assert out.read_bytes()[:4] == b"\x89PNG"
    with out.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    even = [row for row in rows if row["kind"] == "break-even"]
    assert [row["gpu"] for row in even] == [H100, H100, H100, A100, A100]  # 64 x 64 is no tile of the Hopper kernel
    assert all(0 <= float(row["density_low"]) <= float(row["density"]) <= float(row["density_high"]) for row in even)
    curve = [row for row in rows if row["kind"] == "pattern" and row["gpu"] == A100]
    assert len(curve) >= 10 and all(float(row["low"]) < float(row["speedup"]) < float(row["high"]) for row in curve)
    assert attnsim.plot.rows("breakeven", breakeven(HEADS, A100, [1024]))[0].keys() <= rows[0].keys()


def test_a_changed_gpu_is_told_wherever_its_numbers_stand(tmp_path: Path) -> None:
    out = tmp_path / "breakeven.png"
    flags = ("--heads", "8", "--sparse", "attnsim.sparse", "--set", "tensor.bf16=2x")
    shown = " ".join(run(*flags, "--plot", str(out), "-v").split())
    change = "tensor.bf16 = 8192 FLOP/clk (was 4096 FLOP/clk)"
    assert shown.count(f"h100-sxm5-80gb with {change}") == 3  # above the table, in the verdict, beside the dense kernel
    (row,) = json.loads(run("--json", *flags))
    assert (row["gpu"], row["changes"]) == (H100, change)
    with out.with_suffix(".csv").open() as file:
        assert {one["changes"] for one in csv.DictReader(file)} == {change}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--seq", "4q"], "--seq: '4q' given; allowed: N"),
        (["--pattern", "windw"], "pattern is 'windw'; nearest: window"),
        (["--tile", "32x32"], "not 32 x 32"),
        (["--tile", "64x64", "--sparse", "flash-attn.4-sparse"], "has the tile 128 x 128 or 128 x 64, not 64x64"),
        (["--sparse", "flash-attn.3"], "flash-attn.3 does not run algorithm sparse"),
        (["--mask", "random 200 % x64"], "up to 100 % of the key blocks"),
        (["--plot", "x.gif"], "x.gif"),
        (["--block", "100000"], "block is 100000 tokens, more than the 1024 of the sequence"),
        (["--head-dim", "80"], "attnsim.sparse has head_dim 64, 128, 256"),
        (["--dense", "torch.baddbmm"], "torch.baddbmm does not run algorithm flash"),
    ],
)
def test_bad_flags_get_one_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    seq = [] if "--seq" in flags else ["--seq", "1024"]
    told = refusal(capsys, "breakeven", "--gpu", H100, *seq, *flags)
    assert said in told


def test_a_window_is_a_mask_of_ones_own() -> None:
    (row,) = breakeven(replace(HEADS, mask=Mask.sliding_window(512)), A100, [4096])
    assert row.yours is not None and row.yours.mask == "causal window 512" and Mask.parse(row.at.mask).is_causal
    with pytest.raises(InputError, match="block is 0"):
        breakeven(HEADS, A100, [1024], block=0)
