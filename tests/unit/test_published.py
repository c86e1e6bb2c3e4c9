"""The published tables: every row readable and cited, every figure within what its hardware can do."""

import csv
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import attnsim.models
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.question.case_file import COLUMNS, read_table
from attnsim.models.question.case_row import LAUNCHES, Case, parse_row
from attnsim.validation.checking.claims import above, known, least_s
from attnsim.validation.measured.datasets import Row, row_of

FOLDER = Path(attnsim.models.__file__).parents[1] / "validation" / "measurements" / "published"
ROWS = {
    "flash_attention_1": 19,
    "flash_attention_2": 184,
    "flash_attention_3": 155,
    "cudnn_a100_pcie": 172,
    "vllm_a100_sxm4": 513,
    "sglang_a100_sxm4": 150,
    "vllm_h100_sxm5": 250,
    "sglang_h100_sxm5": 230,
    "vllm_l40s": 100,
    "trtllm_h100": 150,
    "trtllm_b200": 75,
    "trtllm_b200_vllm": 75,
    "flash_attention_4": 40,
    "flash_attention_4_sglang": 40,
    "flash_attention_3_backward": 46,
    "cudnn_gb200_training": 60,
    "cudnn_h200": 33,
    "cudnn_gb200_inference": 137,
    "flash_decoding_a100": 20,
    "nsa_triton_dense": 56,
    "sage_readme": 122,
    "pytorch_2_1_a100": 225,
    "flex_block_h800_dense": 30,
    "nsa_triton_branches": 98,
    "flash_nsa_h800": 25,
    "sglang_dsa": 751,
    "infersim_dsa_h800": 42,
    "flex_attention_h800": 17,
    "flex_block_attn_h800": 17,
    "linear_gdn": 969,
    "linear_kda": 1234,
    "linear_convolution": 452,
    "linear_flashkda": 24,
    "natten": 15,
    "strangers_2026_11": 161,
}
# Dense 16-bit tensor peak, TFLOP/s: NVIDIA A100, H100, L40S and B200 datasheets.
PEAK_TFLOPS = {
    "a100-sxm4-40gb": 312,
    "a100-sxm4-80gb": 312,
    "a100-pcie-80gb": 312,
    "h100-sxm5-80gb": 989.4,
    "l40s": 362.05,
    "b200-sxm-180gb": 2250,
    "gb200": 2500,
    "h200-sxm-141gb": 989.4,
    "h800-sxm": 989.4,
    "rtx-3090": 71.2,
    "rtx-4090": 165.2,
    "h20": 148,
    "b300-sxm": 2500,
}
PRODUCTS = {"fwd": 2.0, "decode": 2.0, "bwd": 5.0, "fwd+bwd": 7.0}


def rows_of(table: str) -> list[dict[str, str]]:
    with (FOLDER / f"{table}.csv").open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def sources() -> dict[str, dict[str, str]]:
    return {row["source"]: row for row in rows_of("sources")}


def useful_flops(case: Case, halved: bool) -> float:
    """The papers' count: 2 operations per multiply-add, causal as half the square."""
    width = (case.head_dim + case.head_dim_v) / 2
    pairs = case.seq_q * case.seq_kv / (2 if halved else 1)
    return 2 * PRODUCTS[case.passes] * case.batch * case.heads_q * pairs * width


def test_the_folder_holds_these_tables_and_their_sources() -> None:
    assert {path.stem for path in FOLDER.glob("*.csv")} == {*ROWS, "sources"}


@pytest.mark.parametrize("table", ROWS)
def test_columns_and_rows(table: str) -> None:
    frame = read_table(FOLDER / f"{table}.csv")
    assert list(frame.columns)[: len(COLUMNS) + 1] == [*COLUMNS, "launch"]
    assert set(frame.columns[len(COLUMNS) + 1 :]) <= {"version", "options"}
    assert len(frame) == ROWS[table]


@pytest.mark.parametrize("table", ROWS)
def test_every_row_is_a_timed_case_and_none_appears_twice(table: str) -> None:
    cases = [parse_row(row) for row in rows_of(table)]
    assert all(case.time_s and case.launch in LAUNCHES and case.implementation for case in cases)
    assert {note for case in cases for note in case.assumed.values()} <= {"causal empty, taken as 0"}
    assert len(set(cases)) == len(cases)


