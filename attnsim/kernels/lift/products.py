"""Classifies the products of a block as scores or sums, and turns drafts into finished operations."""

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
"""Consecutive sums of products are separate operations from this number on; the backward pass has three."""


def with_scores(drafts: Sequence[Draft]) -> list[Draft]:
    """Name the products, and assign to vector work the number of scores that it processes.

    The scores of a tile are distributed over the operations that compute their exponentials. A score is one
    accumulator, or the sum of n accumulators if there are n times fewer exponentials.
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
    """Merge products that a compiler has split between parts of a softmax, into one operation after the softmax.

    In the simulator, a product occupies the tensor unit until it ends, so each slice would wait for the vector work.
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
    """Return the smallest number of FP32 instructions per score: that of a tile without mask and rescaling."""
    found = [
        sum(one.fp32 - one.on_sums for one in step) / scores
        for drafts in blocks
        for step in _steps(drafts)
        if (scores := sum(one.scores for one in step))
    ]
    return min(found, default=0.0)


def _steps(drafts: Sequence[Draft]) -> list[Sequence[Draft]]:
    """Split operations into steps, each from one product of scores to the next; the last ends with the last product."""
    places = [place for place, one in enumerate(drafts) if is_product(one)]
    heads = [place for place in places if drafts[place].consumed]
    return [drafts[head:stop] for head, stop in pairwise([*heads, max(places, default=0) + 1])]


def beyond_scores(drafts: Sequence[Draft], each: float) -> list[Draft]:
    """Keep the FP32 instructions of each step beyond `each` per score, and charge them to its first scores."""
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
    """Split the operations of a block by row tile: it stores the sums of one before it multiplies for the next.

    A store that every step has does not end a row tile.
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
    """Return the operations of a row tile, with delays for the fitted latencies of blocks and steps.

    The latencies are fitted on the same rules:

    - Each row tile has the latencies of a block, also in blocks that process several (persistent kernels).
    - A block with products has a block latency at its start. If it has vector work on its products, it has another
      before its first store, and each step has a step latency before its first product (of scores, or after a wait if
      there are no scores). These latencies include all work before the first product or exponential and after the last
      product.
    - A block without products has the latency of one step. If it loads several tensors, address arithmetic is counted
      before the loads. Else all work is counted after them, since registers limit how many loads are issued before the
      first wait.

    Parameters
    ----------
    groups : int
        Warpgroups that share the work and can run ahead of one another.
    counted : bool
        Charge work by counted instructions, not by scores.

    Returns
    -------
    tuple of TileOp
    list of Counter of str
        Warp instructions of each operation by pipe; those of dropped operations are added to the next.
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
    """Return the end of the last step: its last product, or a store that every step has."""
    stores = [place for place, one in enumerate(drafts) if one.kind == "store" and one.each_step]
    end = max([last, *(place + 1 for place in stores)])
    return end + (end < len(drafts) and drafts[end].kind == "vector" and not drafts[end].works)


def apart(drafts: Sequence[Draft]) -> list[Draft]:
    """Split consecutive sums of products into operations of the size of one product of scores."""
    found: list[Draft] = []
    scores = 0
    for one in drafts:
        scores = one.flops if is_product(one) and one.consumed else scores
        times, rest = divmod(one.flops, scores) if scores and not one.consumed else (1, 0)
        found += [one] if rest or times < MANY else [one.part(times, f"{SUM} {number + 1}") for number in range(times)]
    return found


def _begins(drafts: Sequence[Draft]) -> frozenset[int]:
    """Return the starts of the steps: after the waits for the operands of their first product."""
    heads = _heads(drafts)
    found = set()
    for head in heads:
        place = head
        while place and drafts[place - 1].kind != "wait" and not is_product(drafts[place - 1]):
            place -= 1
        found.add(place if place and drafts[place - 1].kind == "wait" else head)
    return frozenset(found)


def _heads(drafts: Sequence[Draft]) -> frozenset[int]:
    """Return the first product of each step."""
    products = [place for place, one in enumerate(drafts) if is_product(one)]
    if any(drafts[place].consumed for place in products):
        return frozenset(place for place in products if drafts[place].consumed)
    waits = [place for place, one in enumerate(drafts) if one.kind == "wait"]
    after = (next((place for place in products if place > wait), None) for wait in waits)
    return frozenset(place for place in after if place is not None)


def _share(drafts: Sequence[Draft]) -> float:
    """Return the share of a block's first latency, which grows with the columns of Q and O.

    The columns of Q are the depth of the product of scores; those of O follow from the ratio of FLOPs of the next
    product.
    """
    products = [one for one in drafts if is_product(one)]
    place = next((place for place, one in enumerate(products) if one.consumed), None)
    if place is None:
        return 1.0
    scores, sums = products[place], next((one for one in products[place:] if not one.consumed), None)
    depth = scores.flops / (2 * scores.results)
    return 1 + BY_WIDTH * (depth * (1 + (sums.flops / scores.flops if sums else 0)) / 256 - 1)
