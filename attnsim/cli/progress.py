"""Signs of life on stderr while something takes long, on a terminal only; and errors that end a command with 1."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from attnsim.bounds import watched

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner while the block runs."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield
        return
    with err.status(f"{what} ..."):
        yield


@contextmanager
def _bar(what: str, total: float, *columns: str) -> Iterator[tuple[Progress, TaskID]]:
    """A bar with further columns, by their names in `rich.progress` or as texts."""
    from rich import progress

    err = Console(stderr=True)
    shown = [getattr(progress, name)() if name.endswith("Column") else progress.TextColumn(name) for name in columns]
    first = (progress.TextColumn(what), progress.BarColumn())
    with progress.Progress(*first, *shown, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield bar, bar.add_task("", total=total, rate="")


@contextmanager
def plays(what: str = "playing") -> Iterator[Callable[[str, int, int], None]]:
    """A bar of a kernel's thread blocks once it takes long; yields the callback (kernel, blocks ended, blocks)."""
    with ExitStack() as until_done:
        begun: list[tuple[Progress, TaskID]] = []

        def report(kernel: str, ended: int, blocks: int) -> None:
            if not begun:
                columns = ("{task.description}", "MofNCompleteColumn", "TimeRemainingColumn")
                begun.append(until_done.enter_context(_bar(what, blocks, *columns)))
            bar, task = begun[0]
            if ended < bar.tasks[0].completed or bar.tasks[0].description != kernel:
                bar.reset(task, total=blocks, description=kernel)
            bar.update(task, completed=ended)

        yield report


@contextmanager
def interpreting(what: str) -> Iterator[None]:
    """A bar of the blocks that the interpreter begins; refused as soon as it is known to take too long."""
    with plays("blocks") as report, watched(what, lambda begun, blocks: report("", begun, blocks)):
        yield


@contextmanager
def budget(what: str, seconds: float) -> Iterator[Callable[[str], None]]:
    """A bar that fills as `seconds` pass; yields the function that shows what was done last."""
    started = time.monotonic()
    with _bar(what, seconds, "TimeRemainingColumn", "{task.description}") as (bar, task):
        yield lambda done: bar.update(task, completed=min(seconds, time.monotonic() - started), description=done)


@contextmanager
def steps(what: str, count: int) -> Iterator[Callable[..., None]]:
    """A bar of `count` steps with their rate and the time left; yields the function that counts one more, or many."""
    with _bar(what, count, "MofNCompleteColumn", "{task.fields[rate]}", "TimeRemainingColumn") as (bar, task):

        def advance(points: int = 1) -> None:
            bar.advance(task, points)
            speed = bar.tasks[0].speed
            bar.update(task, rate="" if speed is None else f"{speed:,.0f}/s")

        yield advance


FAILED = 1
"""Exit code of a command that ran and found a fault."""


def fail(*lines: str) -> NoReturn:
    """End with code 1 after a line on stderr for each fault."""
    sys.stdout.flush()
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    raise typer.Exit(FAILED)


@contextmanager
def gpu_errors(*errors: type[Exception]) -> Iterator[None]:
    """Errors of driver and GPU within the block, or other `errors`, as one line on stderr."""
    try:
        yield
    except typer.Exit:  # a RuntimeError too
        raise
    except (*errors, RuntimeError) as error:  # type: ignore[misc]
        fail(" ".join(str(error).split()))
