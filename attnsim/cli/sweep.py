"""`attnsim sweep`: every point of a study file, into a folder of Parquet."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim.api.asking import read_conditions
from attnsim.cli import options, outputs, progress, show
from attnsim.cli.options import flag
from attnsim.errors import InputError
from attnsim.reports.studies import summary_of, sweep_tables
from attnsim.studies.folder import SUFFIXES
from attnsim.studies.folder import export as write
from attnsim.studies.running import run
from attnsim.studies.study_file import read_study


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
        with progress.steps("answering", len(asked)) as done:
            finished = run(asked, out, jobs=jobs, backend=backend, scheduler=scheduler, progress=done)
    except KeyboardInterrupt:
        print(f"interrupted; what is finished is in {out}, the same command goes on with the rest", file=sys.stderr)
        raise
    summary = summary_of(asked, out, finished.found, time.perf_counter() - started)
    for path in export:
        write(out, path)
    summary["exported"] = [str(path) for path in export]
    show.give(json, [summary], sweep_tables(summary))
    _tell_missing(summary)
    if not summary["answered"]:
        raise typer.Exit(1)


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
