"""`attnsim probe`: a GPU file with figures measured on the GPU that is here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from attnsim import wording
from attnsim.cli import on_gpu, options, outputs, progress, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError
from attnsim.kernels.gpu.measuring import attached_bench, machine_points, probe_points
from attnsim.kernels.gpu.records import Records, now
from attnsim.models.hardware.files import gpu_to_yaml
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.tables import Block, Table, Unfolded
from attnsim.validation.measuring.probe_file import (
    Measured,
    Probed,
    probed_gpu,
    probed_of,
    quantities,
    refuse_implausible,
)
from attnsim.writing import write_whole


def probe(
    out: Annotated[Path, flag("FILE", "Ends in .yaml; its name becomes the id.")],
    source: Annotated[Path | None, flag("FILE", "Make the file from records; needs no GPU.", "--from")] = None,
    records: Annotated[Path | None, flag("FILE", "Keep what was measured, refused or not.")] = None,
    force: Annotated[bool, switch("Replace the file if it exists.", "--force")] = False,
    json: options.Json = False,
) -> None:
    """Measure what the GPU's units reach and write a GPU file with it; refuses what the vendor says is impossible."""
    gpu_id = outputs.new_gpu_file(out, force)
    if source is not None:
        if records is not None:
            raise InputError(f"--records {records} goes with measuring, --from {source} without it; leave one out")
        if not source.is_file():
            raise InputError(f"--from {source} is no file; give the records of attnsim probe --records")
        probed = probed_of(Records(source).done.values())
    else:
        if records is not None:
            outputs.check_output(records)
        with on_gpu.told():
            probed = _probe(records)
    measured = quantities(probed)
    refuse_implausible(measured)
    gpu = probed_gpu(probed, measured, gpu_id, f"attnsim probe --out {out.name}")
    write_whole(out, gpu_to_yaml(gpu))
    show.give(json, (_record(one, gpu) for one in measured), _blocks(out, probed, measured, gpu))


def _probe(path: Path | None) -> Probed:
    """Run the microbenchmarks on the GPU, and keep them where a file is given."""
    bench, session = attached_bench(int(time.time()) % (1 << 31)), now()
    kept = Records(path) if path is not None else None
    found: list[dict[str, Any]] = []
    with progress.busy("probing"):
        for point in (*machine_points(bench, (), session), *probe_points(bench, session)):
            record = {**point.about, **point.measure()}
            found.append(record)
            if kept is not None:
                kept.append(point.key, record)
    return probed_of(found)


def _record(one: Measured, gpu: Gpu) -> dict[str, Any]:

    return {
        "name": one.name,
        "value": one.value,
        "unit": one.unit,
        "limit": one.limit,
        "limit_source": one.limit_source or None,
        "spread": one.spread,
        "samples": one.samples,
        "throttled": one.throttled,
        "sm_mhz": one.sm_mhz,
        "key": one.key or None,
        "written": gpu.get(one.key) if one.key else None,
        "note": one.note or None,
    }


def _blocks(out: Path, probed: Probed, measured: list[Measured], gpu: Gpu) -> Iterator[Block]:
    yield f"{probed.base.name}, driver {probed.driver or 'unknown'}, {probed.date}\n"
    rows = []
    for one in measured:
        written = one.key or wording.NOTHING
        if one.key and FIELDS[one.key].unit != one.unit:  # a share of what the vendor states
            written += f" = {FIELDS[one.key].show(gpu.get(one.key))}"
        rows.append(
            {
                "measured": one.name,
                "value": one.shown(one.value),
                "of": None if one.limit is None else one.shown(one.limit),
                "share": None if one.limit is None else f"{one.value / one.limit:.1%}",
                "spread": f"{one.spread:.1%}" if one.samples else None,
                "written as": written,
            }
        )
    yield Table("", rows, ("value", "of", "share", "spread"), ("measured", "value", "of", "written as"))
    throttled = sum(one.throttled for one in measured)
    if throttled:
        yield f"{throttled} samples were throttled and dropped"
    yield from (f"{one.name}: {one.note}" for one in measured if one.note and not one.note.startswith("at "))
    yield Unfolded(f"written: {out}; use it with --gpu, see it with attnsim gpus show")
