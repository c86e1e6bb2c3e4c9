"""benchmarks/peers.py: which rows it asks, what it says of a tool that is not there, and the sums of its table."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.sources import BATCHES, batch_sources, role_of, sources
from benchmarks import peers

ROWS = peers.rows()


class Off(peers.Tool):
    """Off by a share, on rows of one chapter."""

    def __init__(self, name: str, share: float, chapter: str) -> None:
        self.name, self.share, self.chapter = name, share, chapter

    def ask_s(self, row: Row) -> float | None:
        return (1 + self.share) * row.measured_s if peers.kind(row) == self.chapter else None


def test_no_number_rests_on_a_row_and_every_chapter_has_some() -> None:
    assert {peers.kind(row) for row in ROWS} == {*peers.CHAPTERS}
    for row in ROWS:
        source = row.case.source
        role = role_of(source) if source in sources() else batch_sources()[source].role
        assert role in (("test", "strangers") if peers.kind(row) in ("prefill", "decode") else ("choose",))
        assert not source.startswith("aic_") and row.case.passes in ("fwd", "decode")


def test_a_tool_is_held_against_attnsim_on_the_rows_that_it_answers() -> None:
    some = [row for row in ROWS if peers.kind(row) in ("decode", "unfused")]
    lines = peers.compare([Off("attnsim", 0.1, "decode"), Off("other", -0.3, "decode"), Off("no", 0, "ragged")], some)
    assert [(line.chapter, line.tool) for line in lines] == [("decode", "attnsim"), ("decode", "other")]
    assert lines[1].rows == lines[1].of == sum(peers.kind(row) == "decode" for row in some)
    assert lines[1].errors == {"mean": 0.3, "median": 0.3, "p90": 0.3}
    assert lines[1].ours == {"mean": 0.1, "median": 0.1, "p90": 0.1}
    assert "| decode | attnsim | 36 of 36 | 10.0 % | 10.0 % | 10.0 % |  |  |  |" in peers.table(lines)


def test_a_line_more_has_the_rows_that_ran_a_tools_own_kernels() -> None:
    tool = Off("other", 0.3, "prefill")
    tool.kernels = {"hopper": ("flash-attn.3",), "": ("flash-attn.2",)}  # type: ignore[misc]
    some = [row for row in ROWS if peers.kind(row) == "prefill"]
    lines = peers.compare([Off("attnsim", 0.1, "prefill"), tool], some)
    assert [line.tool for line in lines] == ["attnsim", "other", "other, its own kernels"]
    third = [row for row in some if row.gpu.architecture == "hopper" and row.record.name == "flash-attn.3"]
    second = [row for row in some if row.gpu.architecture != "hopper" and row.record.name == "flash-attn.2"]
    assert lines[2].rows == len(third) + len(second) < lines[1].rows == lines[2].of and third and second


def test_roofline_is_flops_at_the_peak_or_bytes_at_the_bandwidth() -> None:
    prefill = next(row for row in ROWS if row.gpu.base_id == "a100-sxm4-80gb" and peers.kind(row) == "prefill")
    w = prefill.workload
    flops = 4 * w.batch * w.heads_q * w.head_dim * w.seq_q * (w.seq_q + 1) // (2 if w.mask.is_causal else 1)
    assert peers.Roofline().ask_s(prefill) == pytest.approx(flops / 312e12, rel=0.01)
    decode = next(row for row in ROWS if row.case.source == "vllm_fa_pr63")
    w = decode.workload
    moved = 2 * 2 * w.batch * w.head_dim * (w.heads_kv * w.seq_kv + w.heads_q)
    assert peers.Roofline().ask_s(decode) == pytest.approx(moved / 3.35e12, rel=0.01)


def test_a_tool_that_is_not_there_is_named_and_has_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPEWEAVE", str(tmp_path))
    before = peers.PAGE.read_text(encoding="utf-8")
    assert peers.main(["--write"]) == 1 and peers.PAGE.read_text(encoding="utf-8") == before
    assert "PipeWeave 55e0317 is not run: no checkout of github.com/zksainx/pipeweave" in capsys.readouterr().err
    assert peers.main(["--every", "200"]) == 0
    told = capsys.readouterr().out
    assert "| prefill | attnsim |" in told and "| roofline |" in told and "PipeWeave" not in told
    assert peers.block() == {}


def test_weights_are_read_without_running_what_a_pickle_names(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("weights/data.pkl", pickle.dumps({"model_state_dict": Path.cwd}))
    with pytest.raises(pickle.UnpicklingError, match="no part of a table of weights"):
        peers.read_weights(path)


def test_the_network_is_layers_with_a_normalisation_and_a_sigmoid() -> None:
    weights: dict[str, np.ndarray] = {}
    for layer in (0, 4, 8, 12):
        weights |= {f"network.{layer}.weight": np.eye(1), f"network.{layer}.bias": np.array([-0.25])}
        told = {"running_mean": 0.5, "running_var": 1 - 1e-5, "weight": 2.0, "bias": 1.0}
        weights |= {f"network.{layer + 2}.{name}": np.array([value]) for name, value in told.items()}
    x = 0.75
    for _ in range(3):
        x = 2 * (max(0, x - 0.25) - 0.5) + 1
    assert peers.sigmoid_of(np.array([0.75]), weights) == pytest.approx(1 / (1 + np.exp(0.25 - x)))


def test_skewed_decode_is_asked_as_its_lengths_are_and_cold() -> None:
    skewed = [row for row in ROWS if row.gpu.base_id == "rtx-pro-6000-server"]
    published = (BATCHES / "skewed_decode_rtx_pro_6000.csv").read_text(encoding="utf-8").splitlines()[3]
    assert {row.case.cache for row in skewed} == {"cold"} and len(skewed) == 327
    assert f"{3 * skewed[0].measured_s:.6g}" in published
