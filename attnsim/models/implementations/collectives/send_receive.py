"""Send and receive: one GPU's bytes to another, as a stage of a pipeline hands on what it computed."""

from attnsim.models.implementations.collectives.collective import Algorithm, Collective

COLLECTIVE = Collective("send_receive", "what is sent", {"direct": Algorithm(lambda n: 1, lambda n: 1)})
