"""Errors of CUDA in commands that need a GPU: one line and exit code 1, no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

FAILED = 1


def fail(*lines: str) -> NoReturn:
    """End with code 1 after a line on stderr for each fault."""
    sys.stdout.flush()
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    raise typer.Exit(FAILED)


@contextmanager
def told(*errors: type[Exception]) -> Iterator[None]:
    """Errors of driver and GPU within the block, or other `errors`, as one line on stderr."""
    try:
        yield
    except typer.Exit:  # a RuntimeError too
        raise
    except (*errors, RuntimeError) as error:  # type: ignore[misc]
        fail(" ".join(str(error).split()))
