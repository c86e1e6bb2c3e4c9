"""One step of a whole model in a batch of different sequences, on one GPU or on several that share every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from attnsim.api.answering import answer
from attnsim.api.asking import Calibrated, Conditions, ask, read_algorithm, read_conditions, read_gpu
from attnsim.api.layer import attention_part, step_part
from attnsim.api.layer_prediction import Group, LayerPart, total
from attnsim.api.playing import too_large
from attnsim.api.prediction import Prediction, plain
from attnsim.errors import InputError, shown
from attnsim.models.hardware.architectures import architecture_of
from attnsim.models.hardware.changes import Change
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.collectives.collective import TIMED_GPUS, check_server, collective_time, libraries
from attnsim.models.implementations.collectives.known import collective_of
from attnsim.models.implementations.frameworks.layer import steps
from attnsim.models.implementations.frameworks.mlp import dense_mlp_steps, head_step, known_mlp, mlp_steps
from attnsim.models.implementations.frameworks.passes import cache_write_step, embedding_step, norm_step
from attnsim.models.implementations.frameworks.step import Step
from attnsim.models.llm.files import load_model
from attnsim.models.llm.model import LayerKind, Model
from attnsim.models.llm.parallel import share_of_model
from attnsim.models.mechanisms import playing
from attnsim.models.question.lengths import Length, checked_lengths, lengths_of
from attnsim.models.question.workload import DTYPE_BYTES, Workload
from attnsim.simulator.replay import Told

KEPT = 0.9
"""Share of the memory that vLLM fills by default (``gpu_memory_utilization``)."""
MOST_SHARED = 64
LEFT_OUT = "Left out: sampling, the scheduler and all else that the host does between steps"


@dataclass(frozen=True, slots=True)
class Memory:
    """What one GPU has to hold.

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
class StepPrediction:
    """How one step of a model runs.

    Parameters
    ----------
    model : Model
    gpus : int
        GPUs that share every layer; times are those of one, which all take together.
    gpu : str
    changes : tuple of Change
    lengths : tuple of Length
    parts : tuple of (int, LayerPart)
        What runs, and how often in the step.
    attention : tuple of Prediction
        The attention call of each kind of layers.
    memory : Memory
    left_out : tuple of str
        Layers that are not modelled.
    library : str
        Whose all-reduce it is.
    mode, cache, launch : str
    """

    model: Model
    gpus: int
    gpu: str
    changes: tuple[Change, ...]
    lengths: tuple[Length, ...]
    parts: tuple[tuple[int, LayerPart], ...]
    attention: tuple[Prediction, ...]
    memory: Memory
    left_out: tuple[str, ...]
    library: str
    mode: str
    cache: str
    launch: str

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
        """New tokens a second."""
        return self.new_tokens / self.time_s

    def share(self, group: Group) -> float:
        """Share of a group of parts in the time."""
        return sum(number * (part.time_s or 0.0) for number, part in self.parts if part.group == group) / self.time_s

    def to_dict(self) -> dict[str, object]:
        """Plain types for JSON."""
        told = ("gpu", "time_s", "time_low_s", "time_high_s", "new_tokens", "sequences", "tokens_per_s", "library")
        return {
            "model": self.model.id,
            "tp": self.gpus,
            "lengths": [str(one) for one in self.lengths],
            **{name: plain(getattr(self, name)) for name in (*told, "mode", "cache", "launch", "left_out", "memory")},
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
    algorithm: str | None = None,
    implementation: str | None = None,
    library: str | None = None,
    mode: str = "fast",
    cache: str = "cold",
    launch: str = "graph",
    budget: int | None = None,
    told: Told | None = None,
    calibration: Calibrated = None,
) -> StepPrediction:
    """Predict one step of a model: every layer, the LM head, and what the GPUs say to each other.

    Two all-reduces a layer follow the products with W_O and W_down (Megatron-LM, arXiv 1909.08053), one the embedding;
    an all-gather brings the logits together. Kernels are those that vLLM launches, in a CUDA graph.

    Parameters
    ----------
    model : Model or str
        A model, or what :func:`attnsim.load_model` takes. Layers that do not attend are left out, and named.
    gpu : Gpu or str
    lengths : sequence of Length, or what :func:`attnsim.models.question.lengths.lengths_of` reads
        New tokens of each sequence, and all that they attend: "1:4096 x 63, 512:2560".
    dtype : str
        Of weights, activations and cache.
    tp : int
        GPUs that share every layer.
    algorithm, implementation : str, optional
        Of the attention.
    library : {"vllm", "sglang", "tensorrt-llm", "nccl"}, optional
        Whose all-reduce it is; default: that of `implementation`, else vLLM's.
    mode, cache, launch, budget, told, calibration
        As for :func:`attnsim.layer`; timings of one's own correct the attention.

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
    known_mlp(whole)
    if isinstance(tp, bool) or not isinstance(tp, int) or not 1 <= tp <= MOST_SHARED:
        raise InputError(f"tp is {shown(tp)}; allowed: a whole number from 1 to {MOST_SHARED}")
    check_server(machine, tp)
    batch = checked_lengths(lengths_of(lengths))
    kinds = [kind for kind in whole.layer_kinds if kind.mask is not None]
    if not kinds or any(kind.kind == "cross-attention" for kind in kinds):
        what = "an encoder and a decoder, which run apart" if kinds else "no layer that attends"
        raise InputError(f"{whole.id} has {what}; a step is of a model whose every layer runs: take another")
    named = (implementation or "").partition(".")[0]
    library = library or (named if named in libraries() else "vllm")
    run = _Run(whole, machine, batch, dtype, tp, algorithm, implementation, library)
    memory = run.memory(kinds)
    _check_fits(whole, memory, tp)
    conditions = read_conditions(
        mode=mode, cache=cache, launch=launch, budget=budget, told=told, calibration=calibration
    )
    parts, answers = run.parts(kinds, conditions)
    time_s = sum(number * (part.time_s or 0.0) for number, part in parts)
    row = architecture_of(machine.compute_capability_number)
    if time_s > row.slowed_from_s and not machine.clock.held_hz:
        within_s = min(row.slowed_to_s, float(f"{time_s:.1g}"))  # of steps alike the same, and longer ones slow no more
        parts, answers = run.parts(kinds, replace(conditions, within_s=within_s))
    left_out = tuple(f"{one.layers} layers of {one}" for one in whole.layer_kinds if one.mask is None)
    return StepPrediction(
        whole, tp, machine.id, machine.changes, batch, tuple(parts), tuple(answers), memory,
        (*left_out, *whole.left_out), library, mode, cache, launch,
    )  # fmt: skip


_seen_part = lru_cache(maxsize=4096)(step_part)
"""Of steps with as many tokens the parts are the same, whatever is attended."""


def _read(model: Model | str) -> Model:
    if not isinstance(model, (Model, str)):
        raise InputError(f"model is {shown(model)}; give an id such as 'llama-3-8b', a path or a Model")
    return load_model(model) if isinstance(model, str) else model


def _check_fits(model: Model, memory: Memory, tp: int) -> None:
    needed = (memory.weights_bytes or 0) + memory.cache_bytes
    if needed > memory.capacity_bytes:
        whose = f"{model.id} with this batch on one of {tp} GPUs" if tp > 1 else f"{model.id} with this batch"
        raise InputError(
            f"{whose} {too_large(needed, memory.capacity_bytes)}; share it among more GPUs or give fewer sequences"
        )


@dataclass(frozen=True)
class _Run:
    """What stays the same from kind to kind of layers."""

    model: Model
    gpu: Gpu
    lengths: Sequence[Length]
    dtype: str
    tp: int
    algorithm: str | None
    implementation: str | None
    library: str

    def share(self, kind: LayerKind) -> Model:
        """One GPU's part of the layers of a kind."""
        return share_of_model(self.model.only(kind), self.tp)

    def workload(self, share: Model) -> Workload:
        """The attention call of the batch."""
        w = share.workload(batch=1, seq=1, dtype=self.dtype).having(self.lengths)
        return w.with_passes("decode") if w.seq_q == 1 else w

    def memory(self, kinds: Sequence[LayerKind]) -> Memory:
        """Weights and cache of one GPU."""
        shares, e = [self.share(kind) for kind in kinds], DTYPE_BYTES[self.dtype]
        own = [(kind.layers - kind.shared) / kind.layers for kind in kinds]
        cached = [
            used * sum(one.times * share.cache_bytes(one.keys, self.dtype) for one in self.lengths)
            for used, share in zip(own, shares, strict=True)
        ]
        token = [used * (share.kv_bytes_per_token(self.dtype) or 0) for used, share in zip(own, shares, strict=True)]
        weights: int | None = None
        if self.model.outside is not None and shares and shares[0].mlp:
            layers = [replace(share, mlp=None, outside=0).parameters() or 0 for share in shares]
            others = sum(kind.weights * kind.layers for kind in self.model.layer_kinds if kind.mask is None)
            mlp = shares[0].mlp.parameters(self.model.hidden, self.model.layers)
            weights = round(e * (sum(layers) + mlp + (others + self.model.outside) / self.tp))
        return Memory(weights, round(sum(cached)), sum(token), self.gpu.hbm.capacity_bytes)

    def parts(
        self, kinds: Sequence[LayerKind], conditions: Conditions
    ) -> tuple[list[tuple[int, LayerPart]], list[Prediction]]:
        """Everything that runs and how often, and the answers of the attention of each kind."""
        found: list[tuple[int, LayerPart]] = []
        answers: list[Prediction] = []
        for kind in kinds:
            share = self.share(kind)
            answers.append(self._answer(share, conditions))
            found += [(kind.layers, part) for part in self._attention(share, answers[-1], conditions)]
        share, layers = self.share(kinds[0]), self.model.layers
        w, dense = self.workload(share), share.mlp.experts.dense_layers if share.mlp and share.mlp.experts else 0
        for number, some in ((layers - dense, mlp_steps(share, w)), (dense, dense_mlp_steps(share, w))):
            found += [(number, self._part(one, conditions, "mlp")) for one in some]
        found += [(2 * layers + 1, self._part(norm_step(share, w), conditions, "passes"))]
        found += [(1, self._part(embedding_step(share, w), conditions, "passes"))]
        head = head_step(share, w)
        found += [(1, self._part(head, conditions, "head"))] if head else []
        if self.tp > 1:
            size = w.queries * self.model.hidden * w.output_bytes
            found += [(2 * layers + 1, self._said("all_reduce", size, conditions))]
            logits = w.batch * self.model.vocabulary * w.output_bytes
            found += [(1, self._said("all_gather", logits, conditions))] if head else []
        return found, answers

    def _answer(self, share: Model, conditions: Conditions) -> Prediction:
        w = self.workload(share)
        mechanism = read_algorithm(self.algorithm) if self.algorithm else playing(w)
        w = w if mechanism.reads_latent else replace(w, latent=None)
        found = answer(ask(w, self.gpu, mechanism, self.implementation, conditions))
        if found.time_s is None:
            raise InputError(f"the attention of {self.model.id} {found.notes[0]}")
        return found

    def _attention(self, share: Model, found: Prediction, conditions: Conditions) -> Iterator[LayerPart]:
        """The parts of a layer from its input to the product with W_O."""
        kernels = [kernel for kernel, _ in found.kernels]
        around = steps(share, found.workload, "fwd", kernels)
        write = cache_write_step(found.workload, kernels) if share.has_cache else None
        for one in around.before:
            yield self._part(one, conditions, "projections")
        if write:
            yield self._part(write, conditions, "passes")
        part = attention_part(found, "fwd")
        yield part if not self.model.kinds else replace(part, name=f"attention, {found.workload.mask}")
        for one in around.after:
            yield self._part(one, conditions, "projections")

    def _part(self, one: Step, conditions: Conditions, group: Group) -> LayerPart:
        return _seen_part(one, self.gpu.alone, self.dtype, replace(conditions, own=None), group)

    def _said(self, name: str, size_bytes: int, conditions: Conditions) -> LayerPart:
        """A collective, measured in a CUDA graph, launched as the conditions say."""
        found = collective_time(collective_of(name), size_bytes, self.gpu, self.tp, library=self.library)
        launch = self.gpu.launch.each_s(conditions.launch) - self.gpu.launch.graph_s
        times = {
            "time_s": found.time_s,
            "time_low_s": found.low_s,
            "time_high_s": found.high_s,
        }
        return LayerPart(
            name=name.replace("_", "-"), **{key: max(0.0, value + launch) for key, value in times.items()},
            hbm_bytes=None, flops_useful=0, flops_executed=0, busiest=found.bound, tile=found.algorithm,
            group="communication", units_s={}, exponentials=None, smem_bytes=None, l2_bytes=None, clock_hz=None,
        )  # fmt: skip


def trust_lines(answer: StepPrediction) -> list[str]:
    """How far to trust a step, a line each."""
    lines = [
        "products: their GEMMs have no calibration, measured ones were within a factor of 1.4 in nine cases of ten"
    ]
    if answer.gpus > 1:
        pcie = any((part.busiest or "").startswith("PCIe") for _, part in answer.parts)
        over_pcie = "the host decides, and one that was measured is 3 to 10 times slower with 4 and 8 GPUs"
        over_nvlink = "all-reduces and all-gathers were 7 to 13 % off on GPUs that were held out"
        lines.append(f"collectives over {'PCIe' if pcie else 'NVLink'}: {over_pcie if pcie else over_nvlink}")
        if answer.gpus > TIMED_GPUS:
            lines += [f"collectives: nobody has timed groups of more than {TIMED_GPUS} GPUs of one switch"]
    for trust in (one.trust for one in answer.attention):
        lines += [f"attention is {trust.level}: {trust.reasons[0]}", *map(str, trust.reasons[1:])]
    return list(dict.fromkeys(lines))
