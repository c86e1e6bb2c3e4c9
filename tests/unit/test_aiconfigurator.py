"""The tables of aiconfigurator-core: conventions, rules and samples, on files of their layout and on the package."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnsim.errors import InputError
from attnsim.models.question.case_row import Case
from attnsim.models.question.workload import Latent
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.aiconfigurator import RULES, SPIKE, Measured, rejected_by
from attnsim.validation.measured.aiconfigurator_files import (
    KINDS,
    MODULE,
    SYSTEMS,
    TableFile,
    read_shapes,
    table_files,
)
from attnsim.validation.measured.aiconfigurator_files import cases_of as cases_in
from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.groups import groups

FAMILIES = {"context": "attention", "generation": "attention", "encoder": "encoder_attention"}
STEMS = {kind: stem for stem, kind in KINDS.items()}
KNOWN = {rule.name for rule in RULES if rule.known}

installed = pytest.mark.skipif(not aiconfigurator.available(), reason=aiconfigurator.missing())


def raw(kind: str, latency_ms: float, **changes: Any) -> dict[str, Any]:
    """A row as the collector writes it."""
    row: dict[str, Any] = {
        "framework": "VLLM", "version": "0", "device": "a GPU", "op_name": f"{kind}_attention",
        "kernel_source": "vllm_flash_attn_fa3", "batch_size": 4, "isl": 1024, "num_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "beam_width": 1, "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16", "window_size": 0, "step": 0, "latency": latency_ms,
    }  # fmt: skip
    if kind.endswith("generation"):
        row |= {"isl": 1, "step": 1023}
    if kind == "encoder":
        for name in ("num_key_value_heads", "beam_width", "kv_cache_dtype", "window_size", "step"):
            del row[name]
    if kind.startswith("mla"):
        for name in ("num_key_value_heads", "beam_width", "head_dim", "window_size"):
            del row[name]
        row["mla_dtype"] = row.pop("attn_dtype")
    return row | changes


def write(folder: Path, table: str, kind: str, rows: list[dict[str, Any]]) -> TableFile:
    """Write a file where the package has it; `table` is ``system/framework/version``."""
    system, framework, version = table.split("/")
    path = folder / system / FAMILIES.get(kind, "mla") / framework / version / f"{STEMS[kind]}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(path)
    return next(file for file in table_files(folder) if file.path == path)


def cases_of(folder: Path) -> list[Case]:
    files = [file for file in table_files(folder) if file.kind != MODULE]
    return [case for file in files for case in cases_in(file, read_shapes(file))]


def verdicts(file: TableFile) -> list[str]:
    frame = read_shapes(file)
    measured = Measured(frame, file)
    return [str(name) for name in rejected_by(measured)]


# Conventions ---------------------------------------------------------------------------------------------------------


def test_a_context_row_is_causal_warm_and_from_a_graph(tmp_path: Path) -> None:
    write(tmp_path, "h100_sxm/vllm/0.24.0", "context", [raw("context", 0.5)])
    (row,) = aiconfigurator.rows(folder=tmp_path)
    case = row.case
    assert (case.gpu, case.implementation, case.version) == ("h100-sxm5-80gb", "vllm.flash-attn-3", "vllm 0.24.0")
    assert (case.batch, case.heads_q, case.heads_kv, case.seq_q, case.seq_kv) == (4, 32, 8, 1024, 1024)
    assert (case.passes, case.causal, case.cache, case.launch, case.page_size) == ("fwd", True, "warm", "graph", 64)
    assert case.window is None
    assert row.measured_s == pytest.approx(0.5e-3)
    assert case.source == "aiconfigurator-core-0.12.0/h100_sxm/attention/vllm/0.24.0/context_attention_perf"


@pytest.mark.parametrize(
    ("table", "kernel", "keys", "dtype", "page"),
    [
        ("a100_sxm/vllm/0.14.0", "vllm_flash_attn", 1023, "fp16", 64),
        ("h100_sxm/vllm/0.24.0", "vllm_flash_attn_fa3", 1024, "bf16", 64),
        ("a100_sxm/sglang/0.5.10", "flash_attention", 1024, "bf16", 64),
        ("h100_sxm/sglang/0.5.14", "fa3", 1024, "bf16", 1),
        ("b200_sxm/sglang/0.5.14", "trtllm_mha", 1024, "bf16", 64),
        ("h100_sxm/trtllm/1.3.0rc20", "torch_flow", 1024, "bf16", 64),
    ],
)
def test_keys_of_a_decode_row(tmp_path: Path, table: str, kernel: str, keys: int, dtype: str, page: int) -> None:
    write(tmp_path, table, "generation", [raw("generation", 0.5, kernel_source=kernel)])
    (row,) = aiconfigurator.rows(folder=tmp_path)
    assert (row.case.passes, row.case.seq_q, row.case.seq_kv) == ("decode", 1, keys)
    assert (row.case.dtype, row.case.page_size) == (dtype, page)


@pytest.mark.parametrize(
    ("table", "kernel", "given", "length", "taken"),
    [
        ("h100_sxm/vllm/0.24.0", "vllm_flash_attn_fa3", 8192, 16384, 8192),
        ("h100_sxm/vllm/0.24.0", "vllm_flash_attn_fa3", -1, 16384, None),
        ("h100_sxm/sglang/0.5.14", "fa3", 128, 16384, 128),
        ("h100_sxm/sglang/0.5.14", "fa3", 8192, 8192, None),
        ("b200_sxm/sglang/0.5.14", "trtllm_mha", 8192, 16384, None),
    ],
)
def test_windows(tmp_path: Path, table: str, kernel: str, given: int, length: int, taken: int | None) -> None:
    write(tmp_path, table, "context", [raw("context", 90, kernel_source=kernel, window_size=given, isl=length)])
    (row,) = aiconfigurator.rows(folder=tmp_path)
    assert row.case.window == taken
    assert row.workload.mask.is_windowed == (taken is not None)


def test_chunked_attention_has_no_schedule(tmp_path: Path) -> None:
    rows = [raw("context", 90, kernel_source="fa3", window_size=8192, isl=16384)]
    write(tmp_path, "h100_sxm/sglang/0.5.14", "context", rows)
    assert aiconfigurator.rows(folder=tmp_path) == ()
    assert aiconfigurator.tables(tmp_path)[0].uncovered == {"chunked attention": 1}


def test_values_of_width_128_beside_keys_of_192(tmp_path: Path) -> None:
    wide = raw("generation", 0.5, kernel_source="fa3", head_dim=192)
    write(tmp_path, "h100_sxm/sglang/0.5.14", "generation", [wide])
    write(tmp_path, "h100_sxm/trtllm/1.3.0rc20", "generation", [wide | {"kernel_source": "torch_flow"}])
    assert [(case.head_dim, case.head_dim_v) for case in cases_of(tmp_path)] == [(192, 128), (192, 192)]


@pytest.mark.parametrize(
    ("table", "kernel", "kind", "widths", "implementation"),
    [
        ("h100_sxm/trtllm/1.3.0rc20", "default", "mla context", (192, 128, 16), "tensorrt-llm.mla-hopper"),
        ("h100_sxm/trtllm/1.3.0rc20", "default", "mla generation", (576, 512, 1), "tensorrt-llm.mla-hopper"),
        ("h100_sxm/sglang/0.5.14", "flash_attention", "mla context", (576, 512, 1), "sglang.fa3-mla"),
        ("b200_sxm/sglang/0.5.14", "trtllm_mla", "mla context", (192, 128, 16), "tensorrt-llm.mla-trtllm-gen"),
        ("b200_sxm/trtllm/1.3.0rc20", "default", "mla generation", (576, 512, 1), "tensorrt-llm.mla-trtllm-gen"),
        ("l40s/trtllm/1.0.0", "default", "mla generation", (576, 512, 1), "tensorrt-llm.mla-fmha-v2"),
        ("l40s/sglang/0.5.14", "triton", "mla generation", (576, 512, 1), "sglang.triton-mla"),
    ],
)
def test_latent_attention_asks_in_decompressed_terms(
    tmp_path: Path, table: str, kernel: str, kind: str, widths: tuple[int, int, int], implementation: str
) -> None:
    """Rules judge the widths that the kernel works on; a case asks in those of the heads."""
    file = write(tmp_path, table, kind, [raw(kind, 2, num_heads=16, kernel_source=kernel)])
    (shape,) = read_shapes(file).itertuples()
    assert (shape.head_dim, shape.head_dim_v, shape.heads_kv) == widths
    (case,) = cases_of(tmp_path)
    assert (case.algorithm, case.implementation) == ("mla", implementation)
    assert (case.head_dim, case.head_dim_v, case.heads_kv, case.options["latent"]) == (192, 128, 16, "512x64")
    (row,) = aiconfigurator.rows(folder=tmp_path)
    assert row.workload.latent == Latent(512, 64)
    assert row.schedule.algorithm == "mla" and row.schedule.notes, "the attention call alone"


@pytest.mark.parametrize(
    ("system", "changes", "reason"),
    [
        ("h100_sxm", {"kernel_source": "vllm_triton_attn"}, "kernel without a schedule"),
        ("h100_sxm", {"kv_cache_dtype": "fp8"}, "16-bit queries on an fp8 cache"),
        ("h100_sxm", {"head_dim": 512}, "head_dim above the largest"),
        ("l40s", {"kernel_source": "vllm_flash_attn_fa3"}, "vllm.flash-attn-3 has no schedule on sm_89"),
    ],
)
def test_why_a_row_has_no_schedule(tmp_path: Path, system: str, changes: Mapping[str, Any], reason: str) -> None:
    write(tmp_path, f"{system}/vllm/0.24.0", "context", [raw("context", 9, **changes), raw("context", 8, **changes)])
    (table,) = aiconfigurator.tables(tmp_path)
    assert (table.rows, table.kept, table.uncovered) == (2, 0, {reason: 2})


# Rules ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "table", "kind", "bad", "good"),
    [
        ("corrupt_collection", "h200_sxm/vllm/0.19.0", "context", {}, None),
        ("one_token_context", "h100_sxm/vllm/0.24.0", "context", {"isl": 1}, {"isl": 2}),
        ("one_token_context", "h100_sxm/trtllm/1.3.0rc20", "mla context", {"isl": 1}, {"isl": 2}),
        (
            "keys_only_cache",
            "a100_sxm/trtllm/1.0.0",
            "generation",
            {"num_heads": 16, "num_key_value_heads": 8},
            {"num_heads": 8},
        ),
        ("keys_only_cache", "a100_sxm/trtllm/1.0.0", "generation", {"num_heads": 8, "step": 255}, {"num_heads": 8}),
        ("ignored_fp8_cache", "a100_sxm/trtllm/1.0.0", "mla generation", {"kv_cache_dtype": "fp8"}, {}),
        ("not_a_time", "h100_sxm/vllm/0.24.0", "context", {"latency": 0.0}, {}),
        ("not_a_time", "h100_sxm/vllm/0.24.0", "context", {"latency": float("nan")}, {}),
        # 4 x 32 heads x 1024 x 1025 / 2 pairs x 4 x 128 FLOP are 34.4 GFLOP: 32.1 us at the boost clock's 1070 TFLOP/s.
        ("above_tensor_peak", "h100_sxm/vllm/0.24.0", "context", {"latency": 0.0319}, {"latency": 0.0324}),
        # Not causal: twice that, 64.2 us.
        ("above_tensor_peak", "h100_sxm/vllm/0.24.0", "encoder", {"latency": 0.0637}, {"latency": 0.0647}),
        # 64 x 8 x 8192 keys x 512 B are 2.15 GB, less 50 MiB of L2: 625 us at 3.35 TB/s.
        (
            "above_hbm_bandwidth",
            "h100_sxm/vllm/0.24.0",
            "generation",
            {"batch_size": 64, "step": 8191, "latency": 0.62},
            {"batch_size": 64, "step": 8191, "latency": 0.63},
        ),
        # A window reads its keys alone.
        (
            "above_hbm_bandwidth",
            "h100_sxm/vllm/0.24.0",
            "generation",
            {"batch_size": 64, "step": 8191, "latency": 0.14, "window_size": 2048},
            {"batch_size": 64, "step": 8191, "latency": 0.15, "window_size": 2048},
        ),
    ],
)
def test_a_rule_rejects_what_it_names_and_no_more(
    tmp_path: Path, rule: str, table: str, kind: str, bad: Mapping[str, Any], good: Mapping[str, Any] | None
) -> None:
    rows = [raw(kind, 50.0, **given) for given in (bad, good) if given is not None]
    expected = [rule] if good is None else [rule, ""]
    assert verdicts(write(tmp_path, table, kind, rows)) == expected


def test_a_spike_is_slower_than_both_neighbours(tmp_path: Path) -> None:
    times = {256: 1.0, 512: 1.0 * 1.01 * SPIKE, 1024: 1.0, 2048: 8.0, 4096: 9.0}
    file = write(tmp_path, "h100_sxm/vllm/0.24.0", "context", [raw("context", t, isl=n) for n, t in times.items()])
    assert verdicts(file) == ["", "spike", "", "", ""]


def test_every_row_is_kept_rejected_or_not_covered(tmp_path: Path) -> None:
    rows = [raw("context", 9), raw("context", 9, isl=1), raw("context", 9, kernel_source="vllm_flash_attn_fa4")]
    write(tmp_path, "h100_sxm/vllm/0.24.0", "context", rows)
    write(tmp_path, "b60/vllm/0.26.0", "context", rows)
    counted = {(t.gpu, t.kernel): (t.rows, t.kept, t.rejected, t.uncovered) for t in aiconfigurator.tables(tmp_path)}
    assert counted == {
        ("h100-sxm5-80gb", "vllm_flash_attn_fa3"): (2, 1, {"one_token_context": 1}, {}),
        ("h100-sxm5-80gb", "vllm_flash_attn_fa4"): (1, 0, {}, {"kernel without a schedule": 1}),
        ("", ""): (3, 0, {}, {"no GPU file": 3}),
    }


# Filters and samples -------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A hundred prefill rows in few strata, one of which holds most of them."""
    rows = [raw("context", 9, isl=512 + i) for i in range(60)]
    rows += [raw("context", 9, isl=2048 + i, window_size=1024) for i in range(20)]
    rows += [raw("context", 9, isl=8192 + i, head_dim=64, batch_size=1) for i in range(20)]
    write(tmp_path, "h100_sxm/vllm/0.24.0", "context", rows)
    write(tmp_path, "a100_sxm/sglang/0.5.10", "generation", [raw("generation", 9, kernel_source="flash_attention")])
    return tmp_path


