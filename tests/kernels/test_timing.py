"""The stopwatch against a GPU of which every moment is known: what it queues, in which order, and what it keeps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from attnsim.kernels.gpu.timing import Mode, Reading, Sample, Stopwatch, Timing
from attnsim.models.hardware.files import load_gpu

KERNEL_S, PYTHON_S, FLUSH_S = 5e-6, 150e-6, 40e-6


class Timeline:
    """A CPU that queues and a GPU that works: two clocks, of which each waits for the other where it must."""

    def __init__(self) -> None:
        self.cpu = self.gpu = 0.0
        self.capturing: list[float] | None = None
        self.log: list[str] = []

    def run(self, name: str, seconds: float) -> None:
        """Queue work that takes so long."""
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.log.append(name)
        self.gpu = max(self.gpu, self.cpu) + seconds


class FakeEvent:
    def __init__(self, line: Timeline) -> None:
        self.line = line

    def record(self, stream: Any) -> None:
        self.at = max(self.line.gpu, self.line.cpu)

    @property
    def done(self) -> bool:
        return self.at <= self.line.cpu


class FakeStream:
    def __init__(self, line: Timeline) -> None:
        self.line = line

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        assert self.line.capturing is None, "a stream that is captured cannot be waited for"
        self.line.cpu = max(self.line.cpu, self.line.gpu)

    def begin_capture(self) -> None:
        self.line.capturing = []

    def end_capture(self) -> Any:
        seconds, self.line.capturing = self.line.capturing or [], None
        return SimpleNamespace(launch=lambda stream: self.line.run(f"graph of {len(seconds)}", sum(seconds)))


class FakeDevice:
    def __init__(self, line: Timeline) -> None:
        self.line = line
        self.gpu = load_gpu("h100-sxm5-80gb")

    def synchronize(self) -> None:
        self.line.capturing = None
        self.line.cpu = max(self.line.cpu, self.line.gpu)

    def launch(self, variant: Any, grid: Any, arguments: Any) -> None:
        if variant.entry == "probe_read":
            self.line.run(f"read {arguments['source'].nbytes}", FLUSH_S)
            return
        assert variant.entry == "probe_wait" and grid == (1, 1, 1)
        self.line.run("gate", float(arguments["nanoseconds"]) / 1e9)


class FakeClocks:
    def __init__(self, throttled: Callable[[int], bool] = lambda reading: False) -> None:
        self.readings = 0
        self.throttled = throttled

    def read(self) -> Reading:
        self.readings += 1
        reasons = ("power cap",) if self.throttled(self.readings) else ()
        return Reading(sm_mhz=1980.0 - 100 * bool(reasons), power_w=600.0, throttled=reasons)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    line = Timeline()
    cuda = SimpleNamespace(
        Event=lambda: FakeEvent(line),
        Stream=lambda non_blocking: FakeStream(line),
        get_elapsed_time=lambda start, stop: 1e3 * (stop.at - start.at),
    )
    fake = SimpleNamespace(cuda=cuda, zeros=lambda size, dtype: SimpleNamespace(nbytes=size))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(time, "perf_counter", lambda: line.cpu)
    return line


def stopwatch(line: Timeline, clocks: FakeClocks | None = None) -> Stopwatch:
    device, read = FakeDevice(line), clocks or FakeClocks()
    return Stopwatch(device, read)  # type: ignore[arg-type]


def kernel(line: Timeline, python_s: float = PYTHON_S, kernel_s: float = KERNEL_S) -> Callable[[], None]:
    def call() -> None:
        line.cpu += python_s
        line.run("kernel", kernel_s)

    return call


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_short_kernel_takes_what_the_gpu_takes_and_not_what_python_does(line: Timeline, mode: Any) -> None:
    found = stopwatch(line).time(kernel(line), mode, samples=12)
    assert len(found.samples) == 12
    assert found.median_s == pytest.approx(KERNEL_S) and found.iqr_s == pytest.approx(0, abs=1e-12)


def test_a_gate_that_opens_too_early_is_shut_for_longer(line: Timeline) -> None:
    calls = 0

    def slower_and_slower() -> None:
        nonlocal calls
        calls += 1
        line.cpu += PYTHON_S if calls <= 4 else 10 * PYTHON_S  # the look at the first calls misleads
        line.run("kernel", KERNEL_S)

    found = stopwatch(line).time(slower_and_slower, "warm", samples=5)
    assert found.median_s == pytest.approx(KERNEL_S)
    assert line.log.count("gate") == 5  # one to load it, then 1.5, 3, 6 and 12 ms for five calls of 1.5 ms


def test_the_l2_is_flushed_before_every_cold_sample_and_no_other(line: Timeline) -> None:
    watch = stopwatch(line)
    line.log.clear()  # what was loaded before
    watch.time(kernel(line), "cold", samples=7)
    flush = f"read {2 * load_gpu('h100-sxm5-80gb').l2.capacity_bytes}"
    assert line.log[-4:] == [flush, "kernel", flush, "kernel"] and line.log.count(flush) == 7
    line.log.clear()
    watch.time(kernel(line), "warm", samples=7)
    assert not any(one.startswith("read") for one in line.log)
    line.log.clear()
    watch.time(kernel(line), "graph", samples=5)
    assert line.log[-1] == "graph of 10" and not any(one.startswith("read") for one in line.log)
    line.log.clear()
    watch.time(kernel(line), "cold graph", samples=5)
    assert line.log[-2:] == [flush, "graph of 1"]


def test_no_burst_is_begun_after_the_limit(line: Timeline) -> None:
    found = stopwatch(line).time(kernel(line, kernel_s=0.1), "cold", samples=30, limit_s=0.4)
    assert len(found.samples) == 5


def test_throttled_samples_are_dropped_and_counted(line: Timeline) -> None:
    clocks = FakeClocks(throttled=lambda reading: reading == 2)
    found = stopwatch(line, clocks).time(kernel(line), "warm", samples=15)
    assert (len(found.samples), len(found.kept), found.throttled) == (15, 10, 5)
    assert found.reasons == ("power cap",) and found.sm_mhz == 1980.0
    record = json.loads(json.dumps(found.to_dict()))
    assert [len(burst["samples_s"]) for burst in record["bursts"]] == [5, 5, 5]
    assert [burst["throttled"] for burst in record["bursts"]] == [[], ["power cap"], []]
    assert record["bursts"][1]["sm_mhz"] == 1880.0 and record["kept"] == 10


def test_where_every_sample_is_throttled_none_is_dropped() -> None:
    samples = tuple(Sample(float(i), Reading(throttled=("power cap",))) for i in (1, 2, 3))
    found = Timing("cold", samples)
    assert found.kept == (1.0, 2.0, 3.0) and found.throttled == 3 and found.sm_mhz is None


def test_a_call_that_fails_within_a_capture_leaves_the_stopwatch_usable(line: Timeline) -> None:
    watch, calls = stopwatch(line), 0

    def fails() -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise RuntimeError("not while a stream is captured")

    with pytest.raises(RuntimeError, match="captured"):
        watch.time(fails, "graph")
    assert watch.time(kernel(line), "graph", samples=5).median_s == pytest.approx(KERNEL_S)
