"""The short causal convolution before a layer of the family: four taps a channel, then silu.

A question's channels are ``heads x head_dim``. Two code bases run it: Dao-AILab/causal-conv1d in CUDA, whose blocks
each have one channel of a sequence (and the earlier copies in TensorRT-LLM and SGLang), and vLLM's Triton kernels,
which SGLang has adopted. Every block reads the taps of its channels, which stay in the L2.
"""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.implementation import Implementation, TileRequest, record
from attnsim.models.implementations.linear.chunks import TAPS, Chunks, Work
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Tensor
from attnsim.models.schedule.schedule import Schedule

FORWARD, UPDATE = "causal_conv1d_fwd", "causal_conv1d_update"
BEFORE = TAPS - 1


@dataclass(frozen=True, slots=True)
class ConvolutionTile:
    """Tokens and channels of a block, and whether it walks its channels' whole sequence."""

    tokens: int
    channels: int
    walks: bool

    def __str__(self) -> str:
        return f"{self.tokens} token{'s' * (self.tokens > 1)} x {self.channels} channel{'s' * (self.channels > 1)}"


TRITON = 8, 256, 4
"""Tokens (BLOCK_M), channels (BLOCK_N) and warps of ``causal_conv1d.py`` of vLLM, `_causal_conv1d_fwd_kernel`."""
AHEAD = 2
"""Tokens that a Triton block has in flight: it loads them one by one in a loop of two stages."""
CUDA = 1024, 1, 4
"""Tokens, channels and warps of ``causal_conv1d_fwd.cu``: 128 threads of 8 tokens each, a channel per block."""
CUDA_UPDATE = 1, 64, 2
"""Tokens, channels and warps of ``causal_conv1d_update.cu``: 64 threads, a channel each."""
NEXT_TOKEN = by_hand(3, "links of a token in registers: a hit in L1, four products one after another, silu")
EXCHANGE = by_hand(10, "links of a chunk whose threads hand on tokens: three barriers, shared memory, silu")


@dataclass(frozen=True, slots=True)
class Instructions:
    """Instructions of a thread for each of its channels: from the kernels' machine code, except for `CUDA_ONE`.

    Triton 3.9 compiled them for compute capability 8.0, 8.9, 9.0, 10.0 and 12.0, nvcc 13.0 for 9.0 and 10.0.

    Parameters
    ----------
    token : int
        Per token of a prompt, with its share of the block's prologue.
    token_since_100 : int
        `token` from compute capability 10.0 on, which adds 16-bit to 32-bit operands.
    update : int
        Per call that decodes one token.
    draft : (int, int)
        For a call that decodes several tokens: per call, and per token.
    """

    token: int
    token_since_100: int
    update: int
    draft: tuple[int, int]

    def prompt(self, gpu: Gpu) -> int:
        """Instructions per token of a prompt."""
        return self.token_since_100 if gpu.compute_capability_number >= 100 else self.token

    def decoding(self, tokens: int) -> int:
        """Instructions of a call that decodes `tokens` tokens."""
        once, each = self.draft
        return self.update if tokens == 1 else once + each * tokens


TRITON_CODE = Instructions(48, 41, 120, (72, 48))
TRITON_CODE_CHANNELS = Instructions(48, 41, 80, (72, 48))
"""Instructions if the kept tokens are stored with channels contiguous, as in KDA's cache."""
CUDA_ONE = by_hand(
    110,
    "instructions of a token in the CUDA kernel that decodes, not counted: the number with the least error "
    "on the rows of its fit",
)
CUDA_CODE = Instructions(16, 16, CUDA_ONE, (0, CUDA_ONE))
"""Prompt instructions with ``--use_fast_math``: without it a block of half a chunk would take longer than was
measured."""


def convolve(name: str, tile: tuple[int, int, int], code: Instructions, walks: bool) -> Implementation:
    """Record of an implementation with these blocks.

    Parameters
    ----------
    tile : (int, int, int)
        Tokens, channels and warps of a block.
    walks : bool
        Whether a block walks its channels' whole sequence.
    """
    tokens, most, warps = tile

    def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
        check_takes(name, w)
        made = ConvolutionTile(w.seq_q if w.passes == "decode" else tokens, _width(channels_of(w), most), walks)
        kernel = _blocks(w, made, warps, code, gpu).kernel(w.batch, w.seq_q, w.dtype, w.element_bytes)
        return Schedule("short-convolution", name, (kernel,), made, peak_bytes(w))

    return record(name, build, peak_bytes=peak_bytes)


def channels_of(w: Workload) -> int:
    """Channels of a question."""
    return w.heads_q * w.head_dim_v


def peak_bytes(w: Workload) -> int:
    """Peak memory: tokens in and out, and the last ones, which are kept."""
    return w.batch * channels_of(w) * w.element_bytes * (2 * w.seq_q + BEFORE)


def check_takes(name: str, w: Workload) -> None:
    """Refuse a question that is not a causal convolution of one tensor."""
    mask = w.mask.within(w.seq_q, w.seq_kv)
    if w.head_dim != w.head_dim_v or w.heads_q != w.heads_kv or mask.is_windowed or w.dropout:
        raise InputError(
            f"{name} convolves heads x head_dim channels of one tensor; the question is {w}; allowed: as many kv_heads "
            "as heads, one head_dim, no window and no dropout"
        )


def _width(channels: int, most: int) -> int:
    """Channels per block: the largest divisor of `channels` up to `most`, so that all blocks are equal."""
    return next(width for width in range(min(most, channels), 0, -1) if channels % width == 0)


def _blocks(w: Workload, tile: ConvolutionTile, warps: int, code: Instructions, gpu: Gpu) -> Chunks:
    width, e, decodes = tile.channels, w.element_bytes, w.passes == "decode"
    tensors = [
        Tensor("X", "b h g c x", width * e),
        Tensor("Y", "b h g c x", width * e, written=True),
        Tensor("last tokens", "b h g x", BEFORE * width * e, written=True),
        Tensor("taps", "h", TAPS * width * e),
    ]
    if decodes:
        tensors.append(Tensor("last tokens", "b h g x", BEFORE * width * e))
    elif not tile.walks:
        tensors.append(Tensor("X", "b h g c x", BEFORE * width * e, by_tile=True))
    # A decoding block loads all of its tokens at once, appends them to the kept ones, and processes them in turn.
    each = code.decoding(tile.tokens) if decodes else code.prompt(gpu) * tile.tokens
    links = NEXT_TOKEN * tile.tokens if decodes else EXCHANGE if tile.walks else tile.tokens
    work = Work(exps=tile.tokens * width, fp32=each * width, links=links)
    return Chunks(
        UPDATE if decodes else FORWARD,
        tile.tokens,
        (channels_of(w) // width, 1),
        tuple(tensors),
        work,
        serial=tile.walks or decodes,
        ahead=False,
        warps=warps,
        registers=40,
        shared_memory_bytes=4096 if tile.walks and not decodes else 0,
        in_flight_bytes=0 if tile.walks or decodes else AHEAD * width * e,
        alone=decodes or not tile.walks,
    )


RECORDS = (
    convolve("causal-conv1d.triton", TRITON, TRITON_CODE, walks=False),
    convolve("causal-conv1d.triton-update", TRITON, TRITON_CODE, walks=False),
    convolve("causal-conv1d.triton-update-kimi", TRITON, TRITON_CODE_CHANNELS, walks=False),
    convolve("causal-conv1d.cuda", CUDA, CUDA_CODE, walks=True),
    convolve("causal-conv1d.cuda-update", CUDA_UPDATE, CUDA_CODE, walks=True),
)
