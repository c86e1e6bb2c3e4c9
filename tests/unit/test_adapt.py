"""Timings of one's own: the process behind a correction, the file that holds them, and answers corrected by them."""

import ast
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import attnsim
from attnsim.api.adapting.adapt import script
from attnsim.api.adapting.own import (
    BEYOND,
    GATED,
    OWN,
    SCALES,
    Near,
    OwnTimings,
    Points,
    Scales,
    coordinates,
    most_telling,
    read_own,
)
from attnsim.api.answer import Outcome
from attnsim.api.asking import ask
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.question.columns import read_columns
from attnsim.validation.measured.datasets import published_rows
from tests.unit.answering import refusal

GPU = attnsim.load_gpu("a100-sxm4-80gb")
LENGTHS = [1024, 2048, 4096, 8192, 16384]
GAUSSIAN = replace(SCALES, freedom=1e9, widen=1.0)


def question(seq: int, batch: int = 2, **more: object) -> attnsim.Workload:
    return attnsim.Workload(batch=batch, heads=16, seq=seq, head_dim=128, **more)  # type: ignore[call-arg, arg-type]


def predicted(w: attnsim.Workload, own: OwnTimings | Path | None = None, **more: object) -> Outcome:
    how = {"implementation": "flash-attn.2", "baseline": False, "calibration": own, **more}
    return attnsim.predict(w, **{"gpu": GPU, **how})  # type: ignore[arg-type]


def table(factor: Callable[[int], float] = lambda seq: 1.0, lengths: list[int] = LENGTHS) -> pd.DataFrame:
    """What the model itself says, slowed."""
    times = [(predicted(question(seq)).time_s or 0.0) * factor(seq) for seq in lengths]
    kernel = {"gpu": GPU.id, "implementation": "flash-attn.2", "batch": 2, "heads": 16, "head_dim": 128, "causal": 0}
    return pd.DataFrame({**kernel, "seq": lengths, "time_s": times})


def adapted(frame: pd.DataFrame) -> OwnTimings:
    return attnsim.adapt(frame).own


def drawn(count: int, seed: int = 0) -> Points:
    rng = np.random.default_rng(seed)
    shape = rng.integers(0, 8, (count, 8)).astype(float)
    return Points(shape, rng.uniform(0.05, 0.3, count), rng.uniform(1e-6, 1e-3, count))


def test_the_posterior_is_that_of_a_gaussian_process() -> None:
    """Against the joint covariance, inverted as a whole (Rasmussen and Williams, equation A.6)."""
    points, off = drawn(2), np.array([0.2, 0.1])  # of two timings none weighs less
    other = drawn(1, 1)
    both = points.with_(other)
    joint = np.linalg.inv(both.shared(both, GAUSSIAN) + np.diag(both.noise(GAUSSIAN)))
    found = Near(points, off, GAUSSIAN).at(other)
    assert found.log == pytest.approx(-joint[2, :2] @ off / joint[2, 2])
    assert found.half_width == pytest.approx(1.6449 / math.sqrt(joint[2, 2]), rel=1e-3)


def test_a_timing_left_out_is_foretold_by_the_others_alone() -> None:
    points, off = drawn(6), np.random.default_rng(2).normal(0, 0.1, 6)
    near = Near(points, off)
    whole = near._alike + np.diag(near._noise)
    for row in range(6):
        others = [other for other in range(6) if other != row]
        alone = whole[row, others] @ np.linalg.inv(whole[np.ix_(others, others)]) @ off[others]
        assert near.left_out[row] == pytest.approx(alone)


def test_few_timings_leave_wider_ranges_than_a_normal_distribution_and_surprises_widen_them() -> None:
    points, other = drawn(3), drawn(1, 1)
    calm, wild = (Near(points, np.full(3, size)).at(other) for size in (0.01, 0.5))
    normal = Near(points, np.full(3, 0.01), GAUSSIAN).at(other)
    assert normal.half_width < calm.half_width * 1.3 and calm.half_width < wild.half_width


