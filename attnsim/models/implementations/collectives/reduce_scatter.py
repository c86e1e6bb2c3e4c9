"""Reduce-scatter: every GPU has its part of the sum of what all have."""

from attnsim.models.implementations.collectives.collective import Algorithm, Collective

COLLECTIVE = Collective(
    "reduce_scatter", "what each GPU has", {"ring": Algorithm(lambda n: n - 1, lambda n: (n - 1) / n, shared=True)}
)
