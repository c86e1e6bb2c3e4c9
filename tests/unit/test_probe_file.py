"""From microbenchmarks to a GPU file: what is believed, what is refused, what is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnsim import predict
from attnsim.errors import InputError
from attnsim.kernels.gpu import probe, probe_kernels
from attnsim.kernels.gpu.measuring import Bench
from attnsim.kernels.gpu.probe import L2_SHARES, Rate
from attnsim.kernels.gpu.records import Records
from attnsim.kernels.gpu.timing import Reading, Sample, Timing
from attnsim.models.hardware.files import gpu_to_yaml, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.workload import Workload
from attnsim.validation.measuring.probe_file import (
    Probed,
    fit_knee,
    probed_gpu,
    probed_of,
    quantities,
    refuse_implausible,
)
from tests.unit.answering import answer, refusal

H200 = load_gpu("h200-sxm-141gb")
MHZ = 1755.0
PER_CLOCK = H200.sm.count * MHZ * 1e6
ATTACHED = {
    "name": "NVIDIA H200",
    "capability": 90,
    "memory_bytes": 150_121_545_728,
    "attributes": {"MultiProcessorCount": 132, "L2CacheSize": 52428800, "ClockRate": 1980000},
}
MACHINE = {"kind": "machine", "session": "s", "gpu": "NVIDIA H200", "attached": ATTACHED}
MACHINE |= {"driver": "580.65.06", "date": "2026-11-21T10:00:00+00:00"}


def rate(name: str, value: float, unit: str, **more: Any) -> Rate:
    return Rate(name, value, unit, 0.004, 20, **{"sm_mhz": MHZ, **more})


def sweep(knee: float = 30e6, plateau: float = 9.1e12, floor: float = 4.2e12) -> list[Rate]:
    sizes = [share * H200.l2.capacity_bytes for share in L2_SHARES]
    missed = np.clip((np.array(sizes) / knee - 0.8) / 0.4, 0, 1)
    found = 1 / ((1 - missed) / plateau + missed / floor)
    return [
        rate("l2.reread", value, "B/s", working_set_bytes=int(size)) for size, value in zip(sizes, found, strict=True)
    ]


RATES = (
    rate("hbm.read", 4.4e12, "B/s"),
    rate("hbm.copy", 4.16e12, "B/s"),
    rate("tensor.mma_sync", 2600 * PER_CLOCK, "FLOP/s"),
    rate("tensor.wgmma", 3980 * PER_CLOCK, "FLOP/s"),
    rate("exp", 15.9 * PER_CLOCK, "1/s"),
    rate("fp32.fma", 252 * PER_CLOCK, "FLOP/s"),
    rate("shared_memory.read", 127.5 * PER_CLOCK, "B/s"),
    *sweep(),
    rate("launch.stream", 2.21e-6, "s"),
    rate("launch.graph", 1.19e-6, "s"),
    rate("latency.l1", 38.7, "clk", sm_mhz=None),
    rate("latency.l2", 271.5, "clk", sm_mhz=None),
    rate("latency.hbm", 688.2, "clk", sm_mhz=None),
)


def records_of(rates: tuple[Rate, ...] = RATES) -> list[dict[str, Any]]:
    return [MACHINE, {"kind": "probe", "session": "s", "rates": [asdict(one) for one in rates]}]


def changed(name: str, value: float, **more: Any) -> tuple[Rate, ...]:
    return tuple(replace(one, value=value, **more) if one.name == name else one for one in RATES)


def gpu_of(probed: Probed) -> Gpu:
    return probed_gpu(probed, quantities(probed), "my-gpu", "attnsim probe --out my-gpu.yaml")


def test_measured_figures_take_the_place_of_others_and_say_how_they_were_come_by() -> None:
    gpu = gpu_of(probed_of(records_of()))
    expected = {
        "hbm.achievable_fraction": round(4.16 / 4.8, 4),
        "tensor.mma_sync_fraction": round(2600 / 4096, 4),
        "sm.exp_rate": 15.9,
        "sm.fp32_rate": 252,
        "sm.shared_memory_bandwidth": 127.5,
        "launch.stream": 2.21e-6,
        "launch.graph": 1.19e-6,
        "l2.latency": 271.5,
        "hbm.latency": 688.2,
        "l2.bandwidth": 9.1e12,
    }
    for key, value in expected.items():
        figure = gpu.provenance[key]
        assert gpu.get(key) == pytest.approx(value, rel=2e-3) and figure.kind == "measured"
        for part in ("attnsim probe --out my-gpu.yaml", "2026-11-21", "driver 580.65.06", "median of 20"):
            assert part in figure.source
    for key in H200.provenance.keys() - expected.keys():
        assert (gpu.get(key), gpu.provenance[key]) == (H200.get(key), H200.provenance[key])
    assert "copy 4.16 TB/s, read 4.4 TB/s of 4.8 TB/s" in gpu.provenance["hbm.achievable_fraction"].source
    assert "wgmma 3980 FLOP/clk of 4096 FLOP/clk" in gpu.provenance["tensor.mma_sync_fraction"].source
    assert "of the capacity, is still found" in gpu.provenance["l2.bandwidth"].source


def test_the_file_is_read_back_and_predicted_with(tmp_path: Path) -> None:
    gpu = gpu_of(probed_of(records_of()))
    path = tmp_path / "my-gpu.yaml"
    path.write_text(gpu_to_yaml(gpu), encoding="utf-8")
    back = load_gpu(str(path))
    assert back == gpu and dict(back.provenance) == dict(gpu.provenance)
    assert not back.changes and back.base_id == "my-gpu"
    answer = predict(Workload(4, 16, 2048, 128), back, "flash")
    assert answer.time_s and "hypothetical" not in answer.trust.reason


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("hbm.copy", 4.9e12, r"hbm.copy 4.9 TB/s is 2.1% above 4.8 TB/s \(NVIDIA H200 datasheet"),
        ("hbm.read", 9.6e12, "hbm.read 9.6 TB/s is 100.0% above 4.8 TB/s"),
        ("tensor.wgmma", 4200 * PER_CLOCK, "tensor.wgmma 4200 FLOP/clk is 2.5% above 4096 FLOP/clk .* at 1755 MHz"),
        ("exp", 32 * PER_CLOCK, "exp 32 op/clk is 100.0% above 16 op/clk"),
        ("fp32.fma", 265 * PER_CLOCK, "fp32.fma 265 FLOP/clk is 3.5% above 256 FLOP/clk"),
        ("shared_memory.read", 140 * PER_CLOCK, r"shared_memory.read 140 B/clk is 9.4% above 128 B/clk \(32 banks"),
    ],
)
def test_what_the_vendor_says_is_impossible_is_refused(name: str, value: float, told: str) -> None:
    probed = probed_of(records_of(changed(name, value)))
    with pytest.raises(InputError, match=rf"^measured above what is possible by more than 2%: {told}.*nothing is writ"):
        refuse_implausible(quantities(probed))


def test_two_percent_above_is_believed_and_shares_stay_shares() -> None:
    probed = probed_of(records_of(changed("hbm.copy", 4.88e12)))
    refuse_implausible(quantities(probed))
    assert gpu_of(probed).hbm.achievable_fraction == 1.0


def test_an_l2_that_is_larger_than_it_can_be_is_refused() -> None:
    rates = (*(one for one in RATES if one.name != "l2.reread"), *sweep(knee=1.1 * H200.l2.capacity_bytes))
    with pytest.raises(InputError, match=r"l2.knee .* above 50.0 MiB"):
        refuse_implausible(quantities(probed_of(records_of(rates))))
    told = {**ATTACHED, "attributes": {"MultiProcessorCount": 132, "L2CacheSize": 60 << 20}}
    refuse_implausible(quantities(probed_of([{**MACHINE, "attached": told}, records_of(rates)[1]])))


def test_a_gpu_without_a_file_is_made_of_what_its_driver_says() -> None:
    """A chip newer than the rules, whose driver does not tell the memory clock: nobody states a bandwidth."""
    attached = {"name": "NVIDIA B310", "capability": 103, "memory_bytes": 288 * 10**9}
    attached["attributes"] = {"MultiProcessorCount": 144, "L2CacheSize": 132 << 20, "ClockRate": 1920000}
    machine = {**MACHINE, "attached": attached}
    rates = changed("hbm.copy", 7.0e12)
    probed = probed_of([machine, records_of(rates)[1]])
    refuse_implausible(quantities(probed))
    gpu = gpu_of(probed)
    assert gpu.hbm.bandwidth_bytes_per_s == 7.0e12 and gpu.hbm.achievable_fraction == 1.0
    assert gpu.compute_capability == "10.3" and gpu.provenance["hbm.bandwidth"].kind == "measured"


@pytest.mark.parametrize(("knee", "width"), [(0.5, 0.1), (0.6, 0.3), (0.9, 0.5), (1.3, 0.8)])
def test_the_knee_is_found_under_noise(knee: float, width: float) -> None:
    capacity = 50e6
    random = np.random.default_rng(1)
    sizes = np.array(L2_SHARES) * capacity
    missed = np.clip((sizes / capacity - (knee - width / 2)) / width, 0, 1)
    rates = 1 / ((1 - missed) / 5e12 + missed / 2e12) * (1 + 0.01 * random.standard_normal(len(sizes)))
    found = fit_knee(list(sizes), list(rates))
    assert found.bandwidth_bytes_per_s == pytest.approx(5e12, rel=0.02)
    # Between two sizes of the sweep nobody can tell: 1/8 of the capacity apart at this place, at most.
    assert found.capacity_bytes == pytest.approx(knee * capacity, abs=0.07 * capacity)


def test_a_flat_sweep_has_no_knee() -> None:
    sizes = [share * 50e6 for share in L2_SHARES]
    assert fit_knee(sizes, [5e12] * len(sizes)).capacity_bytes is None
    with pytest.raises(InputError, match="has 3 sizes; 5 at least"):
        fit_knee([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])


class FakeArray:
    """Device memory of which only the size is known."""

    def __init__(self, size: int) -> None:
        self.nbytes = size
        self.shape = (size,)

    def __getitem__(self, part: slice) -> FakeArray:
        return FakeArray(int(part.stop))


class FakeDevice:
    """An H200 on which every kernel takes the time that its work takes."""

    gpu = H200
    persistent = True

    def __init__(self) -> None:
        self.took_s = 0.0
        self.steps: list[tuple[int, int]] = []
        self.in_l2 = False

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return FakeArray(int(np.prod(shape)))

    zeros = empty

    def upload(self, array: Any) -> Any:
        return array

    def download(self, array: Any) -> Any:
        return np.array([self.clocks], np.int64)

    def launch(self, variant: Any, grid: tuple[int, int, int], arguments: dict[str, Any]) -> None:
        whole = {"probe_read": 4.4e12, "probe_copy": 4.16e12 / 2, "probe_null": 1.0}
        per_clock = {"probe_mma": 2600, "probe_wgmma": 3980, "probe_exp": 15.9, "probe_fma": 252, "probe_shared": 127}
        entry = variant.entry
        if entry == "probe_latency":
            self.clocks = int(arguments["steps"]) * (40 if len(arguments["next"]) < 1e5 else 270 if self.in_l2 else 690)
            self.steps.append((len(arguments["next"]), int(arguments["steps"])))
            self.in_l2 = True
        elif entry == "probe_reread":
            size = arguments["source"].nbytes
            rate = 9.1e12 if size < 0.6 * H200.l2.capacity_bytes else 4.4e12
            self.took_s = size * int(arguments["passes"]) / rate
        elif entry in per_clock:
            work = probe_kernels.work_of(entry, int(arguments["rounds"])) * grid[0]
            self.took_s = work / (per_clock[entry] * PER_CLOCK)
        else:
            self.in_l2 = False
            source = arguments.get("source")
            self.took_s = 2.2e-6 if source is None else source.nbytes / whole[entry]


class FakeWatch:
    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def time(self, call: Callable[[], object], mode: Any = "cold", **options: Any) -> Timing:
        call()
        state = Reading(sm_mhz=MHZ)
        return Timing(mode, tuple(Sample(self.device.took_s, state) for _ in range(options["samples"])))


def make_bench() -> Bench:
    device = FakeDevice()
    about: dict[str, Any] = {name: MACHINE[name] for name in ("gpu", "attached", "driver", "date")}

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("no inputs are needed")

    return Bench(device, device, FakeWatch(device), never, lambda operations, date: about, 0)  # type: ignore[arg-type]


def test_every_unit_is_measured_with_the_work_that_its_kernel_does() -> None:
    bench = make_bench()
    rates = list(probe.measure(bench.device, bench.watch))
    names = {one.name for one in rates}
    assert names == {one.name for one in RATES}
    found = {one.name: one for one in rates if one.name != "l2.reread"}
    for one in RATES:
        if one.name in found and one.name not in ("launch.stream", "launch.graph"):
            assert found[one.name].value == pytest.approx(one.value, rel=0.05), one.name
    assert found["launch.stream"].value == found["launch.graph"].value == 2.2e-6
    sweep = [one for one in rates if one.name == "l2.reread"]
    assert len(sweep) == len(L2_SHARES) and sweep[0].value == pytest.approx(9.1e12)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "probe.jsonl"
    records = Records(path)
    for number, one in enumerate(records_of()):
        records.append(str(number), one)
    return path


def test_a_file_is_made_of_records_without_a_gpu(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my-gpu.yaml"
    text, err = answer(capsys, "probe", "--out", str(out), "--from", str(recorded))
    assert err == "" and f"written: {out}" in text and "hbm.achievable_fraction = 0.8667" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("written")) <= 100
    assert load_gpu(str(out)).hbm.achievable_fraction == 0.8667
    rows = json.loads(answer(capsys, "probe", "--out", str(out), "--from", str(recorded), "--force", "--json")[0])
    assert {row["name"] for row in rows} >= {"hbm.copy", "l2.knee", "latency.l1"}
    assert all(row["written"] is not None for row in rows if row["key"])


def test_probing_writes_a_file_and_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnsim.cli.measure.attached_bench", lambda seed: make_bench())
    out, kept, again = (tmp_path / name for name in ("my-gpu.yaml", "probe.jsonl", "again.yaml"))
    text, _ = answer(capsys, "probe", "--out", str(out), "--records", str(kept))
    assert "NVIDIA H200 SXM 141GB" in text or "H200" in text
    answer(capsys, "probe", "--out", str(again), "--from", str(kept))
    one, other = (load_gpu(str(path)) for path in (out, again))
    assert replace(one, id="x", base_id="x") == replace(other, id="x", base_id="x")


def test_a_refusal_writes_nothing(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    assert isinstance(bench.watch, FakeWatch)
    fast = bench.watch.time

    def faster(*arguments: Any, **options: Any) -> Timing:
        found = fast(*arguments, **options)
        return replace(found, samples=tuple(replace(one, seconds=one.seconds / 2) for one in found.samples))

    monkeypatch.setattr(bench.watch, "time", faster)
    monkeypatch.setattr("attnsim.cli.measure.attached_bench", lambda seed: bench)
    out, kept = tmp_path / "my-gpu.yaml", tmp_path / "kept.jsonl"
    text, err = answer(capsys, "probe", "--out", str(out), "--records", str(kept), code=2)
    assert text == "" and err.startswith("error: measured above what is possible") and err.count("\n") == 1
    assert not out.exists() and len(Records(kept).done) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--out", "x.txt"], "end the name with .yaml"),
        (["--out", "{here}/h100-sxm5-80gb.yaml"], "is a built-in GPU"),
        (["--out", "{here}/nowhere/x.yaml"], "is not a folder"),
        (["--out", "{here}/x.yaml", "--from", "nowhere"], "--from nowhere is no file"),
        (["--out", "{here}/x.yaml", "--from", "{here}/empty.jsonl"], "hold no microbenchmarks"),
        (["--out", "{here}/x.yaml", "--from", "{here}/old.jsonl"], "of another version"),
        (["--out", "{here}/x.yaml", "--from", "{here}/alone.jsonl"], "no machine record beside them"),
        (["--out", "{here}/x.yaml", "--from", "{here}/old.jsonl", "--records", "y"], "leave one out"),
        (["--out", "{here}/there.yaml"], "exists; give another name, or --force"),
        (["--out", "{here}/x.yaml"], "needs CuPy"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    old = {**records_of()[1], "rates": [{"name": "hbm.read", "speed": 1}]}
    for name, lines in (("empty", [MACHINE]), ("old", [MACHINE, old]), ("alone", records_of()[1:])):
        text = "".join(json.dumps({"key": str(number), **one}) + "\n" for number, one in enumerate(lines))
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "there.yaml").write_text("")
    assert told in refusal(capsys, "probe", *(word.format(here=tmp_path) for word in arguments))
    assert not (tmp_path / "x.yaml").exists()
