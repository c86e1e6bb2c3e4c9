"""`attnsim algorithms`: what can be asked for, whose kernels are known, and where they are calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from attnsim.cli import options, show
from attnsim.cli.implementations import able, span
from attnsim.cli.options import flag
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS, Mechanism
from attnsim.models.question.words import read_pass
from attnsim.tables import Block, Table

_GROUPS = {
    "dense": "Dense: softmax over all pairs that a diagonal band shows",
    "sparse": "Sparse: softmax over patterns of pairs",
    "linear": "Linear: no softmax over the keys, an approximation",
    "sharing": "Sharing of keys and values",
}


def algorithms(
    gpu: Annotated[str | None, flag("ID", "Only what runs on this GPU.")] = None,
    passes: Annotated[
        str | None, flag("PASS", "Only what has kernels for fwd, bwd, fwd+bwd or decode.", "--pass")
    ] = None,
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> None:
    """List mechanisms, and with -v the implementations: whose code, on which GPUs, where calibrated."""
    records = able(list(IMPLEMENTATIONS.values()), gpu, passes and read_pass(passes))
    known = [item for item in MECHANISMS.values() if any(_runs(one, item) for one in records)]
    calibrated: dict[str, list[str]] = {}
    for name, architecture in calibrations():
        calibrated.setdefault(name, []).append(architecture)
    blocks = _blocks(records, known, calibrated, verbose)
    show.give(json, _records(records, known, calibrated), blocks)


def _records(
    records: Sequence[Implementation], known: Sequence[Mechanism], calibrated: Mapping[str, list[str]]
) -> Iterator[dict[str, object]]:
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
        _described(item) | {"implementations": [kernels[r.name] for r in records if _runs(r, item)]} for item in known
    )


def _blocks(
    records: Sequence[Implementation], known: Sequence[Mechanism], calibrated: Mapping[str, list[str]], verbose: bool
) -> Iterator[Block]:
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


def _described(item: Mechanism) -> dict[str, object]:
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


def _runs(record: Implementation, item: Mechanism) -> bool:
    """True if an implementation runs a mechanism, by its record or by its names."""
    return item.run_by(record) if item.selectable else record.name in item.implementations


def _algorithms_of(record: Implementation) -> list[str]:
    return [name for name, item in ALGORITHMS.items() if _runs(record, item)]
