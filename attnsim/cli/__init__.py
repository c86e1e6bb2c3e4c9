"""The command line: parse, ask the API, print."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from attnsim.cli import app, help
from attnsim.errors import InputError, Taken, shortened

BAD_INPUT = 2
INTERRUPTED = 130
OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EIO)
"""Errors of an output that takes nothing more."""
OBJECTS = 250_000
"""Made before Python looks for garbage: loading makes 150,000 that stay, and looking for it at 700 costs 0.1 s."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Whatever a person did wrong is one line on stderr and code 2.

    Parameters
    ----------
    arguments : sequence of str, optional
        In place of those of the process.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads wait by spinning: 0.05 s a command
    gc.set_threshold(OBJECTS)
    atexit.register(gc.freeze)  # Python ends by looking at every object for garbage twice, 0.1 s or more
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if sys.stdout is None:
            raise InputError("stdout is closed; send it to a file, a pipe or /dev/null")
        code: object = 0
        if text := help.stored(given):
            print(text)
        else:
            with _notes():
                code = app.app(args=given or ["--help"], prog_name="attnsim", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        return _refuse(_shortened(str(error), given))
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        if error.errno not in OUTPUT or error.filename is not None:
            raise
        # What is left of the output goes nowhere: no complaint from Python on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        gone = isinstance(error, BrokenPipeError)  # whoever read it (`attnsim gpus | head`)
        return 1 if gone else _refuse(f"the output cannot be written: {error.strerror}; send it somewhere else")
    except Exception as error:
        # Some versions of Typer carry a copy of click, others depend on it: go by what its errors can do.
        if type(error).__name__ == "Abort":
            return INTERRUPTED
        if not hasattr(error, "format_message"):
            raise
        return _refuse(_shortened(help.refused(error), given))
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Print what was taken for a word as a line on stderr, once; other warnings as always."""
    seen: set[str] = set()
    plain = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, Taken):
            plain(message, category, *where, **more)
        elif str(message) not in seen:
            seen.add(str(message))
            print(f"note: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Taken)
        warnings.showwarning = show
        yield


def _shortened(message: str, given: Sequence[str]) -> str:
    """The message with no more of any argument than the first letters."""
    for word in filter(str.strip, given):
        message = message.replace(word.strip(), shortened(word.strip()))
    return str(InputError(message))


def _refuse(message: str) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return BAD_INPUT
