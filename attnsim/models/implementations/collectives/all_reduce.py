"""All-reduce: every GPU has the sum of what all have.

A ring passes each part around twice (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009). Frameworks have
kernels of their own for short messages: one-shot, where every GPU reads all others' whole message, and two-shot, where
each adds a part and then reads the others' sums (vLLM's ``custom_all_reduce.cuh``, TensorRT-LLM's ``allReduceKernels``).
"""

from attnsim.models.implementations.collectives.collective import Algorithm, Collective

COLLECTIVE = Collective(
    "all_reduce",
    "what each GPU has, and gets back",
    {
        "ring": Algorithm(lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
        "one-shot": Algorithm(lambda n: 1, lambda n: n - 1),
        "two-shot": Algorithm(lambda n: 2, lambda n: 2 * (n - 1) / n),
        "NVLS": Algorithm(lambda n: 2, lambda n: 1 + 1 / n),
    },
)
