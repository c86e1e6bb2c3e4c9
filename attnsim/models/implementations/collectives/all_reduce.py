"""All-reduce: every GPU has the sum of what all have.

A ring passes each part around twice (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009). Between
servers two trees halve the message between them (Sanders, Speck and Traeff, Two-tree algorithms, 2009). With NVLS the
switch adds (NVLink SHARP). Frameworks have kernels of their own for short messages: one-shot, where every GPU reads all
others' whole message, and two-shot, where each adds a part and then reads the others' sums (vLLM's
``custom_all_reduce.cuh``, TensorRT-LLM's ``allReduceKernels``).
"""

from math import log2

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.collectives.collective import Algorithm, Collective

COLLECTIVE = Collective(
    "all_reduce",
    "what each GPU has, and gets back",
    {
        "ring": Algorithm(lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n, shared=True),
        "tree": Algorithm(lambda n: 2 * log2(n), lambda n: 2 * (n - 1) / n, shared=True),
        "NVLS": Algorithm(lambda n: 2, lambda n: 1 + 1 / n, switched=True),
        "one-shot": Algorithm(lambda n: 1, lambda n: n - 1),
        "two-shot": Algorithm(lambda n: 2, lambda n: 2 * (n - 1) / n),
    },
)

MIB = 1 << 20
WITH_NORM = {
    ("vllm", 9): {2: 64 * MIB, 4: 2 * MIB, 8: MIB // 2},
    ("vllm", 10): {2: 64 * MIB, 4: 32 * MIB, 8: MIB},
    ("tensorrt-llm", 9): {2: 16_000_000, 4: 8_000_000, 8: 8_000_000},
    ("tensorrt-llm", 10): {2: 16_000_000, 4: 8_000_000, 8: 8_000_000},
}
"""Bytes up to which an all-reduce also adds the residual and norms, by library and major compute capability, by GPUs:
vLLM's ``FI_ALLREDUCE_FUSION_MAX_SIZE_MB`` (``fuse_allreduce_rms``, on at its default level); TensorRT-LLM's
``CustomAllReduceHelper.max_workspace_size_auto``."""


def norms_too(library: str, gpu: Gpu, gpus: int, size_bytes: float) -> bool:
    """Whether a library's all-reduce of such a message also does the norm behind it."""
    most = WITH_NORM.get((library, gpu.compute_capability_number // 10), {})
    return size_bytes <= most.get(gpus, 0)
