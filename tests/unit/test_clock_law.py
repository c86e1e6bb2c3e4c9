"""The clock of a call: the free one while it is short, what power allows once it is long, a given one always."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import attnsim
from attnsim.api.answer import Outcome
from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.clock_law import SAME_CLOCK, clock_law, clock_share, limit_felt, settled
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import HELD, Replay, replay
from attnsim.validation.measured.datasets import row_of

H100, A100, L40S = (attnsim.load_gpu(name) for name in ("h100-sxm5-80gb", "a100-sxm4-80gb", "l40s"))
LONG = Workload(batch=8, heads_q=32, seq_q=16384, head_dim=128, dtype="fp16")
SHORT = replace(LONG, batch=1, seq_q=2048, seq_kv=2048)
NEAR = 0.02
"""Relative, of power at the clock that was found, and of times that scheduling anomalies move."""


def predicted(w: Workload, gpu: Gpu) -> Outcome:
    return attnsim.predict(w, gpu, baseline=False)


def test_a_short_call_runs_at_the_free_clock_and_a_long_one_at_what_the_limit_allows() -> None:
    short, long = predicted(SHORT, H100), predicted(LONG, H100)
    assert (short.clock_hz, short.clock_by) == (H100.clock.free_hz, "load") and H100.clock.free_hz < H100.clock.boost_hz
    cold = predicted(SHORT, H100.replace("clock.free", H100.clock.boost_hz))
    assert (cold.clock_hz, cold.clock_by) == (H100.clock.boost_hz, "boost")
    assert long.clock_by == "power" and long.clock_hz is not None and long.clock_hz < 0.9 * H100.clock.free_hz
    assert attnsim.energy(long, H100).watts.typical == pytest.approx(700, rel=NEAR)
    assert attnsim.energy(short, H100).watts.typical > 700  # for less time than the card takes to act
    assert long.to_dict()["clock_hz"] == long.clock_hz and long.to_dict()["clock_by"] == "power"


def test_a_power_limit_changes_times_and_is_met() -> None:
    times = []
    for limit in ("700 W", "500 W", "350 W"):
        gpu = H100.replace("power.limit", limit)
        found = predicted(LONG, gpu)
        times.append(found.time_s or 0.0)
        assert attnsim.energy(found, gpu).watts.typical == pytest.approx(gpu.power.limit_w, rel=NEAR)
    # The clock is the root of what the limit leaves beside the static 154 W.
    assert times[2] / times[0] == pytest.approx(((700 - 154) / (350 - 154)) ** 0.5, rel=NEAR)
    assert times[0] < times[1] < times[2]
    assert predicted(SHORT, H100.replace("power.limit", "350 W")).time_s == predicted(SHORT, H100).time_s


def test_memory_bound_decode_takes_its_time_whatever_the_clock() -> None:
    decode = Workload(batch=256, heads_q=32, heads_kv=8, seq_q=1, seq_kv=16384, head_dim=128, passes="decode")
    found, held = predicted(decode, H100), predicted(decode, H100.replace("clock.sustained", H100.clock.boost_hz))
    assert found.busiest == "hbm" and (found.time_s or 0) > 3e-3
    assert found.time_s == pytest.approx(held.time_s, rel=0.01)


@pytest.mark.parametrize("clock", ["1.4 GHz", "1.98 GHz", "2.2 GHz"])
def test_a_given_clock_is_held_whatever_it_draws(clock: str) -> None:
    gpu = H100.replace("clock.sustained", clock)
    found = predicted(LONG, gpu)
    assert found.clock_by == "given" and found.clock_hz == gpu.get("clock.sustained")


def test_the_clock_of_a_measured_row_is_held() -> None:
    raw = {
        "gpu": "h100-sxm5-80gb", "implementation": "flash_attn_v3", "algorithm": "flash", "pass": "fwd",
        "dtype": "fp16", "batch": "8", "heads_q": "32", "seq_q": "16384", "head_dim": "128", "time_s": "0.05",
    }  # fmt: skip
    free, held = (row_of(parse_row(raw | {"clock_mhz": clock})) for clock in ("", "1830"))
    numbers = choose(free.record, H100).numbers
    given = replay(free.schedule, H100.replace("clock.sustained", "1830 MHz"), numbers)
    assert held.predict_s(numbers) == pytest.approx(given.time_s) and given.clock_by == "given"
    assert free.predict_s(numbers) > 1.05 * held.predict_s(numbers)  # power allows less than 1830 MHz
    assert attnsim.predict(free.workload, H100, implementation="flash_attn_v3").time_s == free.predict_s(numbers)


@pytest.mark.parametrize("value", ["100 W", "3 kW"])
def test_a_limit_that_no_card_has_is_refused(value: str) -> None:
    with pytest.raises(InputError, match=r"power\.limit is .*: allowed: 175 W to 2100 W, 0.25 to 3 times the design"):
        H100.replace("power.limit", value)


@pytest.mark.parametrize("name", ["flash-attn.3", "torch.baddbmm"])
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("power.limit", ["400 W", "500 W", "600 W", "700 W", "900 W", "2 kW"]),
        ("clock.free", ["1.2 GHz", "1.6 GHz", "1.8 GHz", "1.98 GHz", "2.5 GHz"]),
        ("hbm.bandwidth", ["1 TB/s", "2 TB/s", "3 TB/s", "5 TB/s"]),
        ("l2.bandwidth", ["3 TB/s", "6 TB/s", "9.7 TB/s", "19.4 TB/s"]),
        ("tensor.fp16", ["2000 FLOP/clk", "3000 FLOP/clk", "4096 FLOP/clk", "8192 FLOP/clk"]),
    ],
)
def test_more_power_or_a_faster_unit_never_makes_a_long_call_slower(name: str, key: str, values: list[str]) -> None:
    record = find_implementation(name)
    schedule = record.build(replace(LONG, batch=2), H100, None)
    numbers = choose(record, H100).numbers

    def on(value: str) -> Replay:
        return replay(schedule, H100.replace(key, value), numbers)

    times = [on(value).time_s for value in values]
    # Blocks of S = Q K^T fall into step where the L2 no longer parts them: all multiply at once, then all write.
    near = 0.1 if (name, key) == ("torch.baddbmm", "l2.bandwidth") else NEAR
    assert all(later <= earlier * (1 + near) for earlier, later in pairwise(times)), times


@settings(max_examples=200, deadline=None)
@given(
    time_s=st.floats(1e-3, 1.0), fixed=st.floats(0, 0.95), chip_w=st.floats(1, 3000),
    memory_w=st.floats(0, 500), power_w=st.floats(10, 1000),
    more=st.floats(1.0, 3.0),
)  # fmt: skip
def test_the_share_solves_the_law(
    time_s: float, fixed: float, chip_w: float, memory_w: float, power_w: float, more: float
) -> None:
    chip_j, memory_j = chip_w * time_s, memory_w * time_s
    parts = (time_s * (1 - fixed), time_s * fixed)
    share = float(clock_share(*parts, chip_j, memory_j, power_w))
    drawn = (chip_j * share + memory_j) / (parts[0] / share + parts[1])
    assert drawn == pytest.approx(power_w) if share < 1 else drawn <= power_w * (1 + 1e-9)
    assert float(clock_share(*parts, chip_j, memory_j, power_w * more)) >= share
    # A call that is slower at the full clock stays so at the clocks that power allows.
    as_clocks = float(clock_share(time_s, 0.0, chip_j, memory_j, power_w))
    felt, later = (float(limit_felt(one, 1e-3, 1e-2)) for one in (time_s, time_s * more))
    slower = float(clock_share(time_s * more, 0.0, chip_j, memory_j, power_w))
    assert time_s / as_clocks**felt <= time_s * more / slower**later * (1 + 1e-9)


def test_work_that_takes_no_energy_on_the_chip_runs_at_the_full_clock() -> None:
    """A kernel file may hold latencies alone."""
    with np.errstate(all="raise"):
        assert clock_share(1.0, 0.0, 0.0, 0.0, 100.0) == 1.0


DECODE = Workload(batch=256, heads_q=32, heads_kv=8, seq_q=1, seq_kv=16384, head_dim=128, dtype="fp16", passes="decode")
L4 = attnsim.load_gpu("l4")


def test_power_slows_no_call_below_the_lowest_clock_of_a_card() -> None:
    """HBM traffic and static power alone take more than 0.3 of an L4's limit: once a clock of 83 MHz met it."""
    found = predicted(DECODE, L4.replace("power.limit", "0.3x"))
    assert found.clock_hz == pytest.approx(clock_law(L4).least_hz)
    assert found.clock_by == found.to_dict()["clock_by"] == "least"


