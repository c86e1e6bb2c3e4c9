"""What a GPU cannot run is refused before the launch, by name and with what is allowed."""

import dataclasses

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.device import Grid, check_launch
from attnsim.kernels.variant import Variant
from attnsim.models.hardware.files import load_gpu

KERNEL = Variant("flash.cu", "flash", (("ELEMENT", "Half"),), threads=128, shared_memory_bytes=65536)
A100 = load_gpu("a100-sxm4-80gb")


@pytest.mark.parametrize(
    ("changes", "grid", "gpu", "told"),
    [
        ({"threads": 100}, (1, 1, 1), "a100-sxm4-80gb", "100 threads.*multiples of 32 up to 1024"),
        ({"threads": 2048}, (1, 1, 1), "a100-sxm4-80gb", "2048 threads"),
        ({"shared_memory_bytes": 164 * 1024}, (1, 1, 1), "a100-sxm4-80gb", "needs 164 KiB.*has 163 KiB per block"),
        ({"shared_memory_bytes": 100 * 1024}, (1, 1, 1), "rtx-3090", "has 99 KiB per block"),
        ({}, (1, 65536, 1), "a100-sxm4-80gb", "1 x 65536 x 1 blocks"),
        ({}, (0, 1, 1), "a100-sxm4-80gb", "grid"),
        ({}, (1, 1, 1), "t4", r"at least 8\.0 \(A100 or newer\); t4 has 7\.5"),
        ({"compute_capability": (9, 0)}, (1, 1, 1), "l4", r"at least 9\.0 \(H100 or newer\)"),
        (
            {"compute_capability": (9, 0), "arch_suffix": "a"},
            (1, 1, 1),
            "b200-sxm-180gb",
            r"needs compute capability 9\.0 \(H100, H200 or GH200\); b200-sxm-180gb has 10\.0",
        ),
    ],
)
def test_refusals_name_the_limit(changes: dict[str, object], grid: Grid, gpu: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_launch(dataclasses.replace(KERNEL, **changes), grid, {}, load_gpu(gpu))  # type: ignore[arg-type]


def test_a_plain_number_is_refused_because_nothing_says_how_wide_it_is() -> None:
    with pytest.raises(InputError, match=r"seq is 128; wrap scalars as np\.int32"):
        check_launch(KERNEL, (1, 1, 1), {"seq": 128}, A100)
    check_launch(KERNEL, (1, 1, 1), {"seq": np.int32(128)}, A100)


def test_the_cpu_keeps_to_the_limits_of_the_gpu_it_plays() -> None:
    device = CpuDevice("rtx-3090")
    with pytest.raises(InputError, match="rtx-3090 has 99 KiB"):
        device.launch(dataclasses.replace(KERNEL, shared_memory_bytes=120 * 1024), (1, 1, 1), {})
    hopper = dataclasses.replace(KERNEL, compute_capability=(9, 0), arch_suffix="a")
    with pytest.raises(InputError, match=r"needs compute capability 9\.0"):
        CpuDevice("b200-sxm-180gb").launch(hopper, (1, 1, 1), {})
    assert device.launches == []


def test_a_gpu_that_no_kernel_runs_on_is_refused_at_once() -> None:
    with pytest.raises(InputError, match=r"t4 has compute capability 7\.5.*needs 8\.0"):
        CpuDevice("t4")


def test_fresh_memory_of_the_cpu_is_poison_and_zeros_are_zeros() -> None:
    device = CpuDevice()
    for dtype in ("float16", "float32"):
        assert np.isnan(device.empty((3, 5), dtype)).all()
    assert (device.empty((2,), "uint16") == 0xFFFF).all()
    assert not device.zeros((2, 2), "float32").any()


def test_an_upload_is_a_copy() -> None:
    device, array = CpuDevice(), np.arange(6.0).reshape(2, 3)
    moved = device.upload(array.T)
    moved[:] = 0
    assert array.any() and moved.flags.c_contiguous and device.download(moved) is moved
