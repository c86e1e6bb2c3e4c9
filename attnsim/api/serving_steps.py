"""A serving trace step by step: which sequences each step has, and how long it takes: of a model, or attention alone.

Continuous batching as vLLM's scheduler does it (``vllm/v1/core/sched/scheduler.py``, `Scheduler.schedule`): a step has
a budget of tokens; running requests come first, a token for each that decodes and the next chunk of each that does
not; requests that wait are taken in order while there is room. It is a study of steps, not a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attnsim.api.answer import Answer, TooLarge
from attnsim.api.answering import answer
from attnsim.api.asking import Calibrated, Question, ask, read_conditions, read_gpu
from attnsim.api.playing import too_large
from attnsim.api.requests import LONGEST_S, Request
from attnsim.api.step import step
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.llm.model import Model
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload

LEFT_OUT = {
    "attention": "Left out: prefix caching, preemption, swapping, speculative decoding and other GPUs; and the "
    "projections, MLP, sampling and scheduling of a step, except for the time that --rest adds to it.",
    "model": "Left out: prefix caching, preemption, swapping and speculative decoding; and sampling and other work of "
    "the host between steps, except for the time that --rest adds to a step.",
}
MOST_STEPS = 1_000_000
FEWER = "run fewer sequences at a time"
Kind = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Parameters
    ----------
    number : int
    start_s : float
        On the trace's clock, which attention and the rest of each step move.
    kind : {"prefill", "decode", "mixed"}
    prefill_tokens, decodes : int
        Prompt tokens of the step, and sequences that decode.
    keys : int
        Tokens attended, of all sequences.
    waiting : int
        Requests that have come and are not running.
    time_s, time_low_s, time_high_s : float
        Of the step, and its 90 % range.
    attention_s : float
        Attention's part.
    busiest : str
        Unit of the longest call or part.
    """

    number: int
    start_s: float
    kind: Kind
    prefill_tokens: int
    decodes: int
    keys: int
    waiting: int
    time_s: float
    time_low_s: float
    time_high_s: float
    attention_s: float
    busiest: str


@dataclass(frozen=True, slots=True)
class Served:
    """A trace stepped through.

    Parameters
    ----------
    steps : tuple of Step
    of : {"attention", "model"}
        What is timed: the attention of one layer, or all that a model runs.
    implementation, gpu : str
    rest_s : float
    predicted : int
        Steps that were predicted; the others have the time of one before.
    """

    steps: tuple[Step, ...]
    of: Literal["attention", "model"]
    implementation: str
    gpu: str
    rest_s: float
    predicted: int

    @property
    def time_s(self) -> float:
        """Time of the steps in all."""
        return sum(one.time_s for one in self.steps)

    @property
    def attention_s(self) -> float:
        """Attention's part of it."""
        return sum(one.attention_s for one in self.steps)

    @property
    def left_out(self) -> str:
        """Everything that is not timed."""
        return LEFT_OUT[self.of]

    @property
    def range_s(self) -> tuple[float, float]:
        """The ends of its 90 % range, of steps that are all off in the same direction."""
        return sum(one.time_low_s for one in self.steps), sum(one.time_high_s for one in self.steps)

    @property
    def end_s(self) -> float:
        """When the last step ends, on the trace's clock."""
        return self.steps[-1].start_s + self.steps[-1].time_s + self.rest_s

    def by_kind(self) -> list[dict[str, Any]]:
        """Steps and their sums by kind: ``kind, steps, tokens, time_s, share, attention_s, longest_s``."""
        rows = []
        for kind in ("prefill", "mixed", "decode"):
            mine = [one for one in self.steps if one.kind == kind]
            if mine:
                time = sum(one.time_s for one in mine)
                tokens = sum(one.prefill_tokens + one.decodes for one in mine)
                longest = max(one.time_s for one in mine)
                attention = sum(one.attention_s for one in mine)
                shares = {"time_s": time, "share": time / self.time_s, "attention_s": attention, "longest_s": longest}
                rows.append({"kind": kind, "steps": len(mine), "tokens": tokens, **shares})
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """The steps as plain rows."""
        return [asdict(one) for one in self.steps]


