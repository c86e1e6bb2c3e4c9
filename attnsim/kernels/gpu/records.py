"""The records of a run: an append-only file of measured points, and the machine that they were measured on."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.errors import InputError
from attnsim.kernels.catalog import Operation
from attnsim.kernels.gpu.cuda_device import CudaDevice, attached, import_cupy
from attnsim.kernels.gpu.timing import Stopwatch
from attnsim.kernels.variant import source_hash
from attnsim.models.hardware.attached import Attached

FILE_NAME = "records.jsonl"
"""Name of a run's file of records."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point to measure.

    Parameters
    ----------
    key : str
        Unique within a run, and equal in every run.
    measure : callable
        Returns the record, ready for JSON.
    about : mapping
        Fields of the record that are kept even if the measurement fails.
    """

    key: str
    measure: Callable[[], dict[str, Any]]
    about: Mapping[str, Any] = field(default_factory=dict)


class Records:
    """The records of a run, one JSON object a line.

    Parameters
    ----------
    path : Path
        Created with the first record. An incomplete last line is dropped and its point measured again.

    Raises
    ------
    InputError
        If the file is not of this kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            text = self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{self.path} is not text in UTF-8; give the records of a run") from None
        whole, _, cut_off = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                record = json.loads(line)
                self.done[record["key"]] = record
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{self.path}, line {number}: not a record of a run; take another --out") from None
        if cut_off:
            os.truncate(self.path, len((whole + "\n" if whole else "").encode()))

    def append(self, key: str, data: dict[str, Any]) -> None:
        """Append a record; it is on disk when this returns."""
        record = {"key": key} | data
        line = (json.dumps(record) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
            os.fsync(file)
        finally:
            os.close(file)
        self.done[key] = record

    def run(
        self, points: Iterable[Point], deadline_s: float, clock: Callable[[], float] = time.monotonic
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Measure the points that have no record yet, in order, until the clock passes `deadline_s`.

        A point that fails becomes a record with ``error``, and the run continues.
        """
        for point in points:
            if point.key in self.done:
                continue
            if clock() >= deadline_s:
                return
            start = clock()
            try:
                data = point.measure()
            except Exception as error:  # whatever it is: MemoryError, a time-out, a bug of one point
                data = {"error": f"{type(error).__name__}: {error}"}
            self.append(point.key, {**point.about, **data, "took_s": round(clock() - start, 3)})
            yield point.key, self.done[point.key]


@functools.cache
def version_of(one: Operation) -> str:
    """Return a hash of all variants of an operation; it changes when the kernels do."""
    digest = hashlib.sha256(" ".join(sorted(source_hash(variant) for variant in one.variants())).encode())
    return digest.hexdigest()[:16]


def now() -> str:
    """Return the time in UTC to the second, which identifies a session of measurements."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def machine_record(
    device: CudaDevice, watch: Stopwatch, operations: Iterable[Operation], *, seed: int, date: str
) -> dict[str, Any]:
    """Return everything that is needed to reproduce or interpret a measurement.

    Parameters
    ----------
    operations : iterable of Operation
        The measured operations.
    seed : int
        Seed of the random inputs.
    date : str
        From :func:`now`.
    """
    cupy = import_cupy()
    runtime = cupy.cuda.runtime
    found = attached(int(runtime.getDevice()))
    return {
        "gpu": found.name,
        "id": device.gpu.id,
        "attached": dataclasses.asdict(found) | {"attributes": dict(found.attributes)},
        "driver": watch.clocks.driver(),
        "cuda_driver": int(runtime.driverGetVersion()),
        "cuda_runtime": int(runtime.runtimeGetVersion()),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "clocks_missing": watch.clocks.missing,
        "state": dataclasses.asdict(watch.clocks.read()),
        "kernel_hashes": {variant.label: source_hash(variant) for one in operations for variant in one.variants()},
        "git_revision": _revision(),
        "date": date,
        "seed": seed,
    }


def attached_of(record: Mapping[str, Any]) -> Attached:
    """Return the driver's description of the GPU from a machine record.

    Raises
    ------
    InputError
        If the record has no description.
    """
    try:
        return Attached(**record["attached"])
    except (KeyError, TypeError):
        raise InputError(
            "the machine record says nothing of the GPU's attributes; it is of another version, measure again"
        ) from None


def _revision() -> str | None:
    """Return the git revision, with a + if files differ from it; None outside a checkout."""
    here, outputs = Path(__file__).resolve(), []
    # The first fails where this file is not git's: installed beside somebody's own project.
    for words in (
        ["ls-files", "--error-unmatch", here.name],
        ["rev-parse", "HEAD"],
        ["status", "--porcelain", "--untracked-files=no"],
    ):
        command = ["git", "-C", str(here.parent), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        outputs.append(done.stdout.strip())
    _, revision, changed = outputs
    return f"{revision}+" if changed else revision
