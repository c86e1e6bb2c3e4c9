"""Area and cost: dies of every built-in GPU, parts that add up, what a change adds, and what a user is told."""

from __future__ import annotations

import pytest

from attnsim.errors import InputError
from attnsim.models.hardware.area import (
    FIGURES,
    FOLLOWING,
    area_mm2,
    beyond_reticle,
    constants_of,
    cost_usd,
    parts_mm2,
    sold_per_wafer,
    table,
    typical_shares,
    without_area,
)
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.sections import FIELDS, Interval, propagated

H100 = load_gpu("h100-sxm5-80gb")


def test_dies_are_those_of_built_in_gpus() -> None:
    named = [gpu for die in table().dies.values() for gpu in die.gpus]
    assert set(named) <= set(builtin_gpu_ids()) and len(set(named)) == len(named) > 25
    for die in table().dies.values():
        for gpu in map(load_gpu, die.gpus):
            assert gpu.sm.count <= die.sms and gpu.l2.capacity_bytes <= die.l2_mib << 20, gpu.id


def test_every_constant_has_ends_in_order_a_kind_and_a_source() -> None:
    found = table()
    constants = [found.reticle_mm2, *found.parts.values(), *found.sm.values(), *found.costs.values()]
    for process in found.processes.values():
        constants += [process.density, process.sram, process.wafer, process.defects]
    for die in found.dies.values():
        constants += [die.area, die.links]
    for one in constants:
        assert 0 <= one.low <= one.typical <= one.high, one
        assert one.kind in ("datasheet", "published", "derived", "assumed") and one.unit and one.source


def test_parts_of_a_die_are_the_die_and_sms_the_largest() -> None:
    for name, die in table().dies.items():
        for end in ("low", "typical", "high"):
            values = {key: getattr(one, end) for key, one in constants_of(die).items()}
            assert sum(parts_mm2(die, values).values()) == pytest.approx(values["area"])
        shares = typical_shares(die)
        assert 0.45 < shares["sms"] < 0.7 and min(shares.values()) > 0, name
    assert sum(one.high for one in table().sm.values()) < 1


def test_an_unchanged_gpu_has_its_published_die() -> None:
    assert area_mm2(H100) == Interval(814, 814, 814)
    assert area_mm2(load_gpu("h20")) == area_mm2(H100)
    blackwell = area_mm2(load_gpu("b200-sxm-180gb"))
    assert blackwell.low == 1500 and blackwell.high == 1716


@pytest.mark.parametrize("key", sorted(FIGURES))
def test_more_of_a_figure_needs_more_area_within_its_range(key: str) -> None:
    found = area_mm2(H100.replace(key, "1.5x"))
    assert 813 < found.low <= found.typical <= found.high < 1.5 * 814  # independent errors reach a little below 814
    assert found.typical > 814 and found.high - found.low > 0
    assert without_area(H100.replace(key, "1.5x")) == ()


def test_ten_percent_more_sms_are_that_share_of_the_die() -> None:
    _, die = next((name, one) for name, one in table().dies.items() if name == "GH100")
    grown = area_mm2(H100.replace("sm.count", "165")).typical - 814  # a quarter more
    shares = typical_shares(die)
    assert grown == pytest.approx(0.25 * (shares["sms"] + shares["crossbar"]) * 814)  # the L2 serves a quarter more


def test_units_of_an_sm_grow_with_its_number() -> None:
    def added(*changes: tuple[str, str]) -> float:
        gpu = H100
        for change in changes:
            gpu = gpu.replace(*change)
        return area_mm2(gpu).typical - 814

    tensor, more = ("tensor.bf16", "2x"), ("sm.count", "264")
    assert added(tensor, more) == pytest.approx(added(more) + 2 * added(tensor))
    assert added(("tensor.bf16", "2x"), ("tensor.fp16", "2x")) == pytest.approx(added(tensor))  # the same units


def test_what_has_no_area_is_named() -> None:
    gpu = H100.replace("clock.free", "1.2x").replace("sm.shared_memory", "1.2x").replace("hbm.capacity", "2x")
    assert without_area(gpu) == ("clock.free",)
    assert FIELDS.keys() >= FIGURES | FOLLOWING


def test_an_unknown_die_is_refused() -> None:
    import dataclasses

    with pytest.raises(InputError, match="the die of mine is not known"):
        area_mm2(dataclasses.replace(H100, id="mine", base_id="mine"))


def test_an_h100_costs_what_analysts_say_without_tests_and_board() -> None:
    """3,300 dollars with tests and assembly of 900 (Raymond James's estimate, as quoted): 2,400 are compared."""
    found = cost_usd(H100)
    assert found.low < 2400 < found.high and found.typical == pytest.approx(2400, rel=0.2)
    assert cost_usd(H100.replace("hbm.capacity", "2x")).typical == pytest.approx(found.typical + 80 * 12)
    costs = [cost_usd(H100.replace("sm.count", f"{n}")).typical for n in (100, 132, 150, 200)]
    assert costs == sorted(costs)


def test_a_wafer_gives_the_dies_that_fit_and_have_no_defect() -> None:
    values = {"defects": 0.1, "harvest": 0.0}
    assert sold_per_wafer(814, values) == pytest.approx(63.5 * 0.4676, rel=0.01)
    assert sold_per_wafer(814, values | {"harvest": 1.0}) == pytest.approx(63.5, rel=0.01)
    assert sold_per_wafer(100, values) > 10 * sold_per_wafer(814, values)


def test_a_die_larger_than_the_reticle_is_seen() -> None:
    assert not beyond_reticle(H100) and not beyond_reticle(load_gpu("b200-sxm-180gb"))
    assert beyond_reticle(H100.replace("sm.count", "1.2x"))


def test_errors_of_constants_add_in_quadrature() -> None:
    found = propagated(lambda v: v["a"] + v["b"], {"a": Interval(7, 10, 14), "b": Interval(6, 10, 13)})
    assert found == Interval(15.0, 20, 25.0)
