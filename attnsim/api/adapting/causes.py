"""Why a table's times may not be those of the calls that it states: causes, each as other cells of a row.

A cause is tried by reading and answering the row with these cells, and mended by writing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from attnsim.api.asking import Question
from attnsim.by_hand import by_hand
from attnsim.models.hardware.files import builtin_gpu_ids
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.question.case_row import NUMBER, Case
from attnsim.models.question.columns import Columns

Row = Mapping[str, object]

KINDS = {
    "mask": "is the mask passed to the call, and does the rate count the pairs that it hides?",
    "pass": "does what is timed hold the forward pass, the backward pass, or both?",
    "size": "are batch, heads and head_dim those of one call on one GPU?",
    "unit": "in which unit does the timer count?",
    "launch": "are calls timed one by one from Python, queued, or in a profiler, and is the L2 flushed between them?",
    "machine": "which card is it, and at which clock does it run under load (nvidia-smi -q -d CLOCK,POWER)?",
    "build": "which version ran, on which path, and with dropout or not?",
}
"""Kinds of causes, which measurements of one kind tell apart, and the question that decides for or against each."""

SHARES = by_hand((2, 4, 8), "GPUs of a server among which heads may be split, or heads of which a call is said to hold")
SLOWER = by_hand((0.8, 0.65), "shares of the predicted clock at which cards are tried that power or heat holds back")
THOUSANDS = (1e-6, 1e-3, 1e3, 1e6)
"""By which times in another unit are off."""
LATENCY = ("stream", "host", "graph", "kernel")
OTHER_PASS = {"fwd": ("fwd+bwd", "bwd"), "bwd": ("fwd+bwd", "fwd"), "fwd+bwd": ("fwd", "bwd"), "decode": ()}
"""A cause: something else that may have been timed."""
OTHER_BUILD = {
    "flash-attn.1": ("flash-attn.2",),
    "flash-attn.2": ("flash-attn.1", "flash-attn.2-unsplit", "torch.sdpa-math"),
    "flash-attn.3": ("flash-attn.2", "triton.tutorial"),
    "flash-attn.4": ("nvidia.cudnn", "flash-attn.2"),
    "nvidia.cudnn": ("flash-attn.2",),
    "torch.sdpa-flash": ("torch.sdpa-efficient", "torch.sdpa-math", "flash-attn.1"),
    "torch.sdpa-cudnn": ("torch.sdpa-flash", "torch.sdpa-math"),
    "torch.sdpa-efficient": ("torch.sdpa-math",),
    "vllm.flash-attn-3": ("vllm.flash-attn-2", "vllm.triton"),
    "vllm.flash-attn-2": ("vllm.triton",),
    "sglang.fa3": ("flashinfer.fa2",),
    "flashinfer.fa3": ("flashinfer.fa2",),
}
"""Kernels that a library runs where a version, build or flag is another: the kernel before, or its fallback."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause.

    Parameters
    ----------
    kind : str
        Of `KINDS`.
    name : str
        What is otherwise than stated, the same for all rows that it is tried on: "launch=host".
    cells : tuple of (str, str)
        What the row then says, by our column.
    """

    kind: str
    name: str
    cells: tuple[tuple[str, str], ...]

    def on(self, row: Row, columns: Columns) -> tuple[dict[str, object], Columns]:
        """A row with these cells, and how it is read."""
        set_here = {columns.name_of(ours): text for ours, text in self.cells}
        given = {ours: cell for ours, cell in columns.given.items() if ours not in dict(self.cells)}
        return {**row, **set_here}, replace(columns, given=given)


def causes(row: Row, columns: Columns, case: Case, asked: Question, clock_hz: float) -> Iterator[Cause]:
    """A cause tried on a row.

    Parameters
    ----------
    row, columns
        As the table has them.
    case, asked
        As they were read.
    clock_hz : float
        At which the row is predicted.
    """
    w, time = asked.w, columns.time
    measured = str(columns.cell(row, time.ours)).strip() if time else ""
    factors = dict.fromkeys(THOUSANDS, "unit")
    if time and time.ours != "time_s":
        factors |= {0.5: "mask", 2.0: "mask"}
    if time and NUMBER.fullmatch(measured):
        for factor, kind in factors.items():
            name = f"{time.theirs} x {factor:g}" if kind == "unit" else f"FLOPs x {factor:g}"
            yield Cause(kind, name, ((time.ours, repr(float(measured) * factor)),))
    if w.mask.is_band and not w.mask.is_windowed and w.seq_q > 1 and not w.lengths:
        yield Cause("mask", "causal inverted", (("causal", "0" if case.causal else "1"),))
    yield from (Cause("pass", f"pass={one}", (("pass", one),)) for one in OTHER_PASS[case.passes])
    if not (w.lengths or w.latent):
        yield from _sizes(case)
    for launch in LATENCY:
        if launch != case.launch:
            yield Cause("launch", f"launch={launch}", (("launch", launch),))
    cache = "warm" if case.cache == "cold" else "cold"
    yield Cause("launch", f"cache={cache}", (("cache", cache),))
    for share in SLOWER:
        yield Cause("machine", f"clock x {share:g}", (("clock_mhz", f"{share * clock_hz / 1e6:.0f}"),))
    yield from (Cause("machine", f"gpu={one}", (("gpu", one),)) for one in _alike(asked.gpu.base_id))
    yield from _builds(case, asked)


def _sizes(case: Case) -> Iterator[Cause]:
    heads, keys = case.heads_q, case.heads_kv
    for share in SHARES:
        if heads % share == 0 and (keys % share == 0 or keys < share):
            cells = (("heads_q", str(heads // share)), ("heads_kv", str(max(1, keys // share))))
            yield Cause("size", f"heads / {share}", cells)
        yield Cause("size", f"batch x {share}", (("batch", str(case.batch * share)),))
    if keys < heads:
        yield Cause("size", "heads_kv=heads_q", (("heads_kv", str(heads)),))
    else:
        for group in SHARES[1:]:
            if heads % group == 0:
                yield Cause("size", f"heads_kv=heads_q / {group}", (("heads_kv", str(heads // group)),))
    for factor, name in ((2, "head_dim x 2"), (0.5, "head_dim / 2")):
        widths = {"head_dim": case.head_dim * factor, "head_dim_v": case.head_dim_v * factor}
        yield Cause("size", name, tuple((ours, f"{width:g}") for ours, width in widths.items()))


def _alike(gpu: str) -> Iterator[str]:
    """GPUs that a name may have meant as well: "h100" is two."""
    name = gpu.partition("-")[0]
    if name != "rtx":
        yield from (one for one in builtin_gpu_ids() if one != gpu and one.partition("-")[0] == name)


def _builds(case: Case, asked: Question) -> Iterator[Cause]:
    """Other versions and paths; of unfused attention other operations between its GEMMs."""
    record = asked.record
    others = OTHER_BUILD.get(record.name, ())
    if record.unfused:
        others = tuple(one.name for one in IMPLEMENTATIONS.values() if one.unfused and one.name != record.name)
    for name in others:
        cells = (("implementation", name), ("version", ""), ("algorithm", ""), ("framework", ""))
        yield Cause("build", f"implementation={name}", cells)
    if case.passes != "decode" and not asked.w.operations:
        off = float(case.options.get("dropout") or 0) > 0
        yield Cause("build", f"dropout={'0' if off else '0.1'}", (("dropout", "0" if off else "0.1"),))
