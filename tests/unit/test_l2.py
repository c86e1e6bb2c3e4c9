"""What the L2 holds from one kernel to the next."""

from __future__ import annotations

import pytest

from attnsim import load_gpu
from attnsim.models.schedule.passes import Access, streaming
from attnsim.simulator.memory import traffic

H100 = load_gpu("h100-sxm5-80gb")
MIB = 1 << 20


@pytest.mark.parametrize("written", [1, 2, 4])
def test_a_kernel_finds_in_the_l2_the_part_of_a_tensor_that_the_one_before_wrote(written: int) -> None:
    write = streaming("write", [Access("new K", written * MIB), Access("K", written * MIB, True)], elements=1)
    read = streaming("read", [Access("K", 4 * MIB), Access("O", MIB, True)], elements=1)
    _, (keys, _) = traffic((write, read), (132, 132), H100, warm=False)
    assert (keys.tensor, keys.hbm_bytes) == ("K", (4 - written) * MIB)


def test_what_was_touched_whole_stays_when_a_part_of_it_is_touched_again() -> None:
    kernels = tuple(streaming("read", [Access("K", n * MIB), Access("O", MIB, True)], elements=1) for n in (4, 1, 4))
    *_, (keys, _) = traffic(kernels, (132,) * 3, H100, warm=False)
    assert keys.hbm_bytes == 0


def test_a_warm_cache_counts_the_whole_of_a_tensor_that_its_last_kernel_touches_in_part() -> None:
    whole, part = (streaming("read", [Access("K", n * MIB), Access("O", 1, True)], elements=1) for n in (60, 1))
    (keys, _), _ = traffic((whole, part), (132, 132), H100, warm=True)
    assert keys.hbm_bytes == 60 * MIB
