"""A window by gathering: what is computed, and what the copies cost."""

import numpy as np
import pytest

from attnsim.api.answering import predict
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import ALGORITHMS
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention
from attnsim.models.schedule.schedule import Kernel

A100 = load_gpu("a100-sxm4-80gb")
RECORD = find_implementation("torch.window-gather")


@pytest.mark.parametrize("mask", [Mask.sliding_window(5), Mask.sliding_window(1), Mask(left=3, right=4)])
def test_gathering_computes_what_a_window_computes(mask: Mask) -> None:
    draw = np.random.default_rng(0)
    q, k, v = (draw.standard_normal((2, heads, 19, 8)) for heads in (4, 2, 2))
    w = Workload(2, 4, 19, 8, 2, mask=mask)
    assert ALGORITHMS["window-gather"].reference(w, q, k, v) == pytest.approx(attention(q, k, v, mask)[0])


def kernels(w: Workload) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in RECORD.build(w, A100, None).kernels}


def test_each_key_lies_in_memory_once_for_every_query_that_sees_it() -> None:
    w = Workload(2, 8, 300, 64, 4, mask=Mask.sliding_window(100))
    made = kernels(w)
    windows = 2 * 4 * 300 * 100 * 64 * 2
    assert made["unfold K"].requested()["store", "K windows"] == windows
    assert made["unfold V"].requested()["store", "V windows"] == windows
    assert made["S = Q K^T"].requested()["load", "K windows"] == windows
    assert made["S = Q K^T"].requested()["load", "Q"] == 2 * 8 * 300 * 64 * 2
    assert made["softmax"].requested()["store", "P"] == 2 * 8 * 300 * 100 * 2
    padded = next(use for use in made["unfold K"].uses if use.tensor == "K padded")
    assert padded.unique_bytes == 2 * 4 * (300 + 99) * 64 * 2


def test_a_fused_window_moves_a_hundredth_of_the_bytes() -> None:
    w = Workload(1, 12, 4096, 64, mask=Mask.sliding_window(256))
    gathered, fused = (predict(w, A100, name, baseline=False) for name in ("window-gather", "sliding-window"))
    # K and V windows are written and read once each: 4 x 12 x 4096 x 256 x 64 x 2 bytes; Q, K, V and O are 25 MB.
    copies = 4 * 12 * 4096 * 256 * 64 * 2
    moved = (gathered.hbm_read_bytes or 0) + (gathered.hbm_write_bytes or 0)
    assert copies < moved < 1.1 * copies
    assert (fused.hbm_read_bytes or 0) + (fused.hbm_write_bytes or 0) < copies / 100


def test_what_is_no_band_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="give a window, --mask 'causal window 256'"):
        RECORD.build(Workload(1, 2, 64, 64, seq_kv=128, mask=Mask.sliding_window(8)), A100, None)
    with pytest.raises(InputError, match="copies the keys of a window"):
        predict(Workload(1, 2, 64, 64, mask=Mask.parse("global 4")), A100, "window-gather")
