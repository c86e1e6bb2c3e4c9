"""Tables of other people's timings: which column is which, and each row beside its prediction."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import attnsim
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.columns import MEASURED_COLUMNS, Naming, key, known_columns, read_columns
from attnsim.plots.check import check as picture
from attnsim.validation.measured.own_runs import rows_of
from tests.unit.answering import refusal

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mine.csv"
SHAPE: dict[str, list[object]] = {"GPU": ["h100-sxm5-80gb"], "B": [4], "H": [16], "N": [4096], "d": [128]}
MINE: dict[str, list[object]] = {
    **SHAPE,
    "kernel": ["flash-attn.3"],
    "dtype": ["fp16"],
    "causal": [1],
    "latency (ms)": [0.4747],
}


def mapped(*names: str, **said: object) -> dict[str, str]:
    """Our columns by those of a table with a shape and these."""
    frame = pd.DataFrame({**SHAPE, **{name: ["1"] for name in names}})
    return {one.theirs: one.ours for one in read_columns(frame, Naming(**said)).columns if one.theirs not in SHAPE}  # type: ignore[arg-type]


def problem(table: dict[str, list[object]] | Path, **said: object) -> str:
    """The one line with which a table is refused."""
    given = table if isinstance(table, Path) else pd.DataFrame(table)
    with pytest.raises(InputError) as caught:
        attnsim.check(given, progress=False, **said)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_name_stands_for_two_columns() -> None:
    seen: dict[str, str] = {}
    for ours, known in known_columns().items():
        for name in known.names - {""}:
            assert seen.setdefault(name, ours) == ours, name
    assert not any(key(ours) in known.names for ours, known in known_columns().items() if known.needs_unit)


@pytest.mark.parametrize(
    ("name", "ours", "unit"),
    [
        ("latency (ms)", "time_s", 1e-3),
        ("time [us]", "time_s", 1e-6),
        ("time_ms", "time_s", 1e-3),
        ("timeMs", "time_s", 1e-3),
        ("latency_us", "time_s", 1e-6),
        ("Time (µs)", "time_s", 1e-6),
        ("us", "time_s", 1e-6),
        ("mean latency ms", "time_s", 1e-3),
        ("latency_ms_median", "time_s", 1e-3),
        ("time_s", "time_s", 1.0),
        ("Duration (ns)", "time_s", 1e-9),
        ("TFLOPS", "tflops", 1.0),
        ("TFLOP/s", "tflops", 1.0),
        ("throughput (GFLOPS)", "tflops", 1e-3),
        ("SM clock (GHz)", "clock_mhz", 1e3),
    ],
)
def test_units_of_columns(name: str, ours: str, unit: float) -> None:
    columns = read_columns(pd.DataFrame({**SHAPE, name: [1]}))
    found = columns.find(ours)
    assert found is not None and found.theirs == name and found.factor == unit and not columns.unused


@pytest.mark.parametrize(
    ("names", "ours"),
    [
        (("batch_size", "bs", "Batch Size", "B"), "batch"),
        (("H", "n_heads", "num_heads", "nheads", "Num Heads"), "heads_q"),
        (("Hkv", "n_kv_heads", "num_kv_heads", "num_key_value_heads"), "heads_kv"),
        (("N", "seqlen", "seq_len", "S", "context", "Sequence Length", "N (tokens)"), "seq"),
        (("d", "headdim", "head_size", "hdim", "head dim", "D (head dim)"), "head_dim"),
        (("is_causal", "Causal"), "causal"),
        (("device", "GPU", "gpu_name"), "gpu"),
        (("kernel", "backend", "provider", "impl"), "implementation"),
        (("precision", "data type"), "dtype"),
        (("mode", "pass", "Direction"), "pass"),
    ],
)
def test_names_of_columns(names: tuple[str, ...], ours: str) -> None:
    other = {"gpu": "GPU", "batch": "B", "heads_q": "H", "seq": "N", "head_dim": "d"}
    for name in names:
        shape = {theirs: [1] for mine, theirs in other.items() if mine != ours}
        found = read_columns(pd.DataFrame({**shape, name: [1]})).find(ours)
        assert found is not None and found.theirs == name


def test_words_of_cells() -> None:
    cells = {"gpu": "l4", "batch": 1, "heads_q": 8, "head_dim": 64, "seq": 512}
    for word, passes in (("forward", "fwd"), ("Backward", "bwd"), ("fwd_bwd", "fwd+bwd"), ("prefill", "fwd")):
        assert parse_row({**cells, "pass": word}).passes == passes
    case = parse_row({**cells, "pass": "generation", "dtype": "torch.bfloat16", "causal": "yes"})
    assert (case.passes, case.seq_q, case.seq_kv, case.dtype, case.causal) == ("decode", 1, 512, "bf16", True)
    assert (parse_row(cells).seq_q, parse_row(cells).seq_kv) == (512, 512)


def test_what_is_said_goes_over_the_names() -> None:
    assert mapped("kernel", "mine", maps={"implementation": "mine"}) == {"mine": "implementation"}
    assert mapped("t", maps={"time_s": "t"}, time_unit="us") == {"t": "time_s"}
    assert mapped("time_s", "time") == {"time_s": "time_s"}  # our own name counts
    columns = read_columns(pd.DataFrame({**MINE, "run": [1]}), Naming(gpu="l4"))
    assert columns.unused == {"GPU": "gpu is given as l4", "run": "only describes a row"} and columns.given == {
        "gpu": "l4"
    }
    for name, unit in (("time/ms", "ms"), ("median / us", "us"), ("fwd_ms", "ms")):
        (time,) = read_columns(pd.DataFrame({**SHAPE, name: [1]}), Naming({"time_s": name})).columns[-1:]
        assert (time.ours, time.unit) == ("time_s", unit), name


@pytest.mark.parametrize(
    ("table", "said", "words"),
    [
        ({**SHAPE}, {}, ("no column is a time", "--map time_s=COLUMN, and --time-unit where its name has no unit")),
        ({**SHAPE, "iter/s": [9]}, {"maps": {"time_s": "iter/s"}}, ("a number per s is no time_s",)),
        ({**SHAPE, "calls per ms": [9]}, {"maps": {"time_s": "calls per ms"}}, ("a number per ms is no time_s",)),
        ({**SHAPE, "time": [0.9]}, {}, ("'time' has no unit", "median 0.9: looks like ms; give --time-unit ms")),
        ({**SHAPE, "time": [900]}, {}, ("looks like us",)),
        ({**SHAPE, "time": [0.9]}, {"time_unit": "weeks"}, ("'weeks' is not known; allowed: s, ms, us, ns",)),
        ({**SHAPE, "ms": [0.9]}, {"time_unit": "us"}, ("--time-unit us", "'ms' says ms")),
        ({**SHAPE, "latency (ticks)": [0.9]}, {}, ("has the unit 'ticks'; allowed: s, ms, us, ns",)),
        ({**MINE, "time_us": [1]}, {}, ("'latency (ms)' and 'time_us' could both be time_s", "--map 'time_s=")),
        ({**MINE, "seq_len": [1]}, {}, ("'N' and 'seq_len' could both be seq_q",)),
        ({**MINE}, {"maps": {"heads": "H"}}, ("'heads' is no column of a case table", "heads_q")),
        ({**MINE}, {"maps": {"heads_q": "nh"}}, ("no column 'nh'",)),
        ({**MINE}, {"maps": {"heads_q": "H", "heads_kv": "H"}}, ("'H' twice",)),
        ({name: cells for name, cells in MINE.items() if name != "H"}, {}, ("no column heads_q", "--map heads_q=")),
        ({name: cells for name, cells in MINE.items() if name != "GPU"}, {}, ("no column gpu", "--gpu ID")),
        ({name: [] for name in MINE}, {}, ("no rows",)),
    ],
)
def test_a_table_is_refused_in_one_line(
    table: dict[str, list[object]], said: dict[str, object], words: tuple[str, ...]
) -> None:
    message = problem(table, **said)
    assert all(word in message for word in words), message


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    for text, words in (
        ("", "is empty"),
        ("B,B,H\n1,1,1\n", "column 'B' appears more than once"),
        ("1,2\n", "holds numbers"),
    ):
        path.write_text(text)
        message = problem(path)
        assert message.startswith(str(path)) and words in message


def test_bad_rows_have_their_reason_and_the_others_an_answer() -> None:
    rows: list[dict[str, object]] = [
        {"latency (ms)": 0.4747}, {"latency (ms)": -1}, {"latency (ms)": math.nan}, {"GPU": "RTX 9999"},
        {"GPU": "Cray-1"}, {"kernel": "nonesuch"}, {"H": "many"}, {"N": 8192, "latency (ms)": 1.9},
    ]  # fmt: skip
    frame = pd.DataFrame([{name: cells[0] for name, cells in MINE.items()} | row for row in rows])
    found = attnsim.check(frame, progress=False)
    assert [bool(row.ratio) for row in found.answered] == [True, *[False] * 6, True]
    reasons = list(found.failed)
    assert len(reasons) == 6 and all("\n" not in reason for reason in reasons)
    words = (
        "is '-1.0'; allowed: a number of ms above 0",
        "latency (ms) is empty",
        "rtx 9999",
        "cray-1",
        "nonesuch",
        "H is 'many'",
    )
    assert all(word in reason for word, reason in zip(words, reasons, strict=True)), reasons
    assert list(found.rows["error_percent"].isna()) == [False, *[True] * 6, False]


def test_the_sample_is_answered_and_its_figures_are_those_of_its_rows() -> None:
    found = attnsim.check(SAMPLE, progress=False)
    rows = found.rows
    assert len(rows) == 18 and not found.failed and list(rows.index) == list(range(2, 20))
    assert list(rows["measured_s"]) == pytest.approx([1e-3 * float(cell) for cell in rows["latency (ms)"]])
    ratios = rows["predicted_s"] / rows["measured_s"]
    assert list(rows["error_percent"]) == pytest.approx(list(100 * (ratios - 1)))
    inside = (rows["predicted_low_s"] <= rows["measured_s"]) & (rows["measured_s"] <= rows["predicted_high_s"])
    assert list(rows["in_range"]) == list(inside)
    every = found.summary.iloc[0]
    assert every["mean"] == pytest.approx((ratios - 1).abs().mean())
    assert every["median"] == pytest.approx((ratios - 1).abs().median())
    assert every["bias"] == pytest.approx(math.exp(ratios.map(math.log).mean()) - 1)
    assert (every["inside"], every["rows"]) == (inside.sum(), 18)
    assert list(found.summary["implementation"]) == ["all", "flash-attn.2", "nvidia.cudnn", "flash-attn.3"]
    assert found.summary["rows"].iloc[1:].sum() == 18 and found.summary["inside"].iloc[1:].sum() == inside.sum()
    assert ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb") in found.taken


def test_a_kernel_or_a_library_under_algorithm_is_the_rows_implementation() -> None:
    rest = {name: cells * 5 for name, cells in MINE.items() if name != "kernel"}
    names = ["FlashAttention-3", "flash-attn", "vllm", "flash", "flahs"]
    found = attnsim.check(pd.DataFrame(rest | {"Algorithm": names}), progress=False)
    used = ["flash-attn.3", "flash-attn.2", "vllm.flash-attn-3", "flash-attn.3"]
    assert list(found.rows["used_implementation"])[:4] == used
    assert {("flashattention-3", "flash-attn.3"), ("vllm", "vllm.flash-attn-3")} <= set(found.taken)
    (reason,) = found.failed
    assert "algorithm 'flahs' is not known; nearest: flash" in reason
    with pytest.raises(attnsim.InputError, match="'fa2' is not known; it is the name of an implementation, so --impl"):
        attnsim.predict(attnsim.Workload(1, 8, 1024, 128), "h100-sxm5-80gb", "fa2")


def test_gpus_whose_errors_cancel_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = {name: cells * 2 for name, cells in MINE.items()} | {
        "GPU": ["a100-sxm4-80gb", "h100-sxm5-80gb"], "kernel": ["flash-attn.2"] * 2, "latency (ms)": [1.0, 0.8617]
    }  # fmt: skip
    found = attnsim.check(pd.DataFrame(two), progress=False)
    assert list(found.summary["gpu"]) == ["", "a100-sxm4-80gb", "h100-sxm5-80gb"]
    assert list(found.summary["implementation"]) == ["all", "flash-attn.2", "flash-attn.2"]
    every, low, high = found.accuracy
    assert math.log1p(every.bias) == pytest.approx((math.log1p(low.bias) + math.log1p(high.bias)) / 2)
    (tmp_path / "two.csv").write_text(pd.DataFrame(two).to_csv(index=False))
    assert main(["check", str(tmp_path / "two.csv")]) == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"^flash-attn.2 +(a100-sxm4|h100-sxm5)-80gb +1 ", text, re.MULTILINE)) == 2


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"latency (ms)": [0.4747]}, ""),
        ({"latency (ms)": [0.06]}, ""),
        ({"latency (s)": [0.4747]}, "about 1,000 times the predicted ones: is column 'latency (s)' really in s?"),
        ({"latency (us)": [0.4747]}, "about 1,000 times shorter than the predicted ones"),
        ({"TFLOPS": [500e3]}, "is column 'TFLOPS' really in tflops?"),
        ({"median": [0.4747], "unit": ["s"]}, "predicted ones: are they in the units that the table says?"),
    ],
)
def test_a_unit_that_cannot_be_is_doubted(
    cells: dict[str, list[object]], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {name: values for name, values in MINE.items() if name != "latency (ms)"} | cells
    doubt = attnsim.check(pd.DataFrame(table), progress=False).doubt
    assert told in doubt and bool(told) == bool(doubt)
    pd.DataFrame(table).to_csv(tmp_path / "mine.csv", index=False)
    main(["check", str(tmp_path / "mine.csv")])
    assert " ".join(doubt.split()) in " ".join(capsys.readouterr().out.split())


def test_a_throughput_is_a_time_by_the_useful_flops() -> None:
    table = {name: cells for name, cells in MINE.items() if name != "latency (ms)"} | {"TFLOPS": [500.0]}
    (row,) = attnsim.check(pd.DataFrame(table), progress=False).answered
    flops = 2 * 4 * 16 * (4096 * 4097 // 2) * 256  # 2 B H pairs (d + dv)
    assert row.measured_s == pytest.approx(flops / 500e12)
    assert row.case is not None and "useful FLOPs" in row.case.assumed["tflops"]
    both = attnsim.check(pd.DataFrame({**MINE, "TFLOPS": [1.0]}), progress=False)
    assert both.answered[0].measured_s == pytest.approx(0.4747e-3)
    assert both.columns.unused == {"TFLOPS": "the time counts, 'latency (ms)'"}


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "Tesla K80", "NVIDIA H1000", "TPU v4"])
def test_another_gpu_is_not_taken_for_a_known_one(name: str) -> None:
    with pytest.raises(InputError, match=r"(unknown|no) GPU"):
        load_gpu(name)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "out.csv", tmp_path / "ratio.png"
    assert main(["check", str(SAMPLE), "--out", str(out), "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    for words in (
        "latency (ms)",
        "not used: only describes a row",
        "90 % range",
        "17 of 18",
        "flash_attn_v3 is flash-attn.3",
        "left open",
    ):
        assert words in text
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 18 and {"provider", *MEASURED_COLUMNS} <= rows[0].keys()
    drawn = list(csv.DictReader((tmp_path / "ratio.csv").open()))
    assert [row["in_range"] for row in drawn] == [row["in_range"] for row in rows]
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(("written", "names", "left")))


def test_what_some_rows_leave_open_is_said_with_their_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, row = tmp_path / "mine.csv", "h100,flash-attn.3,4,16,4096,128,940"
    table.write_text(f"gpu,kernel,B,H,N,d,us,causal,dtype\n{row},1,fp16\n{row}\n{row},1,\n{row},0,bf16\n")
    assert main(["check", str(table)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "left open" in line]
    assert len(lines) == 3 and lines[0].startswith("left open: algorithm empty")
    assert lines[1:] == [
        "line 3 left open: causal empty, taken as 0",
        "line 3, 4 left open: dtype empty, taken as bf16",
    ]


def test_the_exit_code_says_whether_all_rows_were_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("gpu,kernel,B,H,N,d,us\nH100,flash-attn.3,4,16,4096,128,950\nH100,flash-attn.3,4,16,4096,128,\n")
    assert main(["check", str(table)]) == 1
    assert "line 3 without an answer: us is empty" in capsys.readouterr().out
    assert main(["check", str(table), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [row["table"] for row in found] == [*["mapping"] * 7, "row", "row", "summary"]
    assert found[-1]["rows"] == 1 and found[8]["predicted_s" if "predicted_s" in found[8] else "error"]
    names = (["--gpu", "foo"], ["--implementation", "foo"])
    for wrong in (["--map", "heads_q"], ["--time-unit", "ms"], ["--out", "x.txt"], ["--plot", "x.jpg"], *names):
        refusal(capsys, "check", str(table), *wrong)


def test_the_same_reading_serves_the_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("device,impl,bs,nheads,seqlen,hdim,time_ms\nH100,flash-attn.3,4,16,4096,128,0.9\n")
    assert main(["predict", "--cases", str(table)]) == 0
    said = capsys.readouterr()
    (row,) = csv.DictReader(said.out.splitlines())
    assert float(row["measured_s"]) == pytest.approx(0.9e-3)
    assert float(row["error_percent"]) == pytest.approx(100 * (float(row["predicted_s"]) / 0.9e-3 - 1))
    assert "column time_ms: time_s in ms" in said.err
    (measured,) = rows_of(table)
    assert measured.measured_s == pytest.approx(0.9e-3)
    assert measured.gpu.id == measured.case.gpu == "h100-sxm5-80gb"
    shown = tmp_path / "roof.png"
    assert main(["roofline", "--gpu", "h100-sxm5-80gb", "--measured", str(table), "--out", str(shown)]) == 0
    assert "900 us" in capsys.readouterr().out
    table.write_text("device,impl,bs,nheads,seqlen,hdim,time\nH100,flash-attn.3,4,16,4096,128,0.9\n")
    for command in (
        ["predict", "--cases"],
        ["roofline", "--gpu", "h100-sxm5-80gb", "--measured"],
        ["validate", "--measured"],
    ):
        assert "--time-unit ms" in refusal(capsys, *command, str(table))
    assert main(["predict", "--cases", str(table), "--time-unit", "ms"]) == 0
    for command in (
        ["predict", "--gpu", "l4", "--model", "llama-3-8b", "--seq", "512"],
        ["roofline", "--gpu", "l4"],
        ["validate"],
    ):
        assert "--time-unit is about the table" in refusal(capsys, *command, "--time-unit", "ms")


def test_the_picture_holds_every_answered_row(tmp_path: Path) -> None:
    found = attnsim.check(SAMPLE, progress=False)
    axes = picture(found).figure().axes[0]
    low, high = axes.get_ylim()
    bars = [(box.y0, box.y1) for box in (bar.get_path().get_extents(bar.get_patch_transform()) for bar in axes.patches)]
    heights = [
        (line, np.asarray(line.get_ydata(), float)) for line in axes.lines if line.get_marker() not in ("None", "")
    ]
    drawn = [float(height) for _, several in heights for height in several]
    assert len(bars) == len(drawn) == 18 and all(low < end < high for bar in bars for end in bar)
    assert sorted(drawn) == pytest.approx(sorted(1 / row.ratio for row in found.answered if row.ratio))
    assert len(attnsim.plot.rows("check", found)) == 18
    one_length = found.frame[found.frame["SeqLen"] == "512"]
    alone = picture(attnsim.check(one_length, progress=False)).figure().axes[0]
    assert alone.get_xlabel() == "line of the table"
    table, out = tmp_path / "mine.csv", tmp_path / "ratios.pdf"
    one_length.to_csv(table, index=False)
    assert main(["check", str(table), "--plot", str(out), "--style", "latex", "--caption", "file"]) == 0
    assert r"90 \% range" in out.with_suffix(".tex").read_text(encoding="utf-8")
    nothing = attnsim.check(one_length, implementation="flash-attn.4", progress=False)
    with pytest.raises(InputError, match="nothing to draw; line 2: "):
        picture(nothing)


def test_impossible_times_stand_in_no_mean_and_are_named_with_their_factor() -> None:
    two = {name: cells * 3 for name, cells in MINE.items()} | {"latency (ms)": [0.4747, 0.02, 0.14]}
    found = attnsim.check(pd.DataFrame(two), progress=False)
    flops, peak = 2 * 4 * 16 * (4096 * 4097 // 2) * 256, 989.4e12
    factors = [flops / (1e-3 * time) / peak for time in (0.02, 0.14)]
    assert list(found.impossible) == [
        f"measured is {factor:.1f}x above the GPU's peak: impossible" for factor in factors
    ]
    assert found.accuracy[0].rows == 1 and not found.failed
    assert [row.level for row in found.answered] == ["validated", "impossible", "impossible"]
    assert [row.in_range for row in found.answered][1:] == [None, None]


def test_a_column_a_kernel_is_a_row_each_and_is_told() -> None:
    table = {
        **SHAPE,
        "dtype": ["fp16"],
        "fa2_fwd_ms": [0.9],
        "fa2_bwd_ms": [2.7],
        "cuDNN [TFLOPS]": ["-"],
        "zigzag": [""],
    }
    found = attnsim.check(pd.DataFrame(table), cells={"causal": "1"}, progress=False)
    assert list(found.rows["used_implementation"]) == ["flash-attn.2"] * 2
    assert list(found.rows["measured_s"]) == pytest.approx([0.9e-3, 2.7e-3])
    assert [row.case.passes for row in found.answered if row.case] == ["fwd", "bwd"]
    told = {row["column"]: row["read_as"] for row in found.mapping.to_dict("records")}
    assert told["fa2_bwd_ms"] == "time_s in ms of fa2 bwd" and told["(given: 1)"] == "causal"
    assert {"time_s", "tflops", "implementation", "pass"}.isdisjoint(told)


@pytest.mark.parametrize("unit", ["unit", "Unit of time", "time_unit"])
def test_a_column_of_units_is_told_and_no_column_that_the_table_lacks(unit: str) -> None:
    table = {name: cells for name, cells in MINE.items() if name != "latency (ms)"}
    found = attnsim.check(pd.DataFrame({**table, "median": [474.7], unit: ["us"]}), progress=False)
    assert list(found.rows["measured_s"]) == pytest.approx([474.7e-6])
    told = {row["column"]: row["read_as"] for row in found.mapping.to_dict("records")}
    assert list(told) == [*table, "median", unit]
    assert told["median"] == f"time_s in the unit of '{unit}'" and told[unit] == "unit"


@pytest.mark.parametrize(
    ("table", "said", "words"),
    [
        ({**SHAPE, "cudnn": [0.9]}, {}, "columns 'cudnn' have no unit, median 0.9: looks like ms; give --time-unit ms"),
        ({**MINE}, {"cells": {"heads": "8"}}, "--set-column heads_q=8: every row says it in column 'H'; leave it out"),
        ({**MINE}, {"cells": {"colour": "8"}}, "'colour' is no column that is set"),
        (
            {**SHAPE, "fa2 (ms)": [0.9], "cudnn (ms)": [0.8]},
            {"implementation": "flash-attn.2"},
            "--implementation flash-attn.2 names all rows, and columns 'fa2 (ms)', 'cudnn (ms)' are of several kernels",
        ),
    ],
)
def test_a_wide_table_is_refused_in_one_line(
    table: dict[str, list[object]], said: dict[str, object], words: str
) -> None:
    assert words in problem(table, **said)


def test_an_index_without_a_name_is_no_unit() -> None:
    """pandas writes it before the columns of Triton's perf_report, whose kernels each have a column of rates."""
    frame = pd.DataFrame(
        {"": [0, 1], "N_CTX": [1024.0, 2048.0], "Triton [FP16]": [300.1, 380.0], "Flash-2": [310.0, 1]}
    )
    shape = {"batch": "4", "heads": "32", "head_dim": "64", "dtype": "fp16"}
    found = attnsim.check(frame, gpu="h100-sxm5-80gb", time_unit="tflops", cells=shape, progress=False)
    assert not found.failed and list(found.rows["used_implementation"]) == ["triton.tutorial", "flash-attn.2"] * 2
    flops = 4 * 4 * 32 * 1024**2 * 64
    assert found.rows["measured_s"].iloc[0] == pytest.approx(flops / 300.1e12)


