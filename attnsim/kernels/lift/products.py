"""What the products of a block are to it, scores or sums, and one operation for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from attnsim.kernels.lift.drafts import CHARGED, Draft, is_product
from attnsim.models.implementations.fused.forward import BY_WIDTH
from attnsim.models.schedule.operation import TileOp, Waits

SCORES, SUM = "S", "O"
MANY = 2
"""From so many sums of products in a row on each is an operation; the backward pass has three."""


def with_scores(drafts: Sequence[Draft]) -> list[Draft]:
    """Name the products, and say of vector work how many scores pass through it.

    The work on a tile of scores is shared out over the operations that compute exponentials of it. A score is an
    accumulator, or the sum of several where there are so many times fewer exponentials.
    """
    found = [replace(one, tensor=SCORES if one.consumed else SUM) if is_product(one) else one for one in drafts]
    for step in _steps(found):
        parts = [one for one in step if one.exps]
        exps = sum(one.exps for one in parts)
        step[0].chains = max(1, round(step[0].results / exps)) if exps else 1
        total = left = step[0].results if exps else 0
        for one in parts:
            one.scores = left if one is parts[-1] else round(total * one.exps / exps)
            left -= one.scores
    return found


def coalesced(drafts: Sequence[Draft]) -> list[Draft]:
    """Products that a compiler has sliced between the work of a softmax, each as one operation after that work.

    In the simulator a product holds the tensor unit until it ends; slices of one would each wait for the lanes.
    """
    found: list[Draft] = []
    sliced: Draft | None = None
    for one in drafts:
        if one.kind == "vector" and found and found[-1].kind == "vector" and (sliced is None or one.exps):
            found[-1].add(one)
        elif one.kind == "mma" and not one.consumed and sliced is not None:
            sliced.add(one)
        else:
            if sliced is not None:
                found.append(sliced)
            sliced = one if one.kind == "mma" and not one.consumed else None
            if sliced is None:
                found.append(one)
    return [*found, *([sliced] if sliced else [])]


def per_score(blocks: Sequence[Sequence[Draft]]) -> float:
    """FP32 instructions that each score takes at least: those of a tile that is not masked, without rescaling."""
    found = [
        sum(one.fp32 - one.on_sums for one in step) / scores
        for drafts in blocks
        for step in _steps(drafts)
        if (scores := sum(one.scores for one in step))
    ]
    return min(found, default=0.0)


def _steps(drafts: Sequence[Draft]) -> list[Sequence[Draft]]:
    """The operations from each product of scores to the next; the last ends with the block's last product."""
    places = [place for place, one in enumerate(drafts) if is_product(one)]
    heads = [place for place in places if drafts[place].consumed]
    return [drafts[head:stop] for head, stop in pairwise([*heads, max(places, default=0) + 1])]


def beyond_scores(drafts: Sequence[Draft], each: float) -> list[Draft]:
    """Of the FP32 instructions of each step keep those that are not `each` of its scores', with its first scores."""
    found = [replace(one) for one in drafts]
    for step in _steps(found):
        scored = [one for one in step if one.scores]
        if scored:
            rest = max(0, round(sum(one.fp32 for one in step) - each * sum(one.scores for one in scored)))
            for one in step:
                one.fp32 = 0
            scored[0].fp32 = rest
    return found


def row_tiles(drafts: Sequence[Draft]) -> list[Sequence[Draft]]:
    """What a block does for each of its row tiles: it stores the sums of one before it multiplies for the next.

    What every step stores ends none.
    """
    cuts, stored, multiplied = [0], 0, False
    for place, one in enumerate(drafts):
        if is_product(one):
            cuts += [stored] if stored else []
            stored, multiplied = 0, True
        elif one.kind == "store" and multiplied and not one.each_step:
            stored = place + 1
    return [drafts[begin:end] for begin, end in pairwise([*cuts, len(drafts)])]


