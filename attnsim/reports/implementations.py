"""Mechanisms and implementations for people: what is computed, whose code runs it, and where it runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from attnsim import wording
from attnsim.api.answer import plain
from attnsim.api.libraries import TYPICAL, Default
from attnsim.errors import InputError, nearest, shown, some
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.names import MEANINGS
from attnsim.models.mechanisms import ALGORITHMS, Mechanism
from attnsim.models.question.workload import PASSES
from attnsim.tables import Block, Table, Unfolded

IN_FULL = 12
"""Most implementations that are described in full; more are a table."""


def implementations_text(found: list[Implementation], verbose: bool, width: int) -> Iterator[Block]:
    """Each implementation in full where they are few, or else a table."""
    if len(found) <= IN_FULL:
        yield from (Unfolded(line) for one in found for line in _lines(one, width))
        return
    rows = [
        {"name": one.name, "runs": one.runs, "on": span(one)}
        | ({"passes": _passes(one), "whose code": one.source} if verbose else {})
        for one in found
    ]
    yield Table("", rows)
    yield (
        "--for CALL, --gpu ID and --pass PASS find the right one; up to 12 are described in full. Passes and "
        "whose code: -v."
    )


def libraries_tables(found: Sequence[Default]) -> Iterator[Block]:
    """A table a pass of what libraries run, a column a GPU."""
    for one in dict.fromkeys(item.passes for item in found):
        rows: dict[str, dict[str, object]] = {}
        for item in (item for item in found if item.passes == one):
            name = f"{item.implementation}{' *' * item.calibrated}" or wording.NOTHING
            rows.setdefault(item.library, {"library": item.library})[item.gpu] = name
        yield Table(f"{one}: {TYPICAL[one]}", list(rows.values()))
    yield (
        "*: calibrated on that architecture, by measurements of it or of the kernels that it launches. -: the library "
        "has no kernel for it there, or none that is modelled. The names go with --implementation; another shape or "
        "version may run another kernel."
    )


def _passes(one: Implementation) -> str:
    return "all" if len(one.passes) == len(PASSES) else ", ".join(one.passes)


def of_call(call: str) -> list[Implementation]:
    """The implementations that a call, a part of one, a name or an alias means."""
    every = list(IMPLEMENTATIONS.values())
    asked = call.strip().lower().removesuffix("()")
    last = asked.split()[0].rpartition(".")[2] if asked else ""
    for wanted in (asked, last):
        found = [
            one
            for one in every
            if wanted and any(wanted in text.lower() for text in (*one.calls, one.name, *known_as(one)))
        ]
        if found:
            return found
    known = {text.split()[0].rstrip(",:").rpartition(".")[2] for one in every for text in one.calls}
    raise InputError(
        f"no implementation is launched by {call!r}; {nearest(last, sorted(known))}; leave --for out for all"
    )


def able(found: list[Implementation], gpu: str | None, passes: str | None) -> list[Implementation]:
    """The implementations that run on a GPU and have kernels for a pass.

    Raises
    ------
    InputError
        For what is not known, and when none is left.
    """
    if passes is not None and passes not in PASSES:
        raise InputError(f"pass is {shown(passes)}; {nearest(passes, PASSES)}")
    before = found
    if gpu is not None:
        machine = load_gpu(gpu)
        found = [one for one in found if runs_on(one, machine)]
    found = [one for one in found if passes is None or passes in one.passes]
    if not found:
        named = ", ".join(f"{one.name} ({span(one)}; {', '.join(one.passes)})" for one in before[:4])
        raise InputError(f"none of them runs there; nearest: {named}")
    return found


def _lines(one: Implementation, width: int) -> Iterator[str]:
    """One implementation in full."""
    facts = {
        "called by": "; ".join(one.calls) or "nobody: the fewest passes that can be made",
        "code": one.source + (" (closed: the nearest public schedule is played)" if one.closed else ""),
        "versions": ", ".join(one.versions),
        "pages": f"{one.pages_text} keys" if one.pages else "",
        "runs": f"{one.runs} on {span(one)}, {', '.join(one.passes)}, {', '.join(one.dtypes)}",
        "launches": one.launches and f"the kernels of {one.launches}{', changed' if one.changed else ''}",
        "also called": some(known_as(one), "names.csv"),
    }
    yield one.name
    for head, text in facts.items():
        if text:
            yield from textwrap.wrap(
                text, width, initial_indent=f"  {head:12}", subsequent_indent=" " * 14, break_on_hyphens=False
            )
    yield ""


def known_as(one: Implementation) -> list[str]:
    """Other names of an implementation, with those that mean it on some GPUs or in some versions alone."""
    somewhere = [
        name
        for line in MEANINGS
        for name in line.spellings
        if line.implementation == one.name and len(name) > 2 and "*" not in name and name != one.name
    ]
    return list(dict.fromkeys([*one.aliases, *somewhere]))


def span(one: Implementation) -> str:
    """The compute capabilities that an implementation runs on."""
    low, high = one.compute_capability
    if low == high:
        return f"sm_{low}"
    return f"sm_{low} on" if high >= 120 else f"sm_{low} to {high}"


def record_of(one: Implementation) -> dict[str, object]:
    """The record without its functions."""
    return {
        "implementation": one.name,
        **{name: plain(getattr(one, name)) for name in ("library", "runs", "calls", "source", "closed", "versions")},
        "pages": plain(one.pages) if one.pages else None,
        **{name: plain(getattr(one, name)) for name in ("compute_capability", "passes", "dtypes")},
        **{name: getattr(one, name) or None for name in ("like", "launches")},
        "aliases": known_as(one),
    }


_GROUPS = {
    "dense": "Dense: softmax over all pairs that a diagonal band shows",
    "sparse": "Sparse: softmax over patterns of pairs",
    "linear": "Linear: no softmax over the keys, an approximation",
    "sharing": "Sharing of keys and values",
}


def mechanism_records(
    records: Sequence[Implementation], known: Sequence[Mechanism], calibrated: Mapping[str, list[str]]
) -> Iterator[dict[str, object]]:
    """Mechanisms as plain types, each with the implementations that run it."""
    gpus = [load_gpu(name) for name in builtin_gpu_ids()]
    kernels = {
        record.name: {
            "implementation": record.name,
            "algorithms": _algorithms_of(record),
            "gpus": [gpu.id for gpu in gpus if runs_on(record, gpu)],
            "compute_capability": list(record.compute_capability),
            "dtypes": list(record.dtypes),
            "calibrated": sorted(calibrated.get(record.name, [])),
            "like": record.like or None,
            "aliases": list(record.aliases),
            "closed": record.closed,
            "source": record.source,
        }
        for record in records
    }
    yield from (
        _mechanism(item) | {"implementations": [kernels[r.name] for r in records if runs(r, item)]} for item in known
    )


def mechanism_tables(
    records: Sequence[Implementation], known: Sequence[Mechanism], calibrated: Mapping[str, list[str]], verbose: bool
) -> Iterator[Block]:
    """A table for each group of mechanisms, and where `verbose` asks for it one of implementations."""
    names = {record.name for record in records}
    for group, title in _GROUPS.items():
        rows = [
            {
                "name": item.name,
                "what it is": item.page.summary,
                "asked by": "name" if item.selectable else "flags",
                "first choice": [name for name in item.implementations if name in names][:1],
            }
            for item in known
            if item.group == group
        ]
        if rows:
            yield Table(title, rows)
    if verbose:
        yield Table(
            "Implementations (--implementation)",
            [
                {
                    "name": record.name,
                    "runs": record.runs,
                    "on": span(record),
                    "whose code": record.source,
                    "calibrated on": sorted(calibrated.get(record.name, [])) or f"as {record.like}" * bool(record.like),
                }
                for record in records
            ],
        )
    yield (
        "asked by: its name with --algorithm, or the flags of the question (--pass bwd, --dtype fp8, --kv-heads 8).\n"
        "attnsim explain NAME --gpu ID shows how one is run; docs/mechanisms has a page for each. "
        "Who runs them, and where that is calibrated: -v."
    )


def _mechanism(item: Mechanism) -> dict[str, object]:
    """The record without its functions."""
    return {
        "algorithm": item.name,
        **{name: getattr(item.page, name) for name in ("title", "summary")},
        **{name: getattr(item, name) for name in ("group", "selectable", "exact")},
        **{name: getattr(item.page, name) for name in ("definition", "wins")},
        "sources": list(item.page.sources),
        "example": str(item.example),
        "mask": item.mask or None,
    }


def runs(record: Implementation, item: Mechanism) -> bool:
    """True if an implementation runs a mechanism, by its record or by its names."""
    return item.run_by(record) if item.selectable else record.name in item.implementations


def _algorithms_of(record: Implementation) -> list[str]:
    return [name for name, item in ALGORITHMS.items() if runs(record, item)]
