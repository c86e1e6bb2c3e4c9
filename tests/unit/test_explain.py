"""explain: the figures are those of the schedule, the replay and the limits; what would move the bound does move it."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnsim
from attnsim.api import predict
from attnsim.api.asking import read_mechanism
from attnsim.api.comparing.levers import BETTER, as_busy_text
from attnsim.api.explaining import Explanation, explain
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.models.implementations.choose import IMPLEMENTATIONS, find_implementation
from attnsim.models.implementations.implementation import TileRequest
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import occupancy
from attnsim.reports.explanations import bound_sentences, verdict
from benchmarks.mechanism_pages import GPUS

A100, H100 = "a100-sxm4-80gb", "h100-sxm5-80gb"
PREFILL = Workload(1, 16, 2048, 128, mask=Mask.causal())
DECODE = Workload(4, 32, 1, 128, 8, 8192, passes="decode")


@pytest.fixture(scope="module")
def prefill() -> Explanation:
    return explain(PREFILL, A100, "flash-2")


def test_it_explains_what_predict_predicts(prefill: Explanation) -> None:
    assert prefill.prediction.time_s == predict(PREFILL, A100, "flash-2").time_s
    assert prefill.loop_nest.startswith("flash as flash-attn.2 runs it, tile 128 x 64")
    assert "mma S flops" in prefill.loop_nest
    assert sum(kernel.time_s for kernel in prefill.kernels) <= (prefill.prediction.time_s or 0)


def test_limits_are_those_that_occupancy_applies(prefill: Explanation) -> None:
    (kernel,) = prefill.kernels
    gpu = load_gpu(A100)
    schedule = IMPLEMENTATIONS["flash-attn.2"].build(PREFILL, gpu, None)
    found = occupancy(schedule.kernels[0], gpu)
    assert (kernel.blocks_per_sm, kernel.limited_by) == (found.blocks_per_sm, found.limited_by) == (2, "registers")
    assert kernel.limits == {"threads": 16, "registers": 2, "shared memory": 2, "block slots": 32}
    assert min(kernel.limits.values()) == kernel.limits[kernel.limited_by] == kernel.blocks_per_sm
    assert sum(size for _, size in kernel.buffers) == kernel.shared_memory_bytes == 64 * 1024


def test_bytes_lie_between_compulsory_ones_and_those_asked_of_the_l2(prefill: Explanation) -> None:
    one = 16 * 2048 * 128 * 2
    assert all(row.counted > 0 for row in prefill.counts)
    assert {row.tensor: row.compulsory_bytes for row in prefill.tensors} == {
        **dict.fromkeys("QKVO", one),
        "LSE": 16 * 2048 * 4,
    }
    assert prefill.compulsory_bytes == 4 * one + 16 * 2048 * 4
    for tensor in prefill.tensors:
        assert tensor.compulsory_bytes <= tensor.l2_bytes and tensor.hbm_bytes <= tensor.l2_bytes, tensor.tensor
    assert next(row for row in prefill.tensors if row.tensor == "Q").l2_bytes == one
    assert sum(row.l2_bytes for row in prefill.tensors) == next(
        row.counted for row in prefill.counts if row.quantity == "bytes asked of the L2"
    )
    moved = sum(row.hbm_bytes for row in prefill.tensors)
    assert moved == pytest.approx(prefill.prediction.hbm_bytes or 0, rel=1e-6)


def test_every_unit_with_work_is_a_lever(prefill: Explanation) -> None:
    units = {lever.unit: lever for lever in prefill.levers if lever.busy_s is not None}
    assert set(units) == {unit for unit in UNITS if prefill.prediction.units_s.get(unit, 0.0) > 0}
    busiest = max(units.values(), key=lambda lever: lever.busy_s or 0)
    assert busiest.takes_over_at == 1.0
    for lever in units.values():
        assert lever.share == pytest.approx(prefill.prediction.units_s[lever.unit] / (prefill.prediction.time_s or 1))
        assert (lever.takes_over_at or 0) == pytest.approx((busiest.busy_s or 0) / (lever.busy_s or 1))
    others = [lever.figure for lever in prefill.levers if lever.busy_s is None]
    assert others == ["l2.latency", "hbm.latency", "launch.stream", "clock.free", "sm.count"]


def test_a_lever_s_speedup_is_that_of_the_gpu_with_the_figure_changed(prefill: Explanation) -> None:
    gpu = load_gpu(A100)
    for lever in prefill.levers:
        factor = 1 / BETTER if lever.unit in ("latency", "launch") else BETTER
        changed = gpu.replace(lever.figure, gpu.get(lever.figure) * factor)
        then = predict(PREFILL, changed, "flash-2", baseline=False)
        assert then.time_s is not None and prefill.prediction.time_s is not None
        assert prefill.prediction.time_s / then.time_s == pytest.approx(lever.speedup, rel=1e-9), lever.figure
        assert then.busiest == lever.busiest


@pytest.mark.parametrize(
    ("w", "gpu", "name"),
    [(PREFILL, A100, "flash-2"), (DECODE, H100, "split-kv"), (Workload(2, 16, 2048, 64), A100, "naive")],
    ids=["tensor", "hbm", "naive"],
)
def test_beyond_the_turn_another_unit_is_busiest(w: Workload, gpu: str, name: str) -> None:
    found = explain(w, gpu, name)
    turn = found.turn
    assert turn is not None
    assert turn.unit == found.prediction.busiest != turn.next_unit
    assert turn.factor > 1 and turn.speedup >= 1
    assert turn.figure == UNITS[turn.unit].figure_for(w.dtype)
    assert turn.busiest in (turn.next_unit, "latency")
    base = load_gpu(gpu)
    short = base.replace(turn.figure, base.get(turn.figure) * turn.factor * 0.98)
    assert predict(w, short, name, baseline=False).busiest in (turn.unit, "latency")


def test_the_unit_that_becomes_as_busy_is_named(prefill: Explanation) -> None:
    turn = prefill.turn
    assert turn is not None
    text = " ".join(bound_sentences(prefill))
    assert (
        f"With {turn.figure} {turn.factor:.2f}x {unit_text(turn.next_unit)} {_VERB[turn.next_unit]} as busy and" in text
    )
    assert as_busy_text("tensor.bf16", 1.5, "exp") == "With tensor.bf16 1.50x the exponential units are as busy"
    assert as_busy_text("tensor.bf16", 1.5, "hbm") == "With tensor.bf16 1.50x HBM is as busy"


_VERB = {"exp": "are", "l2": "is", "hbm": "is", "shared_memory": "is"}


def test_a_unit_that_stays_busiest_is_said_to_do_so(prefill: Explanation) -> None:
    turn = prefill.turn
    assert turn is not None and turn.busiest != turn.unit
    assert f"beyond that the busiest is {unit_text(turn.busiest)}." in " ".join(bound_sentences(prefill))
    same = replace(prefill, turn=replace(turn, busiest=turn.unit))
    assert "beyond that the busiest is still the tensor cores." in " ".join(bound_sentences(same))


def test_a_tiny_call_is_bound_by_its_launch_and_has_no_turn() -> None:
    found = explain(Workload(1, 4, 128, 64), H100, "flash")
    assert found.prediction.busiest == "launch" and found.turn is None
    assert (
        verdict(found)[-1].startswith("Gains with one of them twice as good: ")
        and "launch.stream" in verdict(found)[-1]
    )
    assert any("Launches take more than half" in line for line in verdict(found))
    eager = verdict(explain(Workload(1, 4, 128, 64), H100, "flash", launch="host"))
    assert eager[-1] == "No single figure of the GPU makes the call faster."
    assert any(line.startswith("The host's launches bound the time") for line in eager)
    assert "launch" not in {lever.unit for lever in explain(Workload(1, 4, 128, 64), H100, launch="kernel").levers}


ONE_OF_EACH_KIND = {item.group: name for name, item in reversed(MECHANISMS.items()) if item.selectable}
"""`test_registry.py` builds all of them."""


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND.values())
def test_mechanisms_of_every_kind_explain_their_example(name: str) -> None:
    for gpu in GPUS:
        try:
            found = explain(None, gpu, name)
        except InputError:
            continue
        assert found.mechanism == name
        assert found.kernels and found.tensors and found.levers
        assert found.reached.keys() == {"l2", "hbm"} and all(0 < share <= 1 for share in found.reached.values())
        assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["mechanism"] == name
        return
    raise AssertionError(f"none of {GPUS} explains {name}")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["explain", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ("--heads", "16", "--seq", "2048", "--head-dim", "128", "--causal")
    code, text, _ = run(capsys, "flash-2", "--gpu", A100, *shape)
    assert code == 0
    assert "room for" in text and "limits" in text and "Bound by the tensor cores" in text
    assert "for step (" in text and "passed on to HBM" in text and "Speedups of levers have no 90 % range" in text
    assert all(len(line) <= 110 for line in text.splitlines())


def test_without_a_shape_the_record_s_example_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "backward", "--gpu", A100)
    assert code == 0 and text.startswith(str(MECHANISMS["backward"].example))


def test_the_last_line_names_the_figure_that_gains_most(prefill: Explanation) -> None:
    assert verdict(prefill)[-1].startswith("Gains with one of them twice as good: ")
    told = re.findall(r"(the clock|the SMs|tensor\.bf16) ([\d.]+)x", verdict(prefill)[-1])
    gains = [float(gain) for _, gain in told]
    assert len(told) == 3 and gains == sorted(gains, reverse=True), "one order, the largest first"


def test_a_changed_gpu_is_explained_as_changed_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("split-kv", "--gpu", H100, "--implementation", "flash-attn.3")
    code, text, _ = run(capsys, *asked, "--set", "hbm.bandwidth=3x", "--json")
    (found,) = json.loads(text)
    assert code == 0
    levers: dict[str, Any] = {lever["figure"]: lever for lever in found["levers"]}
    assert levers["hbm.bandwidth"]["value"].startswith("10.05 TB/s")
    assert found["prediction"]["changes"] and found["prediction"]["implementation"] == "flash-attn.3"
    assert found["turn"]["unit"] == found["prediction"]["busiest"] and found["kernels"][0]["limits"]["registers"] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("flsh --gpu a100-sxm4-80gb", "nearest: flash"),
        ("flash", "--gpu is missing"),
        ("flash --gpu a100-sxm4-80gb --heads 8", "--seq and --head-dim are missing"),
        ("backward --gpu a100-sxm4-80gb --heads 8 --seq 512 --head-dim 64", "is about pass bwd"),
        ("fp8 --gpu h100-sxm5-80gb --heads 8 --seq 512 --head-dim 64", "is about dtype fp8"),
        ("naive --gpu a100-sxm4-80gb --heads 8 --seq 200000 --head-dim 64", "does not fit"),
        ("flash-3 --gpu a100-sxm4-80gb", "nearest"),
        ("flash --gpu a100-sxm4-80gb --tile 512x512", "Shared memory"),
    ],
)
def test_bad_input_is_one_line(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *words.split())
    assert code == 2 and not out
    assert told in err and len(err.strip().splitlines()) == 1


def test_a_name_is_read_as_a_person_writes_it() -> None:
    assert read_mechanism(" Flash-2 ").name == "flash-2"


GROUPED = Workload(1, 16, 2048, 128, 4, mask=Mask.causal())


def test_a_kernel_lever_is_the_call_with_that_kernel() -> None:
    found = explain(GROUPED, H100, "flash-2")
    levers = {lever.lever: lever for lever in found.kernel_levers}
    path, newer = levers["instructions"].change.split(", ")
    assert path == "wgmma" and newer == "flash-attn.3"
    by_newer = predict(GROUPED, H100, implementation=newer, baseline=False)
    assert levers["instructions"].time_s == by_newer.time_s
    shape = "x".join(levers["tile"].change.split(",")[0].split(" x "))
    other = predict(GROUPED, H100, "flash-2", tile=shape, baseline=False)
    assert (levers["tile"].time_s, levers["tile"].busiest) == (other.time_s, other.busiest) and other.tile != ""
    assert (levers["GQA packing"].change, levers["order"].change) == ("on", "longest first")
    for lever in found.kernel_levers:
        assert lever.speedup == pytest.approx((found.prediction.time_s or 0) / lever.time_s)
    assert [one.time_s for one in found.kernel_levers] == sorted(one.time_s for one in found.kernel_levers)


def test_a_kernel_that_fills_the_cache_is_held_against_one_that_does_too() -> None:
    w = Workload(8, 32, 1, 128, 8, seq_kv=4096, passes="decode")
    found = explain(w, "b200-sxm-180gb", "flash", implementation="vllm.flash-attn-2").kernel_levers
    # Not vllm.vit-flash-attn-4, an encoder's, which has no cache.
    assert [one.change for one in found if one.lever == "instructions"] == ["tcgen05, vllm.trtllm-gen"]


def test_eight_bits_are_the_same_question_in_fp8() -> None:
    found = explain(GROUPED, H100, "flash-3")
    (lever,) = [one for one in found.kernel_levers if one.lever == "format"]
    assert lever.time_s == predict(replace(GROUPED, dtype="fp8"), H100, "flash-3", baseline=False).time_s
    assert not any(one.lever in ("instructions", "blocks", "order") for one in found.kernel_levers)  # it has them


def test_a_kernel_that_cannot_be_built_is_no_lever() -> None:
    assert not explain(Workload(2, 16, 2048, 64), A100, "linear").kernel_levers
    levers = {one.lever for one in explain(PREFILL, A100, "flash-2").kernel_levers}
    assert levers == {"tile", "stages", "blocks", "order"}  # no group, no fp8, mma.sync is the newest there
    own = {one.lever for one in explain(PREFILL, A100, implementation="attnsim.flash").kernel_levers}
    assert own == {"tile"}  # its tiles are compiled, nothing else is
    assert "tile" not in {one.lever for one in explain(PREFILL, A100, "flash-2", tiles="retuned").kernel_levers}


def test_kernels_over_lists_have_the_levers_that_their_records_can_be_built_with() -> None:
    question = replace(GROUPED, seq_q=4096, seq_kv=4096, mask=Mask.parse("causal, random 10 % x128"))
    own = explain(question, H100, "sparse", implementation="attnsim.sparse")
    (stages,) = [one for one in own.kernel_levers if one.lever == "stages"]
    record, gpu = find_implementation("attnsim.sparse"), load_gpu(H100)
    ring = record.build(question, gpu, TileRequest(128, 64, stages=2))
    single = record.build(question, gpu, TileRequest(128, 64))
    assert stages.change == "2" and own.prediction.tile == record.build(question, gpu, None).tile_text
    assert single.tile_text == "128 x 64, 4 warps"
    assert ring.tile_text == "128 x 64, 4 warps, 2 stages"
    assert ring.main.total("issues") == single.main.total("issues") and ring.requested() == single.requested()
    assert ring.main.shared_memory_bytes > single.main.shared_memory_bytes
    with pytest.raises(InputError, match="has 1 or 2 buffers of K and V, not 3"):
        record.build(question, gpu, TileRequest(128, 64, stages=3))
    flex = {one.lever for one in explain(question, H100, "sparse", implementation="torch.flex-mask").kernel_levers}
    assert {"tile", "order"} <= flex and not flex & {"stages", "GQA packing", "blocks"}


def test_a_changed_gpu_is_held_against_the_unchanged_one(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = load_gpu(A100).replace("tensor.bf16", "2x")
    found = explain(PREFILL, gpu, "flash-2")
    assert found.unchanged is not None and found.speedup is not None
    assert found.unchanged.time_s == predict(PREFILL, A100, "flash-2", baseline=False).time_s
    assert found.speedup.value == pytest.approx((found.unchanged.time_s or 0) / (found.prediction.time_s or 1))
    assert explain(PREFILL, A100, "flash-2").speedup is None
    shape = ("--heads", "16", "--seq", "2048", "--head-dim", "128", "--causal")
    code, text, _ = run(capsys, "flash-2", "--gpu", A100, *shape, "--set", "tensor.bf16=2x")
    assert code == 0 and "Unchanged and changed: 1." in text
    (bounds,) = [line.split() for line in text.splitlines() if line.startswith("bound  ")]
    assert bounds[:2] == ["bound", "tensor,"]
    assert sum(line.startswith("tensor ") and "█" in line for line in text.splitlines()) == 1


def test_the_tile_chosen_anew_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an H100 whose L2 is so slow that tall tiles, which read K and V for more rows at once, are done first."""
    slow = (Path(attnsim.__file__).parent / "models" / "hardware" / "gpus" / f"{H100}.yaml").read_text("utf-8")
    (tmp_path / "slow.yaml").write_text(slow.replace(f"id: {H100}", "id: slow").replace('"9.7 TB/s"', '"3 TB/s"'))
    mask = "causal, window 4096, global 64, random 48x64"
    shape = ("--heads", "32", "--kv-heads", "8", "--seq", "65536", "--head-dim", "128", "--mask", mask)
    code, text, _ = run(
        capsys, "sparse", "--implementation", "attnsim.sparse", "--gpu", str(tmp_path / "slow.yaml"), *shape, "-v"
    )
    (line,) = [line for line in text.splitlines() if line.startswith("All on the same tile")]
    assert code == 0 and "with it chosen anew, 64 x 64, 2 warps: l2.bandwidth 1." in line


def test_without_the_change_the_call_may_not_run_at_all() -> None:
    gpu = load_gpu(A100).replace("tensor.fp8", 4096)
    found = explain(Workload(1, 8, 1024, 128, dtype="fp8"), gpu, "naive")
    assert found.unchanged is None and found.speedup is None and found.prediction.time_s
