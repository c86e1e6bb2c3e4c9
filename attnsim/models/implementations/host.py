"""Host time of a call: what the CPU takes to launch its kernels into a stream, one PyTorch call after another.

Calls back to back take no less than it, whatever the GPU could do: the CPU works through the next call's operations
while the GPU runs those of the last. A CUDA graph has no such time, and kernels timed alone have none either.

The figures are those of PyTorch 2.1 (nightly of March 2023), read off the floors that do not depend on the shape in
fxmarty/efficient-attention-benchmark's tables (A100, unknown CPU): 38, 57 and 105 us a forward call of 1, 4 and 7
kernels in inference mode, 294 and 550 us a forward and backward of 13 and 20. The FlashAttention paper's table 18 (an
older PyTorch, gradients recorded) has floors of 80 and 210 us for 1 and 3 to 6 kernels: about twice as much.
"""

from __future__ import annotations

from attnsim.by_hand import by_hand
from attnsim.models.question.workload import Workload

EAGER = frozenset({"efficient-attention", "linformer", "performer-pytorch", "torch", "transformers"})
"""Libraries that Python calls one operation at a time: what bounds their calls in any stream. Others are launched by
servers and graphs too, and are bound so only where the question says that Python launches them."""

CALL_S = by_hand(22e-6, "host time of a PyTorch call beside its kernels' (floors of one table, A100, PyTorch 2.1)")
KERNEL_S = by_hand(11.5e-6, "host time of each kernel that PyTorch launches in inference mode")
RECORDED_S = by_hand(24e-6, "host time of each kernel in a training step: autograd records it, and runs its own")
HOST_WIDTH = by_hand(0.75, "half-width of log host time: two published machines differ by a factor of 2.1")


def host_s(w: Workload, kernels: int) -> float:
    """Seconds of the host for a call of so many kernels from Python."""
    return CALL_S + kernels * (RECORDED_S if "bwd" in w.directions else KERNEL_S)
