"""Calls that choose among implementations: the choice for a workload, a GPU and a version.

PyTorch: ``sdpa.csv``, after ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` (`priority_order`,
`select_sdp_backend`). Transformer Engine: ``transformer_engine/pytorch/attention/dot_product_attention/utils.py``
(`get_attention_backend`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Picks
from attnsim.models.implementations.names import in_bounds, span
from attnsim.models.question.workload import LARGEST, Workload
from attnsim.tables import read_csv

NEWEST = "2.13"
"""Default version of PyTorch: the newest with a measured table here."""


@dataclass(frozen=True, slots=True)
class BackEnd:
    """A line of ``sdpa.csv``: the questions that a back end of PyTorch's SDPA accepts."""

    implementation: str
    bounds: tuple[str, ...]
    on: tuple[int, int]
    dtypes: tuple[str, ...]
    widths: str
    aligned: int
    masked: bool
    grouped: bool
    passes: tuple[str, ...]

    def takes(self, w: Workload, gpu: Gpu, version: str) -> bool:
        """Return whether it accepts this call; a window that hides any key counts as a mask tensor."""
        low, high = self.on
        return (
            in_bounds(version, self.bounds)
            and low <= gpu.compute_capability_number <= high
            and w.dtype in (self.dtypes or (w.dtype,))
            and w.passes in (self.passes or (w.passes,))
            and self._fits(w)
            and (self.masked or not (w.bounded().mask.is_windowed or not w.mask.is_band))
            and (self.grouped or w.heads_q == w.heads_kv)
        )

    def _fits(self, w: Workload) -> bool:
        widths = (w.head_dim, w.head_dim_v)
        if any(width * w.element_bytes % self.aligned for width in widths):
            return False
        if "x" in self.widths:
            return self.widths == f"{w.head_dim}x{w.head_dim_v}"
        least, most = span(self.widths.split()[0], LARGEST["head_dim"])
        return least <= min(widths) and max(widths) <= most and ("equal" not in self.widths or len({*widths}) == 1)


def _back_end(row: dict[str, str]) -> BackEnd:
    bounds, dtypes, passes = (tuple(row[name].split()) for name in ("versions", "dtypes", "passes"))
    yes = (row["masked"] == "yes", row["grouped"] == "yes")
    return BackEnd(
        row["implementation"], bounds, span(row["on"]), dtypes, row["widths"], int(row["aligned"]), *yes, passes
    )


BACK_ENDS = tuple(map(_back_end, read_csv(Path(__file__).with_name("sdpa.csv"))))


def sdpa(w: Workload, gpu: Gpu, version: str) -> str:
    """Back end that PyTorch's SDPA chooses; by default for the newest version."""
    return next(one.implementation for one in BACK_ENDS if one.takes(w, gpu, version or NEWEST))


def transformers_sdpa(w: Workload, gpu: Gpu, version: str) -> str:
    """Back end when transformers calls SDPA: with a mask tensor it repeats K and V first (`use_gqa_in_sdpa`)."""
    return sdpa(replace(w, heads_kv=w.heads_q) if w.bounded().mask.is_windowed else w, gpu, version)


def transformer_engine(w: Workload, gpu: Gpu, version: str) -> str:
    """Transformer Engine: FlashAttention-2 before Hopper, cuDNN from there on."""
    return "transformer-engine.cudnn" if gpu.compute_capability_number >= 90 else "transformer-engine.flash"


CALLS: dict[str, Picks] = {
    "torch.sdpa": sdpa,
    "transformers.sdpa": transformers_sdpa,
    "transformer-engine.attention": transformer_engine,
}
"""Choosing functions by the names of their calls."""
