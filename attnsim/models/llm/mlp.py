"""The MLP of a layer: its widths, and of a mixture of experts how many of them a token goes through."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of one MLP.

    Parameters
    ----------
    count, active : int
        Routed experts, and how many of them a token goes through.
    width : int
        Intermediate width of one.
    shared : int
        Experts of that width that every token goes through.
    dense_layers : int
        Layers of the model that have the one MLP instead.
    gpus, groups : int
        GPUs among which whole experts are divided (expert parallelism), and groups of GPUs whose tokens meet at them:
        the GPUs of a group share the width of what is no routed expert.
    """

    count: int
    active: int
    width: int
    shared: int = 0
    dense_layers: int = 0
    gpus: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        if self.active > self.count:
            raise InputError(f"experts: active is {self.active} of {self.count}; allowed: at most all of them")

    @property
    def shared_width(self) -> int:
        """Width of the shared experts together, of one GPU."""
        return self.shared * self.width * self.groups // self.gpus

    def touched(self, tokens: int) -> int:
        """Experts that so many tokens reach, on average where each token's are drawn at random."""
        return max(self.active, round(self.count * (1 - (1 - self.active / self.count) ** tokens)))

    def __str__(self) -> str:
        shared = f" and {self.shared} shared" if self.shared else ""
        return f"{self.active} of {self.count} experts{shared}, width {self.width}"


@dataclass(frozen=True, slots=True)
class Mlp:
    """The MLP of a layer, which follows its attention.

    Parameters
    ----------
    width : int
        Intermediate width (`intermediate_size`).
    gated : bool
        Whether two products go in, one of which gates the other (SwiGLU, GeGLU; Shazeer, arXiv 2002.05202).
    experts : Experts, optional
    """

    width: int
    gated: bool
    experts: Experts | None = None

    def parameters(self, hidden: int, layers: int, active: bool = False) -> int:
        """Parameters in so many layers; `active`: those that a token goes through."""
        matrices, experts = (2 + self.gated) * hidden, self.experts
        if experts is None:
            return layers * matrices * self.width
        reached = (experts.active if active else experts.count // experts.gpus) * experts.width + experts.shared_width
        sparse = (layers - experts.dense_layers) * (matrices * reached + hidden * experts.count)
        return experts.dense_layers * matrices * self.width + sparse

    def __str__(self) -> str:
        return f"{self.experts or f'width {self.width}'}{', gated' if self.gated else ''}"
