"""How far a mechanism that replaces the softmax is from softmax attention, on stated inputs.

Q, K and V are independent Gaussians of mean 0; V has variance 1, Q and K equal variances such that the scores
``q k / sqrt(d)`` have a given standard deviation: at 0.25 the weights are nearly flat, at 1 Q and K are standard
normal, at 4 a few keys hold most of a query's weight. Nothing is trained: random features and projections are drawn,
feature maps are as defined. A model trained with a mechanism adapts to it, so the figures tell what an exchange in a
trained model would cost, not what the mechanism can learn.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np

from attnsim.arrays import Floats
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import find_mechanism
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention

DEVIATIONS = (0.25, 1.0, 4.0)
"""Standard deviations of the scores: from nearly flat weights to peaked ones."""
SEQ = 512
WIDEST = 128
"""Errors of wider heads are given at this width; they cost as much as a prediction may."""


@dataclass(frozen=True, slots=True)
class ApproximationError:
    """Distance of O from softmax attention's on one set of inputs.

    Parameters
    ----------
    score_deviation : float
        Standard deviation of the scores.
    seq, head_dim : int
        Of the inputs, one head of one sequence.
    relative : float
        Frobenius norm of the difference over that of softmax attention's O.
    largest : float
        Largest difference of an element over the root mean square of softmax attention's O.
    """

    score_deviation: float
    seq: int
    head_dim: int
    relative: float
    largest: float

    def to_dict(self) -> dict[str, float]:
        """The fields, ready for JSON."""
        return asdict(self)


def approximation_errors(algorithm: str, w: Workload) -> tuple[ApproximationError, ...]:
    """Errors at each of `DEVIATIONS` for the width and the causality of a workload.

    Empty for an exact algorithm, and for one that content selects: what it loses on Gaussian inputs says nothing.
    """
    mechanism = find_mechanism(algorithm)
    if mechanism.exact or mechanism.selection:
        return ()
    causal = w.mask.within(w.seq_q, w.seq_kv).is_causal
    head_dim = min(w.head_dim, WIDEST)
    return tuple(
        approximation_error(algorithm, head_dim=head_dim, causal=causal, score_deviation=one) for one in DEVIATIONS
    )


@lru_cache(maxsize=256)
def approximation_error(
    algorithm: str,
    *,
    seq: int = SEQ,
    head_dim: int = 64,
    causal: bool = False,
    score_deviation: float = 1.0,
) -> ApproximationError:
    """Error of an algorithm's float64 reference against softmax attention's.

    Parameters
    ----------
    algorithm : str
        Its name; ``NAME@N`` with N random features or projected keys.
    seq, head_dim : int
    causal : bool
    score_deviation : float
        Standard deviation of ``q k / sqrt(d)``.

    Raises
    ------
    InputError
        When the algorithm has no number to choose.
    """
    mask = Mask.causal() if causal else Mask.full()
    q, k, v, want = _question(seq, head_dim, mask, score_deviation)
    off = find_mechanism(algorithm).reference(Workload(1, 1, seq, head_dim, mask=mask), q, k, v) - want
    size = float(np.linalg.norm(want))
    return ApproximationError(
        score_deviation,
        seq,
        head_dim,
        float(np.linalg.norm(off)) / size,
        float(np.abs(off).max()) / (size / math.sqrt(want.size)),
    )


@lru_cache(maxsize=16)
def _question(seq: int, head_dim: int, mask: Mask, score_deviation: float) -> tuple[Floats, ...]:
    """Q, K, V ``[1, 1, seq, head_dim]`` and softmax attention's O."""
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 1, seq, head_dim))
    q, k = math.sqrt(score_deviation) * q, math.sqrt(score_deviation) * k
    return q, k, v, attention(q, k, v, mask)[0]
