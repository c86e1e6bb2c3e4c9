"""Closed forms of what surrounds a call's kernels: copies around a fused kernel, gradients added to others."""

from __future__ import annotations

from dataclasses import replace

from attnsim.models.closed_forms.form import Form, transfer
from attnsim.models.implementations.frameworks.naive import UnfusedTile
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule


def around(w: Workload, schedule: Schedule) -> tuple[Schedule, list[Form]]:
    """A schedule without the kernels around it, and their closed forms: of the kernels only names are used."""
    e, keys = w.element_bytes, w.batch * w.heads_kv * w.seq_kv
    queries = w.batch * w.heads_q * w.seq_q
    sizes = {"Q": queries * w.head_dim * e, "K": keys * w.head_dim * e, "V": keys * w.head_dim_v * e}
    sizes["dO"] = queries * w.head_dim_v * e
    fused = not isinstance(schedule.tile, UnfusedTile)
    inside, parts = [], []
    for kernel in schedule.kernels:
        what, _, tensor = kernel.name.partition(" ")
        whole = (tensor, sizes.get(tensor.removeprefix("d"), 0))
        if what == "accumulate":
            total = (f"{tensor} sum so far", whole[1])
            parts.append(transfer(kernel.name, [whole, total], [total]))
        elif what == "copy" and fused:
            source = tensor.removesuffix(" again")
            if source in sizes:
                copied = [(f"{source} strided", sizes[source])], [(source, sizes[source])]
            else:
                copied = [whole], [(f"{tensor} strided", whole[1])]
            parts.append(transfer(kernel.name, *copied))
        else:
            inside.append(kernel)
    return replace(schedule, kernels=tuple(inside)), parts
