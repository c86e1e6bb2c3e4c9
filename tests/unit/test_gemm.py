"""A GEMM's blocks against its grid written out: what each loads and stores, in which order; and what HBM is asked."""

from __future__ import annotations

import pytest

from attnsim.models.hardware.files import load_gpu
from attnsim.models.schedule.gemm import TILES, GemmTile, Operand, gemm, library_gemm, library_tile
from attnsim.models.schedule.schedule import Kernel, Path, bytes_of
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
    tile = GemmTile(128, 128, 32, stages=3, warps=4)
    kernel = gemm("Q' = Q W^T", 1, (1 << 20, 621, 128), *OPERANDS, dtype="bf16", tile=tile)
    (rows,) = traffic((kernel,), (2 * gpu.sm.count,), gpu, False)
    assert {row.tensor: row.hbm_bytes for row in rows}["A"] == pytest.approx((1 << 20) * 128 * 2)


@pytest.mark.parametrize("paired", [False, True])
def test_blocks_of_a_cluster_ask_for_their_part_of_b(paired: bool) -> None:
    """B of 50 columns, tiles of 32 and 18: each of two blocks asks for 16 and 9. With one row of tiles none shares."""
    tile = GemmTile(64, 32, 16, stages=2, warps=4, bands=1, cluster=2, paired=paired)
    kernel, alone = (gemm("x", 1, (m, 50, 16), *OPERANDS, dtype="bf16", tile=tile) for m in (128, 64))
    assert [moved(kernel, one, "load", "B") for one in classes_of(kernel)] == [[2 * 16 * 16], [2 * 9 * 16]] * 2
    assert [moved(alone, one, "load", "B") for one in classes_of(alone)] == [[2 * 32 * 16], [2 * 18 * 16]]
    assert dict(kernel.buffers)["B"] == 2 * 2 * 16 * (16 if paired else 32)


@pytest.mark.parametrize(
    ("path", "tile", "read", "held"),
    [
        # A once; B of 256 columns by each of two warpgroups. Four stages of 384 rows and columns of 128 bytes.
        ("wgmma", "128 x 256 x 64", 128 * (128 + 2 * 256), 4 * 128 * 384),
        # Two products of 128 rows read the block's half of B each.
        ("tcgen05", "256 x 256 x 64", 128 * (256 + 2 * 128), 4 * 128 * 384),
        # Two by four warps of 64 x 64: A is read by four, B by two.
        ("mma_sync", "128 x 256 x 64", 128 * (4 * 128 + 2 * 256), 3 * 128 * 384),
        ("mma_sync", "256 x 128 x 32", 64 * (2 * 256 + 4 * 128), 3 * 64 * 384),
    ],
)
def test_a_step_reads_and_a_block_holds_what_the_name_of_the_kernel_says(
    path: Path, tile: str, read: int, held: int
) -> None:
    one = next(one for one in TILES[path] if str(one) == tile)
    assert one.operand_bytes(8192, 2) == read and bytes_of(one.buffers(8192, 2)) == held


def test_stages_of_pairs_fill_shared_memory() -> None:
    """What says that the tile in a name ``2cta`` is one block's: with half of B one more stage would fit no more."""
    limit = load_gpu("b200-sxm-180gb").sm.shared_memory_per_block_bytes
    for tile in (one for one in TILES["tcgen05"] if one.paired):
        held = bytes_of(tile.buffers(8192, 2))
        assert 0.7 * limit < held <= limit, tile


@pytest.mark.parametrize(
    ("gpu", "batch", "shape", "tile"),
    [
        # 128 tiles on 132 SMs; of 128 x 256 there would be 32.
        ("h100-sxm5-80gb", 1, (1024, 1024, 1024), "64 x 128 x 64"),
        ("h100-sxm5-80gb", 32, (8192, 8192, 128), "128 x 256 x 64"),
        ("h100-sxm5-80gb", 32, (8192, 128, 8192), "256 x 128 x 64"),
        ("b200-sxm-180gb", 1, (8192, 8192, 8192), "256 x 256 x 64"),
        ("a100-sxm4-80gb", 32, (8192, 8192, 128), "128 x 256 x 64"),
        ("rtx-4090", 1, (8192, 8192, 8192), "128 x 256 x 32"),
        ("t4", 1, (4096, 4096, 4096), "128 x 128 x 32"),
    ],
)
def test_tiles_are_as_large_as_leaves_no_sm_idle(gpu: str, batch: int, shape: tuple[int, int, int], tile: str) -> None:
    chip = load_gpu(gpu)
    assert str(library_tile(chip, "fp16", batch, shape, 2)) == tile
    kernel = library_gemm("x", batch, shape, *OPERANDS, dtype="fp16", gpu=chip)
    assert kernel.path == {"h100-sxm5-80gb": "wgmma", "b200-sxm-180gb": "tcgen05"}.get(gpu, "mma_sync")