def test_a_call_bound_by_memory_keeps_its_limit_too() -> None:
    """The clock of a call whose time it hardly changes falls until the power is the limit; it stood at 354 W of 350."""
    pcie, wide = attnsim.load_gpu("h100-pcie-80gb"), Workload(8, 32, 8192, 256, dtype="fp16")
    found = attnsim.predict(wide, pcie, "naive", baseline=False)
    assert found.busiest == "hbm" and found.clock_by == "power"
    assert attnsim.energy(found, pcie).watts.typical == pytest.approx(pcie.power.limit_w, rel=0.003)


def test_less_power_never_makes_a_call_faster_or_its_clock_higher() -> None:
    found = [
        predicted(DECODE, L4.replace("power.limit", f"{watts} W")) for watts in (72, 60, 50, 48, 47, 43, 40, 30, 24, 18)
    ]
    assert all(one.time_s <= later.time_s * 1.001 for one, later in pairwise(found) if one.time_s and later.time_s)
    assert all(one.clock_hz >= later.clock_hz for one, later in pairwise(found) if one.clock_hz and later.clock_hz)


@example(compute=0.125, chip_w=144.0, memory_w=144.0, power_w=60.0)
@settings(max_examples=100, deadline=None)
@given(
    compute=st.floats(0.1, 1.0), chip_w=st.floats(50, 800), memory_w=st.floats(0, 300), power_w=st.floats(60, 600),
)  # fmt: skip
def test_the_settled_clock_draws_the_limit_where_what_it_leaves_feeds_the_memory(
    compute: float, chip_w: float, memory_w: float, power_w: float
) -> None:
    """A time of 1 s that HBM bounds, while the work that follows the clock takes `compute` of it."""

    def time_at(share: Floats) -> tuple[Floats, Floats]:
        return np.maximum(compute / share, 1.0), np.asarray(compute / share < 1.0, float)

    share = float(settled((1.0, 1.0), time_at, chip_w, memory_w, power_w, 1.0, 0.1))
    drawn = (chip_w * share + memory_w) / max(compute / share, 1.0)
    assert 0.1 <= share <= 1
    if share > 0.1 * (1 + SAME_CLOCK):
        assert drawn <= power_w * 1.005


