"""How blocks of a lifted grid share tensors: what a block alone reads again is a piece of its own."""

import numpy as np
import pytest

from attnsim.kernels.lift.grid import uses_of
from attnsim.ptx.skeleton import Asked

ROWS, BYTES = 64, 8192


def asked(blocks: np.ndarray, starts: np.ndarray) -> Asked:
    return Asked("load", "x", blocks, starts, np.full(len(blocks), BYTES), 0)


@pytest.mark.parametrize("times", [1, 3])
def test_rows_that_each_block_reads_again_are_its_own_pieces(times: int) -> None:
    """A softmax by rows goes over a row three times: 8 KiB of each running block have to stay, not the whole tensor."""
    blocks = np.tile(np.arange(ROWS), times)
    (use,) = uses_of([asked(blocks, blocks * BYTES)], {"x": ROWS * BYTES})
    assert (use.sharers, use.passes_per_block, use.unique_bytes) == (1.0, times, ROWS * BYTES)
    assert (use.piece_bytes, use.pieces) == ((BYTES, ROWS) if times > 1 else (ROWS * BYTES, 1))
