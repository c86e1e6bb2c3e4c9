"""Compares the outputs of a kernel with a reference function of its inputs.

Adversarial inputs for kernels: growing scores, one large outlier, all rows equal, one NaN.

With random normal inputs, scores lie close together. An online softmax then seldom takes the branch that rescales O,
and a kernel whose rescaling is wrong passes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnsim.arrays import Floats
from attnsim.by_hand import by_hand
from attnsim.errors import InputError, nearest
from attnsim.ptx.counters import decode

TOLERANCE = {"fp16": 2e-3, "bf16": 1.6e-2}
"""Largest allowed ``max |got - want| / max |want|``: two units in the last place of the output format (2^-10, 2^-7)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outputs of one run of an operation and their float64 reference, both as float64.

    Parameters
    ----------
    outputs, expected : mapping of str to ndarray
        Arrays by the tensor's name, with equal shapes.
    """

    outputs: Mapping[str, Floats]
    expected: Mapping[str, Floats]

    def errors(self) -> dict[str, float]:
        """Return each tensor's largest difference divided by its largest expected magnitude.

        Infinities and NaN must agree exactly, else the tensor's error is ``inf``.
        """
        return {name: _error(self.outputs[name], want) for name, want in self.expected.items()}

    def largest_error(self) -> float:
        """Return the largest error of all tensors."""
        return max(self.errors().values())


def _error(got: Floats, want: Floats) -> float:
    if got.shape != want.shape:
        return float("inf")
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = np.abs(want[finite]).max()
    return float(np.abs(got[finite] - want[finite]).max() / scale) if scale else float(np.abs(got[finite]).max())


TOLERANCE_FP32 = 1e-5
"""Tolerance if no argument has 16 bits: 2^-17, for sums of some thousand terms in fp32 (2^-24 each)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between one output and the reference.

    Parameters
    ----------
    max_abs : float
        Largest absolute difference; infinite if only one side has a NaN or an infinity.
    max_rel : float
        `max_abs` divided by the reference's largest magnitude.
    """

    output: str
    max_abs: float
    max_rel: float


def values_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the arguments for a reference: floats to float64 (uint16 as bf16), integers unchanged."""
    return {name: _value(given) for name, given in arguments.items()}


def _value(given: Any) -> Any:
    if not isinstance(given, (np.ndarray, np.generic)):
        return given
    array = np.array(given, copy=True)
    array = decode(array) if array.dtype.kind == "f" or array.dtype == np.uint16 else array
    return array if isinstance(given, np.ndarray) else array[()]


def tolerance_of(arguments: Mapping[str, Any]) -> float:
    """Return the allowed relative difference: the tolerance of the coarsest format among the arrays."""
    kinds = {str(given.dtype) for given in arguments.values() if isinstance(given, np.ndarray)}
    return TOLERANCE["bf16"] if "uint16" in kinds else TOLERANCE["fp16"] if "float16" in kinds else TOLERANCE_FP32


