"""One step of a whole model in a batch of different sequences, on one GPU or on several that share every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

from attnsim.api.answer import Outcome, plain
from attnsim.api.answering import answer
from attnsim.api.asking import Calibrated, Conditions, LayerQuestion, ask, read_algorithm, read_conditions, read_gpu
from attnsim.api.layer import products_trust, step_part
from attnsim.api.layer_answer import Group, LayerAnswer, LayerPart, total
from attnsim.api.mixing import attention_part, mixer_parts, share_of_mixer
from attnsim.api.playing import too_large
from attnsim.api.trust import Reason, Trust
from attnsim.errors import InputError, shown
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.changes import Change
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.collectives.collective import TIMED_GPUS, check_server, collective_time, libraries
from attnsim.models.implementations.collectives.known import collective_of
from attnsim.models.implementations.frameworks import mixer
from attnsim.models.implementations.frameworks.layer import steps
from attnsim.models.implementations.frameworks.mlp import head_step, known_mlp, mlp_steps
from attnsim.models.implementations.frameworks.passes import (
    cache_write_step,
    embedding_step,
    norm_step,
    routing_steps,
)
from attnsim.models.implementations.frameworks.step import Step
from attnsim.models.llm.files import load_model
from attnsim.models.llm.model import LayerKind, Model
from attnsim.models.llm.parallel import share_of_model
from attnsim.models.mechanisms import playing
from attnsim.models.question.lengths import Length, checked_lengths, lengths_of
from attnsim.models.question.workload import DTYPE_BYTES, Workload
from attnsim.simulator.replay import Progress

KEPT = 0.9
"""Share of the memory that vLLM fills by default (``gpu_memory_utilization``)."""
MOST_SHARED = 64
LEFT_OUT = "Left out: sampling, the scheduler and all else that the host does between steps"


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that one GPU has to hold.

    Parameters
    ----------
    weights_bytes : int or None
        None where the model does not say what is outside its layers.
    cache_bytes : int
        Keys and values of the batch.
    token_bytes : float
        What a token more in the cache takes, where no window drops another.
    capacity_bytes : int
    """

    weights_bytes: int | None
    cache_bytes: int
    token_bytes: float
    capacity_bytes: int

    @property
    def room_tokens(self) -> int | None:
        """Tokens that the cache has room for in all, of what a server fills; None where that is not known."""
        if self.weights_bytes is None or not self.token_bytes:
            return None
        return max(0, int((KEPT * self.capacity_bytes - self.weights_bytes) / self.token_bytes))


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """How one step of a model runs.

    Parameters
    ----------
    model : Model
    gpus, expert_gpus : int
        GPUs that share every layer, and those among which whole experts are divided, 0 where none are; times are those
        of one, which all take together.
    gpu : str
    changes : tuple of Change
    lengths : tuple of Length
    parts : tuple of (int, LayerPart)
        What runs in the order of launches, and how often in the step.
    attention : tuple of Outcome
        The attention call of each kind of layers, and the calls of layers that do not attend.
    memory : Memory
    left_out : tuple of str
        Layers that are not modelled.
    library : str
        Whose all-reduce it is, and whose GEMMs in fp8.
    dtype, mode, cache, launch : str
    asked : LayerQuestion
        The step as a question about a layer that holds all of it.
    products : str
        How far off its GEMMs were where they were measured.
    """

    model: Model
    gpus: int
    expert_gpus: int
    gpu: str
    changes: tuple[Change, ...]
    lengths: tuple[Length, ...]
    parts: tuple[tuple[int, LayerPart], ...]
    attention: tuple[Outcome, ...]
    memory: Memory
    left_out: tuple[str, ...]
    library: str
    dtype: str
    mode: str
    cache: str
    launch: str
    asked: LayerQuestion
    products: str = ""

    def _sum(self, name: str) -> float:
        return total(iter([number * getattr(part, name) for number, part in self.parts])) or 0.0

    @property
    def time_s(self) -> float:
        """Seconds of the step."""
        return self._sum("time_s")

    @property
    def time_low_s(self) -> float:
        """The lower end of its 90 % range, of parts which are all off in the same direction."""
        return self._sum("time_low_s")

    @property
    def time_high_s(self) -> float:
        """The upper end."""
        return self._sum("time_high_s")

    @property
    def new_tokens(self) -> int:
        """Tokens that the step computes."""
        return sum(one.queries * one.times for one in self.lengths)

    @property
    def sequences(self) -> int:
        """Sequences of the batch; each that decodes makes a token."""
        return sum(one.times for one in self.lengths)

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second, of all GPUs."""
        return self.groups * self.new_tokens / self.time_s

    @property
    def groups(self) -> int:
        """Groups of GPUs that have a batch each and meet at the experts."""
        return max(1, self.expert_gpus // self.gpus)

    def share(self, group: Group) -> float:
        """Share of a group of parts in the time."""
        return sum(number * (part.time_s or 0.0) for number, part in self.parts if part.group == group) / self.time_s

    def as_layer(self) -> LayerAnswer:
        """The step as one layer that holds all of it: each part as long as it takes together."""
        counted = ("hbm_bytes", "flops_useful", "flops_executed", "exponentials", "smem_bytes", "l2_bytes")
        times = ("time_s", "time_low_s", "time_high_s")
        parts = [
            replace(
                part,
                units_s={unit: number * busy for unit, busy in part.units_s.items()},
                **{name: value and number * value for name in (*counted, *times) for value in (getattr(part, name),)},
            )
            for number, part in self.parts
        ]
        trust = Trust(
            "extrapolated",
            self.time_low_s / self.time_s,
            self.time_high_s / self.time_s,
            None,
            tuple(Reason("projections", line) for line in trust_lines(self)),
        )
        return LayerAnswer(self.asked, tuple(parts), (), (), self.attention, trust)

    def to_dict(self) -> dict[str, object]:
        """Plain types for JSON."""
        told = ("gpu", "time_s", "time_low_s", "time_high_s", "new_tokens", "sequences", "tokens_per_s", "library")
        return {
            "model": self.model.id,
            "tp": self.gpus,
            "ep": self.expert_gpus,
            "lengths": [str(one) for one in self.lengths],
            **{
                name: plain(getattr(self, name))
                for name in (*told, "dtype", "mode", "cache", "launch", "left_out", "memory")
            },
            "room_tokens": self.memory.room_tokens,
            "parts": [{"times": number, **plain(part)} for number, part in self.parts],  # type: ignore[dict-item]
        }


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
        Of the attention.
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
    named = (implementation or "").partition(".")[0]
    library = library or (named if named in libraries() else "vllm")
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
        f"{one.layers} layers of {one}" for one in whole.kinds if not (one.mask or one.mlp or mixer.is_played(one))
    )
    return StepAnswer(
        whole, tp, ep, machine.id, machine.changes, batch, tuple(parts), tuple(answers), memory,
        (*left_out, *whole.left_out), library, dtype, mode, cache, launch,
        LayerQuestion(whole, tp, machine, answers[0].workload, algorithm, implementation, conditions),
        products_trust(dtype, machine, _FP8.get(library, library)),
    )  # fmt: skip


_FP8 = {"tensorrt-llm": "trtllm"}
"""Whose fp8 GEMMs go with an all-reduce, where the names differ."""

_seen_part = lru_cache(maxsize=4096)(step_part)
"""Parts are the same of steps with as many tokens, whatever is attended."""


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
        for kind in filter(mixer.is_played, self.model.kinds):
            yield share_of_mixer(kind, self.tp)

    def workload(self, share: Model, dtype: str = "") -> Workload:
        """The attention call of the batch, in the format of the products or in its own."""
        w = share.workload(batch=1, seq=1, dtype=dtype or self.dtype).having(self.lengths)
        w = replace(w, **self.kernel)
        return w.with_passes("decode") if w.seq_q == 1 else w

    def format_of_attention(self, kind: LayerKind) -> str:
        """The format of the step, or where no kernel of the attention has fp8 that of its activations."""
        if self.dtype != "fp8" or self.implementation:
            return self.dtype
        w = self.workload(self.share(kind))
        try:
            ask(w, self.gpu, self.algorithm or playing(w).name)
        except InputError:
            return "bf16"
        return self.dtype

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
        cached += [sequences * kind.layers * mixer.state_bytes(kind, kept) for kind in self.mixing()]
        token = [used * (share.kv_bytes_per_token(kept) or 0) for used, share in zip(own, shares, strict=True)]
        weights: int | None = None
        if self.model.outside is not None and (feeding := self.feeding()):
            layers = [replace(share, mlp=None, outside=0).parameters() or 0 for share in shares]
            others = sum(kind.weights * kind.layers for kind in self.model.layer_kinds if not (kind.mask or kind.mlp))
            mlps = sum(share.mlp.parameters(share.hidden, number) for number, share in feeding if share.mlp)
            weights = round(e * (sum(layers) + mlps + (others + self.model.outside) / self.tp))
        return Memory(weights, round(sum(cached)), sum(token), self.gpu.hbm.capacity_bytes)

    def parts(
        self, kinds: Sequence[LayerKind], conditions: Conditions
    ) -> tuple[list[tuple[int, LayerPart]], list[Outcome]]:
        """Everything that runs and how often, and the answers of the attention of each kind."""
        share, feeding = self.share(kinds[0]), self.feeding()
        w, part = self.workload(share), partial(self._part, conditions=conditions)
        fed_layers = sum(number for number, _ in feeding)
        norms = len({at for kind in self.model.layer_kinds for at in kind.at}) + (fed_layers if self.model.mlp else 0)
        found = [(1, part(embedding_step(share, w), "passes")), (norms + 1, part(norm_step(share, w), "passes"))]
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
            routing = routing_steps(fed, fed.mlp.experts, w) if fed.mlp and fed.mlp.experts else ()
            found += [(number, part(one, "mlp")) for one in (*routing, *mlp_steps(fed, w))]
        if head := head_step(share, w):
            found += [(1, part(head, "head"))]
            logits = w.batch * self.model.vocabulary * w.output_bytes
            found += [(1, self._said("all_gather", logits, conditions))] if self.tp > 1 else []
        return found, answers

    def _communication(
        self, w: Workload, feeding: Sequence[tuple[int, Model]], conditions: Conditions
    ) -> Iterator[tuple[int, LayerPart]]:
        """Collectives of the layers: sums in a group, and tokens to other groups' experts and back."""
        size = w.queries * self.model.hidden * w.output_bytes
        sums = 1 + sum(kind.layers for kind in self.model.layer_kinds if kind.mlp is None)
        for number, fed in feeding:
            experts = fed.mlp and fed.mlp.experts
            if not experts or experts.groups == 1:
                sums += number
                continue
            sent = w.queries / self.tp * experts.active * self.model.hidden  # a copy for each expert, as DeepEP sends
            for name, each in (("to experts", w.element_bytes), ("from experts", w.output_bytes)):
                yield number, self._said("all_to_all", sent * each, conditions, self.ep, f"all-to-all {name}")
            if self.tp > 1:
                yield number, self._said("all_gather", size, conditions, name="all-gather of tokens")
        if self.tp > 1:
            yield sums, self._said("all_reduce", size, conditions)

    def _answers(self, share: Model, conditions: Conditions) -> list[Outcome]:
        """The attention call; of a latent sequences that decode are called apart from prompts, by other kernels."""
        whole = self.workload(share, self.attended)
        mechanism = read_algorithm(self.algorithm) if self.algorithm else playing(whole)
        calls = [whole]
        if mechanism.reads_latent:
            decode, prompts = (
                tuple(one for one in self.lengths if (one.queries == 1) is decodes) for decodes in (True, False)
            )
            if decode and prompts:
                calls = [whole.having(decode).with_passes("decode"), whole.having(prompts)]
        else:
            calls = [replace(whole, latent=None)]
        answers = [answer(ask(w, self.gpu, mechanism, self.implementation, conditions)) for w in calls]
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
        return _seen_part(one, self.gpu.alone, self.dtype, replace(conditions, own=None), group, library)

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


