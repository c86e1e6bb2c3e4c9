"""Lines of ``own/instructions.csv``: what a kernel's machine code has in a step, or in each of its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from attnsim.errors import InputError
from attnsim.kernels.lift.paths import between_waits, code_marks, shortest_path
from attnsim.kernels.variant import Variant
from attnsim.models.implementations.own.backward import MAIN, ROW_DOTS
from attnsim.models.implementations.own.backward import WARPS as BACKWARD_WARPS
from attnsim.models.implementations.own.decode import (
    COMBINE,
    COMBINE_AHEAD,
    COMBINE_WARPS,
    LSE,
    MERGE,
    ODD,
    ROWS,
    SLICE,
    VALUES,
    WEIGHTS,
)
from attnsim.models.implementations.own.linear import AHEAD, RANGES, STORED
from attnsim.models.implementations.own.linear_tiles import (
    CAUSAL,
    CHUNK,
    KEYS,
    OUTPUT,
    PARTS,
    REDUCE,
    SCAN,
    SLAB,
    STATE,
)
from attnsim.models.implementations.own.linear_tiles import WARPS as LINEAR_WARPS
from attnsim.models.implementations.own.naive import SOFTMAX, SUMS, WARP_COLUMNS
from attnsim.models.implementations.own.resources import FLYING, LOADING, PHASES, TURN
from attnsim.models.schedule.instructions import LANES, MMA_FLOPS
from attnsim.ptx.machine_code import Code
from benchmarks.machine_code import WORK, path_through, shortest_run

MMA_MACS = MMA_FLOPS // 2
HIDING = ("flash", "sigmoid", "sparse", "backward_main", "decode")
"""How the names of kernels begin that hide scores in some of their steps."""


def step_of(entry: str, sizes: Mapping[str, object]) -> tuple[int, int, int]:
    """Scores of a warp in a step, the elements of O beside them, and its products."""
    size = {name: int(value) for name, value in sizes.items() if isinstance(value, int)}
    d = size["HEAD_DIM"]
    if entry.startswith("backward"):  # S, dP, dV, dK and dQ; else elements of O or dQ
        elements = size["BLOCK_M"] * (size["BLOCK_N"] if entry == MAIN else d) // BACKWARD_WARPS
        return elements, 0, 5 * elements * d // MMA_MACS if entry == MAIN else 0
    if entry == STATE:  # of linear attention: features in place of scores
        elements = KEYS // size["WARPS"] * d
        return elements, 0, elements * (d + 8) // MMA_MACS
    if entry == "decode_split":
        rows, keys = ROWS, SLICE
    elif "WARPS" not in size:  # wgmma
        return 16 * size["BLOCK_N"], 16 * d, d // 16 + size["BLOCK_N"] // 16
    else:
        rows, keys = size["BLOCK_M"] // size["WARPS"], size["BLOCK_N"]
    return rows * keys, rows * d, 2 * rows * keys * d // MMA_MACS


def step_row(label: str, arch: str, sizes: Mapping[str, object], code: Code) -> str | None:
    """A line of ``own/instructions.csv``: a kernel's unmasked step; None where no loop has its products."""
    scores, elements, products = step_of(label.partition("(")[0], sizes)
    step, hiding = (code.step(products), code.hiding(products)) if products else (path_through(code),) * 2
    if step is None or hiding is None:
        return None
    count = code.counts(step)
    masked = code.counts(hiding)["integer"] - count["integer"] if label.startswith(HIDING) else 0
    rescaled = elements if LANES * count["exp"] % scores else 0  # beside whole numbers a score, factors of rows
    return _row(label, arch, scores, rescaled, count, masked)


def dots_rows(label: str, arch: str, sizes: Mapping[str, object], code: Code) -> list[str]:
    """Lines of `backward_row_dots`: up to the last of its first loads, until it waits for one, and from there."""
    elements, _, _ = step_of(ROW_DOTS, sizes)
    path, pending = path_through(code), set[int | None]()
    loaded = wait = 0
    for wait, index in enumerate(path):
        one = code.instructions[index]
        if not pending.isdisjoint(one.waits):
            break
        if one.name == "LDG":
            pending.add(one.written)
            loaded = wait + 1
    parts = zip(PHASES, pairwise((0, loaded, wait, len(path))), strict=True)
    return [_row(label, arch, elements, 0, code.counts(path[begin:end]), part=part) for part, (begin, end) in parts]


