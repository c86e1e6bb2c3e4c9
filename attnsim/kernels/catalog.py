"""Catalog of our CUDA operations: one record each, used by commands, tests and benchmarks."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnsim.errors import InputError, nearest
from attnsim.kernels.arrays import exercise_attention
from attnsim.kernels.device import Device
from attnsim.kernels.variant import Variant
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import OWN_KERNELS
from attnsim.models.implementations.options import check_options, with_options
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx.outcome import INPUTS, TOLERANCE, Outcome

SCORES_IN_16_BITS = 2.0
"""Slack if S is rounded before the exponential: a score of 6 in bf16 is off by up to 2^-7, and P relatively so."""


ONLY_EQUAL = ("equal",)
"""Adversarial inputs of kernels that keep S in 16 bits. A score of 100 in bf16 is off by 1/4. A row with a NaN has NaN
as its log-sum-exp; the reference and the fused kernels have -inf."""

NONE = ()
"""No adversarial inputs, for the backward kernels. They round dS to 16 bits before it is multiplied by K, and O before
dO. With long or equal rows of K, most digits of dQ cancel; the same rounding in float64 is off by as much (8e-2 with
growing inputs, 2e-2 with an outlier, in bf16). The reference also propagates the NaN of a row of P to hidden keys,
which the kernel does not visit."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that our kernels compute.

    Parameters
    ----------
    name : str
        Name in commands.
    module : str
        Module of :mod:`attnsim.kernels` that launches its kernels; imported on first use.
    function : str
        Name of the operation in that module.
    implementation : str
        Its record in :data:`attnsim.models.implementations.choose.OWN_KERNELS`.
    description : str
        One line for tables.
    passes : str
        Pass of its workloads: "fwd", "bwd" or "decode".
    head_dims : tuple of int
        Supported widths of a head.
    causal, window, rectangular : bool
        Support for causal masks, for windows, and for `seq_kv` other than `seq_q`.
    masks : tuple of str
        Patterns, as text, that no other operation supports.
    adversarial : tuple of str
        Inputs of :data:`attnsim.ptx.outcome.INPUTS` besides normal ones for which its tolerance holds.
    slack : float
        Multiple of :data:`attnsim.ptx.outcome.TOLERANCE` that is allowed, if it rounds more than its output.
    example_gpu : str
        Default GPU.
    experimental : bool
        True if it has run in the interpreter, but not yet on a GPU.
    """

    name: str
    module: str
    function: str
    implementation: str
    description: str
    passes: str = "fwd"
    head_dims: tuple[int, ...] = (64, 128, 256)
    causal: bool = True
    window: bool = True
    rectangular: bool = True
    masks: tuple[str, ...] = ()
    adversarial: tuple[str, ...] = INPUTS[1:]
    slack: float = 1.0
    example_gpu: str = "a100-sxm4-80gb"
    experimental: bool = False

    def _import(self) -> Any:
        return importlib.import_module(f"attnsim.kernels.{self.module}")

    def variants(self) -> tuple[Variant, ...]:
        """Return every variant that it may launch."""
        found: tuple[Variant, ...] = self._import().variants()
        return found

    def exercise(self, device: Device, w: Workload, seed: int = 0, inputs: str = "normal") -> Outcome:
        """Run the operation and the float64 reference on generated inputs.

        A module has its own ``exercise`` if its operation is not (Q, K, V) to O and log-sum-exp.
        """
        exercise: Callable[..., Outcome] = getattr(
            self._import(), "exercise", functools.partial(exercise_attention, self.call())
        )
        return exercise(device, w, seed, inputs)

    def tolerance(self, dtype: str) -> float:
        """Largest allowed ``max |got - want| / max |want|``."""
        return self.slack * TOLERANCE[dtype]

    def call(self) -> Callable[..., Any]:
        """Return the operation: (device, arrays, keywords) to arrays."""
        found: Callable[..., Any] = getattr(self._import(), self.function)
        return found

    def schedule(self, w: Workload, gpu: Gpu) -> Schedule:
        """Return the schedule of a workload on a GPU.

        Raises
        ------
        InputError
            If none of its tiles fits.
        """
        record = next(one for one in OWN_KERNELS if one.name == self.implementation)
        check_options(record, w)
        return with_options(record, w, record.build(w, gpu, None))


OPERATIONS: dict[str, Operation] = {
    one.name: one
    for one in (
        Operation(
            "flash",
            "flash",
            "flash_forward",
            "attnsim.flash",
            "fused forward in FlashAttention-2's loop order",
        ),
        Operation(
            "decode",
            "decode",
            "decode_attention",
            "attnsim.decode",
            "split-KV decode: keys shared out over blocks, then combined",
            passes="decode",
        ),
        Operation(
            "sparse",
            "sparse",
            "sparse_forward",
            "attnsim.sparse",
            "flash over a list of visible blocks",
            masks=(
                "causal, window 64, global 16",
                "dilated 48 step 3, global 8",
                "block window 1x64, random 2x64 seed 1, global 32",
            ),
        ),
        Operation(
            "flash-backward",
            "backward",
            "flash_backward",
            "attnsim.flash-backward",
            "gradients of fused attention, probabilities recomputed",
            passes="bwd",
            adversarial=NONE,
        ),
        Operation(
            "naive",
            "naive",
            "naive_forward",
            "attnsim.naive",
            "unfused: scores, softmax and PV as kernels of their own, S and P in global memory",
            adversarial=ONLY_EQUAL,
            slack=SCORES_IN_16_BITS,
        ),
        Operation(
            "linear",
            "linear",
            "linear_forward",
            "attnsim.linear",
            "linear attention with elu(x) + 1: over all keys, or causal in chunks",
            head_dims=(64, 128),
            window=False,
            rectangular=False,
        ),
        Operation(
            "linear-decode",
            "linear",
            "linear_decode",
            "attnsim.linear",
            "the same token by token, on the sums over all keys before",
            passes="decode",
            head_dims=(64, 128),
            window=False,
            rectangular=False,
        ),
        Operation(
            "naive-passes",
            "naive",
            "naive_passes_forward",
            "attnsim.naive-passes",
            "the same with scaling and mask as passes of their own over S",
            adversarial=ONLY_EQUAL,
            slack=SCORES_IN_16_BITS,
        ),
        Operation(
            "flash-hopper",
            "hopper",
            "flash_hopper",
            "attnsim.flash-hopper",
            "fused forward with wgmma, the tensor copy engine and register hand-over (sm_90a)",
            head_dims=(64, 128),
            example_gpu="h100-sxm5-80gb",
            experimental=True,
        ),
        Operation(
            "sigmoid",
            "sigmoid",
            "sigmoid_forward",
            "attnsim.sigmoid",
            "the same loop with a sigmoid of each score in place of the softmax",
        ),
    )
}
"""Operations by name, in order of the value of measuring them on a GPU."""


def find_operation(name: str) -> Operation:
    """Look up an operation by name.

    Raises
    ------
    InputError
        For an unknown name; the message has the nearest name and all names.
    """
    if name not in OPERATIONS:
        raise InputError(f"unknown kernel {name!r}; {nearest(name, OPERATIONS)}; all: {', '.join(OPERATIONS)}")
    return OPERATIONS[name]