@dataclass(slots=True)
class _Running:
    """A request that runs: tokens in the cache, and those still to be made."""

    number: int
    prompt: int
    output: int
    arrival_s: float
    cached: int = 0

    @property
    def wanted(self) -> int:
        """Tokens that its next step may have."""
        return 1 if self.decodes else self.prompt - self.cached

    @property
    def decodes(self) -> bool:
        """Whether its prompt is done."""
        return self.cached >= self.prompt


@dataclass(frozen=True, slots=True)
class Timed:
    """The time of a step, as :class:`Step` has it, and whose attention it is."""

    time_s: float
    time_low_s: float
    time_high_s: float
    attention_s: float
    busiest: str
    implementation: str


Timing = Callable[[Sequence[Length]], Timed]
"""How long a step of such sequences takes.

Raises
------
InputError
    For what does not fit into the memory.
"""


def timed_model(model: Model | str, gpu: Gpu | str, **conditions: Any) -> Timing:
    """Steps of a whole model, as :func:`attnsim.api.step.step` answers them with these conditions."""
    machine = read_gpu(gpu)

    def timed(lengths: Sequence[Length]) -> Timed:
        found = step(model, machine, tuple(lengths), **conditions)
        _, part = max(found.parts, key=lambda one: one[0] * (one[1].time_s or 0.0))
        attention_s = found.share("attention") * found.time_s
        times = (found.time_s, found.time_low_s, found.time_high_s, attention_s)
        return Timed(*times, part.busiest or "", found.attention[0].implementation)

    return timed


def timed_attention(
    workload: Workload,
    gpu: Gpu | str,
    implementation: str | None = None,
    *,
    prompt: int,
    launch: str = "graph",
    cache: str | None = None,
    calibration: Calibrated = None,
) -> Timing:
    """Steps of which attention alone counts.

    Parameters
    ----------
    workload : Workload
        Heads, widths, mask and format; its lengths are not looked at.
    gpu : Gpu or str
    implementation : str, optional
        By default that of decode steps after a prompt of `prompt` tokens, for all: a server runs one library.
    launch, calibration
        As for :func:`attnsim.predict`.
    cache : str, optional
        State of the L2 before each layer; by default cold where sequences decode: the other layers have run since.
    """
    machine, own = read_gpu(gpu), read_conditions(calibration=calibration).own
    known = {one: read_conditions(cache=cache or one, launch=launch, calibration=own) for one in ("cold", "warm")}
    if implementation is None and workload.latent is None:
        one = workload.of(Length(1, prompt)).with_passes("decode")
        implementation = ask(one, machine, "flash").record.name
    key_bytes = 0 if workload.mask.is_windowed else workload.of(Length(1, 1)).kv_cache_bytes

    def timed(lengths: Sequence[Length]) -> Timed:
        needed = sum(one.keys for one in lengths) * key_bytes
        if needed > machine.hbm.capacity_bytes:
            raise InputError(f"the KV cache {too_large(needed, machine.hbm.capacity_bytes)}; {FEWER}")
        decodes = any(one.queries == 1 for one in lengths)
        found: list[Answer[Question]] = []
        for part in _called(workload, lengths):
            asked = workload.having(part)
            w = asked.with_passes("decode" if asked.seq_q == 1 else "fwd")
            mechanism = "flash" if w.latent is None else "mla"
            one = answer(ask(w, machine, mechanism, implementation, known["cold" if decodes else "warm"]))
            if isinstance(one, TooLarge):
                raise InputError(f"{one.too_large}; {FEWER}")
            found.append(one)
        longest = max(found, key=lambda one: one.time_s)
        time_s = sum(one.time_s for one in found)
        low_s, high_s = (sum(one.time_s * getattr(one.trust, end) for one in found) for end in ("low", "high"))
        return Timed(time_s, low_s, high_s, time_s, longest.busiest, longest.implementation)

    return timed


