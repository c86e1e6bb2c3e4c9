"""The short causal convolution before a layer of the family: four taps a channel, then silu.

A question's channels are ``heads x head_dim``. Two code bases run it: Dao-AILab/causal-conv1d in CUDA, whose blocks
take a channel of a sequence each (TensorRT-LLM's and SGLang's earlier copies), and vLLM's Triton kernels, which SGLang
has taken over. Taps are read once and stay near; they are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.models.by_hand import by_hand
from attnsim.models.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation, TileRequest, record
from attnsim.models.implementations.linear.chunks import Chunks, Flow, Work
from attnsim.models.implementations.linear.recurrence import TAPS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule

FORWARD, UPDATE = "causal_conv1d_fwd", "causal_conv1d_update"
BEFORE = TAPS - 1


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """Tokens and channels of a block; whether it walks its channels' whole sequence."""

    tokens: int
    channels: int
    walks: bool

    def __str__(self) -> str:
        return f"{self.tokens} token{'s' * (self.tokens > 1)} x {self.channels} channel{'s' * (self.channels > 1)}"


TRITON = 8, 256, 4
"""Tokens (BLOCK_M), channels (BLOCK_N) and warps of ``causal_conv1d.py`` of vLLM, `_causal_conv1d_fwd_kernel`."""
AHEAD = 2
"""Tokens that a Triton block has on their way: it loads them one by one in a loop of two stages."""
PER_ELEMENT = by_hand(
    40,
    "instructions of an element in Triton's convolution: address, mask, conversions, four products, silu's division",
)
CUDA = 1024, 1, 4
"""Those of ``causal_conv1d_fwd.cu``: 128 threads of 8 tokens each, a channel a block."""
CUDA_UPDATE = 1, 64, 2
"""Those of ``causal_conv1d_update.cu``: 64 threads, a channel each."""


def convolve(name: str, tile: tuple[int, int, int], walks: bool) -> Implementation:
    """The record of an implementation with these blocks.

    Parameters
    ----------
    name : str
    tile : (int, int, int)
        Tokens, channels and warps of a block.
    walks : bool
        Whether a block walks its channels' whole sequence.
    """
    tokens, most, warps = tile

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w)
        made = ConvolutionTile(1 if w.passes == "decode" else tokens, _width(channels_of(w), most), walks)
        kernel = _blocks(w, made, warps).kernel(w.batch, w.seq_q, w.dtype, w.element_bytes)
        return Schedule("short-convolution", name, (kernel,), made, peak_bytes(w))

    return record(name, build, peak_bytes=peak_bytes)


def channels_of(w: Workload) -> int:
    """Channels of a question."""
    return w.heads_q * w.head_dim_v


def peak_bytes(w: Workload) -> int:
    """Tokens in and out, and the last ones that are kept."""
    return w.batch * channels_of(w) * w.element_bytes * (2 * w.seq_q + BEFORE)


def check_takes(name: str, w: Workload) -> None:
    """Refuse what is no causal convolution of one tensor.

    Raises
    ------
    InputError
    """
    mask = w.mask.within(w.seq_q, w.seq_kv)
    if w.head_dim != w.head_dim_v or w.heads_q != w.heads_kv or mask.is_windowed or w.dropout:
        raise InputError(
            f"{name} convolves heads x head_dim channels of one tensor; the question is {w}; allowed: as many kv_heads "
            "as heads, one head_dim, no window and no dropout"
        )


def _width(channels: int, most: int) -> int:
    """Channels of a block: the last block's are spread over all of them, so that each has as many."""
    return next(width for width in range(min(most, channels), 0, -1) if channels % width == 0)


def _blocks(w: Workload, tile: ConvolutionTile, warps: int) -> Chunks:
    width, e, decodes = tile.channels, w.element_bytes, w.passes == "decode"
    flows = [
        Flow("X", width * e),
        Flow("Y", width * e, written=True),
        Flow("last tokens", BEFORE * width * e, "sequence", written=True),
    ]
    if decodes:
        flows.append(Flow("last tokens", BEFORE * width * e, "sequence"))
    elif not tile.walks:
        flows.append(Flow("X", BEFORE * width * e, "chunk"))
    rows = 1 if decodes else tile.tokens
    each = TAPS + 4 if tile.walks else PER_ELEMENT
    work = Work(exps=rows * width, fp32=each * rows * width, links=1 if tile.walks else rows)
    return Chunks(
        UPDATE if decodes else FORWARD, rows, channels_of(w) // width, tuple(flows), work, serial=tile.walks or decodes,
        ahead=False, warps=warps, registers=40, shared_memory_bytes=4096 if tile.walks and not decodes else 0,
        in_flight_bytes=0 if tile.walks else AHEAD * width * e, alone=not tile.walks,
    )  # fmt: skip


RECORDS = (
    convolve("causal-conv1d.triton", TRITON, walks=False),
    convolve("causal-conv1d.triton-update", TRITON, walks=False),
    convolve("causal-conv1d.triton-update-kimi", TRITON, walks=False),
    convolve("causal-conv1d.cuda", CUDA, walks=True),
    convolve("causal-conv1d.cuda-update", CUDA_UPDATE, walks=True),
)
