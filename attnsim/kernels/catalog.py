"""Catalog of our CUDA operations: one record each in ``catalog.toml``, used by commands, tests and benchmarks."""

from __future__ import annotations

import functools
import importlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
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


def _read(name: str, facts: Mapping[str, Any]) -> Operation:
    """Return the operation of an entry of the table."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
    return Operation(name, **fields)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
OPERATIONS = {name: _read(name, facts) for name, facts in _TABLE.items()}
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
