"""GPUs: the built-in figures, hypothetical changes, and what is refused."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import attnsim.models
from attnsim.errors import InputError
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from tests.unit.answering import refused

MODELS = Path(attnsim.models.__path__[0])
# Dense TFLOP/s with fp32 accumulate: fp16, bf16, fp8 (0: the GPU cannot), from the vendors' datasheets
# (RTX PRO 6000: aiconfigurator's 467.8 TFLOP/s at 2430 MHz, at the clock of its 120 FP32 TFLOP/s).
PEAKS = {
    "v100-sxm2-32gb": (125, 0, 0),
    "t4": (65.1, 0, 0),
    "a100-sxm4-40gb": (312, 312, 0),
    "a100-sxm4-80gb": (312, 312, 0),
    "a100-pcie-80gb": (312, 312, 0),
    "rtx-3090": (71.2, 71.2, 0),
    "rtx-4090": (165.2, 165.2, 330.3),
    "rtx-5090": (209.5, 209.5, 419),
    "l4": (121.2, 121.2, 242.3),
    "l40s": (362.05, 362.05, 733),
    "rtx-pro-6000-server": (480, 480, 960),
    "h100-sxm5-80gb": (989.4, 989.4, 1978.9),
    "h100-pcie-80gb": (756.45, 756.45, 1513),
    "h200-sxm-141gb": (989.4, 989.4, 1978.9),
    "b200-sxm-180gb": (2250, 2250, 4500),
    "gb200": (2500, 2500, 5000),
    "b300-sxm": (2250, 2250, 4500),
    "gb300": (2500, 2500, 5000),
    "h20": (148, 148, 296),
    "h800-sxm": (989.4, 989.4, 1978.9),
    "h800-pcie": (756.45, 756.45, 1513),
    "a800": (312, 312, 0),
    "a800-pcie": (312, 312, 0),
    "a30": (165, 165, 0),
    "a40": (149.7, 149.7, 0),
    "rtx-a6000": (154.8, 154.8, 0),
    "a10g": (70, 70, 0),
    "rtx-3080": (59.5, 59.5, 0),
    "l20": (119.5, 119.5, 239),
    "l40": (181.05, 181.05, 362),
    "rtx-6000-ada": (364.2, 364.2, 728.5),
}
GB_PER_S = {
    "b300-sxm": 7750, "gb300": 8000, "h20": 4000, "h800-sxm": 3350, "h800-pcie": 2000, "a800": 2039, "a800-pcie": 1935,
    "a30": 933, "a40": 696, "rtx-a6000": 768, "a10g": 600, "rtx-3080": 760, "rtx-5090": 1792, "l20": 864, "l40": 864,
    "rtx-6000-ada": 960,
}  # fmt: skip
"""Memory bandwidth from the same documents."""
IDS = tuple(sorted(PEAKS))


@pytest.fixture
def h100() -> Gpu:
    return load_gpu("h100-sxm5-80gb")


# --- the built-in GPUs


def test_all_are_there() -> None:
    assert sorted(builtin_gpu_ids()) == sorted(IDS)


@pytest.mark.parametrize("gpu_id", IDS)
def test_every_figure_has_kind_and_source(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    assert gpu.id == gpu.base_id == gpu_id
    assert gpu.changes == ()
    assert list(gpu.provenance) == list(FIELDS)
    for key, figure in gpu.provenance.items():
        assert figure.kind in ("datasheet", "measured", "derived", "assumed"), key
        assert len(figure.source) > 5, key
        assert figure.value == gpu.get(key), key
        assert figure.unit == FIELDS[key].unit, key
        assert FIELDS[key].low <= figure.value <= FIELDS[key].high, key
        if figure.source.startswith(("rule", "recalled")):
            assert figure.kind == "assumed", key


@pytest.mark.parametrize("gpu_id", IDS)
def test_sources_are_citations(gpu_id: str) -> None:
    text = (MODELS / "hardware" / "gpus" / f"{gpu_id}.yaml").read_text(encoding="utf-8")
    assert not re.search(r"#\d{6,}|/work/", text)


@pytest.mark.parametrize("gpu_id", IDS)
def test_datasheet_peak_is_rate_times_sms_times_tensor_clock(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    for dtype, peak in zip(("fp16", "bf16", "fp8"), PEAKS[gpu_id], strict=True):
        # L40S's datasheet is 1.2 % below its cores at its boost clock.
        assert gpu.peak_tensor_flops_per_s(dtype) == pytest.approx(peak * 1e12, rel=0.013 if gpu_id == "l40s" else 0.01)
        assert gpu.supports_dtype(dtype) == (peak > 0)
        rate = gpu.tensor_flops_per_clk(dtype)
        assert gpu.peak_tensor_flops_per_s(dtype) == rate * gpu.sm.count * gpu.clock.tensor_hz


@pytest.mark.parametrize("gpu_id", GB_PER_S)
def test_memory_and_clocks_are_the_datasheet_s(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    assert gpu.hbm.bandwidth_bytes_per_s == pytest.approx(GB_PER_S[gpu_id] * 1e9, rel=0.01)
    assert gpu.clock.base_hz < gpu.clock.tensor_hz <= gpu.clock.boost_hz
    for key in ("sm.count", "tensor.fp16", "l2.capacity", "hbm.capacity", "hbm.bandwidth", "clock.tensor"):
        figure = gpu.provenance[key]
        assert figure.kind != "assumed" or figure.source.startswith("rule: the boost clock"), key


@pytest.mark.parametrize("gpu_id", IDS)
def test_limits_of_an_sm(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    sm, number = gpu.sm, gpu.compute_capability_number
    assert sm.shared_memory_bytes_per_clk == (64 if gpu_id == "t4" else 128)
    assert sm.exp_per_clk == (32 if number == 103 else 16)
    assert sm.registers == 65536
    assert sm.max_warps * 32 == sm.max_threads
    assert sm.shared_memory_reserved_bytes == (1024 if number >= 80 else 0)
    assert sm.shared_memory_per_block_bytes == sm.shared_memory_bytes - sm.shared_memory_reserved_bytes
    assert gpu.l2.partitions == (2 if number in (80, 90, 100, 103) else 1)
    assert gpu.features.cp_async == (number >= 80)
    assert gpu.features.wgmma == (number == 90)
    assert gpu.features.tcgen05 == (number in (100, 103))
    assert all(isinstance(value, int) for value in (sm.count, sm.shared_memory_bytes, gpu.l2.capacity_bytes))


def test_the_traps_are_stepped_over(h100: Gpu) -> None:
    assert h100.clock.tensor_hz == 1.83e9  # not the 1.98 GHz boost
    assert h100.clock.boost_hz == 1.98e9
    assert h100.tensor.mma_sync_fraction == 0.629
    assert load_gpu("l4").sm.count == 58
    assert load_gpu("v100-sxm2-32gb").tensor.fp16_flops_per_clk == 1024
    assert load_gpu("rtx-4090").tensor.fp16_flops_per_clk == 512  # half rate with fp32 accumulate
    assert load_gpu("a100-sxm4-80gb").sm.shared_memory_bytes == 164 * 1024
    assert load_gpu("a100-sxm4-80gb").l2.bandwidth_bytes_per_s == 5.43e12
    assert load_gpu("h200-sxm-141gb").hbm.bandwidth_bytes_per_s == 4.8e12
    b200 = load_gpu("b200-sxm-180gb")
    assert b200.tensor.mma_sync_fraction * 8192 == pytest.approx(0.629 * 4096)
    assert b200.provenance["l2.bandwidth"].kind == "assumed"


def test_derived_figures(h100: Gpu) -> None:
    assert (h100.sm_arch, h100.compute_capability_number) == ("sm_90", 90)
    assert load_gpu("rtx-pro-6000-server").sm_arch == "sm_120"
    assert h100.tensor_flops_per_clk("fp32") == 256
    assert h100.exp_per_s == pytest.approx(3.865e12, rel=1e-3)  # FlashAttention-3 paper: 3.9 TFLOP/s
    assert h100.fp32_flops_per_s == 256 * 132 * 1.83e9
    assert "fp16, bf16" in refused(h100.tensor_flops_per_clk, "int8")


def test_equality_hash_and_pickle(h100: Gpu) -> None:
    assert h100 is load_gpu("h100-sxm5-80gb")  # parsed once
    faster = h100.replace("hbm.bandwidth", "6TB/s")
    assert faster != h100
    assert faster == h100.replace("hbm.bandwidth", 6e12)
    assert hash(faster) == hash(h100.replace("hbm.bandwidth", "6 TB/s"))
    assert len({h100, faster, faster}) == 2
    assert "provenance" not in repr(h100)
    copy = pickle.loads(pickle.dumps(faster))
    assert copy == faster
    assert copy.provenance == faster.provenance


# --- hypothetical hardware


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hbm.bandwidth", "6 TB/s", 6e12),
        ("hbm.bandwidth", "6TB/s", 6e12),
        ("hbm.bandwidth", "1000x", 3.35e15),
        ("hbm.bandwidth", 6e12, 6e12),
        ("sm.count", "160", 160),
        ("sm.count", 1, 1),
        ("sm.count", "=10000", 10_000),
        ("sm.count", "1.05x", 139),
        ("sm.exp_rate", "2x", 32),
        ("sm.exp_rate", "1.5 op/clk", 1.5),
        ("sm.exp_rate", 1.5, 1.5),
        ("clock.sustained", "1.5GHz", 1.5e9),
        ("l2.capacity", "100 MiB", 100 * 2**20),
        ("launch.stream", "0 us", 0),
        ("tensor.fp8", "0", 0),
        ("features.wgmma", "false", 0),
        ("hbm.achievable_fraction", "100 %", 1),
    ],
)
def test_replace(h100: Gpu, key: str, value: str | float, expected: float) -> None:
    changed = h100.replace(key, value)
    assert changed.get(key) == expected
    assert len(changed.changes) == 1
    assert changed.changes[0].key == key
    assert changed.base_id == "h100-sxm5-80gb"
    assert changed.provenance[key].value == expected
    others = [name for name in FIELDS if changed.get(name) != h100.get(name)]
    assert others == [key, *["l2.bandwidth"] * (key == "sm.count")]


def test_changes_read_well(h100: Gpu) -> None:
    changed = h100.replace("hbm.bandwidth", "6TB/s").replace("sm.count", "160")
    told = [
        "hbm.bandwidth = 6 TB/s (was 3.35 TB/s)",
        "sm.count = 160 (was 132; l2.bandwidth follows: 11.76 TB/s, was 9.7 TB/s)",
    ]
    assert [*map(str, changed.changes)] == told
    assert h100.replace("sm.count", 132) is h100  # nothing changed, nothing recorded


def test_every_key_that_a_prediction_reads_can_be_replaced(h100: Gpu) -> None:
    for key, field in FIELDS.items():
        if field.read == "nobody":
            reason, _, instead = refused(h100.replace, key, "2x").partition("; ")
            assert reason == f"{key} is read by no prediction, so changing it would change nothing"
            assert instead
        elif field.unit == "bool":
            assert h100.replace(key, not h100.get(key)).get(key) != h100.get(key)
        elif key not in (
            "sm.max_threads_per_block",
            "sm.shared_memory_per_block",
            "sm.shared_memory_reserved",
            "clock.sustained",  # of which nothing is held
        ):
            factor = "0.5x" if field.high == 1 else "2x"
            gpu = h100 if h100.get(key) else load_gpu("b200-sxm-180gb")
            assert gpu.replace(key, factor).get(key) == pytest.approx(gpu.get(key) * float(factor[:-1]))


def test_coupled_figures_move_along(h100: Gpu) -> None:
    big = h100.replace("sm.shared_memory", "2x")
    assert big.sm.shared_memory_bytes == 456 * 1024
    assert big.sm.shared_memory_per_block_bytes == 455 * 1024
    assert "sm.shared_memory_per_block follows: 455 KiB, was 227 KiB" in str(big.changes[0])
    slow = h100.with_values({"clock.sustained": 1.5e9}).replace("clock.tensor", "2x")
    assert slow.clock.full_hz == slow.clock.held_hz == pytest.approx(2 * 1.5e9)
    assert slow.clock.free_hz == pytest.approx(2 * 1.863e9)
    assert "clock.free follows" in str(slow.changes[0]) and "clock.sustained follows" in str(slow.changes[0])
    given = h100.replace("clock.sustained", "1.5 GHz").replace("clock.tensor", "2x")
    assert given.clock.full_hz == 1.5e9 and given.clock.free_hz == slow.clock.free_hz
    assert h100.replace("sm.max_threads", 4096).sm.max_warps == 128


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"sm.count": "2x"}, 2),
        ({"clock.free": "1.5x"}, 1.5),
        ({"clock.boost": "1.5x"}, 1.5),  # which the free clock follows, and the L2 that
        ({"clock.tensor": "1.5x"}, 1.5),
        ({"clock.tensor": "1.5x", "sm.count": "0.5x"}, 0.75),
        ({"clock.sustained": "1 GHz"}, 1),  # held: the L2 keeps its figure
        ({"hbm.bandwidth": "2x"}, 1),
        ({"sm.count": "2x", "l2.bandwidth": "9.7 TB/s"}, 1),  # set after it: as set
        ({"l2.bandwidth": "19.4 TB/s", "sm.count": "2x"}, 2),  # or before it
        ({"l2.bandwidth": "3x", "sm.count": "2x", "clock.boost": "2x"}, 3),
        ({"sm.count": "2x", "l2.bandwidth": "3x"}, 6),  # of what it is by then
    ],
    ids=str,
)
def test_an_l2_gives_so_many_bytes_to_an_sm_in_a_clock(h100: Gpu, changes: dict[str, str], factor: float) -> None:
    changed = h100.replace(changes)
    assert changed.l2.bandwidth_bytes_per_s == pytest.approx(factor * h100.l2.bandwidth_bytes_per_s)
    assert changed.unchanged == h100


def test_an_l2_follows_the_clock_that_sms_run_at_and_no_figure_that_is_given(h100: Gpu, tmp_path: Path) -> None:
    """Once, however many clocks a file gives; not where the free clock or the L2 is given beside them."""
    clocks = {"clock.tensor": 1.5 * h100.clock.tensor_hz, "clock.boost": 1.5 * h100.clock.boost_hz}
    faster = 1.5 * h100.clock.free_hz
    for figures, factor in (
        ({"clock.free": faster}, 1.5),
        (clocks | {"clock.free": faster}, 1.5),
        (clocks | {"clock.free": h100.clock.free_hz}, 1),
        ({"sm.count": 264.0, "l2.bandwidth": 12e12}, 12 / 9.7),
        ({"sm.count": 264.0}, 2),
    ):
        file = tmp_path / "faster.yaml"
        sections: dict[str, dict[str, Any]] = {}
        for key, value in figures.items():
            section, name = key.split(".")
            figure = {"value": FIELDS[key].show(value), "kind": "assumed", "source": "a test"}
            sections.setdefault(section, {})[name] = figure
        file.write_text(json.dumps({"extends": "h100-sxm5-80gb", **sections}))
        assert load_gpu(file).l2.bandwidth_bytes_per_s == pytest.approx(factor * h100.l2.bandwidth_bytes_per_s), figures
    kept = h100.with_change("clock.boost", 1.5 * h100.clock.boost_hz, keep=("clock.free",))
    assert kept.l2 == h100.l2


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("clock", "2 GHz", ["unknown key 'clock'", "clock.tensor", "clock.free"]),
        ("hbm.bandwith", "3 TB/s", ["unknown key", "hbm.bandwidth"]),
        ("bandwidth", "3 TB/s", ["hbm.bandwidth", "l2.bandwidth"]),
        ("", "3", ["unknown key"]),
        ("x" * 10_000, "3", ["unknown key"]),
        ("hbm.bandwidth", "-3 TB/s", ["'-3 TB/s'", "allowed: 1 GB/s to 10 PB/s", "positive"]),
        ("hbm.bandwidth", "0x", ["allowed: 1 GB/s to 10 PB/s"]),
        ("hbm.bandwidth", "3", ["no unit", "3.35 TB/s"]),
        ("hbm.bandwidth", "3 GHz", ["GHz", "3.35 TB/s"]),
        ("hbm.bandwidth", "fast", ["'fast'"]),
        ("hbm.bandwidth", float("nan"), ["allowed"]),
        ("hbm.bandwidth", float("inf"), ["allowed"]),
        ("hbm.bandwidth", 10**400, ["too large"]),
        ("hbm.bandwidth", "9" * 400 + "x", ["allowed"]),
        ("hbm.bandwidth", None, ["None"]),
        ("hbm.achievable_fraction", "1.2", ["allowed: 0.01 to 1"]),
        ("hbm.capacity", "0 GB", ["allowed"]),
        ("sm.count", "0", ["whole numbers from 1 to 100000"]),
        ("sm.count", "10.5", ["whole number"]),
        ("sm.count", True, ["True"]),
        ("sm.shared_memory_per_block", "512 KiB", ["sm.shared_memory, 228 KiB"]),
        ("sm.shared_memory", "1 KiB", ["sm.shared_memory_per_block"]),
        ("sm.max_threads", "2050", ["2048"]),
        ("sm.max_threads", "512", ["sm.max_threads_per_block"]),
        ("tensor.fp16", "989 TFLOP/s", ["FLOP/clk"]),
        ("l2.partitions", "0", ["whole numbers from 1 to 64"]),
        ("features.wgmma", "2x", ["true or false"]),
        ("features.wgmma", "yes", ["true or false"]),
    ],
)
def test_impossible_changes_are_refused(h100: Gpu, key: str, value: object, words: list[str]) -> None:
    message = refused(h100.replace, key, value)
    for word in words:
        assert word in message


def test_twice_nothing_is_refused() -> None:
    assert "present value is 0" in refused(load_gpu("t4").replace, "tensor.bf16", "2x")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("sm.exp_rate", "1.5", "present 16 op/clk; write 1.5x for a multiple of it, or '1.5 op/clk' for exactly that"),
        ("sm.exp_rate", "100", "more than 4 times off"),
        ("sm.count", "2", "present 132; write 2x for a multiple of it, or '=2' for exactly that"),
        ("tensor.fp16", "2", "write 2x"),
        ("l2.bandwidth", "2", "has no unit"),
    ],
)
def test_a_number_without_a_unit_that_is_far_off_asks_whether_a_multiple_is_meant(
    key: str, value: str, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_gpu("h100-sxm5-80gb").replace(key, value)
    assert said in str(caught.value)


def test_several_figures_are_changed_at_once() -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    both = gpu.replace({"hbm.bandwidth": "6 TB/s", "sm.exp_rate": "1.5x"})
    assert both == gpu.replace("hbm.bandwidth", "6 TB/s").replace("sm.exp_rate", "1.5x") and len(both.changes) == 2
    with pytest.raises(InputError, match=r"^replace is given a mapping and the value 4"):
        gpu.replace({"sm.count": 3}, 4)
    with pytest.raises(InputError, match=r"^replace is given sm\.count and the value None"):
        gpu.replace("sm.count")
