"""All-to-all: every GPU sends a part of its own to each other one, as tokens go to experts."""

from attnsim.models.implementations.collectives.collective import Algorithm, Collective

COLLECTIVE = Collective("all_to_all", "what each GPU has", {"direct": Algorithm(lambda n: 1, lambda n: (n - 1) / n)})
