"""All-reduce: every GPU has the sum of what all have.

A ring passes each part around twice (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009). Between
servers two trees halve the message between them (Sanders, Speck and Traeff, Two-tree algorithms, 2009). With NVLS the
switch adds (NVLink SHARP). Frameworks have kernels of their own for short messages: one-shot, where every GPU reads all
others' whole message, and two-shot, where each adds a part and then reads the others' sums (vLLM's
``custom_all_reduce.cuh``, TensorRT-LLM's ``allReduceKernels``).
"""

from math import log2

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