def test_a_timing_that_the_others_contradict_weighs_less() -> None:
    shape = np.tile(np.arange(5.0)[:, None] / 4, (1, 8))
    points = Points(shape, np.full(5, 0.15), np.full(5, 1e-3))
    for wrong, most in ((1.1, 0.04), (0.0, 1e-9)):
        off = np.array([0.0, 0.0, wrong, 0.0, 0.0])
        found = Near(points, off).at(points[[0]])
        assert abs(found.log[0]) <= most


def test_a_correction_stays_within_what_was_seen_and_where_timings_disagree_little_is_left() -> None:
    points = drawn(4)
    sharp = Scales(0.01, 1.0, 1.0, 1.0, 0.0, 4.0, 1.0)
    far = replace(points[[0]], sd=np.array([30.0]))
    assert Near(points[[0]], np.array([0.2]), sharp).at(far).log == pytest.approx(0.2 + BEYOND)
    same = Points(np.zeros((4, 8)), np.full(4, 0.15), np.full(4, 1e-3))
    agreeing, torn = Near(same, np.full(4, 0.2)), Near(same, np.array([0.2, -0.2, 0.21, -0.18]))
    assert agreeing.agree and not torn.agree
    free = torn.at(same[[0]]).log / GATED
    assert abs(free[0]) < 0.05 and agreeing.at(same[[0]]).log == pytest.approx(0.19, abs=0.01)


def test_what_is_suggested_leaves_the_least_variance() -> None:
    targets, known = drawn(9), drawn(2, 3)

    def left(rows: list[int]) -> float:
        seen = targets[rows].with_(known)
        across = targets.shared(seen, SCALES)
        inverse = np.linalg.inv(seen.shared(seen, SCALES) + np.diag(seen.noise(SCALES)))
        own = np.diag(targets.shared(targets, SCALES))
        return float(((own - np.einsum("ij,jk,ik->i", across, inverse, across)) / targets.scale**2).sum())

    chosen = most_telling(targets, targets, known, 3)
    for place in range(3):
        before = chosen[:place]
        best = min((row for row in range(9) if row not in before), key=lambda row: left([*before, row]))
        assert left(chosen[: place + 1]) == pytest.approx(left([*before, best]))
    assert len({*most_telling(targets, targets, known, 20)}) == 9


def test_distances_are_octaves() -> None:
    one, two = (np.array(coordinates(w)) for w in (question(1024), question(4096, batch=4, causal=True)))
    assert list(two - one) == [2, 2, 1, 0, 2, 0, 0, 0]


def test_times_that_the_model_itself_made_move_nothing() -> None:
    own = adapted(table())
    for w in (question(3000), question(32768), question(512, batch=16)):
        plain, found = predicted(w), predicted(w, own)
        assert found.time_s == pytest.approx(plain.time_s, rel=1e-9)
        assert found.trust.high < plain.trust.high and found.trust.low >= plain.trust.low


def test_rows_slowed_by_one_factor_move_that_kernel_and_pass_and_nothing_else() -> None:
    own = adapted(table(lambda seq: 1.25))
    for w in (question(1500), question(6000), question(4096, batch=8), question(4096, causal=True)):
        assert 0.8 < math.log(predicted(w, own).correction) / math.log(1.25) < 1.02, w
    others: tuple[tuple[attnsim.Workload, dict[str, Any]], ...] = (
        (question(4096, passes="decode"), {}),
        (question(4096, passes="bwd"), {}),
        (question(4096), {"implementation": "torch.baddbmm", "algorithm": "naive"}),
        (question(4096), {"gpu": "h100-sxm5-80gb"}),
    )
    for w, more in others:
        plain, found = predicted(w, **more), predicted(w, own, **more)
        assert (found.time_s, found.trust.low, found.trust.high) == (plain.time_s, plain.trust.low, plain.trust.high)
        assert str(found.trust.reasons[0]).startswith("not corrected: no timing of ")


