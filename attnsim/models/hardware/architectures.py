"""What holds for all GPUs of a compute capability: one row each, from which rules fill in what a GPU's file lacks.

A new architecture is a new row. Where a figure is not known of it, it is left out: that of the nearest row counts.

Sources of the columns:

- Limits and features: CUDA Programming Guide, "Compute Capabilities".
- L2 bytes per clock and SM: gpu-benches at 1038c5d0 (V100, A100, A40, L40, GH200), read; 7.5 recalled from Jia et al.,
  arXiv 1903.07486.
- Load-to-use latencies, by pointer chase: gpu-benches at 1038c5d0 (V100, A100, A40, L40), AI_kernels at d916a39b (H100
  SXM, B200, RTX 5090), MT4G at 4cc55662 and arXiv 2402.13499 (shared memory), Accel-Sim SM86_RTX3070 (8.6 shared
  memory); 7.5 recalled from Jia 2019. Of an MMA: Accel-Sim SM80_A100; arXiv 2402.13499 (H800).
- Energy: :mod:`attnsim.models.hardware.energy_constants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from attnsim.models.hardware.energy_constants import Constant

_HOPPER_MMA_SYNC = 0.629 * 4096  # 62.9 % of peak, 4096 FLOP/clk per SM (arXiv 2402.13499, H800)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row.

    Parameters
    ----------
    name : str
        "hopper"; several capabilities may have one name.
    cards : tuple of str
        GPUs that a person knows it by.
    nearest : tuple of int
        Capabilities whose measured figures it takes where it has none, the most alike first.
    borrows : tuple of str
        Architectures whose calibrations it borrows, the most alike first.
    max_threads, max_blocks, shared_memory_kib, reserved_kib : int
        Limits of an SM; the last of a block.
    fp16_flops_per_clk : int
        Tensor rate of an SM; half of it on consumer cards that accumulate in fp32.
    bf16, fp8 : bool
        Whether the tensor cores take the format.
    mma_sync_flops_per_clk : float or None
        What ``mma.sync`` reaches; None where that is 0.95 of the tensor rate.
    fp32_flops_per_clk, shared_memory_bytes_per_clk : int
        Rates of an SM.
    features : tuple of str
        Of `Features`.
    l2_partitions : int
    hbm : str
        Kind of memory of data-centre cards with HBM; "" where all have GDDR.
    small_shared_memory : bool
        Whether libraries keep separate tiles for its 99 KiB a block (FlashAttention's ``is_sm8x``).
    tensor_energy : Constant
        Of a tensor FLOP in fp16 or bf16.
    node : (float, float, float)
        Energy of moving data and of plain instructions over that at 28 nm: low, typical, high.
    given : tuple of (str, float, str)
        Key, value and rule of figures that GPUs of other architectures have as 0.
    l2_bytes_per_clk_sm, l2_latency, hbm_latency, shared_memory_latency, mma_latency : float or None
        Clocks, and bytes per clock; None where nobody has measured it.
    """

    name: str
    cards: tuple[str, ...]
    nearest: tuple[int, ...]
    borrows: tuple[str, ...]
    max_threads: int
    max_blocks: int
    shared_memory_kib: int
    fp16_flops_per_clk: int
    tensor_energy: Constant
    node: tuple[float, float, float]
    reserved_kib: int = 1
    bf16: bool = True
    fp8: bool = True
    mma_sync_flops_per_clk: float | None = None
    fp32_flops_per_clk: int = 256
    shared_memory_bytes_per_clk: int = 128
    features: tuple[str, ...] = ("cp_async",)
    l2_partitions: int = 1
    hbm: str = ""
    small_shared_memory: bool = False
    given: tuple[tuple[str, float, str], ...] = ()
    l2_bytes_per_clk_sm: float | None = None
    l2_latency: float | None = None
    hbm_latency: float | None = None
    shared_memory_latency: float | None = None
    mma_latency: float | None = None


_NODE_12_NM, _NODE_7_NM, _NODE_5_NM = (0.30, 0.45, 0.65), (0.12, 0.20, 0.35), (0.08, 0.14, 0.25)

