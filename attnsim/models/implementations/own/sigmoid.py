"""Schedule of ``kernels/cuda/sigmoid.cu``: the flash kernel's loop with a sigmoid in place of the softmax."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.building import flash_schedule
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.implementations.own.flash import LEAN, choose_tile, constants
from attnsim.models.implementations.own.resources import counts_of, kernel_label, registers_of
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Schedule, edited

NAME = "attnsim.sigmoid"
ENTRY = "sigmoid_forward"
UNIT_OPERATIONS = 2
"""Special-function operations per score: ``ex2`` and the reciprocal of 1 plus it."""


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of the forward kernel.

    Raises
    ------
    InputError
        See :func:`attnsim.models.implementations.own.flash.choose_tile`.
    """
    tile = replace(choose_tile(w, gpu, shape, LEAN), rescale="seldom")
    label = kernel_label(ENTRY, constants(w.dtype, w.head_dim, tile))
    tile = replace(tile, registers=registers_of(label, gpu, tile.threads), counts=counts_of(label, gpu))
    kernel = edited(flash_forward(w, gpu, tile, ENTRY, lse=False), _weighed)
    return flash_schedule(w, NAME, [kernel], str(tile))


def _weighed(op: TileOp) -> TileOp:
    return op._replace(exps=UNIT_OPERATIONS * op.scores) if op.kind == "vector" else op


RECORD = record(NAME, build)
