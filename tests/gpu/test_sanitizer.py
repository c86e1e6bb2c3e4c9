"""NVIDIA's own checker over every kernel: out-of-bounds, races in shared memory, barriers, uninitialised memory."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from attnsim.kernels.gpu.cuda_device import CudaDevice

pytestmark = pytest.mark.gpu

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
EVERYTHING = """
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.gpu.cuda_device import CudaDevice
from attnsim.kernels.device import check_architecture
from attnsim.errors import InputError
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

device = CudaDevice(synchronous=True)
for operation in OPERATIONS.values():
    try:
        check_architecture(operation.variants()[0], device.gpu)
    except InputError:
        continue
    queries = 1 if operation.passes == "decode" else 127
    for mask in (Mask(), Mask.causal()) if operation.causal else (Mask(),):
        for width in operation.head_dims:
            w = Workload(1, 4, queries, width, heads_kv=2, seq_kv=127, passes=operation.passes, mask=mask)
            for inputs in ("normal", *operation.adversarial[:1]):
                operation.exercise(device, w, 0, inputs)
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_no_complaint(tool: str, gpu_device: CudaDevice) -> None:
    path = shutil.which("compute-sanitizer")
    if path is None:
        pytest.skip("compute-sanitizer is not on PATH: apt install cuda-sanitizer-13-0")
    command = [path, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", EVERYTHING]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