def serve(
    requests: Sequence[Request],
    timing: Timing,
    gpu: Gpu | str,
    *,
    of: Literal["attention", "model"] = "model",
    tokens: int = 2048,
    sequences: int = 256,
    rest_s: float = 0.0,
    stride: int = 8,
    told: Callable[[], None] = lambda: None,
) -> Served:
    """Step through requests.

    Parameters
    ----------
    requests : sequence of Request
        In order of arrival.
    timing : callable
        :func:`timed_model` or :func:`timed_attention`.
    gpu : Gpu or str
    of : {"model", "attention"}
        What the timing is of.
    tokens : int
        Budget of a step.
    sequences : int
        Most that run at a time.
    rest_s : float
        Seconds that a step takes beside what is timed; they move the clock of arrivals.
    stride : int
        While the same sequences decode, every so many steps one is predicted, and those after it take as long.
    told : callable
        Called after each step.

    Raises
    ------
    InputError
        Bad input, in one line; also where a step does not fit the memory.
    """
    for name, value in (("tokens", tokens), ("sequences", sequences), ("stride", stride)):
        if value < 1:
            raise InputError(f"{name} is {value}; allowed: whole numbers from 1")
    if not 0 <= rest_s <= LONGEST_S:
        raise InputError(f"rest of a step is {1e3 * rest_s:g} ms; allowed: 0 to {1e3 * LONGEST_S:g}")
    if not requests:
        raise InputError("there are no requests; give at least one")
    steps: list[Step] = []
    predicted, age = 0, 0
    before: tuple[int, ...] = ()
    found: Timed | None = None
    for batch in _batches(requests, tokens, sequences):
        alike = batch.who if not batch.prefill else ()
        age = age + 1 if alike and alike == before else 0
        before = alike
        if found is None or age % stride == 0:
            try:
                found = timing(batch.lengths)
            except InputError as error:
                raise InputError(f"step {len(steps) + 1}: {error}") from None
            predicted += 1
        kind: Kind = "decode" if not batch.prefill else "mixed" if batch.decodes else "prefill"
        keys = sum(one.keys for one in batch.lengths)
        what = (batch.start_s, kind, batch.prefill, batch.decodes, keys, batch.waiting)
        times = (found.time_s, found.time_low_s, found.time_high_s, found.attention_s)
        steps.append(Step(len(steps) + 1, *what, *times, found.busiest))
        batch.ends(found.time_s + rest_s)
        told()
    assert found is not None
    return Served(tuple(steps), of, found.implementation, read_gpu(gpu).id, rest_s, predicted)


def _called(w: Workload, lengths: Sequence[Length]) -> list[tuple[Length, ...]]:
    """The sequences of each call: of a latent those that decode are a call of their own, of other kernels."""
    if w.latent is None:
        return [tuple(lengths)]
    kinds = [tuple(one for one in lengths if (one.queries == 1) is decodes) for decodes in (False, True)]
    return [one for one in kinds if one]


@dataclass(frozen=True, slots=True)
class _Batch:
    """The sequences that a step attends, in the order of the requests."""

    lengths: tuple[Length, ...]
    who: tuple[int, ...]
    prefill: int
    decodes: int
    start_s: float
    waiting: int
    ends: Callable[[float], None]


def _batches(requests: Sequence[Request], tokens: int, sequences: int) -> Iterator[_Batch]:
    """The batch of each step; who takes it says how long it took."""
    coming = deque(_Running(number, one.prompt, one.output, one.arrival_s) for number, one in enumerate(requests))
    running: list[_Running] = []
    now = 0.0

    def ends(seconds: float) -> None:
        nonlocal now
        now += seconds

    for _ in range(MOST_STEPS):
        if not coming and not running:
            return
        if not running:
            now = max(now, coming[0].arrival_s)
        wanted = sum(one.wanted for one in running)
        while len(running) < sequences and coming and coming[0].arrival_s <= now and wanted < tokens:
            wanted += coming[0].wanted
            running.append(coming.popleft())
        left, chosen = tokens, list[tuple[_Running, int]]()
        for one in running:
            if new := min(left, one.wanted):
                chosen.append((one, new))
                left -= new
        yield _Batch(
            tuple(Length(new, one.cached + new) for one, new in chosen),
            tuple(one.number for one, _ in chosen),
            sum(new for one, new in chosen if not one.decodes),
            sum(one.decodes for one, _ in chosen),
            now,
            sum(one.arrival_s <= now for one in coming),
            ends,
        )
        for one, new in chosen:
            one.cached += new
            one.output -= one.decodes  # the step that ends a prompt makes the first token, each decode another
        running = [one for one in running if one.output > 0]
    raise InputError(f"the trace takes more than {MOST_STEPS} steps; give a part of it")