def stratum(row: Row) -> tuple[str, str, bool]:
    found = groups(row)
    return found["band"], found["head_dim"], row.case.window is not None


def test_a_sample_is_even_repeatable_and_nested(many: Path) -> None:
    def taken(sample: int, seed: int = 0) -> list[tuple[int, int]]:
        rows = aiconfigurator.rows(passes="fwd", sample=sample, seed=seed, folder=many)
        return [(row.case.seq_q, row.case.head_dim) for row in rows]

    rows = aiconfigurator.rows(passes="fwd", sample=30, folder=many)
    sizes = pd.Series([stratum(row) for row in rows]).value_counts()
    assert len(sizes) == 3
    assert set(sizes) == {10}
    assert taken(30) == taken(30)
    assert set(taken(30)) < set(taken(75))
    assert taken(30) != taken(30, seed=1)
    assert len(taken(75)) == 75
    assert len(taken(1000)) == 100


def test_filters(many: Path) -> None:
    assert len(aiconfigurator.rows(folder=many)) == 101
    assert len(aiconfigurator.rows(gpu="a100-sxm4-80gb", folder=many)) == 1
    assert len(aiconfigurator.rows(implementation="sglang.fa3-sm80", folder=many)) == 1
    assert len(aiconfigurator.rows(kind="context", windowed=True, folder=many)) == 20
    assert len(aiconfigurator.rows(framework="vllm", dtype="bf16", folder=many)) == 100
    assert aiconfigurator.rows(dtype="fp8", folder=many) == ()
    assert aiconfigurator.rows(implementation="xformers", sample=3, folder=many) == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu": "h100"}, "h100-sxm5-80gb"),
        ({"passes": "bwd"}, "fwd"),
        ({"framework": "vlm"}, "vllm"),
        ({"kind": "contexts"}, "context"),
        ({"implementation": "vllm_flsh"}, "vllm.flash-attn-2"),
        ({"sample": 0}, "1 or more"),
    ],
)
def test_what_is_not_there_is_named(many: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        aiconfigurator.rows(**given, folder=many)
    assert "\n" not in str(error.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiconfigurator, "installed_folder", lambda: None)
    assert not aiconfigurator.available()
    line = aiconfigurator.missing()
    assert line.startswith("not checked: ")
    assert 'pip install "attnsim[datasets]"' in line
    assert "\n" not in line
    for ask in (aiconfigurator.tables, aiconfigurator.rows):
        with pytest.raises(InputError, match="pip install"):
            ask()


# The installed package -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def all_tables() -> tuple[aiconfigurator.Table, ...]:
    return aiconfigurator.tables()


@installed
def test_the_pinned_package_and_what_is_rejected_of_it() -> None:
    tables = [table for table in all_tables() if table.gpu]
    assert {table.gpu for table in tables} == set(SYSTEMS.values())
    assert all(t.rows == t.kept + sum(t.rejected.values()) + sum(t.uncovered.values()) for t in tables)
    rejects: dict[str, int] = {}
    for table in tables:
        for rule, number in table.rejected.items():
            rejects[rule] = rejects.get(rule, 0) + number
    assert sum(table.rows for table in tables) == 2_363_293
    assert rejects == {"one_token_context": 79_500, "ignored_fp8_cache": 7_504, "keys_only_cache": 4_560, "spike": 279}
    for table in tables:  # beyond known faults at most one row in a hundred, of every table
        assert sum(n for rule, n in table.rejected.items() if rule not in KNOWN) <= 0.01 * table.rows


@installed
def test_every_sampled_schedule_can_be_built() -> None:
    for gpu in SYSTEMS.values():
        for row in aiconfigurator.rows(gpu=gpu, sample=50):
            assert row.schedule.kernels
            assert groups(row)
