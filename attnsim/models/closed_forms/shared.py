"""Closed forms of a prefix that all sequences share, and of draft tokens that branch."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.closed_forms.form import Form, around_fused, load, summed, transfer
from attnsim.models.closed_forms.fused import forward
from attnsim.models.implementations.flashinfer_shared import (
    MASK,
    PREFIX_TENSORS,
    CascadeTile,
    TreeTile,
    cascaded,
    without_tree,
)
from attnsim.models.implementations.fused.building import one_query
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.models.schedule.splits import Splits


def tree(w: Workload, schedule: Schedule, tile: TreeTile) -> list[Form]:
    """A forward pass over every key, with the bits of the mask of each visit."""
    flash, whole = tile.flash, without_tree(w)
    form = forward(whole, flash, schedule.splits, "flash_fwd")
    visits = form.flops // (2 * flash.rows * flash.keys * sum(flash.compiled(w)))
    read = load(MASK, visits * tile.mask_bytes, w.batch * -(-w.seq_q * w.seq_kv // 8))
    return [replace(form, moved=(*form.moved, read)), *_merged(whole, schedule.splits)]


def cascade(w: Workload, tile: CascadeTile) -> list[Form]:
    """The prefix, what follows it of each sequence, and the merge."""
    shared, own = cascaded(w)
    own = one_query(own)
    first = [forward(shared, tile.prefix, tile.cut_prefix, "prefix"), *_merged(shared, tile.cut_prefix)]
    second: list[Form] = []
    for number, one in enumerate(own.parts):
        cut = tile.cut_suffix.of(number)
        second += [forward(own.of(one), tile.suffix, cut, "suffix"), *_merged(own.of(one), cut)]
    rows = w.heads_q * w.queries
    out, sums = rows * w.head_dim_v * w.output_bytes, rows * 4
    reads = [("O", out), ("O prefix", out), ("LSE", sums), ("LSE prefix", sums)]
    return [*map(_prefixed, first), *summed(second), transfer("merge", reads, [("O merged", out)])]


def _merged(w: Workload, splits: Splits) -> list[Form]:
    merge = around_fused("combine (states)", w, splits.count) if splits.partial else None
    return [merge] if merge else []


def _prefixed(form: Form) -> Form:
    kernel = "combine prefix" if form.kernel.startswith("combine") else form.kernel
    return replace(form.renamed(PREFIX_TENSORS), kernel=kernel)
