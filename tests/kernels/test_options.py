"""Sinks and soft-capping in our flash and decode kernels, in the interpreter: right, with the schedule's work."""

from collections.abc import Callable

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.kernels.arrays import random_arrays
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.flash import flash_forward
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode

CASES = {
    "flash, capped": Workload(1, 2, 100, 64, softcap=8.0),
    "flash, sinks, ragged and grouped": Workload(2, 4, 150, 64, heads_kv=2, seq_kv=170, mask=Mask.causal(), sinks=True),
    "flash, both, rows without keys": Workload(1, 2, 150, 64, seq_kv=40, mask=Mask.causal(), sinks=True, softcap=3.0),
    "flash, both, 128": Workload(1, 2, 70, 128, dtype="fp16", mask=Mask.sliding_window(33), sinks=True, softcap=50.0),
    "decode, both": Workload(2, 8, 1, 64, heads_kv=2, seq_kv=300, passes="decode", sinks=True, softcap=5.0),
    "decode, many splits": Workload(1, 2, 1, 128, seq_kv=1500, passes="decode", sinks=True),
    "decode, capped, a few queries": Workload(
        1, 4, 3, 64, heads_kv=2, seq_kv=90, mask=Mask.causal(), passes="decode", softcap=4.0
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_right_and_with_the_work_of_its_schedule(
    case: str, cpu_device: CpuDevice, assert_matches_schedule: Callable[[CpuDevice, Schedule], None]
) -> None:
    w, operation = CASES[case], OPERATIONS[case.partition(",")[0]]
    ran = operation.exercise(cpu_device, w, seed=len(case))
    assert ran.largest_error() <= operation.tolerance(w.dtype), ran.errors()
    assert_matches_schedule(cpu_device, operation.schedule(w, cpu_device.gpu))
    assert cpu_device.launches[0].variant.label.endswith(",asked)"), "its own compilation"


def test_what_is_not_asked_is_not_compiled(cpu_device: CpuDevice) -> None:
    w = Workload(1, 2, 64, 64, dtype="fp16")
    q, k, v = map(cpu_device.upload, random_arrays(w, 0))
    plain, _ = flash_forward(cpu_device, q, k, v)
    far, _ = flash_forward(cpu_device, q, k, v, sinks=np.full(2, -1e4))
    labels = [one.variant.label for one in cpu_device.launches]
    assert labels[1] == labels[0].removesuffix(")") + ",asked)"
    np.testing.assert_array_equal(decode(cpu_device.download(plain)), decode(cpu_device.download(far)))


def test_sinks_are_one_of_each_head_and_other_kernels_refuse_them(cpu_device: CpuDevice) -> None:
    w = Workload(1, 4, 64, 64, dtype="fp16")
    arrays = tuple(map(cpu_device.upload, random_arrays(w, 0)))
    with pytest.raises(InputError, match=r"sinks have shape \[3\]; give one for each of 4 query heads"):
        flash_forward(cpu_device, *arrays, sinks=np.zeros(3))
    with pytest.raises(InputError, match=r"attnsim\.sparse has no attention sinks"):
        OPERATIONS["sparse"].schedule(Workload(1, 4, 64, 64, sinks=True), cpu_device.gpu)
