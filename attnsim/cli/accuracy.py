"""`attnsim accuracy` and `attnsim fit`: how good the predictions are, and the fit behind them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from attnsim.cli import options, show
from attnsim.models.errors import InputError


def accuracy(
    claims: Annotated[
        bool, typer.Option("--claims", help="Figures that papers state, beside what the replay counts.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show errors on measurements that the fit did not see, and every fitted constant."""
    if claims:
        _claims(json)
        return
    from attnsim.validation.accuracy import accuracy_table, constants, held_out_errors, targets_table

    found = held_out_errors()
    summary, errors, numbers = targets_table(found), accuracy_table(found), constants()
    if json:
        kinds = (("summary", summary), ("error", errors), ("constant", numbers))
        show.print_json([{"kind": kind, **row} for kind, rows in kinds for row in rows])
        return
    out = show.console()
    show.print_rows(out, "Errors on rows the fit did not see, by what is predicted", [_percent(r) for r in summary])
    show.print_rows(out, "By source, implementation, pass and length", [_percent(row) for row in errors])
    show.print_rows(out, "Constants that are neither datasheet nor public source", numbers)


def _percent(row: dict[str, Any]) -> dict[str, Any]:
    """The row with its errors in percent."""
    return {
        name: f"{100 * value:.1f} %" if name in ("mean", "median", "p90", "worst") else value
        for name, value in row.items()
    }


def _claims(json: bool) -> None:
    from attnsim.validation.claims import GPT2_GPU, gpt2_medium

    rows = gpt2_medium()
    if json:
        show.print_json(rows)
        return
    table = [
        {
            "algorithm": row["algorithm"],
            "mask": row["mask"],
            "": row["note"],
            "assumed": "yes" if row["assumed"] else "",
            "HBM": f"{row['hbm_bytes'] / 1e9:.1f} GB",
            "paper": f"{row['published_bytes'] / 1e9:.1f} GB",
            "ratio": f"{row['bytes_ratio']:.2f}",
            "time": f"{row['time_s'] * 1e3:.1f} ms",
            "stated": f"{row['published_s'] * 1e3:.1f} ms",
            "of it": f"{row['time_ratio']:.2f}",
        }
        for row in rows
    ]
    title = f"GPT-2 medium attention, forward + backward, {GPT2_GPU} (FlashAttention, arXiv 2205.14135, figure 2)"
    show.print_rows(show.console(), title, table)


def fit(
    names: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Fits to run; default: all.")] = None,
) -> None:
    """Fit the calibrations to the committed measurements anew; takes minutes."""
    import attnsim.models
    from attnsim.models.gpu_fields import nearest
    from attnsim.validation.fit import JOBS
    from attnsim.validation.fit import fit as run

    known = [job.name for job in JOBS]
    for name in names or []:
        if name not in known:
            raise InputError(f"fit {name!r} is not known; {nearest(name, known)}; all: {', '.join(known)}")
    folder = Path(str(attnsim.models.__file__)).parent / "calibrations"
    try:
        written = run(folder, names or [], lambda line: print(line, file=sys.stderr))
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
    for path in written:
        print(path)
