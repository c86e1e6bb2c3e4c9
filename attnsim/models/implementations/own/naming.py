"""What the CUDA sources, their compilations and their schedules have to call alike."""

from __future__ import annotations

from collections.abc import Iterable

ELEMENT = {"fp16": "Half", "bf16": "Bfloat16"}
"""Struct of ``element.cuh`` behind each 16-bit format."""


def kernel_label(entry: str, constants: Iterable[tuple[str, int | str]]) -> str:
    """Entry point and compile-time constants in one word: ``flash_forward(Half,64,...)``."""
    return f"{entry}({','.join(str(value) for _, value in constants)})"
