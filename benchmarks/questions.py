"""The questions that speed, smoothness and the default mode's errors are measured on: four sets, always the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnsim.api.playing import peak_bytes, shipped
from attnsim.errors import InputError
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.documents import Neighborhood
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS, Mechanism
from attnsim.models.mechanisms.choosing import check_runs, default_implementation
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.program import Cache
from attnsim.studies.points import point
from attnsim.studies.study_file import study_of

A100, H100, ADA, B200 = "a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-4090", "b200-sxm-180gb"
GPUS = (A100, H100)
LENGTHS = tuple(2**n for n in range(7, 21))  # 128 to 1 M tokens
GRID_POINTS = 200
SWEEP_POINTS = 256
BATCHES = tuple(2**n for n in range(9))  # 1 to 256
CONTEXTS = LENGTHS[:9]  # 128 to 32 k tokens
LINE = 240
"""Characters of a question in words; a list of blocks would fill a page."""
SERVING = {A100: "vllm.flash-attn-2", H100: "vllm.flash-attn-3"}

SWEEP: dict[str, Any] = {
    "gpu": list(GPUS),
    "change": {
        "hbm.bandwidth": {"from": "0.5x", "to": "4x", "scale": "log"},
        "tensor.bf16": {"from": "0.5x", "to": "4x", "scale": "log"},
    },
    "algorithm": ["naive", "flash"],
    "workload": {
        "batch": {"from": 1, "to": 32, "scale": "log"},
        "heads_q": 32,
        "heads_kv": [4, 8, 32],
        "head_dim": [64, 128],
        "seq_q": {"from": 512, "to": 65536, "scale": "log"},
        "mask": ["causal", "full"],
    },
    "combine": "sobol",
    "points": 1 << 20,
    "method": "closed-form",
}
"""A million points of which no two are alike."""


@dataclass(frozen=True, slots=True)
class Question:
    """A call, or one kernel of it, on a GPU.

    Parameters
    ----------
    family : str
        What it is an example of.
    implementation : str
    gpu : Gpu
    workload : Workload
    cache : {"cold", "warm"}
    kernel : int, optional
        The one that is asked about, of a call of several.
    """

    family: str
    implementation: str
    gpu: Gpu
    workload: Workload
    cache: Cache = "warm"
    kernel: int | None = None

    @property
    def record(self) -> Implementation:
        """The implementation that is imitated."""
        return find_implementation(self.implementation)

    @property
    def numbers(self) -> Numbers:
        """The fitted numbers that a user's question gets."""
        return choose(self.record, self.gpu).numbers

    def schedule(self) -> Schedule:
        """What it runs."""
        whole = shipped(self.record, self.workload, self.gpu)
        return whole if self.kernel is None else replace(whole, kernels=(whole.kernels[self.kernel],))

    def executions(self) -> int:
        """What the exact mode plays."""
        from attnsim.simulator.players import executions  # not there in commits that speed is compared with

        return sum(map(executions, self.schedule().kernels))

    def __str__(self) -> str:
        kernel = "" if self.kernel is None else f" kernel {self.kernel},"
        changes = "".join(f", {change.key} x {change.new / change.old:.4g}" for change in self.gpu.changes)
        where = f"{self.gpu.id}{changes}, {self.cache}"
        line = f"{self.family}: {self.implementation},{kernel} {where}, {self.workload}"
        return line if len(line) <= LINE else f"{line[: LINE - 3]}..."


def grid() -> list[Question]:
    """200 points, evenly spaced among algorithms x GPUs x masks x lengths, naive where it fits the card."""
    points = list(_grid())
    return [points[i] for i in np.linspace(0, len(points) - 1, GRID_POINTS).round().astype(int)]


