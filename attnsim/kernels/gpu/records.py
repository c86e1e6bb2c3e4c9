"""An append-only file of measured points, from which a killed run can resume."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnsim.errors import InputError

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
