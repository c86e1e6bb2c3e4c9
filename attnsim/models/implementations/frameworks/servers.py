"""The attention that vLLM, SGLang and TensorRT-LLM call by default (``servers.csv``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from attnsim.models.hardware.gpu import Gpu
from attnsim.tables import read_csv


@dataclass(frozen=True, slots=True)
class Served:
    """A server's attention on a GPU.

    Parameters
    ----------
    decode, prompts : str or None
        Implementations; None where the server's own is not known.
    apart : bool
        Whether sequences that decode are called apart from prompts, as those of a latent always are.
    """

    decode: str | None
    prompts: str | None
    apart: bool


@cache
def _known() -> dict[tuple[str, bool, int], Served]:
    rows = read_csv(Path(__file__).with_name("servers.csv"))
    return {
        (row["library"], row["latent"] == "yes", int(row["capability"])): Served(
            row["decode"], row["prompts"], row["apart"] == "yes"
        )
        for row in rows
    }


def served_attention(library: str, latent: bool, gpu: Gpu) -> Served:
    """The attention of a server on a GPU."""
    return _known().get((library, latent, gpu.compute_capability_number // 10), Served(None, None, latent))
