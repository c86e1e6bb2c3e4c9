"""The microbenchmarks do the work that their rates are computed from."""

import numpy as np
import pytest

from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.gpu import probe_kernels as probe
from attnsim.kernels.variant import compile_variant
from attnsim.models.hardware.gpu import Gpu


@pytest.fixture
def device() -> CpuDevice:
    """An A100 cut down to one SM, so that grids stay small."""
    whole: Gpu = CpuDevice("a100-sxm4-80gb").gpu
    return CpuDevice(whole.replace("sm.count", 1))


@pytest.mark.parametrize("vectors", [1, 255, 2048, 9001])
def test_read_and_copy_touch_every_byte_once(device: CpuDevice, vectors: int) -> None:
    source = np.random.default_rng(0).integers(0, 255, vectors * 16, np.uint8)
    target = device.empty(source.shape, "uint8")
    probe.read(device, source)
    probe.copy(device, source, target)
    np.testing.assert_array_equal(target, source)
    assert device.requested() == {
        ("probe_read", "load", "source"): source.nbytes,
        ("probe_copy", "load", "source"): source.nbytes,
        ("probe_copy", "store", "target"): source.nbytes,
    }


@pytest.mark.parametrize(("vectors", "passes"), [(1, 4), (2049, 2), (9001, 3)])
def test_a_working_set_is_read_as_often_as_asked(device: CpuDevice, vectors: int, passes: int) -> None:
    source = np.random.default_rng(0).integers(0, 255, vectors * 16, np.uint8)
    probe.reread(device, source, passes)
    assert device.requested() == {("probe_reread", "load", "source"): passes * source.nbytes}
    assert "ld.global.cg.v4" in compile_variant(probe.variant("probe_reread"), "80").ptx  # not the L1's to answer


@pytest.mark.parametrize("arch", ["80", "89", "90", "100"])
def test_the_gate_asks_the_clock_again_and_again(arch: str) -> None:
    """The interpreter has no clock; that the loop is not folded away shows in the PTX."""
    compiled = compile_variant(probe.variant("probe_wait"), arch)
    assert compiled.resources("probe_wait").spill_bytes == 0
    entry = compiled.ptx[compiled.ptx.index(".entry probe_wait") :]
    assert entry.count("%globaltimer") == 2 and "bra" in entry.split("%globaltimer")[2]


@pytest.mark.parametrize(
    ("entry", "counter"),
    [
        ("probe_exp", "exponentials"),
        ("probe_fma", "flops"),
        ("probe_mma", "tensor_flops"),
        ("probe_shared", "shared_bytes_loaded"),
    ],
)
def test_compute_kernels_do_what_they_are_credited_with(device: CpuDevice, entry: str, counter: str) -> None:
    probe.spin(device, entry, rounds=3, blocks=2)
    probe.spin(device, entry, rounds=13, blocks=2)
    short, long = (getattr(one.counters, counter) for one in device.launches)
    assert long - short == 2 * probe.work_of(entry, rounds=10)
    assert device.launches[1].counters.bank_conflicts == 0


def test_wgmma_is_issued_asynchronously() -> None:
    """One wait a round: an assembler that cannot keep products in flight says so (C7510)."""
    compiled = compile_variant(probe.variant("probe_wgmma"), "90a")
    assert "C7510" not in compiled.log
    assert compiled.resources("probe_wgmma").spill_bytes == 0


def test_links_are_one_cycle() -> None:
    links = probe.ring(1024, 32)
    seen, at = set(), 0
    while at not in seen:
        seen.add(at)
        at = int(links[at])
    assert at == 0
    assert sorted(seen) == list(range(0, 1024, 32))
    assert compile_variant(probe.variant("probe_latency"), "80").resources("probe_latency").spill_bytes == 0
