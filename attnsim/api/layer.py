"""The whole layer: projections and MLP on the same simulator as the attention, and what share attention has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Required, Unpack

from attnsim.api.answer import Outcome
from attnsim.api.answering import answer
from attnsim.api.asking import (
    Conditions,
    Given,
    LayerQuestion,
    ask,
    read_algorithm,
    read_conditions,
    read_gpu,
)
from attnsim.api.comparing.splitting import Split, check_splits, shared_out
from attnsim.api.layer_answer import Group, LayerAnswer, LayerPart, total
from attnsim.api.mixing import attention_part, mixer_parts, share_of_mixer
from attnsim.api.playing import library_schedule, replayed
from attnsim.api.trust import Reason, Trust
from attnsim.arrays import Floats
from attnsim.errors import InputError, shown
from attnsim.models.calibrations.components import NORMAL_90, widths
from attnsim.models.calibrations.numbers import ImplementationNumbers, Numbers
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.frameworks.layer import (
    Step,
    dense_mlp_steps,
    head_step,
    known_mlp,
    mlp_steps,
    step_schedule,
    steps,
)
from attnsim.models.implementations.gemms.gemm import GemmTimes, gemm_times
from attnsim.models.implementations.gemms.kernels import KERNELS, fit_of, kernel_of
from attnsim.models.llm.asked import asked_layers, not_attending
from attnsim.models.llm.files import load_model
from attnsim.models.llm.model import Model
from attnsim.models.llm.parallel import share_of_model
from attnsim.models.mechanisms import playing
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import LAUNCH_BOUND, UNIT_BOUND


class LayerGiven(Given, total=False):
    """A layer as a caller names it; :func:`layer` says what each means."""

    batch: int
    seq: Required[int]
    seq_kv: int | None
    passes: str
    dtype: str
    tp: int
    algorithm: str | None
    implementation: str | None


def layer(model: Model | str, gpu: Gpu | str, **asked: Unpack[LayerGiven]) -> LayerAnswer:
    """Predict one layer: projections, rotary embedding, attention and MLP.

    The steps around the attention are those of :mod:`attnsim.models.implementations.frameworks.layer`, those behind it
    of :mod:`attnsim.models.implementations.frameworks.layer`. Their products are GEMMs in closed
    form, with waits that were fitted (:mod:`attnsim.models.implementations.gemms.gemm`); products in fp32 are replayed.

    Parameters
    ----------
    model : Model or str
        A model, or what :func:`attnsim.load_model` takes; of layers that do not attend those whose kernels are known.
    gpu : Gpu or str
    batch, seq : int
        Sequences and their length; with ``passes="decode"`` and no `seq_kv` the keys in the cache.
    seq_kv : int, optional
        Keys, where not as many as queries.
    passes : {"fwd", "bwd", "fwd+bwd", "decode"}
    dtype : str
    tp : int
        GPUs that share the layer (:mod:`attnsim.models.llm.parallel`); the answer is one GPU's part.
    algorithm : str, optional
        Of the attention; default: what plays the model's latent (mla) or mask (sliding-window, sparse), else flash.
    implementation, tiles, tile : optional
        Of the attention, as for :func:`attnsim.predict`.
    mode, cache, launch, budget, progress, calibration
        As for :func:`attnsim.predict`; `cache` is cold by default: between two runs of a layer the other layers'
        weights have passed through the L2.

    Raises
    ------
    InputError
        Bad input, in one line; also a model whose MLP is not known.

    Examples
    --------
    >>> found = layer("llama-3-8b", "h100-sxm5-80gb", seq=8192)
    >>> [part.name for part in found.parts]
    ['QKV projection', 'rotary', 'attention', 'O projection', 'gate and up', 'activation', 'down']
    """
    return answer_layer(ask_layer(model, gpu, **asked))


def ask_layer(
    model: Model | str,
    gpu: Gpu | str,
    conditions: Conditions | None = None,
    *,
    batch: int = 1,
    seq: int,
    seq_kv: int | None = None,
    passes: str = "fwd",
    dtype: str = "bf16",
    tp: int = 1,
    algorithm: str | None = None,
    implementation: str | None = None,
    **given: Unpack[Given],
) -> LayerQuestion:
    """The question about a layer, as :func:`layer` has it; `conditions` take the place of those by name.

    Raises
    ------
    InputError
        For a model, GPU, shape or condition that is not known or not allowed.
    """
    chosen = share_of_model(_model(model), tp)
    if mixer := not_attending(chosen):
        chosen = replace(chosen, kinds=(share_of_mixer(mixer, tp),))
    known_mlp(chosen)
    if conditions is None:
        given.setdefault("cache", "cold")
        conditions = read_conditions(**given)
    w = chosen.workload(batch=batch, seq=seq, seq_kv=seq_kv, passes=passes, dtype=dtype)
    return LayerQuestion(chosen, tp, read_gpu(gpu), w, algorithm, implementation, conditions)


def answer_layer(asked: LayerQuestion) -> LayerAnswer:
    """The answer; where the layer is long enough for power to be felt, its parts are played as parts of it."""
    gpu, w = asked.gpu, asked.w
    parts, answers = _played(asked)
    time_s = total(part.time_s for part in parts)
    if time_s and time_s > architecture_of(gpu.compute_capability_number).slowed_from_s and not gpu.clock.held_hz:
        asked = replace(asked, conditions=replace(asked.conditions, within_s=time_s))
        parts, answers = _played(asked)
    dense, head = (
        tuple(_as_part(asked)(step, group) for step in found) for group, found in _elsewhere(asked.model, w).items()
    )
    return LayerAnswer(asked, tuple(parts), dense, head, tuple(answers), _trust(asked, parts, answers))


def _played(asked: LayerQuestion) -> tuple[list[LayerPart], list[Outcome]]:
    """The layer's parts in order, and the answers of its attention."""
    parts: list[LayerPart] = []
    answers: list[Outcome] = []
    model, w, gpu, conditions = asked.model, asked.w, asked.gpu, asked.conditions
    part = _as_part(asked)
    named = asked.algorithm or asked.implementation
    if mixer := not_attending(model):
        if w.passes not in ("fwd", "decode") or named:
            what = f"algorithm {named}" if named else f"pass {w.passes}"
            raise InputError(f"{model.id} is asked of its {mixer}: {what} is not known of it; take fwd or decode alone")
        lengths = (Length(w.seq_q, w.seq_kv, w.batch),)
        parts, answers = mixer_parts(mixer, model.hidden, lengths, gpu, w.dtype, conditions, part)
        return [*parts, *(part(one, "mlp") for one in mlp_steps(model, w))], answers
    for direction in w.directions:
        call = w if len(w.directions) == 1 else w.with_passes(direction)
        mechanism = read_algorithm(asked.algorithm) if asked.algorithm else playing(call)
        call = call if mechanism.reads_latent else replace(call, latent=None)
        found = answer(ask(call, gpu, mechanism, asked.implementation, conditions))
        answers.append(found)
        found_steps = steps(model, w, direction, [kernel for kernel, _ in found.kernels])
        before, after = (
            [part(step, "projections") for step in some] for some in (found_steps.before, found_steps.after)
        )
        mlp = [part(step, "mlp") for step in mlp_steps(model, w, direction)]
        attention = [*before, attention_part(found, direction), *after]
        parts += [*attention, *mlp] if direction == "fwd" else [*mlp, *attention]
    return parts, answers


