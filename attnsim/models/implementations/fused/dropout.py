"""Instructions of dropout inside a fused kernel: random numbers are made in registers, and no byte of them is moved.

Philox in seven rounds gives 128 bits (``csrc/flash_attn/src/philox.cuh`` of Dao-AILab/flash-attention). A round is two
multiplications of 32 bits to 64, which take the FP32 lanes twice, two exclusive ors and the two additions of its key.
FlashAttention-1 spends 16 of the bits on a score (`apply_dropout_16bits` of ``fmha/softmax.h``, v1.0.9),
FlashAttention-2 8 (``dropout.h``). The backward pass makes the same numbers again.
"""

from __future__ import annotations

from attnsim.models.schedule.operation import TileOp

BITS = 128
ROUNDS = 7
MULTIPLICATIONS, PIPE_TURNS, LOGIC = 2, 2, 4
"""Of a round: multiplications, what each takes of its pipe, and instructions on the integer lanes."""
LANES = 32


def dropped(op: TileOp, scores: int, bits: int, each: int) -> TileOp:
    """The operation with the dropout of so many scores.

    Parameters
    ----------
    op : TileOp
        Counted by pipe or not.
    scores : int
    bits : int
        Random bits of a score.
    each : int
        Integer instructions of a score beside them: extracted, compared, selected.
    """
    calls = scores * bits // BITS
    multiplied, integer = calls * ROUNDS * MULTIPLICATIONS, calls * ROUNDS * LOGIC + scores * each
    return op._replace(
        fp32=op.fp32 + PIPE_TURNS * multiplied,
        int32=op.int32 + integer,
        issues=op.issues + (multiplied + integer) // LANES * (op.issues > 0),
    )
