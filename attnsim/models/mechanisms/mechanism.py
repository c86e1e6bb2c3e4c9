"""Record of a mechanism: definition, questions it answers, implementations.

Its facts are in ``mechanisms.toml``, its functions in the file of its family, and its text is `pages/<name>.md`, in a
fixed form: a title, one line without a full stop, then three sections. These are Definition (MyST, LaTeX between
dollars), When it wins (and what it gives up), Sources (a list: papers and code, with arXiv numbers or equations).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from attnsim.arrays import Floats
from attnsim.errors import InputError
from attnsim.models.closed_forms.useful import Useful, softmax
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Workload

Reference = Callable[[Workload, Floats, Floats, Floats], Floats]
"""(workload, q, k, v) to O in float64; tensors are ``[batch, heads, seq, head_dim]``."""

Gradients = Callable[[Workload, Floats, Floats, Floats, Floats], tuple[Floats, Floats, Floats]]
"""(workload, q, k, v, dO) to dQ, dK, dV in float64, in the shapes of q, k and v."""

Refuses = Callable[[Workload], str]
"""(workload) to the reason why the mechanism cannot answer it, with the allowed values; "" if it can."""

Work = Callable[[Workload], Useful]
"""(workload) to its useful work, independent of the implementation."""

Group = Literal["sharing", "dense", "sparse", "linear"]


SECTIONS = ("Definition", "When it wins", "Sources")


@dataclass(frozen=True, slots=True)
class Page:
    """Heading, summary line, definition, conditions under which it wins, and sources of a mechanism."""

    title: str
    summary: str
    definition: str
    wins: str
    sources: tuple[str, ...]


@cache
def read_page(name: str) -> Page:
    """Read the page of a mechanism.

    Raises
    ------
    ValueError
        If the file has another form.
    """
    text = (Path(__file__).parent / "pages" / f"{name}.md").read_text("utf-8")
    head, *sections = text.strip().split("\n\n## ")
    title, _, summary = head.removeprefix("# ").partition("\n\n")
    parts = [section.partition("\n\n") for section in sections]
    if tuple(heading for heading, _, _ in parts) != SECTIONS or not text.startswith("# ") or "\n" in summary:
        raise ValueError(f"pages/{name}.md: wanted a title, one line, and the sections {', '.join(SECTIONS)}")
    definition, wins, sources = (body for _, _, body in parts)
    return Page(title, summary, definition, wins, tuple(line.removeprefix("- ") for line in sources.splitlines()))


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One attention mechanism.

    Parameters
    ----------
    name : str
        Name for `--algorithm` and `attnsim explain`.
    group : {"sharing", "dense", "sparse", "linear"}
        Chapter of the documentation: sharing of keys, schedules of dense attention, omitted pairs, replacements of the
        softmax.
    implementations : tuple of str
        Default implementations, best first. The first that runs on the GPU is taken; among these, one whose calibration
        there was checked on the pass has priority.
    example : Workload
        A question that shows it, small enough for a page.
    reference : callable
        The executable definition (:mod:`attnsim.models.references`).
    shown_by : tuple of str
        Mechanisms whose implementations run it; by default the implementations that name it.
    ordered : callable
        (implementations, workload) to the implementations, best first for the question.
    mask : str
        Pattern, in the text form of :class:`attnsim.models.mask.mask.Mask`, used if the question names none.
    selection : str
        Default selection, in the text form of :class:`attnsim.models.question.selection.Selection`; "" if it attends to
        all that the mask shows.
    leaves_out : bool
        Whether its purpose is to leave pairs out. In a comparison it alone keeps the question's window and patterns.
    operations : {"", "around", "all"}
        Operations that its implementations run if a question names them: none, those around a fused kernel, all.
    reads_latent : bool
        Whether it attends a cached latent; the others attend cached keys and values of every head.
    splits : bool
        Whether it distributes the keys of few queries over thread blocks (split-KV).
    refuses : callable
        (workload) to the reason why the mechanism cannot answer it, with the allowed values; "" if it can.
    useful : callable
        (workload) to its useful work; by default that of softmax attention.
    exact : bool
        Whether it computes softmax attention over the pairs that its mask shows; if not, its error is reported too.
    selectable : bool
        Whether it is a schedule that `--algorithm` can ask for; sharing is a property of the question instead.
    gradients : callable, optional
        Its derivative, if backward kernels are played.
    number : int
        N of ``NAME@N``; 0: the mechanism's default.
    sized : callable, optional
        N to the record of ``NAME@N``, if there is a number to choose (random features, projected keys).
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
        """Its documentation page; ``NAME@N`` has the page of ``NAME``."""
        return read_page(self.name.partition("@")[0])

    def run_by(self, record: Implementation) -> bool:
        """Return whether an implementation runs it."""
        return record.runs in (self.shown_by or (self.name.partition("@")[0],))

    def question(self, w: Workload) -> Workload:
        """The question in the form that the mechanism gives it.

        - A mechanism with its own pattern uses it in place of a full or causal mask; causality is kept. If its purpose
          is to leave pairs out, it also replaces a window. Patterns in the question's mask have priority.
        - A latent is dropped if the mechanism reads none.
        """
        if self.mask and w.mask.is_band and (self.leaves_out or not w.mask.is_windowed):
            w = replace(w, mask=Mask.parse(self.mask) & w.without_window().mask)
        if self.selection and w.selection is None:
            w = replace(w, selection=Selection.parse(self.selection))
        w = w if self.selection or w.selection is None else replace(w, selection=None)
        return w if self.reads_latent or w.latent is None else replace(w, latent=None)

    def in_comparison(self, w: Workload) -> Workload:
        """The question in the mechanism's form for a comparison of several, so that windows and patterns show a gain.

        Operations are kept only if its implementations run them.
        """
        w = self.question(w if self.leaves_out else w.without_window())
        runs = self.operations == "all" or (w.operations is not None and w.operations.may_surround and self.operations)
        return w if runs or w.operations is None else replace(w, operations=None)

    def check(self, w: Workload) -> None:
        """Refuse a question that the mechanism cannot answer."""
        if reason := self.refuses(w):
            raise InputError(f"algorithm {self.name} {reason}")


@cache
def facts() -> dict[str, dict[str, Any]]:
    """Facts of each mechanism by name, with those of the mechanism that it is `like`."""
    found: dict[str, dict[str, Any]] = {}
    for name, given in tomllib.loads(Path(__file__).with_name("mechanisms.toml").read_text("utf-8")).items():
        like = found.get(given.pop("like", ""), {})
        own = {key: given[key] for key in ("mask", "selection") if key in given}
        found[name] = like | given | {"example": like.get("example", {}) | own | given.get("example", {})}
    return found


def mechanism(name: str, reference: Reference, **functions: Any) -> Mechanism:
    """Make the record of a mechanism from its facts and its functions in Python, the fields of :class:`Mechanism`."""
    known: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in facts()[name].items()
    }
    known["example"] = Workload(**known["example"])
    return Mechanism(name=name, reference=reference, **known | functions)
