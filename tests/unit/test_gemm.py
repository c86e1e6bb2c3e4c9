"""A GEMM's blocks against its grid written out: what each loads and stores, in which order; and what HBM is asked."""

from __future__ import annotations

import pytest

from attnsim.models.hardware.files import load_gpu
from attnsim.models.schedule.gemm import GemmTile, Operand, gemm
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.memory import traffic

TILE = GemmTile(64, 32, 16, stages=2, warps=4)
OPERANDS = Operand("A"), Operand("B"), Operand("C")
SHAPES = [(128, 64, 64), (100, 64, 64), (128, 50, 64), (100, 50, 70), (60, 30, 10), (200, 130, 7)]


def moved(kernel: Kernel, block_class: int, kind: str, tensor: str) -> list[int]:
    """Bytes of the copies of a tensor that a block makes, one after the other."""
    walk = [kernel.segments[place] for place, n in kernel.runs(block_class) for _ in range(n)]
    return [op.bytes for segment in walk for op in segment.ops if (op.kind, op.tensor) == (kind, tensor)]


def classes_of(kernel: Kernel) -> list[int]:
    """The class of each block in launch order."""
    return [one for launch in kernel.launches for _ in range(launch.times) for one in launch.classes.tolist()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("parts", [1, 2])
def test_each_block_has_its_c_tile_and_its_range_of_k(shape: tuple[int, int, int], parts: int) -> None:
    """Columns fastest, then rows, then matrices, as ``naive_gemm.cu`` takes ``blockIdx.x`` apart."""
    (m, n, k), batch = shape, 3
    steps = -(-k // TILE.k)
    parts = min(parts, steps)
    kernel = gemm("x", batch, shape, *OPERANDS, dtype="bf16", tile=TILE, parts=parts)
    length = -(-steps // parts) * TILE.k
    expected = [
        (min(TILE.m, m - row), min(TILE.n, n - column), [min(TILE.k, end - at) for at in range(begin, end, TILE.k)])
        for _ in range(batch)
        for begin, end in ((at, min(k, at + length)) for at in range(0, length * parts, length))
        for row in range(0, m, TILE.m)
        for column in range(0, n, TILE.n)
    ]
    found = classes_of(kernel)
    assert len(found) == len(expected)
    for block_class, (rows, columns, depths) in zip(found, expected, strict=True):
        assert moved(kernel, block_class, "store", "C") == [2 * rows * columns]
        assert moved(kernel, block_class, "load", "A") == [2 * rows * depth for depth in depths]
        assert moved(kernel, block_class, "load", "B") == [2 * columns * depth for depth in depths]


def test_a_large_ragged_grid_is_listed_by_its_rows() -> None:
    kernel = gemm("x", 2, (64 * 300 - 1, 32 * 300 - 1, 16), *OPERANDS, dtype="bf16", tile=TILE)
    assert kernel.blocks == 2 * 300 * 300
    assert sum(launch.rows.size for launch in kernel.launches) == 4 * 300
    rows = classes_of(kernel)[: 300 * 300]
    assert len(set(rows[:299])) == 1 and len(set(rows[299::300])) == 2 and rows[-1] not in rows[:-1]


def test_neighbours_share_the_rows_of_a_where_the_columns_are_few() -> None:
    """Q' = Q W^T of Performer: five tiles of columns follow one another, and Q comes from HBM once."""
    gpu = load_gpu("rtx-4090")
    kernel = gemm("Q' = Q W^T", 1, (1 << 20, 621, 128), *OPERANDS, dtype="bf16")
    (rows,) = traffic((kernel,), (2 * gpu.sm.count,), gpu, 1.0, False)
    assert {row.tensor: row.hbm_bytes for row in rows}["A"] == pytest.approx((1 << 20) * 128 * 2)
