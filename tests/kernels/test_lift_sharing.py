"""How blocks of a lifted grid share tensors: what a block alone reads again is a piece of its own."""

import numpy as np
import pytest

from attnsim.kernels.lift.grid import uses_of
from attnsim.ptx.skeleton import GlobalAccesses

ROWS, BYTES = 64, 8192


def asked(blocks: np.ndarray, starts: np.ndarray) -> GlobalAccesses:
    return GlobalAccesses("load", "x", blocks, starts, np.full(len(blocks), BYTES), 0)


@pytest.mark.parametrize("times", [1, 3])
def test_rows_that_each_block_reads_again_are_its_own_pieces(times: int) -> None:
    """A softmax by rows goes over a row three times: 8 KiB of each running block have to stay, not the whole tensor."""
    blocks = np.tile(np.arange(ROWS), times)
    (use,) = uses_of([asked(blocks, blocks * BYTES)], {"x": ROWS * BYTES})
    assert (use.blocks, use.passes_per_block, use.unique_bytes) == ((1, 1, ROWS, 1), times, ROWS * BYTES)


def test_blocks_side_by_side_share_one_fetch_and_those_far_apart_do_not() -> None:
    """Of a product in 16 x 4 tiles, columns fastest, four neighbours read a row of A, every fourth block one of B."""
    blocks = np.arange(16 * 4)
    (rows,), (columns,) = (uses_of([asked(blocks, part * BYTES)], {"x": 1 << 20}) for part in (blocks // 4, blocks % 4))
    assert (rows.blocks, columns.blocks) == ((1, 1, 16, 4), (1, 16, 4, 1))
    assert (rows.fetched(20), columns.fetched(20)) == (1.0, 3.2)
