"""The flags of a question, declared once, and how a command takes flags gathered into one object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any, get_type_hints

from attnsim.cli import options
from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import changeable_alone
from attnsim.models.llm import asked
from attnsim.models.llm.files import load_model
from attnsim.models.llm.model import Model
from attnsim.models.question.words import KERNEL_OPTIONS
from attnsim.models.question.workload import Workload

NOT_OF_DENSITIES = (
    *("seq_kv", "head_dim_v", "latent", "window", "passes", "operations"),
    *("lengths", "page_size", "prefix", "tree", "selection", *KERNEL_OPTIONS),
)
"""Flags of no question about the density of a pattern: prompts of one length by self-attention, nothing cached."""

NOT_OF_LAYERS = ("operations", "lengths", "page_size", "prefix", "tree", "selection", *KERNEL_OPTIONS)
"""Flags of a question that say nothing of a layer."""


@dataclass(frozen=True, kw_only=True)
class QuestionFlags:
    """The flags that make up a question."""

    model: options.ModelName = None
    batch: options.Batch = 1
    heads: options.Heads = None
    kv_heads: options.KvHeads = None
    seq: options.Seq = None
    seq_kv: options.SeqKv = None
    lengths: options.LengthsText = None
    page_size: options.PageSize = None
    prefix: options.Prefix = None
    tree: options.TreeText = None
    head_dim: options.HeadDim = None
    head_dim_v: options.HeadDimV = None
    latent: options.LatentText = None
    tp: options.Tp = 1
    dtype: options.Dtype = "bf16"
    causal: options.Causal = False
    window: options.Window = None
    mask: options.MaskText = None
    passes: options.Pass = "fwd"
    operations: options.OperationsText = None
    selection: options.SelectionText = None
    cache: options.Cache = None
    kv_dtype: options.KvDtype = None
    sinks: options.Sinks = False
    softcap: options.Softcap = None

    @cached_property
    def filled(self) -> asked.Filled | None:
        """The model of ``--model`` with the other flags over it; None without one."""
        if self.model is None:
            return None
        over: dict[str, Any] = {name: getattr(self, name) for name in OVER_A_MODEL}
        return asked.filled(self.model, **over)

    @property
    def title(self) -> str:
        """Text before the question: the model, how many GPUs share it, and a colon; or nothing."""
        return self.titled()

    def titled(self, left_out: bool = True) -> str:
        """The title, with or without the remark on all-reduces."""
        return asked.title_of(self.filled, self.tp, self.cache, self.passes, self.lengths, left_out)

    @property
    def l2(self) -> str:
        """State of the L2 before the call: cold or warm."""
        return asked.cache_of(self.cache, self.filled, self.passes, self.lengths)

    def workload(self, **other: int | None) -> Workload:
        """The question; `other` values in place of those of the flags."""
        filled = self.filled
        values: dict[str, Any] = {name: getattr(self, name) for name in OF_THE_CALL}
        return asked.workload(**values | other | {"model": filled.model if filled else None})

    @property
    def kernel(self) -> dict[str, object]:
        """The options of a kernel other than its shape."""
        return {name: value for name in KERNEL_OPTIONS if (value := getattr(self, name))}

    @cached_property
    def whole(self) -> Model:
        """The model with all its layers, and the other flags over it where all are alike."""
        found, filled = load_model(self.model or ""), self.filled
        if filled is None or not found.kinds:
            return filled.model if filled else found
        if filled.title != found.id:
            raise InputError(
                f"{filled.title}: its layers differ; give such flags beside a model whose layers are alike"
            )
        return found


@dataclass(frozen=True, kw_only=True)
class LaunchFlags:
    """The flags that say how kernels are launched, and by which timings answers are corrected."""

    launch: options.Launch = "stream"
    calibration: options.Calibration = None

    def with_l2(self, cache: str) -> dict[str, Any]:
        """All conditions, by the names of the API's parameters."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"cache": cache}


@dataclass(frozen=True, kw_only=True)
class ConditionFlags(LaunchFlags):
    """The flags that say under which conditions a question is answered, save the state of the L2."""

    mode: options.Mode = "fast"
    budget: options.Budget = None


@dataclass(frozen=True, kw_only=True)
class CallFlags:
    """The flags of one call on one GPU, as it is or changed."""

    gpu: options.OneGpu
    algorithm: options.AlgorithmName = "flash"
    implementation: options.ImplementationName = None
    flags: QuestionFlags
    changes: options.Changes = field(default_factory=list)
    how: LaunchFlags

    @cached_property
    def machine(self) -> Gpu:
        """The GPU with every change."""
        return changed(load_gpu(self.gpu), self.changes)

    @property
    def conditions(self) -> dict[str, Any]:
        """Implementation and conditions, by the names of the API's parameters."""
        return {"implementation": self.implementation, **self.how.with_l2(self.flags.l2)}


OVER_A_MODEL = ("heads", "kv_heads", "head_dim", "head_dim_v", "causal", "window", "mask")
"""Flags that replace what ``--model`` says."""
OF_THE_CALL = tuple(one.name for one in fields(QuestionFlags) if one.name != "cache")
"""Fields that say what is called; the L2 is a condition."""


def asking(
    *, without: Collection[str] = (), **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for each field of a dataclass that it takes, and hand it the dataclass.

    The flags stand where the dataclass does. A flag of the same name declared after it replaces its own, in that place.

    Parameters
    ----------
    without
        Flags that the command does not have.
    **defaults
        In place of those of the flags.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            _call(command, given)

        flags = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, one.default))
            for name, one in _flags(command).items()
            if name not in without
        ]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
        return run

    return wrap


def _parameters(owner: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a command or a dataclass."""
    hints = get_type_hints(owner, include_extras=True)
    made = {one.name: one.default_factory for one in (fields(owner) if is_dataclass(owner) else ())}
    return {
        name: one.replace(annotation=hints[name], default=one.default if made.get(name, MISSING) is MISSING else [])
        for name, one in inspect.signature(owner).parameters.items()
    }


def _flags(owner: Any) -> dict[str, inspect.Parameter]:
    """The parameters, with the fields of a dataclass in its place."""
    found: dict[str, inspect.Parameter] = {}
    for name, one in _parameters(owner).items():
        found |= _flags(one.annotation) if is_dataclass(one.annotation) else {name: one}
    return found


def _call(owner: Any, given: dict[str, Any]) -> Any:
    """Call a command or a dataclass with its own flags, and build the dataclasses it takes from the rest."""
    nested = {name: one.annotation for name, one in _parameters(owner).items() if is_dataclass(one.annotation)}
    own = _parameters(owner).keys() - nested.keys()
    rest = {name: value for name, value in given.items() if name not in own or name == "context"}
    built = {name: _call(kind, rest) for name, kind in nested.items()}
    return owner(**{name: value for name, value in given.items() if name in own}, **built)


def changed(gpu: Gpu, settings: list[str], *, joined: bool = False) -> Gpu:
    """The GPU with every ``KEY=VALUE`` applied in order; only of several `joined` GPUs what joins them."""
    for key, value in options.read_settings(settings).items():
        try:
            if not joined:
                changeable_alone(key)
            gpu = gpu.replace(key, value)
        except InputError as error:
            raise InputError(f"--set {key}={value}: {error}") from None
    return gpu


def beside_unchanged(gpus: list[str], settings: list[str]) -> list[Gpu]:
    """Each GPU as it is, and where something is set, the changed one beside it."""
    bases = [load_gpu(name) for name in options.words(gpus, "--gpu")]
    return [one for base in bases for one in ([base, changed(base, settings)] if settings else [base])]
