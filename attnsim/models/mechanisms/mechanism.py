"""The record of a mechanism: what it computes, of which questions, and who runs it; its words are in `pages/`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.closed_forms.useful import Useful, softmax
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms.page import Page, read_page
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload

Reference = Callable[[Workload, Floats, Floats, Floats], Floats]
"""(workload, q, k, v) to O in float64; tensors are ``[batch, heads, seq, head_dim]``."""

Gradients = Callable[[Workload, Floats, Floats, Floats, Floats], tuple[Floats, Floats, Floats]]
"""(workload, q, k, v, dO) to dQ, dK, dV in float64, in the shapes of q, k and v."""

Refuses = Callable[[Workload], str]
"""(workload) to why it is no question for the mechanism, with what is allowed; "" where it is one."""

Work = Callable[[Workload], Useful]
"""(workload) to what cannot be done without, whoever computes it."""

Group = Literal["sharing", "dense", "sparse", "linear"]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One attention mechanism.

    Parameters
    ----------
    name : str
        What `--algorithm` and `attnsim explain` take.
    group : {"sharing", "dense", "sparse", "linear"}
        Chapter of the documentation: who shares keys, how dense attention is scheduled, which pairs are left out, what
        replaces the softmax.
    implementations : tuple of str
        Those to imitate by default, best first; taken is the first that runs on the GPU, of those before others whose
        calibration there was checked on the pass that is asked about.
    example : Workload
        A question that shows it, small enough for a page.
    reference : callable
        The executable definition (:mod:`attnsim.models.references`).
    shown_by : tuple of str
        Mechanisms whose implementations run it; those that name it themselves where there are none.
    ordered : callable
        (implementations, workload) to them, best first for the question.
    mask : str
        Pattern, in the text form of :class:`attnsim.models.mask.mask.Mask`, taken where the question names none.
    selection : str
        What it selects by content where the question does not say, in the text form of
        :class:`attnsim.models.question.selection.Selection`; "" where it attends to all that the mask shows.
    leaves_out : bool
        Whether it is about leaving pairs out. Beside others it alone keeps the question's window and patterns.
    operations : {"", "around", "all"}
        Which operations its implementations run where a question names them: none, those around a fused kernel, all.
    reads_latent : bool
        Whether it attends a cached latent; the others attend keys and values of every head, cached so.
    splits : bool
        Whether it shares the keys of few queries out over thread blocks.
    refuses : callable
        (workload) to why the mechanism cannot be asked it, what is allowed included; "" where it can.
    useful : callable
        (workload) to the work that cannot be done without, whoever computes it; by default that of softmax attention.
    exact : bool
        Whether it computes softmax attention over the pairs that its mask shows; if not, its error is reported too.
    selectable : bool
        Whether it is a schedule that `--algorithm` can ask for; sharing is a property of the question instead.
    gradients : callable, optional
        Its derivative, where backward kernels are played.
    number : int
        N of ``NAME@N``; 0: as many as the mechanism says.
    sized : callable, optional
        N to the record of ``NAME@N``, where there is a number to choose (random features, projected keys).
    """

    name: str
    group: Group
    implementations: tuple[str, ...]
    example: Workload
    reference: Reference
    shown_by: tuple[str, ...] = ()
    ordered: Callable[[tuple[str, ...], Workload], Sequence[str]] = lambda names, w: names
    mask: str = ""
    selection: str = ""
    leaves_out: bool = False
    operations: Literal["", "around", "all"] = ""
    reads_latent: bool = False
    splits: bool = False
    refuses: Refuses = lambda w: ""
    useful: Work = softmax
    exact: bool = True
    selectable: bool = True
    gradients: Gradients | None = None
    number: int = 0
    sized: Callable[[int], Mechanism] | None = None

    @property
    def page(self) -> Page:
        """What is written about it; ``NAME@N`` has the page of ``NAME``."""
        return read_page(self.name.partition("@")[0])

    def run_by(self, record: Implementation) -> bool:
        """Whether an implementation runs it."""
        return record.runs in (self.shown_by or (self.name.partition("@")[0],))

    def question(self, w: Workload) -> Workload:
        """What the mechanism makes of a question.

        A mechanism with a pattern of its own plays that, causal where the question is, in place of a full mask, a
        causal one or, where it is about leaving pairs out, a window; patterns in the question's mask come first. A
        latent is left out where it reads none.
        """
        if self.mask and w.mask.is_band and (self.leaves_out or not w.mask.is_windowed):
            w = replace(w, mask=Mask.parse(self.mask) & w.without_window().mask)
        if self.selection and w.selection is None:
            w = replace(w, selection=Selection.parse(self.selection))
        w = w if self.selection or w.selection is None else replace(w, selection=None)
        return w if self.reads_latent or w.latent is None else replace(w, latent=None)

    def beside_others(self, w: Workload) -> Workload:
        """What the mechanism makes of a question that is asked of several, so that windows and patterns show a gain.

        Operations stay with those whose implementations run them.
        """
        w = self.question(w if self.leaves_out else w.without_window())
        runs = self.operations == "all" or (w.operations is not None and w.operations.is_around and self.operations)
        return w if runs or w.operations is None else replace(w, operations=None)

    def check(self, w: Workload) -> None:
        """Refuse what is no question for the mechanism."""
        if reason := self.refuses(w):
            raise InputError(f"algorithm {self.name} {reason}")