def _grid() -> Iterator[Question]:
    algorithms = ("naive", "flash-1", "flash-2", "flash-3", "sliding-window", "split-kv")
    for algorithm, gpu_id, causal, n in itertools.product(algorithms, GPUS, (False, True), LENGTHS):
        mask = Mask.causal() if causal else Mask.full()
        if algorithm == "sliding-window":
            mask = Mask.sliding_window(1024, causal)
        if algorithm == "split-kv":
            w = Workload(4, 32, 1, 128, 8, n, passes="decode", mask=mask)
        elif algorithm == "flash-1":
            w = Workload(1, 16, n, 64, dtype="fp16", mask=mask)
        else:
            w = Workload(1, 32, n, 128, 8, mask=mask)
        gpu = load_gpu(gpu_id)
        if algorithm == "flash-3" and gpu_id == A100:
            continue
        record = default_implementation(MECHANISMS[algorithm], w, gpu)
        if answerable(record, w, gpu):
            yield Question(algorithm, record.name, gpu, w)


def lines() -> list[tuple[Mechanism, Implementation]]:
    """Every implementation of every mechanism."""
    return [(m, record) for m in MECHANISMS.values() for record in map(find_implementation, m.implementations)]


def mechanisms() -> list[Question]:
    """Every implementation of every mechanism over 128 to 1 M tokens, where it runs and fits."""
    return [
        Question(mechanism.name, record.name, gpu, w)
        for mechanism, record in lines()
        for gpu in map(load_gpu, GPUS)
        for w in lengths(mechanism)
        if answerable(record, w, gpu)
    ]


def lengths(mechanism: Mechanism) -> Iterator[Workload]:
    """The mechanism's own example at other lengths, from the chosen blocks on; lists of blocks stay as they are."""
    example = mechanism.question(mechanism.example)
    least = example.selection.top * example.selection.block if example.selection is not None else 1
    for n in LENGTHS if mechanism.name != "block-list" else (example.seq_kv,):
        if n >= least:
            yield at_length(mechanism, n)


def at_length(mechanism: Mechanism, n: int) -> Workload:
    """The mechanism's own example with so many keys, and as many queries where it has as many.

    A neighbourhood stays as it is: its layout is of one length.
    """
    example = mechanism.question(mechanism.example)
    if any(isinstance(part, Neighborhood) for part in example.mask.parts):
        return example
    if example.passes == "decode":
        return replace(example, seq_kv=n)
    if example.seq_q == example.seq_kv:
        return replace(example, seq_q=n, seq_kv=n)
    return replace(example, seq_kv=max(n, example.seq_q))  # a chunk of queries, an encoder's keys


def answerable(record: Implementation, w: Workload, gpu: Gpu) -> bool:
    """Whether the implementation runs there and what it needs fits the card."""
    try:
        check_runs(record, w, gpu)
        return peak_bytes(record, w) <= gpu.hbm.capacity_bytes
    except InputError:
        return False


def serving() -> list[Question]:
    """Prefill and decode by vLLM's kernels, 32 heads on 8 of keys: batch 1 to 256 x 128 to 32 k tokens."""
    return [
        Question(family, SERVING[gpu.id], gpu, w)
        for family in ("prefill", "decode")
        for gpu in map(load_gpu, GPUS)
        for batch, n in itertools.product(BATCHES, CONTEXTS)
        for w in (
            Workload(batch, 32, n, 128, 8, mask=Mask.causal())
            if family == "prefill"
            else Workload(batch, 32, 1, 128, 8, n, passes="decode"),
        )
        if answerable(find_implementation(SERVING[gpu.id]), w, gpu)
    ]


def sweep() -> list[Question]:
    """The points of a sweep over two GPU figures and six sizes that can be answered."""
    study = study_of({**SWEEP, "points": SWEEP_POINTS})
    points = study.columns(0, len(study))
    found = []
    for row in range(points.count):
        try:
            asked = point(points, row).ask("warm", "stream")
        except InputError:
            continue
        if answerable(asked.record, asked.w, asked.gpu):
            found.append(Question("sweep", asked.record.name, asked.gpu, asked.w))
    return found


SETS: dict[str, Callable[[], list[Question]]] = {
    "grid": grid,
    "mechanisms": mechanisms,
    "serving": serving,
    "sweep": sweep,
}
