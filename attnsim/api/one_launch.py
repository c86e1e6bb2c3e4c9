"""Prefill and decodes of one batch: in one launch, in two streams, or one after the other; which wins, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from attnsim.api.answer import Answer
from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, ask
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import HBM, TENSOR
from attnsim.models.implementations.choose import find_implementation, runs_on
from attnsim.models.question.workload import Workload
from attnsim.wording import time_text

WAYS = {
    "one launch": "flashinfer.pod",
    "two streams": "flashinfer.pod-streams",
    "one after the other": "flashinfer.pod-serial",
}
"""The ways, and whose kernels each is."""


@dataclass(frozen=True, slots=True)
class Way:
    """One of the ways.

    Parameters
    ----------
    way, implementation : str
    time_s : float
    tensor, hbm : float
        Shares of the time in which the tensor cores, and the memory, are busy.
    """

    way: str
    implementation: str
    time_s: float
    tensor: float
    hbm: float


@dataclass(frozen=True, slots=True)
class OneLaunch:
    """The ways, the fastest first, and the halves alone."""

    ways: tuple[Way, ...]

    @property
    def sentence(self) -> str:
        """Which wins, and why."""
        best, serial = self.ways[0], next(one for one in self.ways if one.way == "one after the other")
        gain = serial.time_s / best.time_s
        if gain < 1.02:
            return (
                f"Nothing is won by running them together: one after the other the busier unit works "
                f"{max(serial.tensor, serial.hbm):.0%} of the time already, or one half is over at once."
            )
        why = (
            "it hands prefill and decode blocks to each SM in turn, so that both kinds run until the end"
            if best.way == "one launch"
            else "the second kernel's blocks fill the SMs that the first leaves free, and no turn is imposed on them"
        )
        return (
            f"{best.way.capitalize()} wins, {gain:.2f}x over one after the other: {why}; tensor cores are busy "
            f"{best.tensor:.0%} of the time instead of {serial.tensor:.0%}, the memory {best.hbm:.0%} instead of "
            f"{serial.hbm:.0%}."
        )

    def shown(self) -> list[dict[str, str]]:
        """The ways as rows for people."""
        return [
            {
                "way": one.way,
                "as": one.implementation,
                "time": time_text(one.time_s),
                "tensor": f"{one.tensor:.0%}",
                "HBM": f"{one.hbm:.0%}",
            }
            for one in self.ways
        ]

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return {"ways": [asdict(one) for one in self.ways], "sentence": self.sentence}


def one_launch(w: Workload, gpu: Gpu, conditions: Conditions) -> OneLaunch | None:
    """The ways to run a batch of prefills and decodes.

    Parameters
    ----------
    w : Workload
    gpu : Gpu
    conditions : Conditions

    Returns
    -------
    OneLaunch or None
        None where the batch is not of both, or FlashInfer has no kernels for it.
    """
    queries = [one.queries == 1 for one in w.parts]
    plain = w.mask.is_band and not w.mask.is_windowed and w.dtype in ("fp16", "bf16") and w.passes == "fwd"
    if not any(queries) or all(queries) or not plain or w.latent is not None:
        return None
    if not runs_on(find_implementation(WAYS["one launch"]), gpu):
        return None
    ways = []
    for way, name in WAYS.items():
        found = answer(ask(w, gpu, "flash", name, conditions))
        if not isinstance(found, Answer):
            return None
        busy = {unit: seconds / found.time_s for unit, seconds in found.units_s.items()}
        ways.append(Way(way, name, found.time_s, busy[TENSOR.name], busy[HBM.name]))
    return OneLaunch(tuple(sorted(ways, key=lambda one: one.time_s)))
