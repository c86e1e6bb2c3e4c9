"""The compiled twin == SimPy: time, every block's end in order, waits, bytes and marks, to the last picosecond."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.jit import jit
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.operation import Segment
from attnsim.models.schedule.schedule import Kernel, Launch
from attnsim.simulator import compiled, engine, players, program, twin
from attnsim.simulator.program import (
    DELAY,
    KIND,
    LATENCY,
    LOAD,
    MARK,
    MMA,
    MMA_ASYNC,
    MMA_WAIT,
    PREFETCH,
    STORE,
    VECTOR,
    WAIT,
    Copy,
    Played,
    Prepared,
    Program,
    Step,
    prepare,
)
from benchmarks.questions import answerable, at_length

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "rtx-4090", "b200-sxm-180gb", "v100-sxm2-32gb")
LENGTHS = (64, 200, 512, 1000, 2048, 4096)
EXECUTIONS = 800
"""Executions of a segment by a warpgroup above which a kernel is thinned before both players play it."""
NESTS = (*range(500), 2795)
"""The last is the one of the first 4,000 in which it shows who of several waiting warpgroups goes on first."""
STUCK = range(500, 520)


def differences(one: Played, other: Played) -> list[str]:
    """The parts of two answers that are not the same."""
    return [
        name
        for name in Played.__slots__
        if not np.array_equal(np.asarray(getattr(one, name)), np.asarray(getattr(other, name)))
    ]


def both(kernel: Kernel, program: Program, sms: int, slots: int) -> list[str]:
    """What differs between the players' answers."""
    return differences(
        players.by_simpy(kernel, program, sms, slots),
        twin.play(kernel, program, sms, slots),
    )


def questions(gpu_id: str, lengths: Iterable[int]) -> Iterator[tuple[str, str, Workload, tuple[Prepared, ...]]]:
    """Every mechanism and implementation that runs on a GPU, at these lengths, with the kernels of the call."""
    gpu = load_gpu(gpu_id)
    for mechanism, length in product(MECHANISMS.values(), lengths):
        w = at_length(mechanism, length)
        w = w if gpu.supports_dtype(w.dtype) else replace(w, dtype="fp16")
        for record in map(find_implementation, mechanism.implementations):
            asked = w if w.passes in record.passes else replace(w, passes=record.passes[0], seq_q=1)
            for one in suiting(record, asked):
                if answerable(record, one, gpu):
                    with suppress(InputError):  # its blocks do not fit an SM of this GPU, or the mask not its blocks
                        kernels = prepare(record.build(one, gpu, None), gpu, choose(record, gpu).numbers, "warm")
                        yield mechanism.name, record.name, one, kernels
                        break


