"""Unfused attention as PyTorch runs it: which passes over the scores each way of calling it makes."""

from __future__ import annotations

from functools import partial

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import check_no_tile, gemm_path
from attnsim.models.implementations.frameworks.naive import FORMS, naive, peak_memory_bytes
from attnsim.models.implementations.implementation import Implementation, TileRequest, facts, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def unfused(name: str) -> Implementation:
    """The record of an implementation in one of :data:`~attnsim.models.implementations.frameworks.naive.FORMS`."""
    form = FORMS[facts()[name]["form"]]

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_no_tile(name, shape)
        return naive(w, gpu, name, form, gemm_path(gpu))

    return record(name, build, peak_bytes=partial(peak_memory_bytes, form=form))


RECORDS = tuple(map(unfused, ("torch.baddbmm", "torch.eager", "torch.sdpa-math", "ideal.unfused")))