def expected_of(
    reference: Callable[..., Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> dict[str, Floats]:
    """Call a reference and return the expected outputs by name.

    Parameters
    ----------
    reference : callable
        Its parameters are names of arguments, or ``**inputs`` for all of them. It returns a mapping of output to array,
        or one array if there is one output, or a tuple of arrays in the order of the arguments.
    inputs : mapping of str to array or number
        Values before the run, from :func:`values_of`.
    outputs : mapping of str to array
        Values after the run.

    Raises
    ------
    InputError
        If the reference names an unknown argument, fails, or returns something else.
    """
    name = getattr(reference, "__name__", "the reference")
    try:
        result = reference(**_asked(reference, name, inputs))
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # somebody's own code
        raise InputError(f"{name} fails: {type(error).__name__}: {error}") from None
    if not isinstance(result, Mapping):
        several = result if isinstance(result, tuple) else (result,)
        if len(several) != len(outputs):
            raise InputError(
                f"{name} returns {len(several)} arrays, the kernel stored to {len(outputs)}: {', '.join(outputs)}; "
                "return a dict by name to compare some of them"
            )
        result = dict(zip(outputs, several, strict=True))
    for output, array in result.items():
        if output not in outputs:
            raise InputError(f"{name} returns {output}, which the kernel did not store to; it stored {list(outputs)}")
        if np.shape(array) != outputs[output].shape:
            shapes = f"{list(np.shape(array))}, the kernel {list(outputs[output].shape)}"
            raise InputError(f"{name} returns {output} of shape {shapes}")
    return {output: np.asarray(array, np.float64) for output, array in result.items()}


def _asked(reference: Callable[..., Any], name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if not callable(reference):
        raise InputError(f"{name} is {type(reference).__name__}; give a function")
    parameters = inspect.signature(reference).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return dict(inputs)
    unknown = [one.name for one in parameters if one.name not in inputs and one.default is one.empty]
    if unknown:
        raise InputError(f"{name} asks for {', '.join(unknown)}; the arguments are {', '.join(inputs)}")
    return {one.name: inputs[one.name] for one in parameters if one.name in inputs}


def differences(outputs: Mapping[str, Any], expected: Mapping[str, Floats]) -> list[Difference]:
    """Return the difference of each output from its expected values."""
    got = values_of({name: outputs[name] for name in expected})
    relative = Outcome(got, expected).errors()
    found = []
    for name, want in expected.items():
        finite = np.isfinite(want)
        largest = float(np.abs(want[finite]).max()) if finite.any() else 0.0
        error = relative[name]
        found.append(Difference(name, error * largest if largest and np.isfinite(error) else error, error))
    return found


INPUTS = ("normal", "growing", "outlier", "equal", "nan")
"""Kinds: normal numbers; rows along one direction, longest in the middle; one outlier row; all ones; one NaN."""

GROWTH = by_hand(3.0, "how much longer than the outer rows the middle one is, in their lengths: scores grow 4 fold")
SPREAD = by_hand(0.1, "deviation of growing rows from their direction, so that no two products are equal")
OUTLIER = by_hand(32.0, "how far out the outlier is: its scores decide a softmax, its products fit into fp16")
PLACE = by_hand(
    2 / 3, "where the outlier and the NaN are: in a late tile of keys, but in none of the first or the last"
)


def fill(shape: tuple[int, ...], kind: str, random: np.random.Generator) -> Floats:
    """Fill an array with numbers of a kind; rows are the second last dimension, or the elements of a 1-D array.

    Parameters
    ----------
    kind : str
        One of :data:`INPUTS`. If Q and K are both "growing", every score is positive, and scores grow from either end
        to the middle. A kernel that walks over the keys in either direction therefore meets growing scores.

    Raises
    ------
    InputError
        For another kind.
    """
    check_kind(kind)
    rows, width = (shape[-2], shape[-1]) if len(shape) > 1 else (shape[0], 1)
    normal = random.standard_normal((*shape[:-2], rows, width))
    match kind:
        case "growing":
            direction = np.where(np.arange(width) % 2, -1.0, 1.0)
            inwards = 1 - np.abs(np.linspace(-1, 1, rows) if rows > 1 else np.zeros(1))
            normal = (1 + GROWTH * inwards[:, None]) * direction + SPREAD * normal
        case "outlier":
            normal[..., int(rows * PLACE), :] *= OUTLIER
        case "equal":
            normal = np.ones_like(normal)
        case "nan":
            normal[(0,) * (normal.ndim - 2) + (int(rows * PLACE), 0)] = np.nan
    return normal.reshape(shape)


def check_kind(kind: str) -> None:
    """Raise InputError for a name that is not one of :data:`INPUTS`."""
    if kind not in INPUTS:
        raise InputError(f"unknown inputs {kind!r}; {nearest(kind, INPUTS)}; allowed: {', '.join(INPUTS)}")