@pytest.mark.parametrize("factor", [1.0, 0.85, 1.4])
@pytest.mark.parametrize(("implementation", "passes"), [("vllm.flash-attn-2", "decode"), ("flash-attn.2", "bwd")])
def test_rows_of_decode_and_of_a_backward_move_theirs_alone(implementation: str, passes: str, factor: float) -> None:
    def asked(seq: int) -> attnsim.Workload:
        return replace(question(seq, batch=8, passes=passes), mask=attnsim.Mask.causal())

    def answer(w: attnsim.Workload, own: OwnTimings | None = None, **more: object) -> Outcome:
        return predicted(w, own, implementation=implementation, cache="cold", launch="graph", **more)

    times = [(answer(asked(seq)).time_s or 0.0) * factor for seq in LENGTHS]
    stated = {"gpu": GPU.id, "implementation": implementation, "pass": passes, "batch": 8, "heads": 16, "head_dim": 128}
    frame = pd.DataFrame({**stated, "causal": 1, "cache": "cold", "launch": "graph", "seq": LENGTHS, "time_s": times})
    own = attnsim.adapt(frame, as_stated=True).own
    for seq in (1500, 6000, 12000):
        plain, found = answer(asked(seq)), answer(asked(seq), own)
        moved = math.log((found.time_s or 0.0) / (plain.time_s or 1.0))
        assert moved == pytest.approx(math.log(factor), abs=0.15 * abs(math.log(factor)) + 1e-9)
        assert found.trust.high / found.trust.low < plain.trust.high / plain.trust.low
    other = replace(asked(4096), passes="fwd", seq_q=4096)
    assert answer(other, own).time_s == answer(other).time_s


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_rows_does_not_matter(seed: int) -> None:
    frame = table(lambda seq: 1.1 + seq / 1e5)
    one, two = adapted(frame), adapted(frame.sample(frac=1, random_state=seed))
    assert [replace(x, rows=()) for x in one.timings] == [replace(x, rows=()) for x in two.timings]
    assert predicted(question(3000), one).time_s == predicted(question(3000), two).time_s


def test_a_row_that_says_nothing_new_leaves_the_range_as_it_was() -> None:
    frame, w = table(lambda seq: 1.2), question(3000)
    frame["pass"] = "fwd"
    other = frame.tail(1).copy()
    other["pass"], other["time_s"] = "bwd", 0.1
    known = predicted(w, adapted(frame))
    for more in (frame.head(1), other):
        found = predicted(w, adapted(pd.concat([frame, more])))
        assert (found.time_s, found.trust.low, found.trust.high) == (known.time_s, known.trust.low, known.trust.high)


def test_all_times_of_a_call_are_corrected_alike() -> None:
    plain, found = predicted(question(4096)), predicted(question(4096), adapted(table(lambda seq: 1.2)))
    assert found.correction > 1.15
    for one in ("time_s", "exposed_s", "launch_s"):
        assert getattr(found, one) == pytest.approx(getattr(plain, one) * found.correction)
    assert found.units_s["tensor"] / found.time_s == pytest.approx(plain.units_s["tensor"] / plain.time_s)  # type: ignore[operator]
    assert found.time_low_s == pytest.approx(found.time_s * found.trust.low)  # type: ignore[operator]
    assert found.floor_s == plain.floor_s and found.trust.components.keys() == {OWN}


def test_no_correction_passes_the_floor() -> None:
    w = question(16384)
    plain = predicted(w)
    assert plain.time_s and plain.floor_s
    fast = adapted(table(lambda seq: 1.001 * (plain.floor_s or 0.0) / (plain.time_s or 1.0), [16384]))
    found = predicted(w, fast)
    assert found.time_s and found.time_low_s and found.time_low_s >= plain.floor_s * 0.999999 and found.correction < 0.9


def test_a_what_if_is_of_the_corrected_call_and_its_ratio_stays() -> None:
    own, w, changed = adapted(table(lambda seq: 1.3)), question(6000), GPU.replace("sm.count", "1.5x")
    base, then = predicted(w, own), predicted(w, own, gpu=changed)
    plain = predicted(w, gpu=changed).speedup_over(predicted(w))
    found = then.speedup_over(base)
    assert then.correction == pytest.approx(base.correction, rel=0.01)
    assert found and plain and found.value == pytest.approx(plain.value, rel=0.01)
    assert found.high / found.low == pytest.approx(plain.high / plain.low, rel=0.02)
    assert {OWN, "architecture"} == then.trust.components.keys() and then.trust.high > base.trust.high


