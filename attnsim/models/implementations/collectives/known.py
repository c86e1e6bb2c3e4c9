"""Every collective: the files of this folder that declare one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from attnsim.errors import InputError, nearest, shown
from attnsim.models.implementations import collectives
from attnsim.models.implementations.collectives.collective import Collective

_NOT = ("collective", "known")
COLLECTIVES: dict[str, Collective] = {
    name: import_module(f"{collectives.__name__}.{name}").COLLECTIVE
    for _, name, _ in iter_modules(collectives.__path__)
    if name not in _NOT
}
"""By name."""


def collective_of(name: str) -> Collective:
    """The collective of a name."""
    if name not in COLLECTIVES:
        raise InputError(f"collective is {shown(name)}; {nearest(name, COLLECTIVES)}")
    return COLLECTIVES[name]
