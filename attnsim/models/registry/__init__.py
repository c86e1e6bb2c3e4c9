"""Every attention mechanism, one record each; commands, documents and tests iterate over them.

A record says what is computed and who runs it; how it is run is built by the implementations
(:mod:`attnsim.models.implementations`), which are found by name.
"""

from attnsim.models.registry.algorithm import Algorithm
from attnsim.models.registry.dense import DENSE
from attnsim.models.registry.linear import LINEAR
from attnsim.models.registry.sharing import SHARING
from attnsim.models.registry.sparse import SPARSE

MECHANISMS: dict[str, Algorithm] = {item.name: item for item in (*DENSE, *SPARSE, *LINEAR, *SHARING)}
"""All of them, by name."""

ALGORITHMS: dict[str, Algorithm] = {name: item for name, item in MECHANISMS.items() if item.selectable}
"""Those that a question can ask for."""

__all__ = ["ALGORITHMS", "MECHANISMS", "Algorithm"]
