"""Ceilings and ridge points, and the picture: what it shows, refuses and leaves behind."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

import attnsim
from attnsim.api.answer import Outcome
from attnsim.api.comparing.ratios import Ratio
from attnsim.api.roofline import Level, Point, Roofline
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.plots.roofline import roofline as picture_of
from attnsim.plots.roofline_data import entries, machines
from attnsim.plots.styles import find_style

H100, A100 = load_gpu("h100-sxm5-80gb"), load_gpu("a100-sxm4-80gb")


PREDICTED = attnsim.predict(attnsim.Workload(1, 8, 1024, 128), H100, "flash")
ROUND: dict[str, Any] = {
    "algorithm": "flash", "implementation": "flash-attn.3", "time_s": 1e-3, "flops_useful": 600 * 10**9,
    "hbm_read_bytes": 2e8, "hbm_write_bytes": 1e8, "l2_bytes": 3e9, "smem_bytes": 9e9, "time_low_s": None,
    "time_high_s": None, "busiest": None,
}  # fmt: skip


class Rounded(SimpleNamespace):
    """An answer whose names are set one by one."""

    def speedup_over(self, other: Any) -> Ratio | None:
        return Ratio.of(other.time_s, self.time_s, 0.1) if self.time_s and other.time_s else None


def answer(**fields: Any) -> Outcome:
    """A prediction in round numbers."""
    names = (name for name in dir(PREDICTED) if not name.startswith("_") and name != "speedup_over")
    same = {name: getattr(PREDICTED, name) for name in names}
    return cast(Outcome, Rounded(**same | ROUND | fields))


NAIVE = answer(algorithm="naive", implementation="torch.baddbmm", time_s=8e-3, hbm_read_bytes=2e10, l2_bytes=3e10)
ANSWERS = [answer(), NAIVE]


def test_ceilings_are_the_datasheets() -> None:
    roofline = Roofline(H100, "bf16", 512)
    assert roofline.ceiling("tensor") == pytest.approx(989.4e12, rel=1e-3)
    assert roofline.ceiling("exp") == pytest.approx(132 * 16 * 1.83e9 * 512)
    assert roofline.ceiling("fp32") == H100.fp32_flops_per_s
    assert roofline.bandwidth("hbm") == pytest.approx(3.35e12)


def test_the_roofs_of_the_sms_follow_a_changed_clock() -> None:
    """Else a call at the new clock lies above its own roof (1,195 over 989 TFLOP/s before)."""
    before, after = (Roofline(gpu, "bf16", 512) for gpu in (H100, H100.replace("clock.free", "1.5x")))
    for unit in ("tensor", "mma_sync", "fp32", "exp"):
        assert after.ceiling(unit) == pytest.approx(
            before.ceiling(unit) * 1.5 * 1863 / 1830
        )  # the datasheet's clock before
    assert after.bandwidth("hbm") == before.bandwidth("hbm")
    assert [
        {one.level: one.bytes_per_s for one in line.diagonals}["smem"] for line in (before, after)
    ] == pytest.approx([132 * 128 * 1.83e9, 132 * 128 * 1.5 * 1.863e9])
    held = Roofline(H100.replace("clock.sustained", "1.2 GHz"), "bf16", 512)
    assert held.ceiling("tensor") == pytest.approx(before.ceiling("tensor") * 1200 / 1830)


def test_ridge_points() -> None:
    roofline = Roofline(H100, "bf16", 512)
    assert roofline.ridge("hbm") == pytest.approx(295, rel=0.01)
    assert roofline.ridge("l2") == pytest.approx(989.4 / 9.7, rel=0.01)
    assert roofline.ridge("hbm", "fp32") == pytest.approx(roofline.ceiling("fp32") / 3.35e12)
    assert Roofline(A100, "fp16", 256).ridge("hbm") == pytest.approx(312 / 2.039, rel=0.01)


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


def test_the_caption_says_whose_kernels_run_each_algorithm() -> None:
    """The name of an algorithm hides whose; where GPUs have different ones, the caption says which has which."""
    one = answer(algorithm="flash", implementation="flash-attn.3")
    assert "flash is flash-attn.3." in picture_of([one], [H100]).caption
    other = answer(algorithm="flash", implementation="flash-attn.2", gpu="a100-sxm4-80gb")
    both = picture_of([one, other], [H100, load_gpu("a100-sxm4-80gb")]).caption
    assert f"flash is flash-attn.3 on {one.gpu}, flash-attn.2 on a100-sxm4-80gb." in both


def test_a_call_that_does_not_fit_is_listed_not_drawn(tmp_path: Path) -> None:
    large = answer(algorithm="naive", time_s=None, hbm_read_bytes=None, hbm_write_bytes=None, l2_bytes=None)
    picture_of([*ANSWERS, large], [H100]).write(tmp_path / "r.png")
    rows = (tmp_path / "r.csv").read_text(encoding="utf-8").splitlines()
    assert sum("does not fit" in row for row in rows) == 1
    alone = picture_of([large], [H100])
    assert "naive is" not in alone.caption  # nothing of it is drawn
    assert "naive: does not fit the memory" in alone.caption and len(alone.figure().axes[0].lines) == 4  # the roofs


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
    both = [answer(), answer(algorithm="naive"), answer(changes=changed.changes, time_s=5e-4)]
    found = entries(machines([H100, changed], both), both)
    assert [entry.base for entry in found] == [None, None, found[0]]
    axes = Figure().add_subplot()
    picture_of(both, [H100, changed]).on([axes])
    told = [text for text in axes.texts if isinstance(text, Annotation)]
    assert sum(text.arrow_patch is not None and not text.get_text() for text in told) == 1
    assert any(text.get_text().startswith("flash*: 1,200 TFLOP/s, 2.00x (") for text in told)
    assert "Arrow: from the GPU as it is to the changed one." in picture_of(both, [H100, changed]).caption


def test_a_call_that_hardly_moves_has_no_arrow_and_one_label_with_the_unchanged_one() -> None:
    changed = H100.replace("hbm.bandwidth", "6 TB/s")
    picture = picture_of([answer(), answer(changes=changed.changes, time_s=0.95e-3)], [H100, changed])
    told = [text for text in picture.figure().axes[0].texts if isinstance(text, Annotation)]
    assert "Arrow" not in picture.caption and "Hollow: the changed GPU" in picture.caption
    assert all(text.arrow_patch is None for text in told)
    (both,) = [text for text in told if "flash" in text.get_text()]
    above, below = both.get_text().split("\n")
    assert above.startswith("flash: 600 TFLOP/s") and below.startswith("flash*: 632, 1.05x (")


def test_one_roof_is_the_datasheets_and_one_what_kernels_reach() -> None:
    (axes,) = picture_of(ANSWERS, [H100]).figure().axes
    (machine,) = machines([H100], ANSWERS)
    tensor, hbm = machine.roofline.ceilings[0], machine.roofline.diagonals[0]
    flat = {line.get_linestyle(): float(np.max(np.asarray(line.get_ydata()))) for line in axes.lines[:4]}
    assert flat == pytest.approx({"-": tensor.flops_per_s / 1e12, "--": (tensor.achievable_flops_per_s or 0) / 1e12})
    texts = [text.get_text() for text in axes.texts]
    assert "datasheet 989 TFLOP/s" in texts and any(text.startswith("HBM 3.35 TB/s, kernels reach") for text in texts)
    share = 100 * 75e12 / machine.roofline.reached("hbm", 600e9 / 2.01e10)
    assert f"naive: 75 TFLOP/s ({share:.0f} %)" in texts
    assert machine.roofline.reached("hbm", 1.0) == hbm.achievable_bytes_per_s
    assert machine.roofline.reached("hbm", 1e9) == tensor.achievable_flops_per_s


def test_levels_and_further_roofs_are_drawn_when_asked_for() -> None:
    (axes,) = picture_of(ANSWERS, [H100], levels=["l2", "hbm"], ceilings=["exp", "mma_sync"]).figure().axes
    texts = [text.get_text() for text in axes.texts]
    for words in ("L2 9.7 TB/s", "HBM 3.08 of 3.35 TB/s", "exp ", "mma.sync bf16 622"):
        assert any(text.startswith(words) for text in texts), words
    assert axes.get_xlabel() == "useful FLOPs per byte of the level"
    for given, words in (
        ({"levels": ["l3"]}, "levels are l3; allowed: some of hbm, l2, smem"),
        ({"levels": []}, "levels are none"),
        ({"ceilings": ["int8"]}, "ceiling 'int8' is not known; allowed: exp, fp32, mma_sync"),
    ):
        with pytest.raises(InputError, match=words):
            picture_of(ANSWERS, [H100], **given)
    whole = load_gpu("rtx-4090").replace("tensor.mma_sync_fraction", 1.0)
    with pytest.raises(InputError, match="mma_sync is no ceiling of rtx-4090"):
        picture_of([answer(gpu=whole.id, changes=whole.changes)], [whole], ceilings=["mma_sync"])


def test_measured_calls_have_a_panel_of_ratios() -> None:
    one, two = answer(time_low_s=0.9e-3, time_high_s=1.2e-3), answer(implementation="flash-attn.2", time_s=2e-3)
    above, below = picture_of([one, two], [H100], measured=[1.25e-3, 1.6e-3]).figure().axes
    points = [float(np.asarray(line.get_xdata())[0]) for line in below.lines if line.get_marker() != "None"]
    assert points == pytest.approx([0.8, 1.25])
    assert {"-20.0 %", "+25.0 %"} <= {text.get_text() for text in below.texts}
    assert [label.get_text() for label in below.get_yticklabels()] == ["flash-attn.3", "flash-attn.2"]
    assert len(above.lines) > len(below.lines)


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


def test_a_folder_in_the_way_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "r.png").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        picture_of(ANSWERS, [H100]).write(tmp_path / "r.png")
    assert [path.name for path in tmp_path.iterdir()] == ["r.png"]


@pytest.mark.parametrize(("gpus", "words"), [([], "no GPU to draw"), ([A100], "not among the GPUs drawn")])
def test_gpus_and_predictions_must_match(tmp_path: Path, gpus: list[Gpu], words: str) -> None:
    with pytest.raises(InputError, match=words):
        picture_of(ANSWERS, gpus).write(tmp_path / "r.png")