def test_a_ratio_over_a_kernel_that_was_not_timed_keeps_the_machines_error() -> None:
    own, w = adapted(table()), question(6000)
    naive = predicted(w, own, implementation="torch.baddbmm", algorithm="naive")
    timed, plain = predicted(w, own).speedup_over(naive), predicted(w).speedup_over(naive)
    assert timed and plain and timed.value == pytest.approx(plain.value)
    assert "laboratory" in naive.trust.components and timed.high > timed.value


def test_the_answer_names_its_rows_and_says_what_lies_beyond_them() -> None:
    own = adapted(table(lambda seq: 1.2).set_index(pd.Index([7, 3, 5, 9, 11], name="line")))
    near, far = predicted(question(3000), own), predicted(question(65536, causal=True), own)
    assert str(near.trust.reasons[0]).endswith("by 5 timings of it: the table, rows 3, 5, 7, 9, 11")
    assert "beyond" not in near.trust.reason
    assert "beyond the timings: seq_q of 65,536 is 4 times the largest that was measured, 16,384" in far.trust.reason
    assert "beyond the timings: causal, and none of the timings is" in far.trust.reason
    assert near.trust.high < far.trust.high
    assert far.trust.reason.count("range made of") == 1 and "range made of own timings" in far.trust.reason


def test_five_published_rows_bring_the_others_nearer() -> None:
    """Figure 5 of the FlashAttention-3 paper, cuDNN forward: five of its rows, chosen by variance, and the rest."""
    rows = [row for row in published_rows() if row.case.source == "fa3_fig5" and row.record.name == "nvidia.cudnn"]
    lines, off = [], []
    for row in rows:
        found = attnsim.predict(row.workload, row.gpu, implementation=row.record.name, baseline=False)
        assert found.time_s
        lines.append((coordinates(row.workload), 0.12, found.time_s))
        off.append(math.log(row.measured_s / found.time_s))
    every, told = Points.of(lines), np.array(off)
    mine = most_telling(every, every, every[[]], 5)
    rest = np.setdiff1d(np.arange(len(lines)), mine)
    made = Near(every[mine], told[mine]).at(every[rest])
    assert len(rest) > 15
    assert np.abs(made.log - told[rest]).mean() < 0.9 * np.abs(told[rest]).mean()
    assert np.mean(np.abs(made.log - told[rest]) < made.half_width) > 0.8


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    own = adapted(table(lambda seq: 1.2))
    own.write(tmp_path / "mine.yaml")
    again = read_own(tmp_path / "mine.yaml")
    assert [one.rows for one in again.timings] == [one.rows for one in own.timings]
    for calibration in (again, tmp_path / "mine.yaml", str(tmp_path / "mine.yaml")):
        found = predicted(question(3000), calibration)  # type: ignore[arg-type]
        assert found.time_s == pytest.approx(predicted(question(3000), own).time_s, rel=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("format: 1", "format: 2", "format is 2; allowed: 1; make it again: attnsim adapt the table --out mine.yaml"),
        ("gpu:", "gpus: x\ngpu:", "gpus: Unexpected keyword argument; its first lines explain the keys"),
        ("model: ", "model: x #", "with another model than this one; make it again"),
        ("time_s: ", "time_s: -", "timings.0.time_s is -"),
        ("sd: ", "sd: .nan #", "timings.0.sd is nan; allowed: numbers above 0"),
        ("shape: [", "shape: [1.0, ", "timings.0.shape: 8 numbers are needed"),
        (
            "implementation: flash-attn.2",
            "implementation: flash-attn.9",
            "flash-attn.9' is not known; nearest: flash-attn.4",
        ),
        ("passes: fwd", "passes: both", "timings.0.passes is 'both'; allowed: fwd, bwd, fwd+bwd, decode"),
        ("rows: [", "rows: [x, ", "timings.0.rows.0"),
    ],
)
def test_a_file_that_was_changed_is_refused_in_a_line(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    path = tmp_path / "mine.yaml"
    adapted(table(lengths=[2048])).write(path)
    comments, start, content = path.read_text().partition("format:")
    assert old in start + content
    path.write_text(comments + (start + content).replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        read_own(path)
    assert str(caught.value).startswith("mine.yaml: ") and complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_timings_is_refused(tmp_path: Path) -> None:
    replace(adapted(table(lengths=[2048])), timings=()).write(tmp_path / "mine.yaml")
    with pytest.raises(InputError, match=r"mine.yaml: holds no timing; make it again"):
        read_own(tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (
            {"gpu": ["a100-sxm4-80gb", "l4"]},
            "the table has rows of 2 GPUs, a100-sxm4-80gb, l4; a calibration is of one: split",
        ),
        ({"time_s": [1e-9, 1e-9]}, "the table: no row can be used: 1.00 ns lies below the floor of its question, "),
        ({"implementation": ["fa9", "fa9"]}, "the table: no row can be used: "),
        ({"time_s": ["", ""]}, "the table: no row can be used: time_s is empty"),
    ],
)
def test_tables_that_make_no_calibration_are_refused_in_a_line(
    changed: dict[str, list[object]], complaint: str
) -> None:
    with pytest.raises(InputError) as caught:
        attnsim.adapt(pd.DataFrame(table(lengths=[2048, 4096]).to_dict("list") | changed))
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


def test_what_is_odd_about_timings_is_said() -> None:
    frame = table(lengths=[2048])
    twice = pd.concat([frame, frame.assign(time_s=frame["time_s"] * 1.21)], ignore_index=True)
    (timing,) = adapted(twice).timings
    assert timing.time_s == pytest.approx(1.1 * frame["time_s"][0]) and timing.rows == (0, 1)
    assert attnsim.adapt(twice).notes == [
        "rows 0, 1 are one question, 21.0 % apart: their geometric mean is taken",
        "flash-attn.2, fwd: one question was timed; from 3 on they are held against each other",
    ]
    torn = attnsim.adapt(table(lambda seq: 2.0 if seq in (1024, 4096, 16384) else 0.9))
    assert torn.notes == [
        "flash-attn.2, fwd: timings do not predict each other, so that less of the correction is taken"
    ]
    assert [one["by_the_others_s"] for one in attnsim.adapt(frame).rows] == [None]


def test_a_row_without_an_answer_is_left_out_and_said() -> None:
    frame = table(lengths=[2048, 4096]).assign(head_dim=[128, 1000])
    found = attnsim.adapt(frame)
    assert len(found.own.timings) == 1 and list(found.left_out.values()) == [[1]]


def test_a_row_below_its_floor_is_left_out_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame, w = table(lambda seq: 1.2), question(3000)
    floor_s = predicted(question(LENGTHS[1])).floor_s or 0.0
    wrong = frame.tail(4).head(1).assign(time_s=0.99 * floor_s)
    found = attnsim.adapt(pd.concat([frame, wrong], ignore_index=True))
    assert list(found.left_out.values()) == [[5]] and len(found.own.timings) == len(LENGTHS)
    assert predicted(w, found.own).time_s == predicted(w, adapted(frame)).time_s
    pd.concat([frame, wrong]).to_csv(tmp_path / "rows.csv", index=False)
    assert main(["adapt", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "mine.yaml")]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "line 7 not used: " in told and "lies below the floor of its question, " in told
    assert predicted(w, tmp_path / "mine.yaml").correction > 1.15


def test_a_row_that_is_far_off_is_left_out_and_widens_no_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame, w = table(lambda seq: 1.2), question(3000)
    wrong = frame.tail(1).assign(seq=2500, time_s=lambda row: row["time_s"] * 1000)
    both = pd.concat([frame, wrong], ignore_index=True)
    found, right = attnsim.adapt(both), adapted(frame)
    assert list(found.left_out.values()) == [[len(LENGTHS)]]
    assert predicted(w, found.own).trust == predicted(w, right).trust
    stated = attnsim.adapt(both, as_stated=True)
    assert not stated.left_out and len(stated.own.timings) == len(LENGTHS) + 1
    both.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["adapt", str(tmp_path / "rows.csv")]) == 1
    assert "line 7 not used: measured is " in " ".join(capsys.readouterr().out.split())


