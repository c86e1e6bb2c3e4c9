"""Every kernel on a real GPU against float64: awkward sizes, both formats, grouped heads, masks, long sequences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import attnsim.kernels as ak
from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.device import check_architecture
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.kernels.gpu.grid import case, masks_of
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE

pytestmark = pytest.mark.gpu

SIZES = (1, 63, 127, 500, 4096)


def workloads(operation: Operation) -> Iterator[Workload]:
    """The questions put to an operation: every size at every width, and the rest at one of each."""
    decode = operation.passes == "decode"
    for width in operation.head_dims:
        for size in SIZES:
            # The float64 reference holds all scores: fewer heads where they are many.
            heads = 2 if size > 1024 and not decode else 4
            plain = Workload(
                batch=1 if heads == 2 else 2,
                heads_q=heads,
                heads_kv=heads // 2,
                seq_q=1 if decode else size,
                seq_kv=size,
                head_dim=width,
                passes=operation.passes,
            )
            yield plain
            if operation.causal and not decode:
                yield replace(plain, dtype="fp16", mask=Mask.causal())
    base = Workload(1, 4, 500, 64, seq_kv=700, passes=operation.passes)
    if operation.rectangular:
        yield base
        if operation.causal:
            yield replace(base, mask=Mask.causal())
            yield replace(base, seq_q=700, seq_kv=500, mask=Mask.causal())  # 200 queries see nothing
    if operation.window:
        yield replace(base, seq_q=500, seq_kv=500, mask=Mask.sliding_window(100))
        yield replace(base, seq_q=500, seq_kv=500, mask=Mask.sliding_window(33, causal=False))
    for text in operation.masks:
        yield replace(base, seq_q=500, seq_kv=500, mask=Mask.parse(text))


CASES = [(operation, w) for operation in OPERATIONS.values() for w in dict.fromkeys(workloads(operation))]


@pytest.mark.parametrize(("operation", "w"), CASES, ids=[f"{one.name}: {w}" for one, w in CASES])
def test_agrees_with_float64(operation: Operation, w: Workload, gpu_device: CudaDevice, seed: int) -> None:
    for variant in operation.variants():
        try:
            check_architecture(variant, gpu_device.gpu)
        except InputError as reason:
            pytest.skip(str(reason))
    outcome = operation.exercise(gpu_device, w, seed)
    assert outcome.outputs.keys() >= outcome.expected.keys()
    for name, error in outcome.errors().items():
        assert error <= operation.tolerance(w.dtype), f"{name} is off by {error:.2e}, seed {seed}"


ADVERSARIAL = [(one, kind) for one in OPERATIONS.values() for kind in one.adversarial]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("operation", "kind"), ADVERSARIAL, ids=[f"{one.name}, {kind}" for one, kind in ADVERSARIAL])
def test_agrees_on_adversarial_inputs(
    operation: Operation, kind: str, dtype: str, gpu_device: CudaDevice, seed: int
) -> None:
    """Normal inputs never run the branch that rescales O."""
    for variant in operation.variants():
        try:
            check_architecture(variant, gpu_device.gpu)
        except InputError as reason:
            pytest.skip(str(reason))
    for width in operation.head_dims:
        for mask in masks_of(operation, 500):
            errors = operation.exercise(gpu_device, case(operation, 500, width, dtype, mask), seed, kind).errors()
            assert max(errors.values()) <= operation.tolerance(dtype), f"{errors}, {width}, {mask}, seed {seed}"


def test_a_kernel_gives_the_same_twice(gpu_device: CudaDevice, seed: int) -> None:
    """A race shows as two runs that differ, once in a while; kernels that add atomically are not in this list."""
    w = Workload(1, 4, 500, 64, mask=Mask.causal())
    first = OPERATIONS["flash"].exercise(gpu_device, w, seed).outputs["O"]
    for _ in range(5):
        assert (OPERATIONS["flash"].exercise(gpu_device, w, seed).outputs["O"] == first).all()


def test_refusals_leave_the_device_usable(gpu_device: CudaDevice, seed: int) -> None:
    variant = replace(OPERATIONS["flash"].variants()[0], shared_memory_bytes=1 << 20)
    with pytest.raises(InputError, match="Shared memory"):
        gpu_device.launch(variant, (1, 1, 1), {})
    w = Workload(1, 1, 64, 64)
    assert OPERATIONS["flash"].exercise(gpu_device, w, seed).largest_error() <= TOLERANCE["bf16"]


def test_memory_is_given_back(gpu_device: CudaDevice, seed: int) -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    OPERATIONS["flash"].exercise(gpu_device, Workload(1, 4, 500, 64), seed)
    assert pool.used_bytes() == before


def test_public_functions_run_where_the_arrays_are(gpu_device: CudaDevice, seed: int) -> None:
    random = np.random.default_rng(seed)
    q, k, v = (encode(random.standard_normal((1, 2, 127, 64)), "bf16") for _ in "qkv")
    o, lse = ak.flash_forward(*(gpu_device.upload(x) for x in (q, k, v)), causal=True)
    here, lse_here = ak.flash_forward(q, k, v, causal=True)  # the same kernel in the interpreter
    assert np.abs(decode(gpu_device.download(o)) - decode(here)).max() <= TOLERANCE["bf16"]
    assert np.abs(gpu_device.download(lse) - lse_here).max() <= 1e-3