@example(knee=199.7, compute=0.734, chip_w=371.0, memory_w=361.0, part=0.861)
@example(knee=217.3, compute=0.948, chip_w=380.0, memory_w=221.0, part=0.958)
@settings(max_examples=200, deadline=None)
@given(
    knee=st.floats(8, 256), compute=st.floats(0.7, 1.05), chip_w=st.floats(100, 800), memory_w=st.floats(0, 500),
    part=st.floats(0.5, 1.0),
)  # fmt: skip
def test_a_clock_at_which_the_memory_begins_to_hold_a_call_is_found_in_few_plays(
    knee: float, compute: float, chip_w: float, memory_w: float, part: float
) -> None:
    """Tangents went to and fro about such a clock, up to 2 % apart, until no play was left."""
    asked, power_w = [], part * (chip_w + memory_w)

    def time_at(share: Floats) -> tuple[Floats, Floats]:
        asked.append(float(share))
        time_s = ((compute / share) ** knee + 1) ** (1 / knee)
        return np.asarray(time_s), time_s * np.clip((1 / time_s - HELD) / (1 - HELD), 0, 1)

    share = float(settled(time_at(np.ones(())), time_at, chip_w, memory_w, power_w, 1.0, 0.1))
    assert len(asked) <= 5
    if 0.1 * (1 + SAME_CLOCK) < share < 1:
        assert (chip_w * share + memory_w) / float(time_at(np.asarray(share))[0]) == pytest.approx(power_w, rel=0.005)