def _as_part(asked: LayerQuestion) -> Callable[[Step, Group], LayerPart]:
    blocks = asked.model.fp8_blocks
    return partial(step_part, gpu=asked.gpu, dtype=asked.w.dtype, conditions=asked.conditions, blocks=blocks)


def _elsewhere(model: Model, w: Workload) -> dict[Group, list[Step]]:
    """Steps of the model outside such layers: the MLP of those without experts, and the LM head."""
    heads = (head_step(model, w, direction) for direction in w.directions)
    return {
        "mlp": [step for direction in w.directions for step in dense_mlp_steps(model, w, direction)],
        "head": [step for step in heads if step is not None],
    }


def attention_share(model: Model | str, gpu: Gpu | str, seqs: Sequence[int], **asked: Any) -> list[LayerAnswer]:
    """The layer at several lengths, of which :attr:`LayerAnswer.attention_share` is the share of attention.

    Parameters
    ----------
    model, gpu, asked
        As for :func:`layer`, without `seq`.
    seqs : sequence of int
        Lengths, with ``passes="decode"`` of the cache.

    Raises
    ------
    InputError
        When no length is given, and as :func:`layer` does.
    """
    if not seqs:
        raise InputError("no length is given; give one or more, such as 512, 8192")
    chosen = _model(model)
    return [layer(chosen, gpu, seq=seq, **asked) for seq in seqs]


