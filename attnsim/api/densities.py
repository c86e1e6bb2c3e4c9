"""Kernels under masks of growing density: dense flash attention, and sparse ones that visit what the mask shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attnsim.api.against import BLOCK, PATTERNS
from attnsim.api.answering import answer
from attnsim.api.asking import ask, read_conditions, read_gpus
from attnsim.api.prediction import Prediction
from attnsim.api.results import Predictions
from attnsim.errors import InputError, nearest, shown
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
"""Of the key blocks of a row."""
USUAL = ("fused", "gather")
"""Beside the best sparse kernel for a GPU: our own, and gathering blocks for batched GEMMs."""


def densities(
    workload: Workload,
    gpu: Gpu | str | Sequence[Gpu | str],
    *,
    pattern: str = "random",
    block: int = BLOCK,
    sparse: Sequence[str] = (),
    dense: str | None = None,
    shares: Sequence[float] = SHARES,
    cache: str = "warm",
    launch: str = "stream",
    done: Callable[[], None] = lambda: None,
) -> Predictions:
    """Predict sparse kernels under a pattern of growing density, and dense flash attention beside them.

    Parameters
    ----------
    workload : Workload
        A full or causal mask is the band around the pattern, and what the dense kernel runs.
    gpu : Gpu, str, or a sequence of them
    pattern : {"random", "window", "bigbird"}
        As for :func:`attnsim.breakeven`.
    block : int
        Tokens of a block.
    sparse : sequence of str
        Sparse implementations; by default the best for the GPU, our own and `transformers.gather`.
    dense : str, optional
        The dense implementation, by default the best for the GPU.
    shares : sequence of float
        Of the key blocks of a row, above 0 and up to 1.
    cache, launch : str
        As for :func:`attnsim.predict`.
    done : callable
        Called after each GPU.

    Returns
    -------
    Predictions
        Of each GPU the dense kernel once, then each sparse kernel from the sparsest mask to the densest.

    Raises
    ------
    InputError

    Examples
    --------
    >>> found = densities(Workload(1, 16, 4096, 64), "a100-sxm4-80gb", shares=[0.1, 1.0])
    >>> [one.implementation for one in found]
    ['flash-attn.2', 'attnsim.sparse', 'attnsim.sparse', 'transformers.gather', 'transformers.gather']
    """
    machines = read_gpus(gpu)
    if pattern not in PATTERNS:
        raise InputError(f"pattern is {shown(pattern)}; {nearest(str(pattern), PATTERNS)}; all: {', '.join(PATTERNS)}")
    band, blocks = Mask.causal() if workload.mask.is_causal else Mask.full(), -(-workload.seq_kv // block)
    if workload.mask != band:
        raise InputError(f"mask is '{workload.mask}'; allowed: full or causal, the pattern grows within it")
    if not 1 <= block <= workload.seq_kv:
        raise InputError(f"block is {block} tokens; allowed: 1 to the {workload.seq_kv} of the sequence")
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError("a share of the blocks is not above 0 and up to 1; give some such as 0.01, 0.1, 1")
    counts = sorted({max(1, round(share * blocks)) for share in shares})
    masks = [band if count == blocks else PATTERNS[pattern](count, block, band) for count in counts]
    conditions = read_conditions(cache=cache, launch=launch)
    found: list[Prediction] = []
    for machine in machines:
        found.append(answer(ask(workload, machine, "flash", dense, conditions)))
        patterned = replace(workload, mask=masks[0])
        names = (ask(patterned, machine, "sparse", name).record.name for name in sparse or (None, *USUAL))
        found += [
            answer(ask(replace(workload, mask=mask), machine, "sparse", name, conditions))
            for name in dict.fromkeys(names)
            for mask in masks
        ]
        done()
    return Predictions(found)
