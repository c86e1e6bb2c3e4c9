"""All-gather: every GPU has what all have, side by side."""

from attnsim.models.implementations.collectives.collective import Algorithm, Collective

COLLECTIVE = Collective(
    "all_gather", "what each GPU gets", {"ring": Algorithm(lambda n: n - 1, lambda n: (n - 1) / n, shared=True)}
)
