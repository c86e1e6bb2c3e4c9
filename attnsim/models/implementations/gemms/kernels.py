"""Whose GEMMs are known: of a library in a format, what each waits for, and which one a framework takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attnsim.files import read_typed
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.projection import Before
from attnsim.models.schedule.gemm import gemm_path
from attnsim.models.schedule.schedule import Path as Instructions

WAITS = Path(__file__).with_name("waits.yaml")
"""Written by ``python benchmarks/gemms.py --write``."""


@dataclass(frozen=True, slots=True)
class Format:
    """A number format of A and B; C is of 16 bits.

    Parameters
    ----------
    bytes : float
        Of an element.
    of : str
        Format whose tensor rate it is counted by.
    rate : float
        Its rate over that one's.
    scale_bytes : float
        Of the scales of A and B, by element.
    converted : bool
        Whether A arrives in 16 bits and is converted first.
    """

    bytes: float
    of: str
    rate: float = 1.0
    scale_bytes: float = 0.0
    converted: bool = False


FORMATS = {
    "bf16": Format(2, "bf16"),
    "fp16": Format(2, "fp16"),
    "fp8": Format(1, "fp8", converted=True),
    "fp8-block": Format(1, "fp8", scale_bytes=4 / 128, converted=True),
    "nvfp4": Format(0.5, "fp8", 2.0, 1 / 16, converted=True),
}
"""fp8-block: a scale of fp32 for 128 elements of A (DeepSeek-V3, arXiv 2412.19437). nvfp4: a scale of a byte for 16;
twice the rate of fp8 on Blackwell (HGX B200 datasheet: 9 and 4.5 PFLOP/s dense)."""


@dataclass(frozen=True, slots=True)
class GemmKernel:
    """Whose GEMM it is: of a library in a format, whether it splits k, and whether its rows are an expert's.

    Rows of experts are gathered before the first product and summed after the second, by kernels of their own. `given`
    are the kernels before a product that write A in the format already, where the weights come with A's scales.
    """

    format: str
    splits: bool = False
    grouped: bool = False
    given: tuple[Before, ...] = ()

    @property
    def moves_rows(self) -> bool:
        """Whether a kernel of its own goes over the rows."""
        return self.grouped or FORMATS[self.format].converted


KERNELS = {
    "cublas-bf16": GemmKernel("bf16", splits=True),
    "trtllm-fp8": GemmKernel("fp8", splits=True, given=("norm", "attention", "activation")),
    "vllm-fp8": GemmKernel("fp8", given=("norm", "activation")),
    "sglang-fp8": GemmKernel("fp8"),
    "sglang-fp8-block": GemmKernel("fp8-block"),
    "trtllm-fp8-block": GemmKernel("fp8-block"),
    "sglang-nvfp4": GemmKernel("nvfp4"),
    "trtllm-nvfp4": GemmKernel("nvfp4"),
    "vllm-nvfp4": GemmKernel("nvfp4"),
    "trtllm-grouped-bf16": GemmKernel("bf16", grouped=True),
    "trtllm-grouped-fp8": GemmKernel("fp8", grouped=True),
    "flashinfer-grouped-bf16": GemmKernel("bf16", grouped=True),
    "triton-grouped-bf16": GemmKernel("bf16", grouped=True),
    "trtllm-grouped-fp8-block": GemmKernel("fp8-block", grouped=True),
    "flashinfer-grouped-fp8-block": GemmKernel("fp8-block", grouped=True),
    "triton-grouped-fp8-block": GemmKernel("fp8-block", grouped=True),
}
"""Every framework takes cuBLAS for bf16, and TensorRT-LLM for fp8; DeepGEMM and FlashInfer's kernels split no k.
Grouped ones are CUTLASS's in TensorRT-LLM; vLLM and SGLang have FlashInfer's on Blackwell and Triton's elsewhere.

Who converts: vLLM's compiler fuses it into norms and activations and leaves that of the attention's output alone
(docs.vllm.ai, design/fusions: ``fuse_attn_quant`` is off); TensorRT-LLM's all-reduce with a norm writes fp8
(``RESIDUAL_RMS_NORM_QUANT_FP8``), and so do its attention and activation; SGLang has a kernel of its own, and
so has everyone for scales of blocks."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of the kernels of one format on one instruction path.

    Parameters
    ----------
    step_clks : float
        A step of k.
    block_clks : float
        A block's beginning and end, once a wave.
    call_s : float
        A call beside its launches.
    memory_latencies : float
        Latencies of HBM until its bytes flow, and at the end.
    sum_launches : float
        Launches that adding up the parts of k takes, beside their bytes.
    row_clks, turn_clks : float
        A block that converts a row of A, and each turn of its threads over it.
    convert_launches : float
        Launches that converting A takes.
    drawn : float
        Power of products of random numbers over what is counted.
    busy_calls : float
        Calls in a row that the power limit acts upon.
    kept : float
        Share of the L2 in which what passed is found again.
    """

    step_clks: float = 60.0
    block_clks: float = 1500.0
    call_s: float = 1e-7
    memory_latencies: float = 3.0
    sum_launches: float = 1.5
    row_clks: float = 1500.0
    turn_clks: float = 500.0
    convert_launches: float = 1.0
    drawn: float = 1.3
    busy_calls: float = 36.0
    kept: float = 0.4


@dataclass(frozen=True, slots=True)
class Fit:
    """Waits of a format on a path, and how far off they were on GPUs that were held out.

    Parameters
    ----------
    source, date : str
    gpus : tuple of str
    rows : int
    waits : Waits
    held_out : float
        Mean relative error.
    half_width : float
        Of the 90 % interval of log time.
    """

    source: str
    date: str
    gpus: tuple[str, ...]
    rows: int
    waits: Waits
    held_out: float
    half_width: float


@lru_cache(maxsize=1)
def fits() -> dict[str, dict[Instructions, Fit]]:
    """The waits of each format and path."""
    return read_typed(WAITS, "waits of GEMMs", dict[str, dict[Instructions, Fit]])


def kernel_of(form: str, library: str, grouped_on: Gpu | None = None) -> str:
    """The kernel that a framework takes for a product: cuBLAS's for 16 bits, its own for other formats and experts.

    vLLM takes DeepGEMM for fp8 with scales of blocks, as SGLang does.
    """
    if grouped_on is None:
        named = (f"{one}-{form}" for one in (library, "sglang" if form == "fp8-block" else "vllm"))
        return next((name for name in named if name in KERNELS), "cublas-bf16")
    own = "trtllm" if library == "trtllm" else "flashinfer" if gemm_path(grouped_on) == "tcgen05" else "triton"
    named = (f"{one}-grouped-{form}" for one in (own, "trtllm"))
    return next((name for name in named if name in KERNELS), f"{own}-grouped-bf16")


def fit_of(kernel: str, gpu: Gpu) -> Fit:
    """The waits of a kernel on a GPU; those of other instructions where a GPU's have none."""
    of = fits()[kernel]
    return of.get(gemm_path(gpu)) or next(iter(of.values()))