def finished(
    drafts: Sequence[Draft], groups: int = 1, *, counted: bool = True
) -> tuple[tuple[TileOp, ...], list[Counter[str]]]:
    """The operations of a row tile, with the latencies of a block and of its steps.

    A block that takes several has those of a block for each: so they are fitted, to kernels whose blocks stay as well.
    A block that multiplies has one before it begins. Where it works on its products, it has another before its first
    store, and a step has one before its first product: of scores, or after a wait where there are none. These stand for
    all work before the first product or exponential and after the last product: they are fitted so. A block without
    products has that of one step; where it loads several tensors, addresses are worked out before the loads, else all
    is counted behind them, since how many of its loads begin before the first is waited for depends on registers.

    Parameters
    ----------
    drafts : sequence of Draft
    groups : int
        Warpgroups that share the work, which run ahead of one another.
    counted : bool
        Whether work is charged by the instructions that were counted, not by scores.

    Returns
    -------
    tuple of TileOp
    list of Counter of str
        Warp instructions of each by pipe; of what is left out with what follows.
    """
    products = [place for place, one in enumerate(drafts) if is_product(one)]
    apart = not products and len({one.tensor for one in drafts if one.kind == "load"}) > 1
    latency: Waits
    inside, latency = range(len(drafts)), "step"
    if products:
        first = next(place for place, one in enumerate(drafts) if one.exps or is_product(one))
        inside = range(first, _end(drafts, products[-1]))
        latency = "block" if any(drafts[place].kind == "vector" and drafts[place].works for place in inside) else ""
    works = latency != ""
    heads = _begins(drafts) if latency == "block" else ()
    found: list[TileOp] = [TileOp("delay", waits="block", share=_share(drafts))] if products else []
    counts = [Counter[str]() for _ in found]
    left = Counter[str]()

    worked: tuple[int, Draft] | None = None

    def add(op: TileOp, spent: Counter[str]) -> None:
        found.append(op)
        counts.append(spent)

    for place, one in enumerate(drafts):
        if place == inside.stop and worked and counted:  # what the last step does behind its products
            number, draft = worked
            counts[number] += left
            found[number], left = draft.operation(groups, counts[number]), Counter()
        if one.kind == "store" and latency and (not products or place > products[-1]):
            add(TileOp("delay", waits=latency), Counter())
            latency = ""
        if place in heads:
            add(TileOp("delay", waits="step"), Counter())
        if one.kind not in CHARGED:
            add(one.operation(groups, None), Counter() if place in inside else one.instructions + left)
            left = left + one.instructions if place in inside else Counter()
        elif one.kind != "vector" or (place in inside and (one.works or one.scores or apart)):
            if one.kind == "vector":
                worked = len(found), one
            spent = one.instructions + left if one.kind == "vector" or not works else one.instructions
            left = Counter() if one.kind == "vector" or not works else left
            add(one.operation(groups, spent if counted else None), spent)
        elif place < inside.start:
            counts[-1] += one.instructions
        else:
            left += one.instructions
    if counts:
        counts[-1] += left
    if counted and worked and not products:
        number, draft = worked
        found[number] = draft.operation(groups, counts[number] + left)
    return tuple(found), counts


def _end(drafts: Sequence[Draft], last: int) -> int:
    """Where the last step ends: with its last product, or with a store that every step has."""
    stores = [place for place, one in enumerate(drafts) if one.kind == "store" and one.each_step]
    end = max([last, *(place + 1 for place in stores)])
    return end + (end < len(drafts) and drafts[end].kind == "vector" and not drafts[end].works)


def apart(drafts: Sequence[Draft]) -> list[Draft]:
    """Sums of products that follow one another, each as an operation: as many as they are times a product of scores."""
    found: list[Draft] = []
    scores = 0
    for one in drafts:
        scores = one.flops if is_product(one) and one.consumed else scores
        times, rest = divmod(one.flops, scores) if scores and not one.consumed else (1, 0)
        found += [one] if rest or times < MANY else [one.part(times, f"{SUM} {number + 1}") for number in range(times)]
    return found


def _begins(drafts: Sequence[Draft]) -> frozenset[int]:
    """Where steps begin: behind the waits for what their first product reads."""
    heads = _heads(drafts)
    found = set()
    for head in heads:
        place = head
        while place and drafts[place - 1].kind != "wait" and not is_product(drafts[place - 1]):
            place -= 1
        found.add(place if place and drafts[place - 1].kind == "wait" else head)
    return frozenset(found)


def _heads(drafts: Sequence[Draft]) -> frozenset[int]:
    """The products with which steps begin."""
    products = [place for place, one in enumerate(drafts) if is_product(one)]
    if any(drafts[place].consumed for place in products):
        return frozenset(place for place in products if drafts[place].consumed)
    waits = [place for place, one in enumerate(drafts) if one.kind == "wait"]
    after = (next((place for place in products if place > wait), None) for wait in waits)
    return frozenset(place for place in after if place is not None)


def _share(drafts: Sequence[Draft]) -> float:
    """The part of a block's latency before its first step, which grows with the columns of Q and of O.

    The columns are the depth of the first product, of scores, and as many more as the next has FLOPs over it.
    """
    products = [one for one in drafts if is_product(one)]
    place = next((place for place, one in enumerate(products) if one.consumed), None)
    if place is None:
        return 1.0
    scores, sums = products[place], next((one for one in products[place:] if not one.consumed), None)
    depth = scores.flops / (2 * scores.results)
    return 1 + BY_WIDTH * (depth * (1 + (sums.flops / scores.flops if sums else 0)) / 256 - 1)