def test_a_calibration_of_another_gpu_is_said_to_correct_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapted(table(lambda seq: 1.2)).write(tmp_path / "mine.yaml")
    asked = [
        "predict",
        "--heads",
        "16",
        "--seq",
        "3k",
        "--head-dim",
        "128",
        "--calibration",
        str(tmp_path / "mine.yaml"),
    ]
    told = f"not corrected: the timings of the table are of {GPU.id}, and this is "
    for gpu, times in ((GPU.id, 0), ("h100-sxm5-80gb", 1)):
        assert main([*asked, "--gpu", gpu]) == 0
        assert " ".join(capsys.readouterr().out.split()).count(told) == times


def test_suggestions_are_of_what_was_not_timed_and_their_script_prints_a_table() -> None:
    frame = table(lengths=[512, 1024, 2048, 4096, 8192, 16384])
    untimed = frame.assign(time_s=[*frame["time_s"][:2], *[math.nan] * 4])
    found = attnsim.suggest(untimed, 2)
    assert len(found) == 2 and {one.w.seq_q for one in found} <= {2048, 4096, 8192, 16384}
    few = attnsim.suggest(frame.head(1).drop(columns="time_s"), 4)
    assert len({one.w for one in few}) == 4 and any(one.w.batch != 2 for one in few)
    windowed = ask(question(4096), GPU, "flash", "flash-attn.2")
    more = replace(windowed, w=attnsim.Workload(1, 8, 512, 64, mask=attnsim.Mask.sliding_window(64)))
    text = script([*few, more])
    ast.parse(text)
    assert text.startswith(
        "# These say more than PyTorch's call does; time them with your kernel:\n# flash-attn.2: batch 1"
    )
    header = next(line for line in text.splitlines() if line.startswith("print(")).partition('"')[2].rstrip('")')
    cells = "NVIDIA A100-SXM4-80GB,flash-attn.2,fwd,bfloat16,2,16,16,4096,4096,128,0,0.00123"
    printed = pd.read_csv(io.StringIO(f"{header}\n{cells}"))
    assert not read_columns(printed).unused and attnsim.adapt(printed).own.gpu == GPU.id