_VOLTA = Architecture(
    "volta", ("V100",), nearest=(), borrows=("ampere",),
    max_threads=2048, max_blocks=32, shared_memory_kib=96, reserved_kib=0,
    fp16_flops_per_clk=1024, bf16=False, fp8=False, fp32_flops_per_clk=128, features=(), hbm="HBM2",
    l2_bytes_per_clk_sm=22.2, l2_latency=212, hbm_latency=434, shared_memory_latency=23.5, mma_latency=25,
    tensor_energy=Constant(
        0.6, 1.05, 1.9, "pJ/FLOP", "assumed",
        "Dally's HMMA of 110 pJ and 22 % for 128 FLOPs at 45 nm; high: V100's 300 W less 22 % at 125 TFLOP/s",
    ),
    node=_NODE_12_NM,
)  # fmt: skip
_TURING = Architecture(
    "turing", ("T4",), nearest=(70,), borrows=("ampere",),
    max_threads=1024, max_blocks=16, shared_memory_kib=64, reserved_kib=0,
    fp16_flops_per_clk=1024, bf16=False, fp8=False, fp32_flops_per_clk=128, shared_memory_bytes_per_clk=64, features=(),
    l2_bytes_per_clk_sm=20, l2_latency=188, shared_memory_latency=19,
    tensor_energy=Constant(0.5, 1.0, 1.9, "pJ/FLOP", "assumed", "as Volta, the same node"), node=_NODE_12_NM,
)  # fmt: skip
_AMPERE = Architecture(
    "ampere", ("A100",), nearest=(70,), borrows=("hopper",),
    max_threads=2048, max_blocks=32, shared_memory_kib=164,
    fp16_flops_per_clk=2048, fp8=False, fp32_flops_per_clk=128, l2_partitions=2, hbm="HBM2e",
    l2_bytes_per_clk_sm=35.7, l2_latency=205.5, hbm_latency=552, shared_memory_latency=29, mma_latency=25,
    tensor_energy=Constant(
        0.4, 0.70, 1.2, "pJ/FLOP", "derived",
        "He 2024: (400 - 88) W at 257 TFLOP/s is the high end; typical: less what the same GEMM, in tiles of "
        "128 x 256, moves from the L2 and shared memory by the constants here",
    ),
    node=_NODE_7_NM,
)  # fmt: skip
_AMPERE_86 = replace(
    _AMPERE, cards=("RTX 30 series",), nearest=(80, 70), max_threads=1536, max_blocks=16, shared_memory_kib=100,
    fp16_flops_per_clk=1024, fp32_flops_per_clk=256, l2_partitions=1, hbm="", small_shared_memory=True,
    l2_bytes_per_clk_sm=21.1, l2_latency=250, hbm_latency=556, mma_latency=None,
)  # fmt: skip
_ADA = Architecture(
    "ada", ("L4", "L40", "RTX 40 series"), nearest=(86, 80, 70), borrows=("ampere", "hopper"),
    max_threads=1536, max_blocks=24, shared_memory_kib=100, fp16_flops_per_clk=1024, small_shared_memory=True,
    l2_bytes_per_clk_sm=17.4, l2_latency=273.6, hbm_latency=625, shared_memory_latency=30.1,
    tensor_energy=Constant(
        0.25, 0.41, 0.75, "pJ/FLOP", "assumed", "as Hopper, the same node; high: L40S's 350 W less 22 % at 362 TFLOP/s"
    ),
    node=_NODE_5_NM,
)  # fmt: skip
_HOPPER = Architecture(
    "hopper", ("H100", "H200", "GH200"), nearest=(80, 70), borrows=("ampere",),
    max_threads=2048, max_blocks=32, shared_memory_kib=228,
    fp16_flops_per_clk=4096, mma_sync_flops_per_clk=_HOPPER_MMA_SYNC, l2_partitions=2, hbm="HBM3",
    features=("cp_async", "tma", "wgmma", "clusters"),
    l2_bytes_per_clk_sm=37.1, l2_latency=291, hbm_latency=700, shared_memory_latency=29.9, mma_latency=24.1,
    tensor_energy=Constant(
        0.25, 0.41, 0.69, "pJ/FLOP", "derived",
        "Bekman's 794.5 TFLOP/s with 700 W less 22 % is the high end; typical: less what the same GEMM moves from "
        "the L2 and shared memory by the constants here",
    ),
    node=_NODE_5_NM,
)  # fmt: skip
_BLACKWELL = Architecture(
    "blackwell", ("B200",), nearest=(90, 80, 70), borrows=("hopper", "ampere"),
    max_threads=2048, max_blocks=32, shared_memory_kib=228,
    fp16_flops_per_clk=8192, mma_sync_flops_per_clk=_HOPPER_MMA_SYNC, l2_partitions=2, hbm="HBM3e",
    features=("cp_async", "tma", "tcgen05", "clusters"), l2_latency=293, hbm_latency=858,
    given=((
        "tensor.memory_bandwidth", 512,
        "rule: a 32-bit cell of each of tensor memory's 128 lanes a clock (PTX ISA, tcgen05: each of four warps reads "
        "and writes the 32 lanes of its own); NVIDIA states no rate",
    ),),
    tensor_energy=Constant(
        0.15, 0.27, 0.45, "pJ/FLOP", "assumed",
        "high: Bekman's 1745 TFLOP/s on B200 with 1000 W less 22 %; typical: Hopper's share of its high end",
    ),
    node=_NODE_5_NM,
)  # fmt: skip
# Consumer Blackwell is nearer to Ada than to data-centre Blackwell in all but its name.
_BLACKWELL_120 = replace(
    _BLACKWELL, cards=("RTX 50 series",), nearest=(89, 86, 80, 70), borrows=("ada", "ampere", "hopper"),
    max_threads=1536, max_blocks=24, shared_memory_kib=100, fp16_flops_per_clk=1024, mma_sync_flops_per_clk=None,
    l2_partitions=1, hbm="", small_shared_memory=True, features=("cp_async", "tma", "clusters"), given=(),
    l2_latency=360, hbm_latency=936,
)  # fmt: skip

ARCHITECTURES = {
    70: _VOLTA, 75: _TURING, 80: _AMPERE, 86: _AMPERE_86, 89: _ADA, 90: _HOPPER, 100: _BLACKWELL, 120: _BLACKWELL_120,
}  # fmt: skip
"""By compute capability times ten."""


def modelled(capability: int) -> int | None:
    """The newest capability with a row that is not newer than this one; None where all are."""
    return max((number for number in ARCHITECTURES if number <= capability), default=None)


def architecture_of(capability: int) -> Architecture:
    """The row that a capability, 90 for 9.0, is modelled by; the oldest where all rows are newer."""
    return ARCHITECTURES[modelled(capability) or min(ARCHITECTURES)]


def measured(capability: int, column: Callable[[Architecture], float | None]) -> float:
    """A measured figure of a row, or of the nearest that has it."""
    rows = (ARCHITECTURES[number] for number in (capability, *ARCHITECTURES[capability].nearest))
    return next(value for row in rows if (value := column(row)) is not None)
