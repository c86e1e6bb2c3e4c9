"""The record of an algorithm: what it computes and who runs it; its words are a page of `pages/`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from attnsim.models.arrays import Floats
from attnsim.models.mechanisms.page import Page, read_page
from attnsim.models.question.workload import Workload

Reference = Callable[[Workload, Floats, Floats, Floats], Floats]
"""(workload, q, k, v) to O in float64; tensors are ``[batch, heads, seq, head_dim]``."""

Gradients = Callable[[Workload, Floats, Floats, Floats, Floats], tuple[Floats, Floats, Floats]]
"""(workload, q, k, v, dO) to dQ, dK, dV in float64, in the shapes of q, k and v."""

Group = Literal["sharing", "dense", "sparse", "linear"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One attention mechanism.

    Parameters
    ----------
    name : str
        What `--algorithm` and `attnsim explain` take.
    group : {"sharing", "dense", "sparse", "linear"}
        Chapter of the documentation: who shares keys, how dense attention is scheduled, which pairs are left out, what
        replaces the softmax.
    families : tuple of str
        Families of implementations that run it (:class:`attnsim.models.implementations.implementation.Implementation`).
    implementations : tuple of str
        Those to imitate by default, best first; the first that runs on the GPU is taken. Empty for what is a property
        of the question and has no kernels of its own.
    example : Workload
        A question that shows it, small enough for a page.
    reference : callable
        The executable definition (:mod:`attnsim.models.references`).
    mask : str
        Pattern, in the text form of :class:`attnsim.models.mask.mask.Mask`, taken where the question names none.
    exact : bool
        Whether it computes softmax attention over the pairs that its mask shows; if not, its error is reported too.
    selectable : bool
        Whether it is a schedule that `--algorithm` can ask for; sharing is a property of the question instead.
    gradients : callable, optional
        Its derivative, where backward kernels are played.
    sized : callable, optional
        N to the record of ``NAME@N``, where there is a number to choose (random features, projected keys).
    """

    name: str
    group: Group
    families: tuple[str, ...]
    implementations: tuple[str, ...]
    example: Workload
    reference: Reference
    mask: str = ""
    exact: bool = True
    selectable: bool = True
    gradients: Gradients | None = None
    sized: Callable[[int], Algorithm] | None = None

    @property
    def page(self) -> Page:
        """What is written about it; ``NAME@N`` has the page of ``NAME``."""
        return read_page(self.name.partition("@")[0])