def _model(model: Model | str) -> Model:
    if isinstance(model, Model):
        return asked_layers(model)
    if not isinstance(model, str):
        raise InputError(f"model is {shown(model)}; give an id such as 'llama-3-8b', a path or a Model")
    return asked_layers(load_model(model), model)


GEMM_NUMBERS = Numbers(ImplementationNumbers(call_s=0.0))
"""Numbers of the replay of a pass: the chip's rates, and no call of an attention interface."""
PASS_HALF_WIDTH = 0.34
"""Half-width of the 90 % interval of a pass's log time, assumed: that of GEMMs that were replayed without a fit."""


def step_part(
    step: Step, group: Group, gpu: Gpu, dtype: str, conditions: Conditions, library: str = "vllm", blocks: bool = False
) -> LayerPart:
    """A step beside the attention, as a part: products in closed form, others replayed.

    Parameters
    ----------
    step : Step
    group : str
    gpu : Gpu
    dtype : str
    conditions : Conditions
    library : str
        Whose fp8 GEMMs they are; those of 16 bits are cuBLAS's.
    blocks : bool
        Whether fp8 weights have scales of blocks.
    """
    if step.products and dtype != "fp32":
        experts = gpu if group == "mlp" and step.products[0].batch > 1 else None
        form = "bf16" if step.products[0].wide else "fp8-block" if dtype == "fp8" and blocks else dtype
        return _products(step, gpu, kernel_of(form, library, experts), conditions, group)
    schedule = library_schedule(step_schedule(step, gpu, dtype), lambda chip: step_schedule(step, chip, dtype), gpu)
    played = replayed(schedule, gpu, GEMM_NUMBERS, conditions)
    known = widths()
    sds = [PASS_HALF_WIDTH / known.factor, known.sd["architecture"] if gpu.changes else 0.0]
    half = known.half_width([*sds, math.log1p(played.spread) / NORMAL_90])
    return LayerPart(
        name=step.name,
        time_s=played.time_s,
        time_low_s=played.time_s * math.exp(-half),
        time_high_s=played.time_s * math.exp(half),
        hbm_bytes=round(played.hbm_read_bytes + played.hbm_write_bytes),
        flops_useful=step.flops,
        flops_executed=schedule.total("flops"),
        tile=schedule.tile_text,
        group=group,
        busiest=played.busiest,
        units_s=played.units_s(),
        exponentials=schedule.total("exps"),
        smem_bytes=played.smem_bytes,
        l2_bytes=round(played.l2_bytes),
        clock_hz=played.clock_hz,
        spread=played.spread,
        launch_s=played.launch_s,
    )


