"""`attnsim measure` and `probe`: our kernels timed on the GPU that is here, and what its units reach."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from attnsim.cli import options, outputs, progress, show
from attnsim.cli.options import flag, switch
from attnsim.errors import InputError
from attnsim.kernels.gpu.measuring import attached_bench, machine_points, probe_points
from attnsim.kernels.gpu.records import FILE_NAME, Records, now
from attnsim.models.hardware.files import gpu_to_yaml
from attnsim.models.question.case_file import write_table
from attnsim.reports.timings import probed_record, probed_tables, timed_row
from attnsim.tables import Block, Table, Unfolded
from attnsim.validation.measured.own_runs import OWN, machines_of, measured_frame, measured_rows, summary, wrong_kernels
from attnsim.validation.measured.own_runs import keep as keep_rows
from attnsim.validation.measuring.measure import Finished, chosen
from attnsim.validation.measuring.measure import measure as run
from attnsim.validation.measuring.probe_file import (
    Probed,
    probed_gpu,
    probed_of,
    quantities,
    refuse_implausible,
)
from attnsim.writing import write_whole

TABLE = "measurements.csv"


def measure(
    out: Annotated[Path, flag("FOLDER", "Where records and table go; a run there is continued.")],
    minutes: Annotated[float, options.amount("No point is begun after this time.")] = 8.0,
    algorithms: Annotated[list[str], flag("NAME", "As in `attnsim kernels list`; repeat it or use commas.")] = [],  # noqa: B006 Typer copies it
    keep_going: Annotated[
        bool, switch("Leave out kernels that are wrong instead of stopping.", "--keep-going")
    ] = False,
    source: Annotated[Path | None, flag("FILE", "Make the table from records; needs no GPU.", "--from")] = None,
    keep: Annotated[
        bool, switch("Also add the table to the package's own measurements, which fits read.", "--keep")
    ] = False,
    seed: Annotated[int | None, options.count("Of the random inputs; default: the clock.", None, low=0)] = None,
    json: options.Json = False,
) -> None:
    """Check our kernels on the GPU, then time them, most informative points first, until the time is up."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; give a folder")
    if source is not None:
        if not source.is_file():
            raise InputError(f"--from {source} is no file; give the {FILE_NAME} of a run")
        _finish(Records(source), None, out, json, keep)
        return

    names = options.words(algorithms, "--algorithms") if algorithms else []
    with progress.gpu_errors():
        bench = attached_bench(int(time.time()) % (1 << 31) if seed is None else seed)
    operations, left_out = chosen(names, bench.device.gpu)
    outputs.make_folder(out)
    records = Records(out / FILE_NAME)
    with progress.gpu_errors(), progress.budget("measuring", 60 * minutes) as shown:
        finished = run(bench, records, operations, budget_s=60 * minutes, keep_going=keep_going, progress=shown)
    for line in left_out:
        print(line, file=sys.stderr)
    if (finished.wrong and not keep_going) or finished.stopped:
        _fail(finished)
    _finish(records, finished, out, json, keep)
    if finished.wrong:
        _fail(finished)


def _fail(finished: Finished) -> None:
    """Say what is wrong, on one line each."""
    wrong = [f"{name} is wrong: {complaint}" for name, complaint in finished.wrong.items()]
    progress.fail(*wrong, *filter(None, [finished.stopped]))


def _finish(records: Records, finished: Finished | None, out: Path, json: bool, keep: bool) -> None:
    """Write the table, to where fits find it too if it is kept, and show what it holds."""
    everything = list(records.done.values())
    kept = _kept(everything) if keep else []
    rows = measured_rows(everything)
    table = out / TABLE
    outputs.make_folder(out)
    write_table(measured_frame(rows), table)
    machines, kernels = machines_of(everything), summary(everything)
    wrong = [
        {"operation": name, "version": version, "first": first}
        for (name, version), first in wrong_kernels(everything).items()
    ]
    null = [record for record in everything if record.get("kind") == "null" and "error" not in record]
    kinds = (("machine", machines.values()), ("null", null), ("kernel", kernels), ("time", rows), ("wrong", wrong))

    def blocks() -> Iterator[Block]:
        machine = list(machines.values())[-1]
        yield f"{machine['gpu']} ({machine['gpu_id']}), driver {machine['driver'] or 'unknown'}, {machine['date']}\n"
        yield Table("Timed", [timed_row(row) for row in kernels])
        if machine["clocks_missing"]:
            yield f"clocks and throttling were not read: {machine['clocks_missing']}"
        for record in null:
            if record["session"] == machine["session"]:
                what = f"a kernel that does nothing, {record['launch']}, {record['cache']}"
                yield f"{what}: {record['median_s'] * 1e6:.2f} us"
        for one in wrong:
            where = f"{one['operation']} {one['version']}, first at {one['first']}"
            yield Unfolded(f"left out, as its outputs are wrong: {where}")
        for record in everything:
            if record.get("kind") == "time" and "error" in record:
                yield Unfolded(f"failed: {record['key']}: {record['error'].splitlines()[0]}")
        yield Unfolded(f"written: {table}, {len(rows)} rows, for attnsim predict --cases")
        yield from (Unfolded(f"kept: {path}; now: attnsim fit, attnsim accuracy") for path in kept)
        if finished is not None and finished.left:
            yield f"{finished.left} points are left; the same command goes on with them"

    show.give(json, ({**row, "kind": kind} for kind, items in kinds for row in items), blocks())


def _kept(records: list[dict[str, Any]]) -> list[Path]:
    try:
        return keep_rows(records)
    except OSError as error:
        raise InputError(f"{OWN} cannot be written: {error.strerror or error}; work in a checkout") from None


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
        with progress.gpu_errors():
            probed = _probe(records)
    measured = quantities(probed)
    refuse_implausible(measured)
    gpu = probed_gpu(probed, measured, gpu_id, f"attnsim probe --out {out.name}")
    write_whole(out, gpu_to_yaml(gpu))
    show.give(json, (probed_record(one, gpu) for one in measured), probed_tables(out, probed, measured, gpu))


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
