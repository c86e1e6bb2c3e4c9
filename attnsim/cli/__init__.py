"""The command line: parse, ask the API, print."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from attnsim.models.errors import InputError

BAD_INPUT = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Whatever a person did wrong is one line on stderr and code 2.

    Parameters
    ----------
    arguments : sequence of str, optional
        In place of those of the process.
    """
    from attnsim.cli.app import app

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given or ["--help"], prog_name="attnsim", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has gone (`attnsim gpus | head`): no complaint from Python on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # Some versions of Typer carry a copy of click, others depend on it: go by what its errors can do.
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        return _refuse(describe())
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT
