"""Errors of CUDA in commands that need a GPU: one line and exit code 1, no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

FAILED = 1


@contextmanager
def told() -> Iterator[None]:
    """Errors of driver and GPU within the block, as one line on stderr."""
    try:
        yield
    except typer.Exit:  # a RuntimeError too
        raise
    except RuntimeError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
