"""`attnsim accuracy` and `attnsim fit`: how good the predictions are, and the fit behind them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from attnsim.cli import options, show
from attnsim.models.errors import InputError


def accuracy(json: options.Json = False) -> None:
    """Show errors on measurements that the fit did not see, and every fitted constant."""
    from attnsim.validation.accuracy import accuracy_table, constants

    errors, numbers = accuracy_table(), constants()
    if json:
        show.print_json(
            [*({"kind": "error", **row} for row in errors), *({"kind": "constant", **row} for row in numbers)]
        )
        return
    out = show.console()
    show.print_rows(out, "Held-out errors", errors)
    show.print_rows(out, "Constants that are neither datasheet nor public source", numbers)


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
