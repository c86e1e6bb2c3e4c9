"""The head dimensions that fused kernels are compiled for."""

from __future__ import annotations

from attnsim.errors import InputError

FLASH_WIDTHS = (32, 64, 96, 128, 192, 256, 512)
"""Head dimensions of FlashAttention's kernels."""


def padded(head_dim: int) -> int:
    """The width that a fused kernel computes `head_dim` columns with.

    Raises
    ------
    InputError
        When no kernel is wide enough.
    """
    for width in FLASH_WIDTHS:
        if head_dim <= width:
            return width
    raise InputError(
        f"head_dim is {head_dim}; fused kernels are played up to 512; take --implementation torch.eager (unfused)"
    )
