"""A GPU that is made up: it takes launches and does nothing, and everything takes 0.1 ms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnsim.kernels.catalog import Operation
from attnsim.kernels.gpu.measuring import Bench
from attnsim.kernels.gpu.timing import Reading, Sample, Timing
from attnsim.models.hardware.files import load_gpu
from attnsim.ptx.outcome import Outcome

GPU = load_gpu("h200-sxm-141gb")
ATTACHED = {
    "name": "NVIDIA H200",
    "capability": 90,
    "memory_bytes": 150_121_545_728,
    "attributes": {"MultiProcessorCount": 132},
}


class FakeDevice:
    """Takes launches and does nothing."""

    gpu = GPU
    persistent = True

    def __init__(self) -> None:
        self.launched: list[str] = []

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.zeros(shape, dtype)

    def upload(self, array: Any) -> Any:
        return np.array(array, order="C")

    def download(self, array: Any) -> Any:
        return array

    def tensor_map(self, array: Any, rows: int) -> Any:
        return np.zeros(1, np.dtype((np.void, 128)))

    def launch(self, variant: Any, grid: Any, arguments: Mapping[str, Any]) -> None:
        self.launched.append(variant.entry)


class FakeWatch:
    """Says that everything takes 100 us, the second burst throttled."""

    def __init__(self) -> None:
        self.error = ""

    def time(
        self,
        call: Callable[[], object],
        mode: Any = "cold",
        *,
        samples: int = 30,
        warm_up: int = 3,
        limit_s: float = 2.0,
    ) -> Timing:
        call()
        if self.error:
            raise RuntimeError(self.error)
        good, bad = Reading(sm_mhz=1755.0, power_w=690.0), Reading(sm_mhz=1500.0, throttled=("power cap",))
        times = [(1e-4 + 1e-7 * i, bad if 5 <= i < 10 else good) for i in range(samples)]
        return Timing(mode, tuple(Sample(seconds, state) for seconds, state in times))


class Clock:
    """Seconds that pass only when somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def zeros(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    return np.zeros(shape, "float16" if dtype == "fp16" else "uint16")


def make_bench(gpu_name: str = "NVIDIA H200") -> Bench:
    def describe(operations: Sequence[Operation], date: str) -> dict[str, Any]:
        about = {"gpu": gpu_name, "id": "h200-sxm-141gb", "attached": ATTACHED, "driver": "580.65.06", "date": date}
        return {**about, "clocks_missing": "", "seed": 7, "synthetic": "tests/unit/fake_bench.py made it up"}

    return Bench(FakeDevice(), FakeDevice(), FakeWatch(), zeros, describe, 7)


def outcome(error: float) -> Outcome:
    want = np.array([1.0, 0.5])
    return Outcome({"O": want + error}, {"O": want})
