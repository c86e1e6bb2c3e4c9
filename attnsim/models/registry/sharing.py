"""Who shares keys and values with whom: a property of the question, which every schedule can be asked."""

from __future__ import annotations

from attnsim.models.registry.algorithm import Algorithm

SHARING: tuple[Algorithm, ...] = ()
