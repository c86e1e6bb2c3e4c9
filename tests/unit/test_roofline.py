"""Ceilings and ridge points, and the picture: what it shows, refuses and leaves behind."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

import attnsim
from attnsim.api import Prediction
from attnsim.api.roofline import Level, Point, Roofline
from attnsim.models.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.plots.roofline import roofline as picture_of
from attnsim.plots.roofline_data import entries, machines
from attnsim.plots.styles import STYLES, find_style

H100, A100 = load_gpu("h100-sxm5-80gb"), load_gpu("a100-sxm4-80gb")


PREDICTED = attnsim.predict(attnsim.Workload(1, 8, 1024, 128), H100, "flash")
ROUND: dict[str, Any] = {
    "algorithm": "flash", "implementation": "flash-attn.3", "time_s": 1e-3, "flops_useful": 600 * 10**9,
    "hbm_read_bytes": 2e8, "hbm_write_bytes": 1e8, "l2_bytes": 3e9, "smem_bytes": 9e9, "time_low_s": None,
    "time_high_s": None, "bound": None,
}  # fmt: skip


def answer(**fields: Any) -> Prediction:
    """A prediction in round numbers."""
    return replace(PREDICTED, **ROUND | fields)


NAIVE = answer(algorithm="naive", implementation="torch.baddbmm", time_s=8e-3, hbm_read_bytes=2e10, l2_bytes=3e10)
ANSWERS = [answer(), NAIVE]


def test_ceilings_are_the_datasheets() -> None:
    roofline = Roofline(H100, "bf16", 512)
    assert roofline.ceiling("tensor") == pytest.approx(989.4e12, rel=1e-3)
    assert roofline.ceiling("exp") == pytest.approx(132 * 16 * 1.83e9 * 512)
    assert roofline.ceiling("fp32") == H100.fp32_flops_per_s
    assert roofline.bandwidth("hbm") == pytest.approx(3.35e12)


def test_ridge_points() -> None:
    roofline = Roofline(H100, "bf16", 512)
    assert roofline.ridge("hbm") == pytest.approx(295, rel=0.01)
    assert roofline.ridge("l2") == pytest.approx(989.4 / 9.7, rel=0.01)
    assert roofline.ridge("hbm", "fp32") == pytest.approx(roofline.ceiling("fp32") / 3.35e12)
    assert Roofline(A100, "fp16", 256).ridge("hbm") == pytest.approx(312 / 2.039, rel=0.01)


def test_at_head_dim_64_the_exponentials_are_as_high_a_ceiling_as_the_tensor_cores() -> None:
    assert Roofline(H100, "bf16", 256).ceiling("exp") == Roofline(H100, "bf16", 256).ceiling("tensor")


def test_what_kernels_reach_lies_below_the_datasheet() -> None:
    for diagonal in Roofline(A100, "bf16", 512).diagonals:
        assert 0.3 * diagonal.bytes_per_s < diagonal.achievable_bytes_per_s <= diagonal.bytes_per_s
    tensor = Roofline(H100, "bf16", 512).ceilings[0]
    assert tensor.achievable_flops_per_s is not None
    assert 0.6 * tensor.flops_per_s < tensor.achievable_flops_per_s <= tensor.flops_per_s


def test_shared_memory_and_mma_sync_have_roofs_of_their_own() -> None:
    roofline = Roofline(H100, "bf16", 512)
    assert roofline.bandwidth("smem") == pytest.approx(132 * 128 * 1.83e9)  # 128 B/clk/SM
    assert roofline.ceiling("mma_sync") == pytest.approx(0.629 * roofline.ceiling("tensor"), rel=0.01)


@pytest.mark.parametrize(
    ("intensities", "limit"),
    [
        ({"hbm": 10.0, "l2": 9.0}, "hbm"),
        ({"hbm": 1e4, "l2": 20.0}, "l2"),
        ({"hbm": 1e4, "l2": 1e3}, "tensor"),
    ],
)
def test_the_lowest_roof_counts(intensities: dict[Level, float], limit: str) -> None:
    roofline = Roofline(H100, "bf16", 512)
    rate, name = roofline.roof(intensities)
    assert name == limit
    assert rate == min(roofline.ceiling("tensor"), *(roofline.bandwidth(level) * x for level, x in intensities.items()))


def test_at_few_flops_per_exponential_the_exponentials_are_the_roof() -> None:
    assert Roofline(H100, "bf16", 128).roof({"hbm": 1e4, "l2": 1e4})[1] == "exp"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Roofline(load_gpu("v100-sxm2-32gb"), "bf16", 512), "has no bf16 ceiling; it has fp16"),
        (lambda: Roofline(H100, "bf16", 0), "flops_per_exp is 0"),
        (lambda: Point("x", "hbm", 0.0, 1e12), "needs both above 0"),
    ],
)
def test_impossible_rooflines_are_refused(build: object, words: str) -> None:
    assert callable(build)
    with pytest.raises(InputError, match=words):
        build()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_and_its_table_are_written_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"roofline{suffix}"
    assert picture_of(ANSWERS, [H100]).write(out) == [out, tmp_path / "roofline.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["roofline.csv", f"roofline{suffix}"])
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert out.read_bytes().startswith(start)


def test_the_table_holds_what_is_drawn(tmp_path: Path) -> None:
    picture_of(ANSWERS, [H100, A100]).write(tmp_path / "r.svg")
    with (tmp_path / "r.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kinds = [row["kind"] for row in rows]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "ceiling": 8,
        "diagonal": 6,
        "ridge": 6,
        "point": 6,
    }
    first = next(row for row in rows if row["kind"] == "point" and row["level"] == "hbm")
    assert float(first["intensity_flop_per_byte"]) == pytest.approx(2000)
    assert float(first["flops_per_s"]) == pytest.approx(600e12)
    text = (tmp_path / "r.svg").read_text(encoding="utf-8")
    assert "<svg" in text


def test_a_call_that_does_not_fit_is_listed_not_drawn(tmp_path: Path) -> None:
    large = answer(algorithm="naive", time_s=None, hbm_read_bytes=None, hbm_write_bytes=None, l2_bytes=None)
    picture_of([*ANSWERS, large], [H100]).write(tmp_path / "r.png")
    rows = (tmp_path / "r.csv").read_text(encoding="utf-8").splitlines()
    assert sum("does not fit" in row for row in rows) == 1


def test_hypothetical_gpus_are_told_apart_by_their_changes() -> None:
    changed = H100.replace("hbm.bandwidth", "6 TB/s")
    drawn = machines([H100, changed], [answer(), answer(changes=changed.changes)])
    assert [machine.label for machine in drawn] == ["h100-sxm5-80gb", "h100-sxm5-80gb*"]
    assert [entry.machine for entry in entries(drawn, [answer(changes=changed.changes), answer()])] == [1, 0]


def test_the_workload_sets_format_and_flops_per_exponential() -> None:
    useful = 4 * 8 * 1024**2 * 64
    (machine,) = machines([H100], [answer(flops_useful=useful, workload=Workload(1, 8, 1024, 64, dtype="fp16"))])
    assert machine.roofline.dtype == "fp16"
    assert machine.roofline.flops_per_exp == 256


def test_a_measured_call_is_filled_beside_its_prediction(tmp_path: Path) -> None:
    one = answer(time_low_s=0.9e-3, time_high_s=1.2e-3)
    (entry,) = entries(machines([H100], [one]), [one], [1.25e-3])
    assert entry.measured_flops_per_s == pytest.approx(480e12)
    assert entry.interval_flops_per_s == pytest.approx((500e12, 600e9 / 0.9e-3))
    picture = picture_of([one], [H100], measured=[1.25e-3])
    picture.write(tmp_path / "r.svg")
    rows = list(csv.DictReader((tmp_path / "r.csv").read_text(encoding="utf-8").splitlines()))
    assert {row["measured_s"] for row in rows if row["kind"] == "point"} == {"0.00125"}
    assert "Filled: measured" in picture.caption
    with pytest.raises(InputError, match="2 measured times for 1 predictions"):
        entries(machines([H100], [one]), [one], [1e-3, 1e-3])


def test_an_arrow_leads_from_the_unchanged_gpu_to_the_hypothetical_one() -> None:
    changed = H100.replace("hbm.bandwidth", "6 TB/s")
    both = [answer(), answer(algorithm="naive"), answer(changes=changed.changes)]
    assert [entry.base for entry in entries(machines([H100, changed], both), both)] == [None, None, 1]
    figure = Figure()
    picture_of(both, [H100, changed]).on([figure.add_subplot()])
    assert sum(text.arrow_patch is not None and not text.get_text() for text in figure.axes[0].texts
               if isinstance(text, Annotation)) == 1  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("width", ["page", "column"])
def test_every_style_and_width_is_drawn(style: str, width: str, tmp_path: Path) -> None:
    picture_of(ANSWERS, [H100, A100]).write(tmp_path / "r.svg", style, width)
    text = (tmp_path / "r.svg").read_text(encoding="utf-8")
    assert find_style(style).colour(0).lower() in text.lower()
    inches = float(text.split('width="')[1].split("pt")[0]) / 72
    assert inches == pytest.approx(3.4 if width == "column" else 15.5)


def test_unknown_styles_and_latex_that_is_not_there_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="style 'pink' is not known; allowed: light, dark, print, latex"):
        find_style("pink")
    with pytest.raises(InputError, match="width 'wide'"):
        find_style("light", "wide")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="xelatex"):
        picture_of(ANSWERS, [H100]).write(tmp_path / "r.pgf")


@pytest.mark.parametrize("name", ["r.jpg", "r", "r.txt"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"allowed: \.png, \.svg, \.pdf"):
        picture_of(ANSWERS, [H100]).write(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        picture_of(ANSWERS, [H100]).write(tmp_path / "missing" / "r.png")


def test_a_folder_in_the_way_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "r.png").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        picture_of(ANSWERS, [H100]).write(tmp_path / "r.png")
    assert [path.name for path in tmp_path.iterdir()] == ["r.png"]


@pytest.mark.parametrize(("gpus", "words"), [([], "no GPU to draw"), ([A100], "not among the GPUs drawn")])
def test_gpus_and_predictions_must_match(tmp_path: Path, gpus: list[Gpu], words: str) -> None:
    with pytest.raises(InputError, match=words):
        picture_of(ANSWERS, gpus).write(tmp_path / "r.png")


def test_matplotlib_is_imported_only_to_draw() -> None:
    code = "import sys, attnsim.plots.roofline, attnsim.api.roofline; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
