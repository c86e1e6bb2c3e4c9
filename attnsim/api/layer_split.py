"""What each of several changes of a GPU brings to a whole layer: alone, as the last one, and on average over orders."""

from __future__ import annotations

from attnsim.api.asking import read_gpu
from attnsim.api.layer import layer
from attnsim.api.layer_prediction import LayerPrediction
from attnsim.api.splitting import Split, check_splits, shared_out
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.llm.model import Model


def split_layer(
    model: Model | str,
    gpu: Gpu | str,
    *,
    batch: int = 1,
    seq: int,
    seq_kv: int | None = None,
    passes: str = "fwd",
    dtype: str = "bf16",
    tp: int = 1,
    algorithm: str | None = None,
    implementation: str | None = None,
    mode: str = "fast",
    cache: str = "cold",
    launch: str = "stream",
    budget: int | None = None,
) -> Split[LayerPrediction]:
    """Split the speedup of a layer on a changed GPU among the changes, as :func:`attnsim.split` does a call's.

    Parameters
    ----------
    model : Model or str
    gpu : Gpu or str
        A GPU with 2 to 8 changes.
    batch, seq, seq_kv, passes, dtype, tp, algorithm, implementation, mode, cache, launch, budget
        As for :func:`attnsim.layer`.

    Raises
    ------
    InputError
        As :func:`attnsim.split` and :func:`attnsim.layer` do.

    Examples
    --------
    >>> from attnsim.models.hardware.files import load_gpu
    >>> gpu = load_gpu("h100-sxm5-80gb").replace({"tensor.bf16": "1.5x", "hbm.bandwidth": "6 TB/s"})
    >>> found = split_layer("llama-3-8b", gpu, batch=16, seq=8192, passes="decode")
    >>> max(found.parts, key=lambda part: part.mean.value).change.key
    'hbm.bandwidth'
    """
    changed = read_gpu(gpu)
    check_splits(changed)

    def answered(machine: Gpu) -> LayerPrediction:
        found = layer(
            model, machine, batch=batch, seq=seq, seq_kv=seq_kv, passes=passes, dtype=dtype, tp=tp,
            algorithm=algorithm, implementation=implementation, mode=mode, cache=cache, launch=launch, budget=budget,
        )  # fmt: skip
        if found.time_s is None:
            raise InputError(f"the attention of {found.model.id} {found.attention[0].notes[0]}")
        return found

    return shared_out(changed.unchanged, changed, answered)
