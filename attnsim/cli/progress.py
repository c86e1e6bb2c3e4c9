"""Signs of life on stderr while something takes long: on a terminal only, nothing in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def busy(what: str) -> Iterator[None]:
    """A spinner while the block runs."""
    from rich.console import Console

    err = Console(stderr=True)
    if not err.is_terminal:
        yield
        return
    with err.status(f"{what} ..."):
        yield


@contextmanager
def steps(what: str, count: int) -> Iterator[Callable[[], None]]:
    """A bar of `count` steps; yields the function that says that one is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    err = Console(stderr=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=count)
        yield lambda: bar.advance(task)


@contextmanager
def budget(what: str, seconds: float) -> Iterator[Callable[[str], None]]:
    """A bar that fills as `seconds` pass; yields the function that shows what was done last."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    err, started = Console(stderr=True), time.monotonic()
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=seconds)
        yield lambda done: bar.update(task, completed=min(seconds, time.monotonic() - started), description=done)


@contextmanager
def rate(what: str, count: int) -> Iterator[Callable[[int], None]]:
    """A bar of `count` points with their rate and the time left; yields the function that counts more done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(),
    )  # fmt: skip
    err = Console(stderr=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=count, rate="")

        def advance(points: int) -> None:
            bar.advance(task, points)
            speed = bar.tasks[0].speed
            bar.update(task, rate="" if speed is None else f"{speed:,.0f}/s")

        yield advance