def test_every_source_resolves_and_every_citation_is_used() -> None:
    cited = sources()
    used = {(row["source"], row["launch"], row["cache"]) for table in ROWS for row in rows_of(table)}
    assert used == {(key, source["launch"], source["cache"]) for key, source in cited.items()}
    for key, source in cited.items():
        for column in ("citation", "laboratory", "location", "version", "licence", "url", "processing"):
            assert source[column].strip(), f"{key} has no {column}"
        assert source["url"].startswith("https://")


LINEAR = [table for table in ROWS if table.startswith("linear_")]


def built(table: str) -> list[Row]:
    """The rows of a table that have a schedule's record."""
    found = []
    for row in rows_of(table):
        with suppress(InputError):
            found.append(row_of(parse_row(row)))
    assert found
    return found


@pytest.mark.parametrize("table", ROWS)
def test_no_row_lies_above_a_ceiling_of_its_gpu_but_those_with_a_reason(table: str) -> None:
    """By the FLOPs, exponentials and bytes that its schedule counts."""
    found = above(built(table))
    assert not [row for row in found if not row["reason"]]
    reasons = {(one.source, one.gpu, one.unit) for one in known()}
    assert {(row["source"], row["gpu"], row["unit"]) for row in found} == (reasons if table == "sage_readme" else set())


def faster(row: Row, times: float) -> Row:
    return replace(row, case=replace(row.case, time_s=row.measured_s / times))


@pytest.mark.parametrize(
    ("table", "place", "unit"),
    [("flash_attention_3", 128, "tensor"), ("flash_attention_3", 23, "exp"), ("cudnn_gb200_inference", 0, "hbm")],
)
def test_a_row_that_cannot_be_true_is_named(
    table: str, place: int, unit: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = faster(built(table)[place], 30)
    (found,) = above([planted])
    assert (found["unit"], found["reason"]) == (unit, "")
    assert found["least_s"] == least_s(planted.schedule, planted.gpu, planted.case.cache)[unit]
    assert found["least_s"] > found["measured_s"] == planted.measured_s
    monkeypatch.setattr("attnsim.cli.accuracy.measured_rows", lambda: [planted])
    monkeypatch.setattr("attnsim.cli.accuracy.differences", list)
    assert main(["fit", "--check"]) == 1
    told = capsys.readouterr().out
    assert f"above a ceiling: {planted.case.source}, {planted.record.name} on {planted.case.gpu}" in " ".join(
        told.split()
    )


def test_an_l2_that_measured_rows_exceed_is_found_out() -> None:
    """5.17 TB/s was an H100's, as a fit had it."""
    rows = [replace(row, gpu=row.gpu.replace("l2.bandwidth", "5.17 TB/s")) for row in built("vllm_h100_sxm5")]
    assert {row["unit"] for row in above(rows)} == {"l2"}


@pytest.mark.parametrize("table", sorted({*ROWS} - {*LINEAR}))
def test_no_time_is_above_the_tensor_peak(table: str) -> None:
    for row in rows_of(table):
        case = parse_row(row)
        if case.window is None and not {"selection", "mask"} & set(case.options):
            assert case.time_s
            flops = useful_flops(case, halved=case.causal and case.seq_q == case.seq_kv)
            share = flops / case.time_s / (PEAK_TFLOPS[case.gpu] * 1e12)
            # A chunk at the end of a long cache is counted as dense here, which adds up to 13 %.
            assert share < 1, row


@pytest.mark.parametrize("table", ["flash_attention_2", "flash_attention_3"])
def test_times_give_back_the_papers_whole_tflops(table: str) -> None:
    for row in rows_of(table):
        if "from TFLOP/s" in row["notes"]:
            case = parse_row(row)
            assert case.time_s
            tflops = useful_flops(case, halved=case.causal) / case.time_s / 1e12
            assert tflops == pytest.approx(round(tflops), rel=1e-5)
            assert case.batch * case.seq_q == 16384


@pytest.mark.parametrize(
    ("source", "implementation", "time_s"),
    [
        ("fa1_fig2", "pytorch_eager", 0.0417),
        ("fa1_fig2", "flash_attn_v1", 0.0073),
        ("fa3_table2", "flash_attn_v3", 0.003538),
    ],
)
def test_figures_printed_in_the_papers(source: str, implementation: str, time_s: float) -> None:
    found = [
        float(row["time_s"])
        for table in ("flash_attention_1", "flash_attention_3")
        for row in rows_of(table)
        if (row["source"], row["implementation"]) == (source, implementation)
    ]
    assert found == [time_s]
