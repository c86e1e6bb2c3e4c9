"""`attnsim predict --layer`: the parts of a layer, what the model takes, and attention's share by length."""

from __future__ import annotations

from itertools import chain, product
from typing import Any

from attnsim.api.comparing.splitting import Split
from attnsim.api.layer import layer, split_layer
from attnsim.api.layer_answer import LayerAnswer
from attnsim.api.step import step
from attnsim.cli import given, options, progress, question_flags, show
from attnsim.cli.predict_flags import PredictFlags
from attnsim.cli.question_flags import NOT_OF_LAYERS
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.llm.asked import title_of
from attnsim.models.question.lengths import read_lengths
from attnsim.models.question.words import KERNEL_OPTIONS
from attnsim.plots.step import step as draw_step
from attnsim.reports.layers import Layer, layers, steps, tokens_text
from attnsim.reports.predictions import split_table
from attnsim.tables import written

_NOT_OF_STEPS = (
    *("tile", "tiles", "baseline", "split_changes", "operations", "page_size", "prefix", "tree"),
    *("selection", "batch", "seq", "seq_kv", "heads", "kv_heads", "head_dim", "head_dim_v", "latent", "causal"),
    *("window", "mask", *(name for name in KERNEL_OPTIONS if name != "kv_dtype")),
)
"""Flags that say nothing of a step, whose model and lengths say it all."""


def predict_layers(wanted: PredictFlags) -> None:
    """Answer `attnsim predict --layer`: every length on every GPU, or a step on every GPU with ``--lengths``."""
    flags, how, changes = wanted.flags, wanted.how, wanted.changes
    asked: dict[str, Any] = how.with_l2(flags.cache or "cold")
    asked |= {name: getattr(wanted, name) or None for name in ("algorithm", "implementation")}
    if flags.lengths is not None:
        _predict_steps(wanted, asked)
        return
    given.refuse(wanted.context, "does not go with --layer", ("tile", "tiles", "baseline", *NOT_OF_LAYERS))
    filled = flags.filled
    if filled is None:
        raise InputError("--layer needs a model; give --model ID (attnsim models lists them)")
    if wanted.split_changes:
        options.check_split(changes)
    bases = [load_gpu(name) for name in options.words(wanted.gpu, "--gpu")]
    pairs = [(base, question_flags.changed(base, changes)) for base in bases]
    asked |= {name: getattr(flags, name) for name in ("batch", "seq_kv", "passes", "dtype", "tp")}
    answers: list[Layer] = []
    splits: list[Split[LayerAnswer]] = []
    with progress.plays() as report:
        for (base, machine), length in product(pairs, wanted.lengths):
            machines = dict.fromkeys((base, machine))
            found = [layer(filled.model, one, seq=length or 0, progress=report, **asked) for one in machines]
            answers.append(Layer(found[0]))
            answers += [Layer(one, found[0]) for one in found[1:]]
            if wanted.split_changes:
                splits.append(split_layer(filled.model, machine, seq=length or 0, **asked))
    answers.sort(key=lambda one: one.base is not None)
    title = "\nlayer with {} on {}"
    tables = (split_table(one, title.format(tokens_text(one.changed.workload), one.changed.gpu)) for one in splits)
    blocks = chain(layers(title_of(filled, flags.tp), how.launch, answers), tables)
    show.give(
        wanted.json, (one.to_dict() for one in (splits if wanted.split_changes else answers)), blocks, wanted.verbose
    )


def _predict_steps(wanted: PredictFlags, asked: dict[str, Any]) -> None:
    """Answer `attnsim predict --layer --lengths`: a step on every GPU, unchanged and changed."""
    flags, ep = wanted.flags, wanted.ep or 0
    given.refuse(wanted.context, "does not go with --layer --lengths", _NOT_OF_STEPS)
    if flags.model is None:
        raise InputError("--layer needs a model; give --model ID (attnsim models lists them)")
    if flags.passes not in ("fwd", "decode"):
        raise InputError(f"--pass {flags.passes} does not go with --layer --lengths, a step of a server; leave it out")
    lengths = read_lengths(flags.lengths or "", flags.passes == "decode")
    asked |= {"dtype": flags.dtype, "tp": flags.tp, "ep": ep}
    asked |= {"kernel": {"kv_dtype": flags.kv_dtype}} if flags.kv_dtype else {}
    asked |= {} if given.is_given(wanted.context, "launch") else {"launch": "graph"}
    machines: list[Any] = []
    for base in [load_gpu(name) for name in options.words(wanted.gpu, "--gpu")]:
        machines += dict.fromkeys((base, question_flags.changed(base, wanted.changes, joined=max(flags.tp, ep) > 1)))
    with progress.plays() as report:
        answers = [step(flags.model, one, lengths, progress=report, **asked) for one in machines]
    files = wanted.plot.draw(lambda: draw_step(answers))
    show.give(wanted.json, (one.to_dict() for one in answers), chain(steps(answers), written(files)), wanted.verbose)
