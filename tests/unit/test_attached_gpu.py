"""The record of a GPU that is plugged in: a built-in one where there is one, the driver's figures elsewhere."""

import dataclasses

import pytest

from attnsim.errors import InputError
from attnsim.models.hardware.attached import Attached, gpu_of_attached
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu

KNOWN = [load_gpu(name) for name in builtin_gpu_ids()]

# As CUDA reports an H200: 139.8 GiB of memory, clocks in kHz.
H200 = Attached(
    name="NVIDIA H200",
    capability=90,
    memory_bytes=150_121_545_728,
    attributes={
        "MultiProcessorCount": 132,
        "MaxThreadsPerMultiProcessor": 2048,
        "MaxBlocksPerMultiprocessor": 32,
        "MaxThreadsPerBlock": 1024,
        "MaxRegistersPerMultiprocessor": 65536,
        "MaxSharedMemoryPerMultiprocessor": 233472,
        "MaxSharedMemoryPerBlockOptin": 232448,
        "ReservedSharedMemoryPerBlock": 1024,
        "L2CacheSize": 62914560,
        "ClockRate": 1980000,
        "MemoryClockRate": 3201000,
        "GlobalMemoryBusWidth": 6144,
    },
)


@pytest.mark.parametrize(
    ("name", "capability", "sms", "gib", "expected"),
    [
        ("NVIDIA H200", 90, 132, 139.8, "h200-sxm-141gb"),
        ("NVIDIA H100 80GB HBM3", 90, 132, 79.1, "h100-sxm5-80gb"),
        ("NVIDIA H100 PCIe", 90, 114, 79.1, "h100-pcie-80gb"),
        ("NVIDIA A100-SXM4-80GB", 80, 108, 79.1, "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", 80, 108, 79.1, "a100-pcie-80gb"),
        ("NVIDIA A100-SXM4-40GB", 80, 108, 39.4, "a100-sxm4-40gb"),
        ("NVIDIA B200", 100, 148, 178.4, "b200-sxm-180gb"),
        ("NVIDIA L40S", 89, 142, 44.4, "l40s"),
        ("NVIDIA L4", 89, 58, 22.0, "l4"),
        ("NVIDIA GeForce RTX 4090", 89, 128, 23.5, "rtx-4090"),
        ("Tesla T4", 75, 40, 14.6, "t4"),
    ],
)
def test_a_chip_with_a_file_is_recognised(name: str, capability: int, sms: int, gib: float, expected: str) -> None:
    found = Attached(name, capability, int(gib * 2**30), {"MultiProcessorCount": sms})
    assert gpu_of_attached(found, KNOWN) == load_gpu(expected)


def test_without_files_the_limits_are_the_drivers_and_those_of_the_file() -> None:
    built, filed = gpu_of_attached(H200), load_gpu("h200-sxm-141gb")
    assert (built.id, built.name, built.compute_capability) == ("nvidia-h200", "NVIDIA H200", "9.0")
    limits = ["count", "max_threads", "max_blocks", "max_threads_per_block", "registers", "max_registers_per_thread"]
    limits += ["shared_memory_bytes", "shared_memory_per_block_bytes", "shared_memory_reserved_bytes"]
    for name in limits:
        assert getattr(built.sm, name) == getattr(filed.sm, name), name
    assert built.tensor == filed.tensor and built.features == filed.features
    assert built.hbm.bandwidth_bytes_per_s == pytest.approx(filed.hbm.bandwidth_bytes_per_s, rel=0.03)
    assert built.provenance["sm.count"].kind == "measured"


def test_a_chip_cut_down_is_not_taken_for_the_whole_one() -> None:
    fewer = dataclasses.replace(H200, attributes={**H200.attributes, "MultiProcessorCount": 100})
    assert gpu_of_attached(fewer, KNOWN).sm.count == 100


def test_a_chip_newer_than_the_rules_keeps_its_own_number() -> None:
    newer = dataclasses.replace(H200, name="NVIDIA B300", capability=103)
    gpu = gpu_of_attached(newer, KNOWN)
    assert gpu.compute_capability_number == 103 and gpu.architecture == "blackwell"


def test_a_driver_that_says_little_leaves_the_rules() -> None:
    gpu = gpu_of_attached(Attached("NVIDIA A30", 80, 24 * 2**30, {"MultiProcessorCount": 56, "L2CacheSize": 25165824}))
    assert gpu.sm.shared_memory_per_block_bytes == 163 * 1024 and gpu.hbm.bandwidth_bytes_per_s > 0


def test_a_gpu_older_than_all_is_refused() -> None:
    with pytest.raises(InputError, match=r"6\.1.*V100"):
        gpu_of_attached(Attached("GeForce GTX 1080", 61, 8 * 2**30, {"MultiProcessorCount": 20}))
