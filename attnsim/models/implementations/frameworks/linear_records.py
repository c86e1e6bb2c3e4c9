"""Implementations of the linear mechanisms as frameworks run them; our own kernels are with the other own ones.

Two take a number, the features m of Performer and the projected keys k of Linformer: `NAME@N`.
"""

from __future__ import annotations

from functools import partial

from attnsim.models.closed_forms import performer as performer_cost
from attnsim.models.implementations.frameworks import efficient
from attnsim.models.implementations.frameworks.linformer import Linformer
from attnsim.models.implementations.frameworks.performer import Performer
from attnsim.models.implementations.implementation import ClosedForm, Implementation
from attnsim.models.question.workload import LARGEST

_FORMATS = ("fp32", "fp16", "bf16")
_EXTRA = "integer instructions per element of a broadcast pass, over 50"
_SPAN = (70, 129)


def _performer(name: str, source: str, fused: bool, features: int = 0) -> Implementation:
    made = Performer(f"{name}@{features}" if features else name, features, fused)
    closed: ClosedForm = lambda w, schedule: performer_cost.closed_form(made, w, schedule)  # noqa: E731
    return Implementation(
        made.name, "performer", made.build, _SPAN, source, like="pytorch_eager", dtypes=_FORMATS, extra=_EXTRA,
        passes=("fwd",), largest_head_dim=LARGEST["head_dim"], closed_form=closed, needed=made.needed,
        peak_bytes=made.peak_bytes, sized=partial(_performer, name, source, fused),
    )  # fmt: skip


def _linformer(name: str, source: str, keys: int = 0) -> Implementation:
    made = Linformer(f"{name}@{keys}" if keys else name, keys)
    return Implementation(
        made.name, "linformer", made.build, _SPAN, source, like="pytorch_eager", dtypes=_FORMATS, extra=_EXTRA,
        passes=("fwd",), largest_head_dim=LARGEST["head_dim"], closed_form=made.closed_form, needed=made.needed,
        peak_bytes=made.peak_bytes, sized=partial(_linformer, name, source),
    )  # fmt: skip


LINEAR_IMPLEMENTATIONS: tuple[Implementation, ...] = (
    _performer("performer_pytorch", "lucidrains/performer-pytorch@d86231b0; causal: fla, naive_chunk", False),
    _performer("performer_fused", "the same, each feature map's element-wise chain as one kernel", True),
    _linformer("linformer_pytorch", "lucidrains/linformer@1533a130"),
    Implementation(
        efficient.NAME, "efficient", efficient.build, _SPAN, "cmsflash/efficient-attention@23d44036",
        like="pytorch_eager", dtypes=_FORMATS, extra=_EXTRA, passes=("fwd",), largest_head_dim=LARGEST["head_dim"],
        closed_form=efficient.closed_form, needed=efficient.needed, peak_bytes=efficient.peak_bytes,
    ),
)  # fmt: skip
