"""Work around the kernels of a call: copies of strided tensors, accumulation of gradients, and the host's time.

The host's time is the time that the CPU takes to launch the kernels into a stream, one PyTorch call after another. It
is a lower bound for back-to-back calls on any GPU: the CPU works on the next call's operations while the GPU runs those
of the last. A CUDA graph has no such time, and neither have kernels timed alone.

The figures are those of PyTorch 2.1 (nightly of March 2023), read off the shape-independent floors in
fxmarty/efficient-attention-benchmark's tables (A100, unknown CPU): 38, 57 and 105 us a forward call of 1, 4 and 7
kernels in inference mode, 294 and 550 us a forward and backward of 13 and 20. The FlashAttention paper's table 18 (an
older PyTorch, gradients recorded) has floors of 80 and 210 us for 1 and 3 to 6 kernels: about twice as much.
"""

from __future__ import annotations

from dataclasses import replace

from attnsim.by_hand import by_hand
from attnsim.errors import InputError
from attnsim.models.implementations.frameworks.eager import one_pass, strided_copy
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.question.operations import Operations
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule

EAGER = frozenset({"efficient-attention", "linformer", "performer-pytorch", "torch", "transformers"})
"""Libraries that Python calls one operation at a time, so that the host bounds their calls in any stream. The others
are also launched by servers and graphs; the host bounds them only if the question says that Python launches them."""

CALL_S = by_hand(22e-6, "host time of a PyTorch call beside its kernels' (floors of one table, A100, PyTorch 2.1)")
KERNEL_S = by_hand(11.5e-6, "host time of each kernel that PyTorch launches in inference mode")
RECORDED_S = by_hand(24e-6, "host time of each kernel in a training step: autograd records it, and runs its own")
HOST_WIDTH = by_hand(0.75, "half-width of log host time: two published machines differ by a factor of 2.1")


def host_s(w: Workload, kernels: int) -> float:
    """Seconds of the host to launch `kernels` kernels from Python."""
    return CALL_S + kernels * (RECORDED_S if "bwd" in w.directions else KERNEL_S)


FUSED = ("flash-1", "flash-2", "flash-3")
"""Mechanisms of kernels whose only inputs are Q, K and V of every head."""


def check_operations(record: Implementation, w: Workload) -> None:
    """Refuse operations that an implementation has no kernels for."""
    given = w.operations
    if given is None:
        return
    if record.unfused and record.operations:
        if not given.has_softmax:
            raise InputError(f"the operations of {record.name} are '{given}', without a softmax; add it")
    elif not (record.runs in FUSED and given.may_surround):
        exception = " but copies and accumulate around it" if record.runs in FUSED else ""
        raise InputError(
            f"{record.name} takes no operations{exception}, they are '{given}'; take --implementation torch.eager"
        )


def surrounded(record: Implementation, w: Workload, schedule: Schedule) -> Schedule:
    """The schedule with the operations around its kernels, and the host's launch time."""
    padded = "copies" if w.head_dim % record.pads else ""
    text = record.operations or padded
    own = Operations.parse(text) if text else Operations(())
    operations = own if w.operations is None else w.operations
    kernels = schedule.kernels
    if "copies" in operations and not record.unfused:
        kernels = _copied(w, kernels)
    if "accumulate" in operations and "bwd" in w.directions:
        kernels += tuple(_accumulate(w, f"d{x}", _elements(w)[x]) for x in "QKV")
    return replace(schedule, kernels=kernels, host_s=host_s(w, len(kernels)), is_eager=record.library in EAGER)


def _copied(w: Workload, kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Kernels that read copies of strided tensors; the backward copies Q, K and V again, as the originals were kept."""
    sizes = _elements(w)
    split = next(
        (i for i, kernel in enumerate(kernels) if any(use.tensor == "dO" for use in kernel.uses)), len(kernels)
    )
    forward, backward = kernels[:split], kernels[split:]
    if forward:
        forward = (*(_copy_in(w, x, sizes[x]) for x in "QKV"), *forward)
    if backward:
        again = (_copy_in(w, x, sizes[x], " again") for x in "QKV")
        outputs = (_copy_out(w, f"d{x}", sizes[x]) for x in "QKV")
        backward = (*again, _copy_in(w, "dO", sizes["dO"]), *backward, *outputs)
    return forward + backward


def _elements(w: Workload) -> dict[str, int]:
    queries, keys = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    return {"Q": queries * w.head_dim, "K": keys * w.head_dim, "V": keys * w.head_dim_v, "dO": queries * w.head_dim_v}


def _copy_in(w: Workload, tensor: str, elements: int, when: str = "") -> Kernel:
    size = elements * w.element_bytes
    return strided_copy(f"copy {tensor}{when}", (f"{tensor} strided", size), (tensor, size), elements)


def _copy_out(w: Workload, tensor: str, elements: int) -> Kernel:
    size = elements * w.element_bytes
    return strided_copy(f"copy {tensor}", (tensor, size), (f"{tensor} strided", size), elements)


def _accumulate(w: Workload, tensor: str, elements: int) -> Kernel:
    """Kernel that adds a gradient to an existing one: dQ and q.grad are read, q.grad is written."""
    size = elements * w.element_bytes
    grad = (f"{tensor} sum so far", size)
    return one_pass(f"accumulate {tensor}", [(tensor, size), grad], [grad], elements)
