"""Forward and backward against PyTorch's scaled_dot_product_attention on the same 16-bit inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.device import check_architecture
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.models.mask.mask import Mask
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.outcome import TOLERANCE

pytestmark = pytest.mark.gpu

SHAPE = (2, 4, 500, 64)
FORWARD = ("naive", "flash", "flash-hopper")


def torch_array(torch: Any, bits: Any) -> Any:
    """16-bit NumPy data as a CUDA tensor of the format that it holds."""
    tensor = torch.from_numpy(bits.view(np.int16)).cuda()
    return tensor.view(torch.float16 if bits.dtype == np.float16 else torch.bfloat16)


def difference(ours: Any, theirs: Any) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str, causal: bool, dtype: str, gpu_device: CudaDevice, seed: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    operation = OPERATIONS[name]
    try:
        check_architecture(operation.variants()[0], gpu_device.gpu)
    except InputError as reason:
        pytest.skip(str(reason))
    random = np.random.default_rng(seed)
    q, k, v = (encode(random.standard_normal(SHAPE), dtype) for _ in "qkv")
    mask = Mask.causal() if causal else Mask()
    o, _ = operation.call()(gpu_device, *(gpu_device.upload(x) for x in (q, k, v)), mask=mask)
    attention = torch.nn.functional.scaled_dot_product_attention
    theirs = attention(*(torch_array(torch, x) for x in (q, k, v)), is_causal=causal)
    found = decode(gpu_device.download(o))
    assert (
        difference(found, theirs.double().cpu().numpy()) <= operation.tolerance(dtype) + TOLERANCE[dtype]
    )  # each of the two rounds
