"""One step of a whole model in a batch of different sequences, on one GPU or on several that share every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from attnsim.api.answer import Outcome
from attnsim.api.answering import answer
from attnsim.api.asking import (
    Calibrated,
    Conditions,
    LayerQuestion,
    Question,
    ask,
    read_algorithm,
    read_conditions,
    read_gpu,
)
from attnsim.api.layer import products_trust, step_part
from attnsim.api.layer_answer import Group, LayerPart
from attnsim.api.mixing import attention_part, mixer_parts, share_of_mixer
from attnsim.api.playing import too_large
from attnsim.api.step_answer import Memory, StepAnswer
from attnsim.errors import InputError, shown
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.collectives.all_reduce import norms_too
from attnsim.models.implementations.collectives.collective import check_server, collective_time, libraries
from attnsim.models.implementations.collectives.known import collective_of
from attnsim.models.implementations.frameworks import layer
from attnsim.models.implementations.frameworks.layer import (
    Step,
    cache_write_step,
    embedding_step,
    head_norm_step,
    head_step,
    known_mlp,
    mlp_steps,
    norm_step,
    router_step,
    steps,
)
from attnsim.models.implementations.frameworks.servers import Served, served_attention
from attnsim.models.llm.files import load_model
from attnsim.models.llm.model import LayerKind, Model
from attnsim.models.llm.parallel import share_of_model
from attnsim.models.mechanisms import playing
from attnsim.models.question.lengths import Length, checked_lengths, lengths_of
from attnsim.models.question.workload import DTYPE_BYTES, Workload
from attnsim.simulator.replay import Progress

MOST_SHARED = 64
SLOWER_EXCHANGE = 3.0
"""Time of exchanges with experts of vLLM and TensorRT-LLM over the predicted one, median of ``benchmarks/steps.py``."""


def step(
    model: Model | str,
    gpu: Gpu | str,
    lengths: object,
    *,
    dtype: str = "bf16",
    tp: int = 1,
    ep: int = 0,
    algorithm: str | None = None,
    implementation: str | None = None,
    library: str | None = None,
    mode: str = "fast",
    cache: str = "cold",
    launch: str = "graph",
    budget: int | None = None,
    progress: Progress | None = None,
    calibration: Calibrated = None,
    kernel: Mapping[str, Any] = MappingProxyType({}),
) -> StepAnswer:
    """Predict one step of a model: every layer, the LM head, and what the GPUs say to each other.

    Two all-reduces a layer follow the products with W_O and W_down (Megatron-LM, arXiv 1909.08053), one the embedding;
    an all-gather brings the logits together. Tokens of several groups of GPUs go to whole experts and back by two
    all-to-alls. Kernels are those that vLLM launches, in a CUDA graph.

    Parameters
    ----------
    model : Model or str
        A model, or what :func:`attnsim.load_model` takes. Layers of which no kernels are known are left out, and named.
    gpu : Gpu or str
    lengths : sequence of Length, or what :func:`attnsim.models.question.lengths.lengths_of` reads
        New tokens of each sequence, and all that they attend: "1:4096 x 63, 512:2560".
    dtype : str
        Of weights, activations and cache. Where no kernel of the attention has fp8, it and its cache are bf16.
    tp : int
        GPUs that share every layer.
    ep : int
        GPUs among which whole experts are divided: `tp`, or several such groups, each with a batch like this one; 0
        where experts are divided in width.
    algorithm, implementation : str, optional
        Of the attention; or a server alone ("vllm", "sglang", "trtllm") with all its kernels, which is then `library`.
    library : {"vllm", "sglang", "tensorrt-llm", "nccl"}, optional
        Whose all-reduce it is; default: that of `implementation`, else vLLM's.
    mode, cache, launch, budget, progress, calibration
        As for :func:`attnsim.layer`; timings of one's own correct the attention.
    kernel : mapping
        What the attention asks of its kernels beside its shape: ``kv_dtype``, ``sinks``, ``softcap``.

    Raises
    ------
    InputError
        Also when model and batch do not fit the GPUs' memory.

    Examples
    --------
    >>> found = step("llama-3-70b", "h100-sxm5-80gb", "1:4096 x 63, 512:2560", tp=4)
    >>> found.new_tokens, round(found.share("communication"), 1) < 0.3
    (575, True)
    """
    whole, machine = _read(model), read_gpu(gpu)
    if not any(kind.mlp for kind in whole.kinds):
        known_mlp(whole)
    for name, value, least in (("tp", tp, 1), ("ep", ep, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_SHARED:
            raise InputError(f"{name} is {shown(value)}; allowed: a whole number from {least} to {MOST_SHARED}")
    check_server(machine, tp)
    check_server(machine, ep, "experts")
    batch = checked_lengths(lengths_of(lengths))
    kinds = [kind for kind in whole.layer_kinds if kind.mask is not None]
    if not kinds or any(kind.kind == "cross-attention" for kind in kinds):
        what = "an encoder and a decoder, which run apart" if kinds else "no layer that attends"
        raise InputError(f"{whole.id} has {what}; a step is of a model whose every layer runs: take another")
    named, _, of_it = (implementation or "").lower().partition(".")
    named = {"trtllm": "tensorrt-llm"}.get(named, named)
    library = library or (named if named in libraries() else "vllm")
    if named == library and not of_it:
        implementation = None  # the server, with all its kernels
    run = _Run(whole, machine, batch, dtype, tp, ep, algorithm, implementation, library, kernel)
    run = replace(run, attended=run.format_of_attention(kinds[0]))
    memory = run.memory(kinds)
    _check_fits(whole, memory, max(tp, ep))
    conditions = read_conditions(
        mode=mode, cache=cache, launch=launch, budget=budget, progress=progress, calibration=calibration
    )
    parts, answers = run.parts(kinds, conditions)
    time_s = sum(number * (part.time_s or 0.0) for number, part in parts)
    row = architecture_of(machine.compute_capability_number)
    if time_s > row.slowed_from_s and not machine.clock.held_hz:
        within_s = min(row.slowed_to_s, float(f"{time_s:.1g}"))  # of steps alike the same, and longer ones slow no more
        parts, answers = run.parts(kinds, replace(conditions, within_s=within_s))
    left_out = tuple(
        f"{one.layers} layers of {one}" for one in whole.kinds if not (one.mask or one.mlp or layer.is_played(one))
    )
    return StepAnswer(
        whole, tp, ep, machine.id, machine.changes, batch, tuple(parts), tuple(answers), memory,
        (*left_out, *whole.left_out), library, dtype, mode, cache, launch,
        LayerQuestion(whole, tp, machine, answers[0].workload, algorithm, implementation, conditions),
        products_trust(dtype, machine, _FP8.get(library, library), whole.fp8_blocks),
    )  # fmt: skip


_FP8 = {"tensorrt-llm": "trtllm"}
"""Whose fp8 GEMMs go with an all-reduce, where the names differ."""

_seen_part = lru_cache(maxsize=4096)(step_part)
"""Parts are the same of steps with as many tokens, whatever is attended."""


def _apart(whole: Workload) -> list[Workload]:
    """A batch as a call of the sequences that decode and one of the others, where it has both."""
    decode, prompts = (
        tuple(one for one in whole.lengths if (one.queries == 1) is decodes) for decodes in (True, False)
    )
    return [whole.having(decode).with_passes("decode"), whole.having(prompts)] if decode and prompts else [whole]


def _within(part: LayerPart, name: str) -> LayerPart:
    """A part that another kernel does, without a launch of its own."""
    low, time, high = (
        (one or 0.0) - (part.launch_s or 0.0) for one in (part.time_low_s, part.time_s, part.time_high_s)
    )
    return replace(part, name=name, time_s=max(0.0, time), time_low_s=max(0.0, low), time_high_s=high, launch_s=0.0)


def _read(model: Model | str) -> Model:
    if not isinstance(model, (Model, str)):
        raise InputError(f"model is {shown(model)}; give an id such as 'llama-3-8b', a path or a Model")
    return load_model(model) if isinstance(model, str) else model


def _check_fits(model: Model, memory: Memory, gpus: int) -> None:
    needed = (memory.weights_bytes or 0) + memory.cache_bytes
    if needed > memory.capacity_bytes:
        whose = f"{model.id} with this batch on one of {gpus} GPUs" if gpus > 1 else f"{model.id} with this batch"
        raise InputError(
            f"{whose} {too_large(needed, memory.capacity_bytes)}; share it among more GPUs or give fewer sequences"
        )


@dataclass(frozen=True)
class _Run:
    """A step's question, the same for all kinds of layers."""

    model: Model
    gpu: Gpu
    lengths: Sequence[Length]
    dtype: str
    tp: int
    ep: int
    algorithm: str | None
    implementation: str | None
    library: str
    kernel: Mapping[str, Any]
    attended: str = ""

    @property
    def kept(self) -> str:
        """The format of the cache."""
        return str(self.kernel.get("kv_dtype") or self.attended)

    def share(self, kind: LayerKind) -> Model:
        """One GPU's part of the layers of a kind."""
        return share_of_model(self.model.only(kind), self.tp, self.ep if self.model.mlp else 0)

    def mixing(self) -> Iterator[LayerKind]:
        """One GPU's part of the layers that do not attend and are played."""
        for kind in filter(layer.is_played, self.model.kinds):
            yield share_of_mixer(kind, self.tp)

    def workload(self, share: Model, dtype: str = "") -> Workload:
        """The attention call of the batch, in the format of the products or in its own."""
        w = share.workload(batch=1, seq=1, dtype=dtype or self.dtype).having(self.lengths)
        w = replace(w, **self.kernel)
        return w.with_passes("decode") if w.seq_q == 1 else w

    def format_of_attention(self, kind: LayerKind) -> str:
        """The format of the step, or where no kernel of the attention has fp8 that of its activations."""
        if self.dtype == "fp8" and not self.implementation:
            try:
                self.calls(self.share(kind), self.dtype)
            except InputError:
                return "bf16"
        return self.dtype

    def calls(self, share: Model, dtype: str, conditions: Conditions = Conditions()) -> list[Question]:  # noqa: B008
        """The attention calls of a layer: by the server's own kernels where they run it, else by the GPU's best."""
        whole = self.workload(share, dtype)
        mechanism = read_algorithm(self.algorithm) if self.algorithm else playing(whole)
        whole = whole if mechanism.reads_latent else replace(whole, latent=None)

        def asked(served: Served) -> list[Question]:
            names = {True: served.decode, False: served.prompts}
            calls = _apart(whole) if served.apart else [whole]
            return [ask(w, self.gpu, mechanism, names[w.passes == "decode"], conditions) for w in calls]

        default = Served(self.implementation, self.implementation, mechanism.reads_latent)
        if not (self.implementation or self.algorithm):
            try:
                return asked(served_attention(self.library, mechanism.reads_latent, self.gpu))
            except InputError:
                pass
        return asked(default)

    def feeding(self) -> list[tuple[int, Model]]:
        """Layers by the MLP behind them or that they are, and one GPU's part of a model that has it."""
        first = next(kind for kind in self.model.layer_kinds if kind.mask)
        if self.model.mlp is None:
            base, kinds = self.model.only(first), [(kind.layers, kind.mlp) for kind in self.model.kinds if kind.mlp]
            experts = [self.ep if mlp.experts or all(not one.experts for _, one in kinds) else 0 for _, mlp in kinds]
            return [
                (number, share_of_model(replace(base, mlp=mlp), self.tp, ep))
                for (number, mlp), ep in zip(kinds, experts, strict=True)
            ]
        share = self.share(first)
        if share.mlp is None or share.mlp.experts is None:
            return [(self.model.layers, share)]
        dense, experts_alone = share.mlp.experts.dense_layers, replace(share.mlp.experts, dense_layers=0)
        both = ((self.model.layers - dense, experts_alone), (dense, None))
        return [(number, replace(share, mlp=replace(share.mlp, experts=one))) for number, one in both if number]

    def memory(self, kinds: Sequence[LayerKind]) -> Memory:
        """Weights and cache of one GPU."""
        shares, e = [self.share(kind) for kind in kinds], DTYPE_BYTES[self.dtype]
        own, kept = [(kind.layers - kind.shared) / kind.layers for kind in kinds], self.kept
        cached = [
            used * sum(one.times * share.cache_bytes(one.keys, kept) for one in self.lengths)
            for used, share in zip(own, shares, strict=True)
        ]
        sequences = sum(one.times for one in self.lengths)
        cached += [sequences * kind.layers * layer.state_bytes(kind, kept) for kind in self.mixing()]
        token = [used * (share.kv_bytes_per_token(kept) or 0) for used, share in zip(own, shares, strict=True)]
        weights: int | None = None
        if self.model.outside is not None and (feeding := self.feeding()):
            layers = [replace(share, mlp=None, outside=0).parameters() or 0 for share in shares]
            others = sum(kind.weights * kind.layers for kind in self.model.layer_kinds if not (kind.mask or kind.mlp))
            mlps = sum(share.mlp.parameters(share.hidden, number) for number, share in feeding if share.mlp)
            outside = max(e, 2 * (self.dtype == "fp8")) * self.model.outside  # embedding and LM head stay in 16 bits
            weights = round(e * (sum(layers) + mlps) + (e * others + outside) / self.tp)
        return Memory(weights, round(sum(cached)), sum(token), self.gpu.hbm.capacity_bytes)

    def parts(
        self, kinds: Sequence[LayerKind], conditions: Conditions
    ) -> tuple[list[tuple[int, LayerPart]], list[Outcome]]:
        """Everything that runs and how often, and the answers of the attention of each kind."""
        share, feeding = self.share(kinds[0]), self.feeding()
        w, part = self.workload(share), partial(self._part, conditions=conditions)
        fed_layers = sum(number for number, _ in feeding)
        norms = len({at for kind in self.model.layer_kinds for at in kind.at}) + (fed_layers if self.model.mlp else 0)
        norm, sums = part(norm_step(share, w), "passes"), self._sums(feeding)
        fused = min(norms + 1, sums) if norms_too(self.library, self.gpu, self.tp, self._summed_bytes(w)) else 0
        found = [(1, part(embedding_step(share, w), "passes")), (norms + 1 - fused, norm)]
        found += [(fused, _within(norm, "norm and residual in the all-reduce"))]
        found = [(number, one) for number, one in found if number]
        answers: list[Outcome] = []
        for kind in kinds:
            called = self._answers(self.share(kind), conditions)
            answers += called
            found += [(kind.layers, one) for one in self._attention(self.share(kind), called, conditions)]
        for kind in self.mixing():
            played, called = mixer_parts(kind, share.hidden, self.lengths, self.gpu, self.dtype, conditions, part)
            found += [(kind.layers, one) for one in played]
            answers += called
        found += self._communication(w, feeding, conditions)
        for number, fed in feeding:
            routing = (router_step(fed, fed.mlp.experts, w),) if fed.mlp and fed.mlp.experts else ()
            found += [(number, part(one, "mlp")) for one in (*routing, *mlp_steps(fed, w))]
        if head := head_step(share, w):
            found += [(1, part(head, "head"))]
            logits = w.batch * self.model.vocabulary * w.output_bytes
            found += [(1, self._said("all_gather", logits, conditions))] if self.tp > 1 else []
        return found, answers

    def _summed_bytes(self, w: Workload) -> float:
        """The message of an all-reduce."""
        return w.queries * self.model.hidden * w.output_bytes

    def _sums(self, feeding: Sequence[tuple[int, Model]]) -> int:
        """All-reduces: of the embedding, behind attention, and behind an MLP whose experts are not other groups'."""
        alone = [number for number, fed in feeding if not (fed.mlp and fed.mlp.experts and fed.mlp.experts.groups > 1)]
        return 1 + sum(kind.layers for kind in self.model.layer_kinds if kind.mlp is None) + sum(alone)

    def _communication(
        self, w: Workload, feeding: Sequence[tuple[int, Model]], conditions: Conditions
    ) -> Iterator[tuple[int, LayerPart]]:
        """Collectives of the layers: sums in a group, and tokens to other groups' experts and back."""
        size, sums = self._summed_bytes(w), self._sums(feeding)
        for number, fed in feeding:
            experts = fed.mlp and fed.mlp.experts
            if not experts or experts.groups == 1:
                continue
            sent = w.queries / self.tp * experts.active * self.model.hidden  # a copy for each expert, as DeepEP sends
            for name, each in (("to experts", w.element_bytes), ("from experts", w.output_bytes)):
                said = self._said("all_to_all", sent * each, conditions, self.ep, f"all-to-all {name}")
                longer = 1.0 if self.library == "sglang" else SLOWER_EXCHANGE
                yield number, replace(said, time_high_s=longer * (said.time_high_s or 0.0))
            if self.tp > 1:
                yield number, self._said("all_gather", size, conditions, name="all-gather of tokens")
        if self.tp > 1:
            yield sums, self._said("all_reduce", size, conditions)

    def _answers(self, share: Model, conditions: Conditions) -> list[Outcome]:
        """The answers of the attention's calls."""
        answers = list(map(answer, self.calls(share, self.attended, conditions)))
        for found in answers:
            if found.time_s is None:
                raise InputError(f"the attention of {self.model.id} {found.notes[0]}")
        return answers

    def _attention(self, share: Model, called: Sequence[Outcome], conditions: Conditions) -> Iterator[LayerPart]:
        """The parts of a layer from its input to the product with W_O; what all calls have in common runs once."""
        kernels = [[kernel for kernel, _ in one.kernels] for one in called]
        around = [steps(share, one.workload, "fwd", ran) for one, ran in zip(called, kernels, strict=True)]
        before = {one.name: one for each in around for one in each.before}
        after = {one.name: one for each in around for one in each.after}
        if len(called) > 1:
            whole = steps(share, self.workload(share, self.attended), "fwd", kernels[0])
            common = set.intersection(
                *({one.name for part in (each.before, each.after) for one in part} for each in around)
            )
            all_rows = {one.name: one for one in (*whole.before, *whole.after) if one.name in common}
            before, after = ({name: all_rows.get(name, one) for name, one in part.items()} for part in (before, after))
        for one in before.values():
            yield self._part(one, "projections", conditions)
        w = called[0].workload if len(called) == 1 else self.workload(share, self.attended)
        if normed := head_norm_step(share, w):
            yield self._part(normed, "passes", conditions)
        if write := cache_write_step(w, [kernel for ran in kernels for kernel in ran]) if share.has_cache else None:
            yield self._part(write, "passes", conditions)
        for found in called:
            part, of = attention_part(found, "fwd"), "decode" if found.workload.passes == "decode" else "prompts"
            names = [f"{found.workload.mask}"] * bool(self.model.kinds) + [of] * (len(called) > 1)
            yield replace(part, name=", ".join(("attention", *names)))
        for one in after.values():
            yield self._part(one, "projections", conditions)

    def _part(self, one: Step, group: Group, conditions: Conditions) -> LayerPart:
        library = _FP8.get(self.library, self.library)
        conditions = replace(conditions, own=None)
        return _seen_part(one, group, self.gpu.alone, self.dtype, conditions, library, self.model.fp8_blocks)

    def _said(
        self, collective: str, size_bytes: float, conditions: Conditions, gpus: int = 0, name: str = ""
    ) -> LayerPart:
        """A collective, measured in a CUDA graph, launched as the conditions say."""
        found = collective_time(collective_of(collective), size_bytes, self.gpu, gpus or self.tp, library=self.library)
        each_s = self.gpu.launch.each_s(conditions.launch)
        launch = each_s - self.gpu.launch.graph_s
        times = {
            "time_s": found.time_s,
            "time_low_s": found.low_s,
            "time_high_s": found.high_s,
        }
        return LayerPart(
            name=name or collective.replace("_", "-"),
            **{key: max(0.0, value + launch) for key, value in times.items()},
            hbm_bytes=None,
            flops_useful=0,
            flops_executed=0,
            busiest=found.bound,
            tile=found.algorithm,
            group="communication",
            units_s={},
            exponentials=None,
            smem_bytes=None,
            l2_bytes=None,
            clock_hz=None,
            launch_s=each_s,
        )
