"""A window by gathering in PyTorch: each query gets a copy of the keys and values that it sees.

The straightforward implementation: K and V are padded, ``unfold`` makes ``[N, w, d]`` views of them, and the products
copy the views (``reshape`` before ``bmm``), so that each key is stored once for every query that sees it. S = Q K^T and
O = P V are then batched products of one row for every query. The scale is a GEMM's alpha, positions beyond the ends
of the sequence are masked by an addition, and softmax is a separate kernel.
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.eager import arrays_bytes, one_pass, softmax
from attnsim.models.implementations.implementation import TileRequest, record
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.axes import Axis, Seen, Tensor, uses_of
from attnsim.models.schedule.gemm import Operand, library_gemm
from attnsim.models.schedule.passes import BROADCAST_INSTRUCTIONS
from attnsim.models.schedule.schedule import Kernel, Schedule

NAME = "torch.window-gather"


def width_of(w: Workload) -> int:
    """Keys of a query's window.

    Raises
    ------
    InputError
        If the mask is not a band, or queries and keys are not those of one sequence.
    """
    mask, ends = w.mask, w.seq_q - 1
    if not mask.is_band or w.seq_q != w.seq_kv:
        raise InputError(
            f"{NAME} copies as many keys for every query of a sequence: the mask is {mask}, seq_q {w.seq_q}, seq_kv "
            f"{w.seq_kv}; give a window, --mask 'causal window 256', and as many keys as queries"
        )
    return sum(ends if reach is None else min(reach, ends) for reach in (mask.left, mask.right)) + 1


def build(w: Workload, gpu: Gpu, shape: TileRequest | None) -> Schedule:
    """Schedule of a workload.

    Raises
    ------
    InputError
        As :func:`width_of`.
    """
    width, rows, e = width_of(w), w.batch * w.heads_q * w.seq_q, w.element_bytes
    scores, one_mask = [("S", rows * width * e)], ("mask", w.seq_q * width * e)
    masked = one_pass("mask", [*scores, one_mask], scores, rows * width, int32=BROADCAST_INSTRUCTIONS)
    kernels = (
        *_copies(w, "K", w.head_dim, width),
        _product(w, gpu, "S = Q K^T", (width, w.head_dim), ("Q", "K windows", "S")),
        masked,
        softmax("softmax", scores, ("P", rows * width * e), rows, width, even=False),
        *_copies(w, "V", w.head_dim_v, width),
        _product(w, gpu, "O = P V", (w.head_dim_v, width), ("P", "V windows", "O")),
    )
    return Schedule("sparse", NAME, kernels, f"{width} keys copied for each query", peak_bytes(w))


def _copies(w: Workload, tensor: str, columns: int, width: int) -> tuple[Kernel, Kernel]:
    """``F.pad``, and the copy of the windows, with offsets by divisions; neighbouring queries share reads."""
    heads, e = w.batch * w.heads_kv, w.element_bytes
    plain, longer = heads * w.seq_kv * columns, heads * (w.seq_kv + width - 1) * columns
    copied = heads * w.seq_q * width * columns
    padded, windows = (f"{tensor} padded", longer * e), (f"{tensor} windows", copied * e)
    kernel = one_pass(f"unfold {tensor}", [(padded[0], copied * e)], [windows], copied, int32=BROADCAST_INSTRUCTIONS)
    rows = Axis(w.seq_q * width, max(1, heads * w.seq_q * width // kernel.blocks))
    axes, row = {"h": Axis(heads), "p": Axis(w.seq_kv + width - 1), "rows": rows}, columns * e
    seen = Seen("rows", axes["p"].size, max(1.0, width * width / rows.tile))  # queries beside each other read the same
    tensors = Tensor(padded[0], "h p", row, seen=seen), Tensor(windows[0], "h rows", row, written=True)
    uses = uses_of(tensors, axes, "h rows")
    return one_pass(f"pad {tensor}", [(tensor, plain * e)], [padded], longer), replace(kernel, uses=uses)


def _product(w: Workload, gpu: Gpu, name: str, shape: tuple[int, int], tensors: tuple[str, str, str]) -> Kernel:
    """A batched GEMM with an entry per query: its rows are the query heads that share a head of K and V."""
    left, right, out = tensors
    entries, e = w.batch * w.heads_kv * w.seq_q, w.element_bytes
    operands = Operand(left, e), Operand(right, e), Operand(out, e)
    return library_gemm(name, entries, (w.group, *shape), *operands, dtype=w.dtype, gpu=gpu)


def peak_bytes(w: Workload) -> int:
    """Peak memory: inputs and output, one tensor of windows with its padded source, scores and probabilities."""
    width = width_of(w)
    keys = w.batch * w.heads_kv * (w.seq_q * width + w.seq_kv + width - 1) * max(w.head_dim, w.head_dim_v)
    return arrays_bytes(w) + (keys + 2 * w.batch * w.heads_q * w.seq_q * width) * w.element_bytes


RECORDS = (record(NAME, build, peak_bytes=peak_bytes),)