def test_the_command_makes_a_file_that_other_commands_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, file = str(tmp_path / "mine.csv"), str(tmp_path / "mine.yaml")
    table(lambda seq: 1.2).to_csv(mine, index=False)
    assert main(["adapt", mine, "--out", file]) == 0
    assert "-16.7 %" in capsys.readouterr().out
    flags = ["--gpu", GPU.id, "--heads", "16", "--batch", "2", "--seq", "6k", "--head-dim", "128", "--json"]
    flash = ["--algorithm", "flash", "--implementation", "flash-attn.2"]

    def time_s(*command: str) -> float:
        assert main([*command]) == 0
        found = json.loads(capsys.readouterr().out)[0]
        return float(found.get("prediction", found)["time_s"])

    commands = [
        ["predict", *flash, *flags],
        ["explain", "flash", *flash[2:], *flags],
        ["sensitivity", *flash[2:], *flags],
        ["search", "hardware", "--vary", "sm.count=100:108:8", *flash[2:], *flags],
    ]
    for command in commands:
        assert 1.15 < time_s(*command, "--calibration", file) / time_s(*command) < 1.25
    assert main(["check", mine, "--calibration", file, "--json"]) == 0
    rows = [one for one in json.loads(capsys.readouterr().out) if one["table"] == "row"]
    assert all(abs(row["error_percent"]) < 3 and row["in_range"] for row in rows)
    assert main(["predict", "--cases", mine, "--calibration", file]) == 0
    assert capsys.readouterr().out.count("corrected by +") == 5
    assert main(["adapt", mine, "--suggest", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A calibration by rows that took 1.2 times what the model says."""
    path = tmp_path_factory.mktemp("own") / "mine.yaml"
    adapted(table(lambda seq: 1.2)).write(path)
    return str(path)


QUESTION = ["--gpu", GPU.id, "--heads", "16", "--batch", "2", "--seq", "6k", "--head-dim", "128"]
FLASH = ["--implementation", "flash-attn.2", *QUESTION]


def both(capsys: pytest.CaptureFixture[str], file: str, *command: str) -> list[Any]:
    """What a command says with --json, by the model alone and with a calibration."""
    found = []
    for more in ([], ["--calibration", file]):
        assert main([*command, "--json", *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    return found


def test_a_change_has_the_ratio_of_the_model_beside_corrected_times(
    slowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change = ["--set", "hbm.bandwidth=2x", "--set", "sm.count=0.5x"]
    plain, own = both(capsys, slowed, "whatif", *FLASH, *change)
    assert len(plain) == len(own) == 4 and plain[2]["speedup"] < 0.7
    for one, other in zip(plain, own, strict=True):
        assert 1.15 < other["time_s"] / one["time_s"] < 1.25
        assert other["speedup"] == pytest.approx(one["speedup"], rel=0.01)


def test_all_tiles_are_corrected_alike(slowed: str, capsys: pytest.CaptureFixture[str]) -> None:
    (plain,), (own,) = both(capsys, slowed, "search", "tile", *FLASH)
    ratios = {other["time_s"] / one["time_s"] for one, other in zip(plain["tiles"], own["tiles"], strict=True)}
    assert len(plain["tiles"]) > 5 and min(ratios) > 1.15 and max(ratios) == pytest.approx(min(ratios))
    assert own["own"].startswith("corrected by +") and plain["own"] is None
    assert main(["search", "tile", *FLASH, "--calibration", slowed]) == 0
    assert "all times corrected by +" in capsys.readouterr().out


def test_a_trace_is_as_long_as_the_corrected_call(
    slowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["trace", *FLASH, "--out", str(tmp_path / "a.json")]
    (plain,), (own,) = both(capsys, slowed, *command)
    factor = own["time_s"] / plain["time_s"]
    assert 1.15 < factor < 1.25 and own["start_s"] == pytest.approx(plain["start_s"] * factor)
    assert own["slices"] == plain["slices"]
    w = question(6144)
    one, other = (
        attnsim.trace(w, GPU, implementation="flash-attn.2", calibration=given) for given in (None, Path(slowed))
    )
    assert factor == pytest.approx(predicted(w, Path(slowed)).correction)
    assert other.replay.time_s == pytest.approx(one.replay.time_s * factor)
    pieces = zip(one.kernels[0].slices, other.kernels[0].slices, strict=True)
    assert all(after.end_s == pytest.approx(before.end_s * factor) for before, after in pieces)
    assert main([*command, "--calibration", slowed]) == 0
    assert f"as {slowed} corrects it" in capsys.readouterr().out.replace("\n", " ")


def test_the_share_of_attention_is_of_the_corrected_call(tmp_path: Path) -> None:
    w = attnsim.load_model("llama-2-7b").workload(batch=1, seq=2048)
    plain = attnsim.predict(w, GPU, baseline=False)
    kernel = {"gpu": GPU.id, "implementation": plain.implementation, "batch": 1, "heads": 32, "seq": 2048, "d": 128}
    slow = attnsim.adapt(pd.DataFrame([{**kernel, "causal": 1, "time_s": 1.5 * (plain.time_s or 0.0)}])).own
    one, other = (
        attnsim.attention_share("llama-2-7b", GPU, [2048], calibration=own)[0].attention_share for own in (None, slow)
    )
    assert one is not None and other is not None and other > 1.1 * one


def test_a_picture_of_densities_has_corrected_times(
    slowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, own = both(capsys, slowed, "plot", "density", *QUESTION, "--out", str(tmp_path / "a.svg"))
    ratios = {one["implementation"]: other["time_s"] / one["time_s"] for one, other in zip(plain, own, strict=True)}
    assert 1.15 < ratios.pop("flash-attn.2") < 1.25 and set(ratios.values()) == {1.0}


STUDY = """\
gpu: [a100-sxm4-80gb, l4]
algorithm: [flash, naive]
workload: {batch: 2, heads_q: 16, head_dim: 128, seq_kv: [2048, 6144]}
"""


def test_a_sweep_replays_and_corrects_what_was_timed(
    slowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(f"{STUDY}replays: 2\n")
    found = []
    for name, more in (("plain", []), ("own", ["--calibration", slowed])):
        file = tmp_path / f"{name}.csv"
        command = ["sweep", str(study), "--out", str(tmp_path / name), "--jobs", "1", "--export", str(file), *more]
        assert main(command) == 0
        found.append(pd.read_csv(file).set_index("point"))
    plain, own = found
    timed = (own["gpu"] == GPU.id) & (own["used_implementation"] == "flash-attn.2")
    assert timed.sum() == 2 and set(own["method"][timed]) == {"replay"}
    assert own["trust"][timed].str.contains("corrected by +", regex=False).all()
    for seq, time_s in zip(own["seq_kv"][timed], own["predicted_s"][timed], strict=True):
        assert time_s == pytest.approx(predicted(question(int(seq)), Path(slowed)).time_s)
    assert set(own["method"][~timed]) == {"closed-form"} and len(plain) == 8
    capsys.readouterr()
    told = refusal(capsys, "sweep", str(study), "--out", str(tmp_path / "plain"), "--calibration", slowed)
    assert "holds results of other inputs: study differ" in told


def test_a_sweep_of_closed_forms_takes_no_calibration(
    slowed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(f"{STUDY}method: closed-form\n")
    told = refusal(capsys, "sweep", str(study), "--out", str(tmp_path / "out"), "--calibration", slowed)
    assert "calibration corrects replays of known implementations, not method: closed-form" in told


@pytest.mark.parametrize("command", ["plot traffic", "plot tornado", "explore", "models", "kernels run flash"])
def test_a_command_that_shows_no_times_says_so_of_a_calibration(
    command: str, slowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(capsys, *command.split(), "--calibration", slowed)
    assert "has no --calibration; commands that have it: predict, explain, whatif, " in told


@pytest.mark.parametrize("given", [5, {}, ["mine.yaml"]])
def test_what_is_no_calibration_is_refused_in_a_line(given: Any) -> None:
    with pytest.raises(InputError, match=r"calibration is .*; give a file of attnsim adapt, or what it holds"):
        predicted(question(2048), given)


def test_a_step_has_its_attention_corrected_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    adapted(table(lambda seq: 1.2)).write(file)
    command = ["predict", "--layer", "--gpu", GPU.id, "--model", "llama-2-7b", "--lengths", "1024 x 2", "--tp", "2"]
    command += ["--implementation", "flash-attn.2", "--json"]
    found = []
    for more in ([], ["--calibration", str(file)]):
        assert main([*command, *more]) == 0
        (answer,) = json.loads(capsys.readouterr().out)
        found.append({part["name"]: part["time_s"] for part in answer["parts"]})
    ratios = {name: found[1][name] / time for name, time in found[0].items()}
    assert 1.05 < ratios.pop("attention") < 1.25
    assert len(ratios) > 8 and set(ratios.values()) == {1.0}
    assert main([*command, "--calibration", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--out", "mine.csv"], "mine.csv: end the name of a calibration with .yaml"),
        (["--out", "mine.yaml", "--suggest", "3"], "--suggest makes none; leave one out"),
        (["--suggest", "0"], "allowed: whole numbers from 1 to 100"),
    ],
)
def test_flags_that_cannot_be_are_refused(
    tmp_path: Path, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table(lengths=[2048]).to_csv(tmp_path / "rows.csv", index=False)
    assert complaint in refusal(capsys, "adapt", str(tmp_path / "rows.csv"), *words)