def _products(step: Step, gpu: Gpu, kernel: str, conditions: Conditions, group: Group) -> LayerPart:
    """The GEMMs of a step, one after the other."""
    fit, launch_s, given = fit_of(kernel, gpu), gpu.launch.each_s(conditions.launch), KERNELS[kernel].given
    weights = math.inf if conditions.cache == "cold" else 1.0
    found = [
        gemm_times(
            gpu,
            kernel,
            *one.shape,
            fit.waits,
            batch=one.batch,
            weights=weights,
            converts=one.after not in given,
            launch_s=launch_s,
            within_s=conditions.within_s,
        )
        for one in step.products
    ]

    def summed(of: Callable[[GemmTimes], Floats]) -> float:
        return float(sum(of(one)[0] for one in found))

    time_s = summed(lambda one: one.time_s)
    units = {name: float(sum(one.units_s[name][0] for one in found)) for name in found[0].units_s}
    unit = max(units, key=lambda name: units[name])
    launches = launch_s * len(found) > LAUNCH_BOUND * time_s
    known, own = widths(), {load_gpu(one).architecture for one in fit.gpus}
    carried = known.sd["architecture"] if gpu.changes or gpu.architecture not in own else 0.0
    half = known.half_width([fit.half_width / known.factor, carried])
    return LayerPart(
        name=step.name,
        time_s=time_s,
        time_low_s=time_s * math.exp(-half),
        time_high_s=time_s * math.exp(half),
        hbm_bytes=round(summed(lambda one: one.hbm_bytes)),
        flops_useful=step.flops,
        flops_executed=round(summed(lambda one: one.flops)),
        busiest="launch" if launches else unit if units[unit] >= UNIT_BOUND * time_s else "latency",
        tile="; ".join(dict.fromkeys(one.cuts[0] for one in found)),
        group=group,
        units_s=units | {"idle": max(0.0, time_s - units[unit])},
        exponentials=0,
        smem_bytes=round(summed(lambda one: one.smem_bytes)),
        l2_bytes=round(summed(lambda one: one.l2_bytes)),
        clock_hz=gpu.clock.full_hz * min(float(one.clock[0]) for one in found),
    )


def products_trust(dtype: str, gpu: Gpu, library: str = "vllm", blocks: bool = False) -> str:
    """How far off the GEMMs of a layer were on GPUs that were held out."""
    if dtype == "fp32":
        return "their GEMMs in fp32 have no calibration"
    fit = fit_of(kernel_of("fp8-block" if dtype == "fp8" and blocks else dtype, library), gpu)
    far = f"their 90 % range is a factor of {math.exp(fit.half_width):.2f} either way"
    return f"the mean error of GEMMs on GPUs that were held out of the fit is {100 * fit.held_out:.0f} %; {far}"


def _trust(asked: LayerQuestion, parts: Sequence[LayerPart], answers: Sequence[Outcome]) -> Trust:
    """Extrapolated, as the projections are; the interval is the sum of the parts' intervals."""
    low, time, high = (total(getattr(part, name) for part in parts) for name in ("time_low_s", "time_s", "time_high_s"))
    products = products_trust(answers[0].workload.dtype, asked.gpu, blocks=asked.model.fp8_blocks)
    said = [Reason("projections", f"projections and MLP: {products}")]
    for trust in (one.trust for one in answers):
        first, *rest = trust.reasons
        said += [Reason("attention", f"attention is {trust.level}: {first}"), *rest]
    if low is None or time is None or high is None:
        return replace(answers[0].trust, reasons=tuple(said))
    return Trust("extrapolated", low / time, high / time, None, tuple(said))


def split_layer(model: Model | str, gpu: Gpu | str, **asked: Unpack[LayerGiven]) -> Split[LayerAnswer]:
    """Split the speedup of a layer on a changed GPU among the changes, as :func:`attnsim.split` does a call's.

    Parameters
    ----------
    model : Model or str
    gpu : Gpu or str
        A GPU with 2 to 8 changes.
    asked
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
    question = ask_layer(model, changed.unchanged, **asked)

    def answered(machine: Gpu) -> LayerAnswer:
        found = answer_layer(replace(question, gpu=machine))
        if not found.fits:
            raise InputError(f"the attention of {found.model.id} {found.attention[0].notes[0]}")
        return found

    return shared_out(changed.unchanged, changed, answered)