@pytest.mark.parametrize(
    ("columns", "program"),
    [
        (["ID", "Kernel Name", "Block Size", "Grid Size", "Metric Name", "Metric Unit", "Metric Value"], "ncu --csv"),
        (["ID", "Kernel Name", "Block Size", "Grid Size", "gpu__time_duration.sum"], "ncu --csv"),
        (["Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Name"], "nsys stats"),
    ],
)
def test_a_profilers_table_is_said_to_be_one(columns: list[str], program: str) -> None:
    told = problem({name: ["1"] for name in columns})
    assert told.startswith(f"these are the columns of {program}, which names kernels and not what the call was; write")


def test_a_unit_that_contradicts_its_heading_or_is_not_known_is_no_number() -> None:
    for table, said in (({"sdpa-latency": [0.9]}, {"time_unit": "tflops"}), ({"time": [0.9], "unit": ["weeks"]}, {})):
        found = attnsim.check(pd.DataFrame({**SHAPE, **table}), progress=False, **said)  # type: ignore[arg-type]
        assert any("'0.9 " in reason and "allowed: a number" in reason for reason in found.failed), found.failed


def test_a_mapping_is_saved_and_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, saved = tmp_path / "mine.csv", tmp_path / "columns.yaml"
    table.write_text("card,kern2,B,H,N,d,t\nH100,flash-attn.3,4,16,4096,128,950\n")
    said = ["--map", "implementation=kern2", "--map", "time_s=t", "--time-unit", "us", "--set-column", "dtype=fp16"]
    assert main(["check", str(table), *said, "--save-map", str(saved), "--json"]) == 0
    first = capsys.readouterr().out
    assert main(["check", str(table), "--map", str(saved), "--json"]) == 0
    assert capsys.readouterr().out == first
