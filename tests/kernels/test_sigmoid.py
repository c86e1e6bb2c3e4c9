"""The sigmoid kernel in the interpreter: right on ragged cases, with the work of its schedule."""

from collections.abc import Callable

import numpy as np
import pytest

from attnsim.kernels.arrays import random_arrays
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.sigmoid import exercise, sigmoid_forward
from attnsim.models.implementations.own.flash import build_sigmoid
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import sigmoid_attention
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.counters import decode
from attnsim.ptx.outcome import TOLERANCE, Outcome

CASES = {
    "one query, one key": Workload(1, 1, 1, 64, dtype="fp16"),
    "63, ragged tile": Workload(2, 1, 63, 64),
    "200 causal, grouped": Workload(1, 4, 200, 128, heads_kv=2, mask=Mask.causal()),
    "more keys than queries": Workload(1, 2, 70, 128, seq_kv=301, dtype="fp16", mask=Mask.causal()),
    "more queries than keys": Workload(1, 1, 150, 64, seq_kv=40, mask=Mask.causal()),
    "window, both ways": Workload(1, 1, 300, 64, dtype="fp16", mask=Mask.sliding_window(33, causal=False)),
    "head_dim 256": Workload(1, 2, 100, 256, heads_kv=1, seq_kv=140, mask=Mask.causal()),
}


@pytest.mark.parametrize("case", CASES)
def test_right_and_with_the_work_of_its_schedule(
    case: str, cpu_device: CpuDevice, assert_matches_schedule: Callable[[CpuDevice, Schedule], None]
) -> None:
    w = CASES[case]
    ran = exercise(cpu_device, w, seed=len(case))
    assert ran.largest_error() <= TOLERANCE[w.dtype], ran.errors()
    schedule = build_sigmoid(w, cpu_device.gpu, None)
    assert_matches_schedule(cpu_device, schedule)
    counters = cpu_device.launches[0].counters
    assert counters.tensor_flops == schedule.total("flops")
    assert 2 * counters.exponentials == schedule.total("exps"), "a reciprocal beside each exponential"


@pytest.mark.parametrize("bias", [-12.0, 0.0, 3.5])
def test_scale_and_bias_are_the_caller_s(bias: float, cpu_device: CpuDevice) -> None:
    w = Workload(1, 1, 70, 64, seq_kv=90, dtype="fp16")
    q, k, v = random_arrays(w, 0)
    o = sigmoid_forward(cpu_device, *map(cpu_device.upload, (q, k, v)), scale=-0.3, bias=bias)
    want = sigmoid_attention(decode(q), decode(k), decode(v), scale=-0.3, bias=bias)
    assert Outcome({"O": decode(cpu_device.download(o))}, {"O": want}).largest_error() <= TOLERANCE["fp16"]


def test_weights_do_not_depend_on_other_keys() -> None:
    """Unlike a softmax's: attending two halves of the keys and adding up is attending all."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 1, 8, 16)) for _ in range(3))
    whole = sigmoid_attention(q, k, v, bias=-1.0)
    halves = [sigmoid_attention(q, k[:, :, part], v[:, :, part], bias=-1.0) for part in (slice(4), slice(4, 8))]
    np.testing.assert_allclose(whole, sum(halves))
