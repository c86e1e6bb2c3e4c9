"""The question that flags ask, and the model that fills them: the command line and the page both read by these."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

from attnsim.errors import InputError, Taken, shown
from attnsim.models.llm.model import LayerKind, Model
from attnsim.models.llm.parallel import LEFT_OUT, share_of_heads, share_of_model
from attnsim.models.question.lengths import Length, read_lengths
from attnsim.models.question.words import mask_of
from attnsim.models.question.workload import Workload
from attnsim.wording import and_text


def workload(
    *,
    batch: int = 1,
    heads: int | None,
    kv_heads: int | None = None,
    seq: int | None,
    seq_kv: int | None = None,
    lengths: str | None = None,
    page_size: int | None = None,
    prefix: int | None = None,
    tree: str | None = None,
    head_dim: int | None,
    head_dim_v: int | None = None,
    dtype: str = "bf16",
    causal: bool = False,
    window: int | None = None,
    mask: str | None = None,
    passes: str = "fwd",
    latent: str | None = None,
    operations: str | None = None,
    selection: str | None = None,
    tp: int = 1,
    model: Model | None = None,
    **options: Any,
) -> Workload:
    """The question that the flags ask, or, where they filled a model (:func:`filled`), that it asks.

    With ``--pass decode`` alone, `seq` is the length of the cache and there is one query a sequence; with
    `seq_kv` too, that is the cache and `seq` the queries. With `tp` it is one GPU's part. `options` are those of
    :data:`attnsim.models.question.words.KERNEL_OPTIONS` that are given.
    """
    told: dict[str, Any] = {
        "page_size": page_size or 0,
        "prefix": prefix or 0,
        "tree": tree,
        "operations": operations,
        "selection": selection,
    }
    told |= {name: value for name, value in options.items() if value}
    of_each = _lengths(lengths, passes, batch, seq, seq_kv)
    of_call = {"--heads": heads or model, "--seq": seq or lengths, "--head-dim": head_dim or model}
    lacking = [flag for flag, said in of_call.items() if said is None]
    if lacking:
        verb = "is" if len(lacking) == 1 else "are"
        raise InputError(f"{and_text(lacking)} {verb} missing; give {' '.join(f'{flag} N' for flag in lacking)}")
    if model is not None and latent is not None:
        raise InputError(f"--latent {latent} and --model exclude each other; a model says itself what it caches")
    if model is not None and (kind := not_attending(model)):
        raise InputError(f"{model.id} is asked of its {kind}, which does not attend; ask with predict --layer")
    if model is not None and (of_each or seq is not None):
        share = share_of_model(model, tp)
        of_model = share.workload(batch=batch, seq=seq or 1, seq_kv=seq_kv, passes=passes, dtype=dtype)
        lengths_of: dict[str, Any] = {"batch": 1, "seq_q": 0, "seq_kv": 0, "lengths": of_each} if of_each else {}
        return replace(of_model, **lengths_of, **told)
    assert heads is not None and head_dim is not None
    heads_q, heads_kv = share_of_heads(heads, kv_heads or heads, tp)
    given: dict[str, Any] = {"heads": heads_q, "kv_heads": heads_kv, "seq": seq, "seq_kv": seq_kv, "head_dim": head_dim}
    given |= {"head_dim_v": head_dim_v, "mask": mask, "causal": causal, "window": window, "latent": latent}
    given |= {"batch": batch, "dtype": dtype, "passes": passes, "lengths": of_each or None, **told}
    return Workload(**{name: value for name, value in given.items() if value is not None})


def _lengths(text: str | None, passes: str, batch: int, seq: int | None, seq_kv: int | None) -> tuple[Length, ...]:
    """The lengths of each sequence, in place of those of all."""
    if text is None:
        return ()
    for flag, value in (("--batch", batch if batch > 1 else None), ("--seq", seq), ("--seq-kv", seq_kv)):
        if value is not None:
            raise InputError(f"{flag} {value} and --lengths exclude each other; lengths say it of each sequence")
    found = read_lengths(text, passes == "decode")
    if passes == "fwd" and all(one.queries == 1 < one.keys for one in found):
        remark = "every sequence has one new token and is played forward; a step takes the kernels of --pass decode"
        warnings.warn(f"lengths: {remark}", Taken, stacklevel=3)
    return found


@dataclass(frozen=True)
class Filled:
    """A model with the flags applied that were given beside it, and a heading that says so.

    Of a model whose layers differ it is some of them, and `part` says how many.
    """

    model: Model
    title: str
    part: str = ""


def filled(
    name: str,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    head_dim_v: int | None = None,
    causal: bool = False,
    window: int | None = None,
    mask: str | None = None,
) -> Filled:
    """The model of ``--model``, and over it what other flags say.

    What is equal in the model stays equal: key heads follow ``--heads`` and V's width follows ``--head-dim``.
    """
    from attnsim.models.llm.files import load_model  # what knows no model is answered without

    whole = load_model(name)
    model = asked_layers(whole, name)
    flags: dict[str, int | str | None] = {
        "--heads": heads,
        "--kv-heads": kv_heads,
        "--head-dim": head_dim,
        "--head-dim-v": head_dim_v,
    }
    flags |= {"--window": window, "--mask": mask}
    told = [f"{flag} {value}" for flag, value in flags.items() if value is not None] + ["--causal"] * causal

    def over(model: Model) -> Model:
        width = head_dim or model.head_dim
        figures: dict[str, Any] = {
            "heads_q": heads or model.heads_q,
            "heads_kv": kv_heads or (heads if heads and model.heads_kv == model.heads_q else model.heads_kv),
            "head_dim": width,
            "head_dim_v": head_dim_v or (width if model.head_dim_v == model.head_dim else model.head_dim_v),
            "rotary": width if model.rotary == model.head_dim else min(model.rotary, width),
            "mask": mask_of(mask, causal, window, model.mask),
        }
        return replace(model, **figures)

    over_it = f" with {', '.join(told)}" if told else ""
    part = f", {model.layers} of {whole.layers} layers" if whole.kinds else ""
    return Filled(over(model), f"{model.id}{over_it}", part)


def asked_layers(model: Model, name: str = "") -> Model:
    """The layers that a question about a model is about: all, or of several kinds those that the model's figures name.

    Warns
    -----
    Taken
        Which layers they are and what the others have, and what of the model is not modelled.
    """
    if model.left_out:
        warnings.warn(f"{model.id}: not modelled: {'; '.join(model.left_out)}", Taken, stacklevel=3)
    if not model.kinds or not_attending(model):
        return model
    mine = model.own_kind
    others = [
        f"{one.layers} layers {one}"
        + (f" (--model {name or model.id}:{at}{'' if one.mask else ' with --layer'})" if one.heads_q else "")
        for at, one in enumerate(model.kinds, 1)
        if one is not mine
    ]
    warnings.warn(
        f"{model.id}: a call is of {mine.layers} of {model.layers} layers, {mine}; others: {'; '.join(others)}",
        Taken,
        stacklevel=3,
    )
    return model.only(mine)


def not_attending(model: Model) -> LayerKind | None:
    """The kind of the layers that a question is about, where they do not attend and have kernels of their own."""
    alone = model.kinds[0] if len(model.kinds) == 1 else None
    return alone if alone and alone.mask is None and alone.heads_q else None


def cache_of(given: str | None, model: Filled | None, passes: str, lengths: str | None) -> str:
    """State of the L2 before a call: as given, else cold for decode of a model, and warm.

    Between two tokens of a model all its other layers run, so that neither K and V nor weights are left from the last.
    """
    if given not in (None, "cold", "warm"):
        raise InputError(f"cache is {shown(given)}; allowed: cold, warm")
    return given or ("cold" if _decodes(model, passes, lengths) else "warm")


def _decodes(model: Filled | None, passes: str, lengths: str | None) -> bool:
    """Whether it is decode of a model, or a batch in which some sequences decode."""
    if model is None or lengths is None:
        return model is not None and passes == "decode"
    return passes == "decode" or any(one.queries == 1 < one.keys for one in read_lengths(lengths, False))


def title_of(
    model: Filled | None,
    tp: int,
    given: str | None = None,
    passes: str = "fwd",
    lengths: str | None = None,
    left_out: bool = True,
) -> str:
    """The words in front of a question: the model, how many GPUs share it, the L2 of its decode; or nothing.

    Without `left_out` they say nothing of all-reduces, where some answers of the question have them.
    """
    told = [model.title + model.part if model else "", shared_text(tp, left_out)]
    if _decodes(model, passes, lengths):
        cold = cache_of(given, model, passes, lengths) == "cold"
        told.append("cold L2" if cold else "warm L2, as if no other layer had run since")
    found = ", ".join(filter(None, told))
    return f"{found}: " if found else ""


def shared_text(tp: int, left_out: bool = True) -> str:
    """How many GPUs share each layer, and what is left out; nothing where one computes it alone."""
    return f"one of {tp} GPUs{f' ({LEFT_OUT})' * left_out}" if tp > 1 else ""