def _row(
    label: str, arch: str, scores: int, rescaled: int, count: Counter[str], masked: int = 0, part: str = ""
) -> str:
    issued = count.total() - count["tensor"] - count["matrix_load"]
    numbers = (scores, rescaled, issued, *(count[pipe] for pipe in ("exp", "fp32", "integer", "load_store")), masked)
    return ",".join(map(str, (f'"{label}"', arch.rstrip("a"), *numbers, part)))


def part_rows(label: str, arch: str, sizes: Mapping[str, object], code: Code) -> list[str] | None:
    """Lines of a step of linear attention that writes O: causal to its barrier, to its last product for O, to O, on.

    Nothing in it is seldom needed. Of a chunk a warp's rows are the last, which see all of its keys.
    """
    entry, d = label.partition("(")[0], int(str(sizes["HEAD_DIM"]))
    within, past, state = 16 * CHUNK * d, 16 * d * d, CHUNK * d * (d + 8) // LINEAR_WARPS
    chunk = code.iteration([macs // MMA_MACS for macs in (within, within, past, state)], whole=True)
    turn = chunk if entry == CAUSAL else code.hiding(SLAB * d * d // MMA_MACS)
    if turn is None:
        return None
    names = [code.instructions[index].name for index in turn]
    stored = max(place for place, name in enumerate(names) if name == "STG") + 1
    multiplied = max(place for place in range(stored) if names[place] == "HMMA") + 1
    starts = names.index("BAR") + 1 if entry == CAUSAL else 0
    paths = turn[:starts], turn[starts:multiplied], turn[multiplied:stored], turn[stored:]
    rows = CHUNK // LINEAR_WARPS if entry == CAUSAL else SLAB
    elements = 2 * rows * d, rows * d, rows * d, (d * d // LINEAR_WARPS if entry == CAUSAL else rows * d)
    return [
        _row(label, arch, some, 0, code.counts(path), part=part)
        for part, some, path in zip(PARTS, elements, paths, strict=True)
        if path
    ]


def places(code: Code, wanted: Mapping[str, int]) -> list[int]:
    """Instructions of a warp that makes so many accesses, shuffles, sums, each as often as it is issued.

    Raises
    ------
    InputError
        Where no path through the kernel does.
    """
    path = shortest_path(code, code_marks(code), wanted)
    if path is None:
        raise InputError(f"{code.name}: no path through it makes {dict(wanted)}; see instruction_rows")
    return path.places


def merging_rows(label: str, arch: str, code: Code) -> list[str]:
    """Lines of `linear_reduce`, `linear_scan` by numbers of a warp: up to the first loads, a turn, behind a last wait.

    A turn begins all of its loads before it waits for any, and goes from one wait to the next; what it does between its
    last load and the wait for it is apart. Each has one range; what goes with further ranges is counted beside. Of a
    range a warp loads numbers and a normaliser; a scan stores those of all but the first. Ranges that are not there are
    the last, and are found to be so behind the loads of the others.
    """

    def stretches(ranges: int) -> list[list[int]]:
        stored = {"store 128": ranges - 1, "store 32": ranges - 1}
        ends = stored if code.name == SCAN else {"store 64": 1, "store 32": 1, "shuffle": 1, "special": 1}
        wanted = {"load 128": ranges, "load 32": ranges, "sum": 5 * ranges, **ends}
        return between_waits(code, places(code, wanted), 2 * ranges)

    def less(whole: Counter[str], *parts: Counter[str]) -> Counter[str]:
        found = Counter(whole)
        for part in parts:
            found.subtract(part)
        return found

    def times(place: str, path: Sequence[int]) -> list[int]:
        return [number + 1 for number, index in enumerate(path) if code.instructions[index].name == place]

    (first, last), (most, behind), (_, turn, _) = (stretches(ranges) for ranges in (1, AHEAD, 2 * AHEAD))
    loads, stores = times("LDG", most), times("STG", behind)
    flying = code.counts(most[loads[-1] :])
    beside = less(code.counts(most), code.counts(first))
    tested = less(code.counts(most[loads[1] : loads[-1]]), beside)
    added = less(code.counts(behind), code.counts(last))
    stored, kept = code.counts(behind[stores[0] :]), Counter[str]()
    if code.name == SCAN:  # numbers and a normaliser of each range but the first
        stored = code.counts(behind[stores[-1] :])
        kept = less(code.counts(behind[stores[1] - 1 : stores[-1]]), Counter({"load_store": 1}))
        several = AHEAD - 2
        kept = Counter({pipe: (AHEAD - 1) * (many - several * added[pipe] // (AHEAD - 1)) // several
                        for pipe, many in kept.items()})  # fmt: skip
    loaded = less(beside, less(Counter(), tested))
    found = [
        (LOADING, 1, less(code.counts(first), flying, tested)),
        (FLYING, 1, flying + tested),
        (TURN, 1, less(code.counts(turn), added, loaded, flying)),
        ("", 1, less(code.counts(last), stored, kept)),
        (STORED, 1, stored + kept),
        (RANGES + LOADING, AHEAD - 1, loaded),
        (RANGES + FLYING, AHEAD - 1, less(Counter(), tested)),
        (RANGES, AHEAD - 1, less(added, less(Counter(), kept))),
        (RANGES + STORED, AHEAD - 1, less(Counter(), kept)),
    ]
    return [_row(label, arch, 4 * LANES * many, 0, count, part=part) for part, many, count in found]


def _waits(code: Code, path: Sequence[int], loads: Sequence[int]) -> int:
    """The first instruction of a path that waits for what such loads set."""
    written = {code.instructions[load].written for load in loads}
    return min(one for one in path if one > loads[0] and written.intersection(code.instructions[one].waits))


def combine_rows(label: str, arch: str, sizes: Mapping[str, object], code: Code) -> list[str]:
    """Lines of `decode_combine`, by threads: two further rounds of splits, one more, all else of a warp, what merges.

    A loop that was unrolled does two rounds a turn, and what is left over behind it an odd one. What a warp does up to
    its first load, of LSE, from there until it waits for that, and then until it waits for values are apart.
    """
    pairs, ahead = int(str(sizes["HEAD_DIM"])) // 64, COMBINE_AHEAD // COMBINE_WARPS

    def warp(rounds: int, **merging: int) -> list[int]:
        accesses = {"load 32": 1, "load 64": rounds * ahead * pairs, "shuffle": 10 + rounds * ahead}
        return places(code, {**accesses, "barrier": 1, "special": 1, **merging})

    once = warp(1)
    load, *values = sorted({index for index in once if code.instructions[index].name == "LDG"})
    known, there = (_waits(code, once, loads) for loads in ([load], values))
    stretches = {LSE: range(load + 1), VALUES: range(load + 1, known), WEIGHTS: range(known, there)}
    whole = code.counts(once)
    further = {TURN: warp(3), ODD: warp(2), MERGE: warp(1, **{"store 32": 2, "special": COMBINE_WARPS + 3})}
    elements = {TURN: 2 * LANES}
    before = {part: code.counts(index for index in once if index in where) for part, where in stretches.items()}
    before[""] = whole - sum(before.values(), Counter())
    rows = before | {part: code.counts(path) - whole for part, path in further.items()}
    return [_row(label, arch, elements.get(part, LANES), 0, count, part=part) for part, count in rows.items()]


def softmax_rows(label: str, arch: str, code: Code) -> list[str]:
    """Lines of `naive_softmax` whose rows stay in registers: a warp's four pieces, a warp without any, behind P."""
    path, once = path_through(code), shortest_run(code)
    stored = max(index for index in {*path} - {*once} if code.instructions[index].name == "STG")
    whole, least = code.counts(path), code.counts(once)
    behind = code.counts(index for index in once if index > stored)
    masked = code.counts(path_through(code, needed=(*WORK, "integer")))["integer"] - whole["integer"]
    return [
        _row(label, arch, WARP_COLUMNS, 0, whole - least, masked, TURN),
        _row(label, arch, LANES, 0, least - behind),
        _row(label, arch, LANES, 0, behind, part=SUMS),
    ]


def rows_of(variant: Variant, arch: str, code: Code) -> list[str] | None:
    """Lines of a kernel; None where no loop has the products of its step."""
    sizes, label = dict(variant.defines), variant.label
    if variant.entry in (OUTPUT, CAUSAL):
        return part_rows(label, arch, sizes, code)
    if variant.entry in (REDUCE, SCAN):
        return merging_rows(label, arch, code)
    if variant.entry == COMBINE:
        return combine_rows(label, arch, sizes, code)
    if variant.entry == SOFTMAX:
        return softmax_rows(label, arch, code)
    if variant.entry == ROW_DOTS:
        return dots_rows(label, arch, sizes, code)
    line = step_row(label, arch, sizes, code)
    return [line] if line else None
