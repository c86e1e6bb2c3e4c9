"""What bounds a call: on calls made by hand, whose kernels take as long as their busiest unit, and as replays say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from attnsim import Workload, explain, predict
from attnsim.api.bounds import LEAST, Bound, bounds
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import UNITS
from attnsim.models.mask.mask import Mask
from attnsim.simulator.replay import KernelReplay, Replay

H100 = load_gpu("h100-sxm5-80gb")


def kernel(name: str, time_s: float, launch_s: float, units_s: Mapping[str, float]) -> KernelReplay:
    return KernelReplay(name, time_s, launch_s, 1, 1, "threads", 1.0, units_s, 0.0, (), {}, 0.0)


def call(*parts: tuple[str, float, Mapping[str, float]], launch_s: float = 0.0) -> Replay:
    """Kernels by name, waits and busy seconds of units."""
    made = tuple(kernel(name, waits + max(units.values()), launch_s, units) for name, waits, units in parts)
    time_s = sum(one.time_s + one.launch_s for one in made)
    return Replay(time_s, 0.0, 0.0, made, 0.0, 0.0, 0, 0, 1e9, "boost")


def found(*parts: tuple[str, float, Mapping[str, float]], launch_s: float = 0.0) -> tuple[Bound, tuple[Bound, ...]]:
    """Of a call whose units work off what they have at the rate of their figure."""

    def play(gpu: Gpu) -> Replay:
        faster = {
            unit: gpu.get(of) / H100.get(of) for unit, one in UNITS.items() if H100.get(of := one.figure_for("bf16"))
        }
        then = [(name, waits, {unit: busy / faster[unit] for unit, busy in has.items()}) for name, waits, has in parts]
        return call(*then, launch_s=launch_s * gpu.launch.stream_s / H100.launch.stream_s)

    return bounds(call(*parts, launch_s=launch_s), H100, "bf16", "stream", play)


def test_the_figure_that_gains_most_bounds_not_the_one_that_is_busy_longest_over_all_kernels() -> None:
    """HBM is busy 7 of 10 seconds, more than any other, and twice of it gains nothing."""
    parts = (
        ("mask", 0.0, {"int32": 5.0, "hbm": 3.0}),
        ("softmax", 0.0, {"exp": 3.0, "hbm": 2.8}),
        ("gemm", 0.0, {"l2": 2.0, "tensor": 1.0, "hbm": 1.2}),
    )
    whole, each = found(*parts)
    assert whole == Bound("int32", "sm.int32_rate", 10 / 8) and str(whole) == "INT, 1.25x if doubled"
    assert each == (
        Bound("int32", "sm.int32_rate", 5 / 3),
        Bound("exp", "sm.exp_rate", 3 / 2.8),
        Bound("l2", "l2.bandwidth", 2 / 1.2),
    )
    assert call(*parts).busiest == "int32"


def test_two_units_that_are_as_busy_leave_a_call_that_waits() -> None:
    whole, (each,) = found(("both", 0.0, {"tensor": 1.0, "exp": 1.0}))
    assert whole == each == Bound("waits", "", 1.0) and str(whole) == "waits (latency)"


def test_below_two_per_cent_nothing_bounds() -> None:
    """A unit is busy for 4 % of the time: twice as fast it gains 2 %."""
    assert found(("a", 25.0, {"hbm": 1.0}))[0].unit == "waits"
    assert found(("a", 20.0, {"hbm": 1.0}))[0].gain == pytest.approx(21 / 20.5) and LEAST < 21 / 20.5


def test_launches_bound_where_half_of_one_gains_most() -> None:
    whole, (each,) = found(("short", 0.0, {"hbm": 1.0}), launch_s=3.0)
    assert whole == Bound("launch", "launch.stream", 4 / 2.5) and str(whole) == "launch, 1.60x if halved"
    assert each.unit == "hbm", "the kernel alone"


QUESTION = Workload(1, 32, 4096, 128, heads_kv=8, mask=Mask.causal())


@pytest.mark.parametrize("algorithm", ["flash", "naive"])
def test_the_gain_is_that_of_the_call_on_such_a_gpu_and_of_the_lever_that_explain_shows(algorithm: str) -> None:
    one = predict(QUESTION, H100, algorithm, baseline=False)
    assert one.bound is not None and one.bounds is not None and one.bound.figure
    then = predict(QUESTION, H100.replace(one.bound.figure, "2x"), algorithm, baseline=False)
    assert one.bound.gain == pytest.approx((one.time_s or 0) / (then.time_s or 1))
    told = explain(QUESTION, H100, algorithm)
    assert told.bound == one.bound and tuple(kernel.bound for kernel in told.kernels) == one.bounds[1]
    units = [lever.speedup for lever in told.levers if lever.unit in (*UNITS, "launch")]
    assert one.bound.gain == pytest.approx(max(units))
    assert told.to_dict()["bound"] == {"unit": one.bound.unit, "figure": one.bound.figure, "gain": one.bound.gain}


def test_a_call_that_does_not_fit_has_no_bound() -> None:
    assert predict(Workload(1, 64, 65536, 128), H100, "naive", baseline=False).bound is None
