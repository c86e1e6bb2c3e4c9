"""What HBM is asked for by the blocks of a GEMM."""

from __future__ import annotations

import pytest

from attnsim.models.hardware.files import load_gpu
from attnsim.models.schedule.gemm import Operand, gemm
from attnsim.simulator.memory import traffic

OPERANDS = Operand("A"), Operand("B"), Operand("C")


def test_neighbours_share_the_rows_of_a_where_the_columns_are_few() -> None:
    """Q' = Q W^T of Performer: five tiles of columns follow one another, and Q comes from HBM once."""
    gpu = load_gpu("rtx-4090")
    kernel = gemm("Q' = Q W^T", 1, (1 << 20, 621, 128), *OPERANDS, dtype="bf16")
    (rows,) = traffic((kernel,), (2 * gpu.sm.count,), gpu, 1.0, False)
    assert {row.tensor: row.hbm_bytes for row in rows}["A"] == pytest.approx((1 << 20) * 128 * 2)
