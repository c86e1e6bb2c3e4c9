"""Tiles of NSA's Triton kernels as Triton 3.0.0 compiles them: warps over an output, buffers, registers, instructions.

Read from what the compiler makes of native-sparse-attention-triton@9bea856 (its ``install_dependency.sh`` names that
release) for sm_80 and sm_90: layouts in the TritonGPU IR, registers from ptxas, instructions from machine code
(``schedule/instructions.csv``). A dot of fewer than 64 rows, or of fewer than four warps, is mma.sync on Hopper too
(``lib/Dialect/TritonGPU/Transforms/AccelerateMatmul.cpp``, `getMMAVersionSafe`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from attnsim.by_hand import by_hand
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.fused.backward import KEYS_OUTSIDE
from attnsim.models.implementations.fused.tile import FRAGMENT_COLUMNS, BackwardTile, FlashTile
from attnsim.models.schedule.buffers import Buffers
from attnsim.models.schedule.instructions import step_counts

Tile = TypeVar("Tile", FlashTile, BackwardTile)
REGISTERS: dict[tuple[str, int, int], int] = by_hand(
    {
        ("forward", 80, 64): 96, ("forward", 80, 128): 128, ("forward", 90, 64): 124, ("forward", 90, 128): 156,
        ("dq", 80, 64): 141, ("dq", 80, 128): 99, ("dq", 90, 64): 152, ("dq", 90, 128): 176,
    },
    "registers a thread of the kernels of 16 rows, which decide how many blocks share an SM; the others have 255",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TritonBackwardTile(BackwardTile):
    """A tile of a backward pass, with its warps over each product.

    Parameters
    ----------
    across : int
        Warps of mma.sync side by side over an output's columns, each of which reads all of the operand with the rows.
    scores_in_registers : bool
        P and dS are operands of the products after them from registers; the products before have their orientation.
    """

    across: int = 1
    scores_in_registers: bool = False

    def buffers(self, d: int, dv: int, element: int) -> Buffers:
        """Q and dO in as many buffers, K and V, and P and dS where they change hands."""
        scores = 0 if self.scores_in_registers else 2 * self.rows * self.keys
        return (
            ("Q, dO", self.stages_q * self.rows * (d + dv) * element),
            ("K, V", self.keys * (d + dv) * element),
            ("P, dS", scores * element),
        )

    def product_bytes(self, product: str, products: tuple[str, ...], d: int, dv: int, element: int) -> int:
        """Bytes of shared memory that half a block reads for one of its `products` in a step."""
        m, n = self.rows, self.keys
        turned = self.scores_in_registers and products == KEYS_OUTSIDE
        rows, columns = (n, m) if turned else (m, n)
        a, b, depth = {
            "S": (rows, columns, d), "dP": (rows, columns, dv), "dV": (n, dv, m), "dK": (n, d, m), "dQ": (m, d, n)
        }[product]  # fmt: skip
        if self.scores_in_registers and product not in ("S", "dP"):
            a = 0
        if self.path == "wgmma":
            return (a + self.warps // 4 * b) * depth * element // 2
        down = self.warps // self.across
        return (self.across * a + down * max(b, FRAGMENT_COLUMNS * self.across)) * depth * element // 2


def architecture(gpu: Gpu) -> int:
    """That the kernels are compiled for, of those that are read here."""
    return 90 if gpu.features.wgmma else 80


def compiled(tile: Tile, kernel: str, gpu: Gpu, width: int) -> Tile:
    """The tile with the instructions of `kernel` at head dimension `width`."""
    return replace(tile, counts=step_counts(kernel, architecture(gpu), width))


def registers(kernel: str, gpu: Gpu, width: int) -> int:
    """Registers a thread of the forward kernel of chosen blocks, or of its pass for dQ."""
    return REGISTERS[kernel, architecture(gpu), 128 if width > 64 else 64]