def suiting(record: Implementation, w: Workload) -> Iterator[Workload]:
    """The question, with keys that are shared where the implementation shares some; then of blocks like tiles."""
    keys = w.seq_kv
    yield replace(w, seq_q=min(w.seq_q, keys // 2), prefix=keys // 4) if record.prefixes else w
    if record.runs == "sparse":
        for mask in ("random 10 % x128", "prefix 8"):
            yield replace(w, head_dim=128, head_dim_v=128, mask=Mask.parse(mask))
    if w.passes == "decode":
        yield replace(w, seq_q=4)


def test_the_gpus_run_every_implementation_of_every_mechanism() -> None:
    run = {(mechanism, record) for gpu_id in GPUS for mechanism, record, *_ in questions(gpu_id, LENGTHS[-1:])}
    known = {(one.name, record) for one in MECHANISMS.values() for record in one.implementations}
    assert {name for name, _ in known - run} == {"sliding-window"}
    assert not any(find_implementation(record).windows for _, record in known - run)


@pytest.mark.parametrize(("turn", "gpu_id"), [*enumerate(GPUS)], ids=GPUS)
def test_the_players_agree_on_every_implementation_of_every_mechanism(turn: int, gpu_id: str) -> None:
    """On each GPU at two of the lengths; where products run beside registers, warps have paths of their own."""
    seen, own = set(), set[bool]()
    for _, record, w, kernels in questions(gpu_id, LENGTHS[turn % 3 :: 3]):
        for item in kernels:
            kernel, program, sms, slots = thinned(item, load_gpu(gpu_id).sm.count)
            order = b"".join(launch.classes.tobytes() for launch in kernel.launches)
            key = (program.segments, kernel.repeats.tobytes(), order, kernel.blocks, sms, slots)
            if key not in seen:
                seen.add(key)
                own.add(own_paths(program))
                told = f"{kernel.name} of {record} on {gpu_id}: {w}, {sms} SMs, {kernel.blocks} blocks"
                assert not both(kernel, program, sms, slots), told
    assert len(seen) > 100
    features = load_gpu(gpu_id).features
    assert (True in own) == (features.wgmma or features.tcgen05)


def thinned(item: Prepared, sms: int) -> tuple[Kernel, Program, int, int]:
    """A kernel, or few of its blocks on so many SMs fewer, that share L2 and HBM with those that are left out."""
    kernel, slots = item.kernel, item.fit.blocks_per_sm
    blocks, left = kernel.blocks, sms
    size = players.executions(kernel)
    if size > EXECUTIONS:
        keep = max(2, blocks * EXECUTIONS // size)
        order = np.concatenate(
            [np.tile(one.classes, min(one.times, ceil(keep / len(one.classes)))) for one in kernel.launches]
        )
        order = order[np.linspace(0, len(order) - 1, min(keep, len(order))).astype(np.int64)]
        launches = (Launch(order[: len(order) // 2], 2), Launch(order[len(order) // 2 * 2 :]))
        kernel = replace(kernel, launches=tuple(one for one in launches if len(one.classes)))
        left = max(1, round(sms * kernel.blocks / blocks))
    active = min(left, kernel.blocks)
    return kernel, marked(item.compiled().shared_by(sms / left)), active, min(slots, ceil(kernel.blocks / active))


def marked(program: Program) -> Program:
    """The program with a mark of its own at the end of every segment."""
    segments = tuple((*steps, (MARK, n, 0, 0, 0, Copy())) for n, steps in enumerate(program.segments))
    return program_of(segments, program.tensors, program.warpgroups, len(segments))


def program_of(
    segments: Sequence[Sequence[Step]], tensors: tuple[str, ...], warpgroups: int, marks: int = 0
) -> Program:
    """A program from its steps, segment by segment."""
    table = np.array([(*step[:5], *step[5]) for steps in segments for step in steps], np.int64).reshape(-1, 12)
    begins = np.cumsum([0, *map(len, segments)])
    return Program(table, np.zeros((len(table), 2)), np.arange(len(table)), begins, tensors, warpgroups, marks)


def nest(seed: int, *, stuck: bool = False) -> tuple[Kernel, Program, int, int]:
    """A random loop nest with times so short that much happens at once; on so many SMs, with so many residents.

    It loads before it waits and issues MMAs before it waits for them; a nest that is to be stuck ends with a wait for a
    load that nobody issues.
    """
    draw, issuing = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    counted = seed % 2 == 0

    def upto(most: int) -> int:
        return int(draw.integers(most + 1))

    tensors, warpgroups = 1 + upto(2), 1 + upto(2)
    times, sharers = (0, 0, 1, 2, 3, 10, 50)[: 3 + upto(4)], (1, 3)[upto(1)]
    ahead = [upto(2) for _ in range(tensors)]  # loads in flight from one segment to the next, and MMAs
    mmas = upto(2)

    def time() -> int:
        return int(draw.choice(times))

    def copy(latency: int) -> Copy:
        l2, hbm = time(), time()
        return Copy(time(), sharers * l2, l2, sharers * hbm, hbm, latency, 1 + upto(99))

    def step(kind: int, tensor: int) -> Step:
        timed = kind in (MMA, MMA_ASYNC, VECTOR, DELAY)
        moves = copy(5 * time()) if kind == LOAD else copy(0) if kind == STORE else Copy()
        if kind == VECTOR and counted:  # its warps' own path
            moves = Copy(latency=int(issuing.choice(times)))
        one, two = time() if timed else 0, time() if timed and kind != DELAY else 0
        issue = int(issuing.choice(times)) if kind in (MMA, MMA_ASYNC, VECTOR) and counted else 0
        return kind, tensor, one, two, issue, moves

    def turn() -> Iterator[Step]:
        """The body of a loop, which leaves as many loads and MMAs in flight as it found."""
        flying, issued = list(ahead), mmas
        for _ in range(upto(8)):
            kind, tensor = int(draw.choice([LOAD, LOAD, WAIT, WAIT, STORE, MMA, MMA_ASYNC, MMA_WAIT, VECTOR, DELAY])), 0
            if kind in (LOAD, WAIT, STORE):
                tensor = upto(tensors - 1)
            if (kind == WAIT and not flying[tensor]) or (kind == MMA_WAIT and not issued):
                continue
            flying[tensor] += (kind == LOAD) - (kind == WAIT)
            issued += (kind == MMA_ASYNC) - (kind == MMA_WAIT)
            yield step(kind, tensor)
        for tensor, left in enumerate(flying):
            yield from (step(LOAD if left < ahead[tensor] else WAIT, tensor) for _ in range(abs(left - ahead[tensor])))
        yield from (step(MMA_ASYNC if issued < mmas else MMA_WAIT, 0) for _ in range(abs(issued - mmas)))

    first = [step(LOAD, tensor) for tensor, count in enumerate(ahead) for _ in range(count)]
    first += [step(DELAY, 0)] * upto(1) + [step(MMA_ASYNC, 0) for _ in range(mmas)]
    last = [step(WAIT, tensor) for tensor, count in enumerate(ahead) for _ in range(upto(count))]
    last += [step(MMA_WAIT, 0) for _ in range(upto(mmas))] + [step(STORE, upto(tensors - 1))] * upto(2)
    segments = [first, *(list(turn()) for _ in range(1 + upto(1))), last]
    if upto(1):
        into = segments[upto(len(segments) - 1)]
        into.insert(upto(len(into)), (PREFETCH, 0, 0, 0, 0, Copy()))
    if stuck:
        last.extend(step(WAIT, 0) for _ in range(1 + ahead[0]))
    marks = upto(3)
    for n in range(marks):
        into = segments[upto(len(segments) - 1)]
        into.insert(upto(len(into)), (MARK, n, 0, 0, 0, Copy()))
    classes = 1 + upto(2)
    repeats = draw.integers(0, 7, (classes, 1 + upto(2), len(segments)))
    repeats[:, :, [0, -1]] = 1
    kernel = Kernel(
        name=f"seed {seed}",
        threads=128,
        registers_per_thread=32,
        segments=tuple(Segment(str(n), ()) for n in range(len(segments))),
        repeats=repeats.astype(np.int64),
        launches=tuple(Launch(draw.integers(classes, size=1 + upto(7)), 1 + upto(2)) for _ in range(1 + upto(1))),
        uses=(),
        warpgroups=warpgroups,
    )
    names = tuple("KVO"[:tensors])
    return kernel, program_of(segments, names, warpgroups, marks), 1 + upto(3), 1 + upto(2)


@pytest.mark.parametrize("interrupted", [False, True], ids=["in one go", "interrupted"])
def test_the_players_agree_on_random_loop_nests(interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in NESTS:
        if interrupted:
            monkeypatch.setattr(twin, "AT_ONCE", 1 + seed % 7)
        different = both(*nest(seed))
        assert not different, f"nest({seed}): {different} differ"


def test_the_players_agree_where_every_turn_of_a_loop_leaves_loads_in_flight() -> None:
    """Nine at most, one more than before any loop and after it."""
    kernel, _, sms, slots = nest(0)
    load, wait = (LOAD, 0, 0, 0, 0, Copy(port=3, latency=50, size=1)), (WAIT, 0, 0, 0, 0, Copy())
    mma = (MMA, 0, 40, 0, 7, Copy())
    kernel = replace(kernel, repeats=np.array([[[8, 8]]] * len(kernel.repeats)), warpgroups=1)
    assert not both(kernel, program_of(((load, load, wait, mma), (wait, mma)), ("K",), 1), sms, slots)


def test_random_loop_nests_hold_what_makes_players_differ() -> None:
    """Each of what the twin does in its own way is in many nests."""
    nests = [nest(seed) for seed in NESTS]
    counts = {
        "warpgroups": [sum(kernel.warpgroups == n for kernel, *_ in nests) for n in (1, 2, 3)],
        "prefetch": [
            sum(kernel.warpgroups == n and PREFETCH in kinds(program) for kernel, program, *_ in nests)
            for n in (1, 2, 3)
        ],
        "asynchronous MMAs": [sum(MMA_ASYNC in kinds(program) for _, program, *_ in nests)],
        "own paths": [sum(own_paths(program) for _, program, *_ in nests)],
        "marks": [sum(program.marks > 0 for _, program, *_ in nests)],
        "classes": [sum(len(kernel.repeats) > 1 for kernel, *_ in nests)],
        "outer turns": [sum(kernel.repeats.shape[1] > 1 for kernel, *_ in nests)],
        "launches": [sum(len(kernel.launches) > 1 for kernel, *_ in nests)],
        "several blocks to a slot": [sum(kernel.blocks > 2 * sms * slots for kernel, _, sms, slots in nests)],
        "waits": [sum(players.by_simpy(*one).waited > 0 for one in nests)],
    }
    assert min(min(count) for count in counts.values()) > 50, counts


def own_paths(program: Program) -> bool:
    """Whether vector work goes on behind the unit that it holds."""
    used = program.table[program.index]
    return bool(used[used[:, KIND] == VECTOR, LATENCY].any())


def kinds(program: Program) -> set[int]:
    return set(program.table[program.index, 0].tolist())


@pytest.mark.parametrize("seed", STUCK)
def test_both_players_refuse_a_nest_that_waits_for_a_load_never_started(seed: int) -> None:
    for play in (players.by_simpy, twin.play):
        with pytest.raises(RuntimeError, match="never starts"):
            play(*nest(seed, stuck=True))


def test_compiled_code_reads_kinds_and_columns_of_a_program() -> None:
    """They are written down twice, since numba does not see when another file changes."""
    names = ("LOAD", "WAIT", "STORE", "MMA", "MMA_ASYNC", "MMA_WAIT", "VECTOR", "DELAY", "PREFETCH", "MARK")
    columns = ("KIND", "TENSOR", "ONE", "TWO", "ISSUE", "PORT", "L2", "OWN_L2", "HBM", "OWN_HBM", "LATENCY", "SIZE")
    for name in (*names, *columns):
        assert getattr(compiled, name) == getattr(program, name), name


def test_where_code_cannot_be_kept_it_is_compiled_anew() -> None:
    scope: dict[str, Any] = {}
    exec("def twice(x): return 2 * x", scope)  # of no file, so numba has no folder for it
    assert jit(scope["twice"])(3) == 6


def test_who_plays_does_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """SimPy first, the twin once this process has played for a while, SimPy again where there is no numba."""
    work, asked = nest(0), list[str]()
    for module in (engine, twin):
        monkeypatch.setattr(module, "play", noting(module.play, asked, module.__name__))
    answers, once, most = [], players.executions(work[0]), players.PLAYED_BY_SIMPY
    monkeypatch.setattr(players, "_plays", None)
    for left, plays, there in ((most, 1, twin), (once, 1, twin), (once, 2, twin), (0, 1, twin), (0, 1, None)):
        monkeypatch.setattr(players, "_left", left)
        monkeypatch.setattr(players, "twin", lambda there=there: there)
        players.expect(plays)
        answers.append(players.play(*work))
    assert asked == [*2 * [engine.__name__], *2 * [twin.__name__], engine.__name__]
    assert all(differences(answers[0], other) == [] for other in answers[1:])


def noting(play: Callable[..., Played], asked: list[str], name: str) -> Callable[..., Played]:
    def noted(*of: Any, **given: Any) -> Played:
        asked.append(name)
        return play(*of, **given)

    return noted


def test_progress_is_reported_in_ended_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twin, "AT_ONCE", 10)
    work, ended = nest(1), list[int]()
    twin.play(*work, ended.append)
    assert ended == sorted(ended) and len(ended) > 0 and ended[-1] <= work[0].blocks
