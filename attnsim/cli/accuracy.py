"""`attnsim accuracy` and `attnsim fit`: how good the predictions are, and the fit behind them."""

from __future__ import annotations

from attnsim.cli import options, show


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


def fit() -> None:
    """Fit the calibrations to the committed measurements anew (takes minutes)."""
    from attnsim.validation.fit import main

    main()
