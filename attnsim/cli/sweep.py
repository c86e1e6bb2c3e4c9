"""`attnsim sweep`: every point of a study file, into a folder of Parquet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim.api.asking import read_conditions
from attnsim.cli import options, outputs, progress, show
from attnsim.cli.options import flag
from attnsim.errors import InputError
from attnsim.studies import Study
from attnsim.studies.folder import SUFFIXES, dataset
from attnsim.studies.folder import export as write
from attnsim.studies.running import run
from attnsim.studies.study_file import read_study
from attnsim.tables import Block, Table, Unfolded


def sweep(
    study: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="What varies, and what is computed.")],
    out: Annotated[Path, flag("FOLDER", "Where results go; a run there is continued.")],
    jobs: Annotated[int | None, options.count("Processes here; default: as many as processors.", None)] = None,
    backend: Annotated[str, flag(None, "local or dask.")] = "local",
    calibration: options.Calibration = None,
    scheduler: Annotated[str, flag("ADDRESS", "Of a cluster: tcp://host:8786.")] = "",
    export: Annotated[list[Path], flag("FILE", "Write all of it into one .csv or .parquet too; repeat it.")] = [],  # noqa: B006 Typer copies it
    json: options.Json = False,
) -> None:
    """Predict every point of a study: closed forms, and replays where they are asked for or needed.

    Ends with 1 if no point was answered.
    """
    asked = replace(read_study(study), own=read_conditions(calibration=calibration).own)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; give a folder")
    for path in export:
        if path.suffix.lower() not in SUFFIXES:
            raise InputError(f"--export {path}: end the name with .csv or .parquet, which choose the format")
        outputs.check_output(path)
    started = time.perf_counter()
    try:
        with progress.rate("answering", len(asked)) as told:
            finished = run(asked, out, jobs=jobs, backend=backend, scheduler=scheduler, progress=told)
    except KeyboardInterrupt:
        print(f"interrupted; what is finished is in {out}, the same command goes on with the rest", file=sys.stderr)
        raise
    summary = _summary(asked, out, finished.found, time.perf_counter() - started)
    for path in export:
        write(out, path)
    summary["exported"] = [str(path) for path in export]
    show.give(json, [summary], _blocks(summary))
    _tell_missing(summary)
    if not summary["answered"]:
        raise typer.Exit(1)


def _summary(study: Study, out: Path, found: int, seconds: float) -> dict[str, Any]:
    """Counts over the whole folder, read column by column."""
    counts: dict[str, dict[str, int]] = {"method": {}, "busiest": {}, "error": {}}
    fastest: dict[str, Any] | None = None
    for batch in dataset(out).to_batches(columns=[*counts, "point", "predicted_s"]):
        frame = batch.to_pandas()
        for name, into in counts.items():
            for value, number in frame[name].value_counts().items():
                if number:
                    into[str(value)] = into.get(str(value), 0) + int(number)
        known = frame["predicted_s"].dropna()
        if len(known) and (fastest is None or known.min() < fastest["predicted_s"]):
            row = known.idxmin()
            fastest = {"point": int(frame.loc[row, "point"]), "predicted_s": float(known[row])}
    answered = sum(counts["error"].values()) - sum(n for text, n in counts["error"].items() if text)
    return {
        "title": study.title,
        "out": str(out),
        "points": len(study),
        "axes": {axis.column: len(axis.values) for axis in study.varying},
        "combine": study.combine,
        "cache": study.cache,
        "answered": answered,
        "methods": counts["method"],
        "busiest": {name: number for name, number in counts["busiest"].items() if name},
        "errors": dict(sorted(((t, n) for t, n in counts["error"].items() if t), key=lambda pair: -pair[1])[:5]),
        "fastest": fastest,
        "chunks": study.chunks(),
        "chunks_found": found,
        "seconds": round(seconds, 3),
    }


def _blocks(summary: dict[str, Any]) -> Iterator[Block]:
    axes = ", ".join(f"{name} ({count})" for name, count in summary["axes"].items()) or "nothing varies"
    yield Unfolded(
        f"{summary['title'] or 'study'}: {summary['points']:,} points, {summary['combine']} of {axes}; "
        f"{summary['cache']} L2\n"
    )
    yield Table("", [{"answered by": name, "points": number} for name, number in sorted(summary["methods"].items())])
    busiest = sorted(summary["busiest"].items(), key=lambda pair: -pair[1])
    yield Table("", [{"busiest": name, "points": number} for name, number in busiest])
    found = f", {summary['chunks_found']} of them by an earlier run" if summary["chunks_found"] else ""
    where = ", ".join([f"{summary['out']}/points", *summary["exported"]])
    yield Unfolded(f"{summary['chunks']} chunks{found}, {summary['seconds']:.1f} s; written: {where}")


def _tell_missing(summary: dict[str, Any]) -> None:
    """Print on stderr how many points have no answer, and why."""
    missing = summary["points"] - summary["answered"]
    if missing:
        print(
            f"{missing:,} of {summary['points']:,} points have no answer; column error says why, most often:",
            file=sys.stderr,
        )
    for text, number in summary["errors"].items():
        print(f"  {number:,} x {text}", file=sys.stderr)
