"""What a search over hardware asks a machine: an attention call, or the whole layer around it."""

from __future__ import annotations

from dataclasses import dataclass

from attnsim.api.answering import answer
from attnsim.api.asking import Conditions, ask
from attnsim.api.layer import layer
from attnsim.api.layer_prediction import LayerPrediction
from attnsim.api.prediction import Prediction
from attnsim.api.ratios import Ratio, speedup
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.llm.model import Model
from attnsim.models.mechanisms import playing
from attnsim.models.question.workload import Workload

Answered = Prediction | LayerPrediction
"""What a machine answers to a case."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a model: :func:`attnsim.layer`'s parameters of these names."""

    model: Model
    batch: int
    seq: int
    seq_kv: int | None = None
    passes: str = "fwd"
    dtype: str = "bf16"
    tp: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """A workload and its weight.

    Parameters
    ----------
    workload : Workload
        The attention call.
    weight : float
        Share of the unchanged machine's time, of any sum.
    name : str
        What a table calls it.
    layer : Layer, optional
        The layer of this attention call, where the whole of it is asked about.
    """

    workload: Workload
    weight: float = 1.0
    name: str = ""
    layer: Layer | None = None

    def algorithm(self, named: str | None) -> str:
        """The mechanism that is asked: the one named, else flash, and of a layer what plays its latent or mask."""
        return named or ("flash" if self.layer is None else playing(self.workload).name)

    def answered(self, gpu: Gpu, algorithm: str | None, implementation: str | None, conditions: Conditions) -> Answered:
        """The answer of a machine.

        Parameters
        ----------
        gpu : Gpu
        algorithm : str, optional
            Of the attention (:meth:`algorithm`).
        implementation : str, optional
        conditions : Conditions
            Its tile is the attention's.

        Raises
        ------
        InputError
        """
        one = self.layer
        if one is None:
            return answer(ask(self.workload, gpu, self.algorithm(algorithm), implementation, conditions))
        tile = (conditions.tile.rows, conditions.tile.keys) if conditions.tile else None
        return layer(
            one.model, gpu, batch=one.batch, seq=one.seq, seq_kv=one.seq_kv, passes=one.passes, dtype=one.dtype,
            tp=one.tp, algorithm=algorithm, implementation=implementation, tile=tile, cache=conditions.cache,
            launch=conditions.launch,
        )  # fmt: skip


def speedup_of(base: Answered, other: Answered) -> Ratio | None:
    """How many times faster a case is by `other`, of the same kind, than by `base`; None where one does not fit."""
    if isinstance(base, LayerPrediction) and isinstance(other, LayerPrediction):
        return other.speedup_over(base)
    assert isinstance(base, Prediction) and isinstance(other, Prediction)  # answers of one case
    return speedup(base, other)
