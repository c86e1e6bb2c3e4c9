"""A serving trace step by step: which sequences each step attends, and how long attention takes of it.

Continuous batching as vLLM's scheduler does it (``vllm/v1/core/sched/scheduler.py``, `Scheduler.schedule`): a step has
a budget of tokens; running requests come first, a token for each that decodes and the next chunk of each that does
not; requests that wait are taken in order while there is room. It is a study of attention, not a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attnsim.api.answer import TooLarge
from attnsim.api.answering import answer
from attnsim.api.asking import Calibrated, ask, read_conditions, read_gpu
from attnsim.api.playing import too_large
from attnsim.api.requests import LONGEST_S, Request
from attnsim.errors import InputError
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload

LEFT_OUT = (
    "Left out: projections, MLP, sampling and all else of a step but --rest, prefix caching, preemption and swapping, "
    "speculative decoding, the time to schedule, and what other GPUs do."
)
MOST_STEPS = 1_000_000
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
        Attention's, of all layers, and its 90 % range.
    busiest : str
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
    busiest: str


@dataclass(frozen=True, slots=True)
class Served:
    """A trace stepped through.

    Parameters
    ----------
    steps : tuple of Step
    implementation, gpu : str
    layers : int
    rest_s : float
    predicted : int
        Steps that were predicted; the others have the time of one before.
    """

    steps: tuple[Step, ...]
    implementation: str
    gpu: str
    layers: int
    rest_s: float
    predicted: int

    @property
    def attention_s(self) -> float:
        """Attention's time in all."""
        return sum(one.time_s for one in self.steps)

    @property
    def range_s(self) -> tuple[float, float]:
        """The ends of its 90 % range, of steps that are all off in the same direction."""
        return sum(one.time_low_s for one in self.steps), sum(one.time_high_s for one in self.steps)

    @property
    def end_s(self) -> float:
        """When the last step ends, on the trace's clock."""
        return self.steps[-1].start_s + self.steps[-1].time_s + self.rest_s

    def by_kind(self) -> list[dict[str, Any]]:
        """Steps, tokens and time of each kind of step: ``kind, steps, tokens, time_s, share, longest_s``."""
        rows = []
        for kind in ("prefill", "mixed", "decode"):
            mine = [one for one in self.steps if one.kind == kind]
            if mine:
                time = sum(one.time_s for one in mine)
                tokens = sum(one.prefill_tokens + one.decodes for one in mine)
                longest = max(one.time_s for one in mine)
                shares = {"time_s": time, "share": time / self.attention_s, "longest_s": longest}
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


def serve(
    requests: Sequence[Request],
    workload: Workload,
    gpu: Gpu | str,
    implementation: str | None = None,
    *,
    layers: int = 1,
    others: Sequence[tuple[Workload, int]] = (),
    tokens: int = 2048,
    sequences: int = 256,
    rest_s: float = 0.0,
    stride: int = 8,
    launch: str = "graph",
    cache: str | None = None,
    calibration: Calibrated = None,
    told: Callable[[], None] = lambda: None,
) -> Served:
    """Step through requests.

    Parameters
    ----------
    requests : sequence of Request
        In order of arrival.
    workload : Workload
        Heads, widths, mask and format; its lengths are not looked at.
    gpu : Gpu or str
    implementation : str, optional
    layers : int
        Layers whose attention is counted, all alike.
    others : sequence of (Workload, int)
        What other layers have, in a model whose layers differ, and how many they are.
    tokens : int
        Budget of a step.
    sequences : int
        Most that run at a time.
    rest_s : float
        Seconds that a step takes beside attention; they move the clock of arrivals.
    stride : int
        While the same sequences decode, every so many steps one is predicted, and those after it take as long.
    launch, calibration
        As for :func:`attnsim.predict`.
    cache : str, optional
        State of the L2 before each layer; by default cold where sequences decode: the other layers have run since.
    told : callable
        Called after each step.

    Raises
    ------
    InputError
        Bad input, in one line; also where a step does not fit the memory.
    """
    for name, value in (("tokens", tokens), ("sequences", sequences), ("layers", layers), ("stride", stride)):
        if value < 1:
            raise InputError(f"{name} is {value}; allowed: whole numbers from 1")
    if not 0 <= rest_s <= LONGEST_S:
        raise InputError(f"rest of a step is {1e3 * rest_s:g} ms; allowed: 0 to {1e3 * LONGEST_S:g}")
    if not requests:
        raise InputError("there are no requests; give at least one")
    machine = read_gpu(gpu)
    own = read_conditions(calibration=calibration).own
    known = {one: read_conditions(cache=cache or one, launch=launch, calibration=own) for one in ("cold", "warm")}
    if implementation is None and workload.latent is None:  # a server runs one library: that of its decode steps
        one = workload.of(Length(1, requests[0].prompt)).with_passes("decode")
        implementation = ask(one, machine, "flash").record.name
    calls = ((workload, layers), *others)
    key_bytes = sum(many * w.of(Length(1, 1)).kv_cache_bytes for w, many in calls if not w.mask.is_windowed)
    steps: list[Step] = []
    predicted, age = 0, 0
    before: tuple[int, ...] = ()
    time_s, low_s, high_s, busiest, record = 0.0, 0.0, 0.0, "", ""
    for batch in _batches(requests, tokens, sequences):
        alike = batch.who if not batch.prefill else ()
        age = age + 1 if alike and alike == before else 0
        before = alike
        keys = sum(one.keys for one in batch.lengths)
        if keys * key_bytes > machine.hbm.capacity_bytes:
            cache = too_large(keys * key_bytes, machine.hbm.capacity_bytes)
            raise InputError(
                f"step {len(steps) + 1}: the KV cache of {sum(many for _, many in calls)} layers {cache}; run fewer "
                "sequences at a time"
            )
        if age % stride == 0:
            time_s, low_s, high_s, longest_s = 0.0, 0.0, 0.0, 0.0
            apart = [(asked.having(part), many) for asked, many in calls for part in _called(asked, batch.lengths)]
            for asked, many in apart:
                w = asked.with_passes("decode" if asked.seq_q == 1 else "fwd")
                mechanism = "flash" if w.latent is None else "mla"
                found = answer(ask(w, machine, mechanism, implementation, known["cold" if batch.decodes else "warm"]))
                if isinstance(found, TooLarge):
                    raise InputError(f"step {len(steps) + 1} {found.too_large}; run fewer sequences at a time")
                mine_s, trust = found.time_s * many, found.trust
                time_s, low_s, high_s = time_s + mine_s, low_s + trust.low * mine_s, high_s + trust.high * mine_s
                if mine_s > longest_s:
                    longest_s, busiest, record = mine_s, found.busiest, found.implementation
            predicted += 1
        kind: Kind = "decode" if not batch.prefill else "mixed" if batch.decodes else "prefill"
        what = (batch.start_s, kind, batch.prefill, batch.decodes, keys, batch.waiting)
        steps.append(Step(len(steps) + 1, *what, time_s, low_s, high_s, busiest))
        batch.ends(time_s + rest_s)
        told()
    return Served(tuple(steps), record, machine.id, sum(many for _, many in calls), rest_s, predicted)


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