def trust_lines(answer: StepAnswer) -> list[str]:
    """How far to trust a step, a line each."""
    lines = [f"products: {answer.products}"]
    if answer.gpus > 1:
        pcie = any((part.busiest or "").startswith("PCIe") for _, part in answer.parts)
        over_pcie = "the host decides, and one that was measured is 3 to 10 times slower with 4 and 8 GPUs"
        over_nvlink = "all-reduces and all-gathers were 7 to 13 % off on GPUs that were held out"
        lines.append(f"collectives over {'PCIe' if pcie else 'NVLink'}: {over_pcie if pcie else over_nvlink}")
        if answer.gpus > TIMED_GPUS:
            lines += [f"collectives: nobody has timed groups of more than {TIMED_GPUS} GPUs of one switch"]
    if answer.groups > 1:
        lines.append(
            "to experts and back: NCCL's all-to-all of a copy for each expert; 18 % off DeepEP's low-latency kernels "
            "in SGLang, while calls of vLLM and TensorRT-LLM take 1 to 10 times as long; tokens reach all experts alike"
        )
    for one in answer.attention:
        what, trust = one.algorithm if one.algorithm in mixer.ALGORITHMS else "attention", one.trust
        lines += [f"{what} is {trust.level}: {trust.reasons[0]}", *map(str, trust.reasons[1:])]
    return list(dict.fromkeys(lines))
