"""Runs a study: chunks are answered by joblib, locally or on a cluster, and written as they finish."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.studies.folder import Folder
from attnsim.studies.study import Chunk, Study

BACKENDS = ("local", "dask")
CONNECT_S = 10.0
"""Time limit for connecting to a scheduler, in seconds."""
LOST_WORKER = ("TerminatedWorkerError", "BrokenProcessPool", "KilledWorker")
"""Names of exceptions for a dead worker, from loky and Dask, whose classes need not be installed."""
RESTARTS = 2
"""Number of restarts with new workers after one was killed, if chunks were finished in between."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Summary of a run.

    Parameters
    ----------
    points, chunks : int
        Size of the whole study.
    found : int
        Chunks that an earlier run had finished.
    """

    points: int
    chunks: int
    found: int


def run(
    study: Study,
    out: str | Path,
    *,
    jobs: int | None = None,
    backend: str = "local",
    scheduler: str = "",
    progress: Callable[[int], None] = lambda points: None,
) -> Finished:
    """Answer every point of a study that the folder does not hold yet.

    Parameters
    ----------
    out : str or Path
        Folder of the results; created if missing, continued if it holds chunks of the same inputs.
    jobs : int, optional
        Worker processes on this machine; default: one per processor. 1 starts none.
    backend : {"local", "dask"}
        Where chunks are answered. The chunks of a cluster are written here.
    scheduler : str
        Address of the cluster, ``tcp://host:8786``.
    progress : callable
        Called with the number of points of each finished chunk, whether finished earlier or now.

    Raises
    ------
    InputError
        If the folder has other inputs or cannot be written, or workers keep dying.
    """
    jobs = len(os.sched_getaffinity(0)) if jobs is None else jobs
    _check(jobs, backend, scheduler)
    folder = Folder(out)
    with folder.opened(study):
        found = folder.done()
        for number in sorted(found):
            progress(study.chunk(number).count)
        pending = [number for number in range(study.chunks()) if number not in found]
        for attempt in range(RESTARTS + 1):
            left = set(pending)
            try:
                for number, table in _answered(study, pending, jobs, backend, scheduler):
                    folder.write(number, table)
                    left.remove(number)
                    progress(table.num_rows)
                break
            except Exception as error:
                if type(error).__name__ not in LOST_WORKER:
                    raise
                if attempt == RESTARTS or len(left) == len(pending):
                    raise InputError(
                        f"a worker process was lost ({type(error).__name__}) with {len(left)} of {study.chunks()} "
                        "chunks left; give the same command again, with fewer --jobs if memory was short"
                    ) from None
                pending = sorted(left)
        return Finished(len(study), study.chunks(), len(found))


def _answered(study: Study, pending: list[int], jobs: int, backend: str, scheduler: str) -> Iterator[tuple[int, Any]]:
    """Yield chunk numbers and answers in the order in which they finish."""
    if not pending or (backend == "local" and (jobs == 1 or len(pending) == 1)):
        for number in pending:
            yield _numbered(study, study.chunk(number))
        return
    import joblib

    with _cluster(backend, scheduler, joblib.parallel_config):
        workers = joblib.Parallel(jobs if backend == "local" else -1, return_as="generator_unordered", batch_size=1)
        answers: Any = workers(joblib.delayed(_numbered)(study, study.chunk(number)) for number in pending)
        with contextlib.closing(answers):
            yield from answers


def _numbered(study: Study, chunk: Chunk) -> tuple[int, Any]:
    from attnsim.studies.answers import answer  # needs pyarrow

    return chunk.number, answer(study, chunk)


@contextlib.contextmanager
def _cluster(backend: str, scheduler: str, config: Callable[..., Any]) -> Iterator[None]:
    """Set joblib's backend for a block of code."""
    if backend == "local":
        yield
    else:
        import distributed

        try:
            connect: Any = distributed.Client
            client = connect(scheduler, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(
                f"no Dask scheduler answers at {scheduler}: {reason}; start one with `dask scheduler`"
            ) from None
        with client, config(backend="dask", client=client):
            yield


def _check(jobs: int, backend: str, scheduler: str) -> None:
    """Raise InputError for a backend that is not available, before anything is computed."""
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; allowed: whole numbers from 1")
    if importlib.util.find_spec("pyarrow") is None:
        raise InputError('results are Parquet, which needs pyarrow: pip install "attnsim[datasets]"')
    if backend not in BACKENDS:
        raise InputError(f"backend is {backend!r}; allowed: {', '.join(BACKENDS)}")
    if backend == "local" and scheduler:
        raise InputError(f"scheduler {scheduler} goes with backend dask; leave it out, or add --backend dask")
    if backend == "dask" and not scheduler:
        raise InputError("backend dask needs the scheduler's address: --scheduler tcp://host:8786")
    if backend == "dask" and importlib.util.find_spec("distributed") is None:
        raise InputError('backend dask needs dask[distributed]: pip install "attnsim[cluster]"')
