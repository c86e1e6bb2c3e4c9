"""Counted instructions that go with fitted numbers: a kernel that borrows the ones is charged by the others too.

Numbers that were fitted on a kernel whose instructions are counted say nothing of a softmax that is charged by scores:
they mean what is left beside those instructions. So whoever borrows the numbers borrows the counts, where nobody has
counted its own.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import PIPES
from attnsim.models.schedule.instructions import DS_INSTRUCTIONS, LANES, StepCounts, product, step_counts
from attnsim.models.schedule.operation import TileOp
from attnsim.models.schedule.schedule import Kernel, edited

PRODUCTS = {False: 2, True: 5}
"""Of scores' size in a pass, forward and backward."""
OF_PATH = {"mma_sync": "flash-attn.2", "wgmma": "flash-attn.3", "tcgen05": "flash-attn.4"}
"""Whose instructions a kernel borrows that nobody counted: FlashAttention's on the same instruction path."""
_lent: WeakKeyDictionary[Kernel, dict[tuple[str, int], Kernel]] = WeakKeyDictionary()


def lent(kernel: Kernel, counts: str, gpu: Gpu) -> Kernel:
    """The kernel with counted instructions, its own or those that go with the numbers that it is played with.

    A softmax has the lender's instructions a score at the nearest head dimension, with its own exponentials and the
    rescaling, masks and polynomials that its operations name; dS the same of the lender's backward; products of
    mma.sync have an instruction each and their matrix loads; all else the instructions that it names. Passes over
    memory, which multiply nothing, stay as they are.

    Parameters
    ----------
    counts : str
        Kernel of ``schedule/instructions.csv``; "" for the newest one of the kernel's instruction path.
    """
    counts = counts or OF_PATH.get(kernel.path, "")
    if not counts or kernel.counted or not kernel.total("flops"):
        return kernel
    capability = gpu.compute_capability_number
    known = _lent.setdefault(kernel, {})
    if (counts, capability) not in known:
        known[counts, capability] = _with_counts(kernel, counts, capability)
    return known[counts, capability]


def _with_counts(kernel: Kernel, counts: str, capability: int) -> Kernel:
    names = {op.tensor for segment in kernel.segments for op in segment.ops if op.kind == "vector"}
    backward, scores = "dS" in names, kernel.total("scores")
    head_dim = kernel.total("flops") // (2 * PRODUCTS[backward] * scores) if scores else 0
    base = counts.removesuffix(" split") + " backward" if backward else counts
    step = step_counts(base, capability, head_dim)

    def told(op: TileOp) -> TileOp:
        if op.kind in ("mma", "mma_async"):
            return product(op) if kernel.path == "mma_sync" else op
        return _vector(op, step, backward) if op.kind == "vector" else op

    return edited(kernel, told)


def _vector(op: TileOp, step: StepCounts, backward: bool) -> TileOp:
    if backward and op.tensor in ("P", "dS"):
        scores = op.scores or op.fp32 // DS_INSTRUCTIONS
        charged = step.gradients(scores)[op.tensor == "dS"]
    elif op.scores:
        charged = step.softmax(op.scores, op.exps, op.fp32, 0)
    else:
        charged = op._replace(issues=max(1, (op.exps + op.fp32 + op.int32) // LANES))
    on_pipes = {one.amount: getattr(op, one.amount) for one in PIPES}
    return charged._replace(exps=op.exps, scores=op.scores, **on_pipes)
