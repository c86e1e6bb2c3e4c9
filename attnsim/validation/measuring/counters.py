"""Counts of NVIDIA's Nsight Compute: read from its reports, and taken of our kernels, shape by shape."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.gpu.measuring import runs_on
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.question.case_row import Case, parse_row

METRICS = {
    "hbm_read_bytes": "dram__bytes_read.sum",
    "hbm_write_bytes": "dram__bytes_write.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "time_s": "gpu__time_duration.sum",
}
"""Quantities and the profiler's names for them (Nsight Compute, "Metrics Reference"). lts__t_bytes counts all bytes
that pass the L2's tags; for an L2 with two partitions, also the traffic between them."""

OPTIONAL = ("time_s",)

UNITS = {
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "ns": 1e-9,
    "nsecond": 1e-9,
    "us": 1e-6,
    "usecond": 1e-6,
    "ms": 1e-3,
    "msecond": 1e-3,
    "s": 1.0,
    "second": 1.0,
}
"""SI values of the units that the profiler's releases write; ``--print-units base`` writes byte and ns (nsecond)."""

_ASK = "--csv --page raw --print-units base"
_FORBIDDEN = "ERR_NVGPUCTRPERM"
_NUMBER = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?|\d+(\.\d+)?")
_ENTRY = re.compile(r"(?:void\s+)?([\w:]+)")


@dataclass(frozen=True, slots=True)
class Counted:
    """One kernel launch under the profiler.

    Parameters
    ----------
    kernel : str
        Entry point, which is also the name of the schedule's kernel.
    blocks : int or None
        Blocks of its grid; None if the profiler's release does not say.
    hbm_read_bytes, hbm_write_bytes, l2_bytes : int
    """

    kernel: str
    blocks: int | None
    hbm_read_bytes: int
    hbm_write_bytes: int
    l2_bytes: int
    time_s: float | None = None


def read_counters(path: str | Path) -> list[Counted]:
    """Read the launches in a CSV of the profiler, in the order in which they ran.

    Raises
    ------
    InputError
        If it is no such CSV, lacks a metric, or has unreadable numbers.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give the CSV of ncu") from None
    return parse_counters(text, str(path))


def parse_counters(text: str, where: str = "the profiler's output") -> list[Counted]:
    """Parse the launches in the profiler's output; the program's own lines and the profiler's remarks are ignored.

    Parameters
    ----------
    where : str
        Name of the text in messages.

    Raises
    ------
    InputError
        As in :func:`read_counters`.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        if _FORBIDDEN in text:
            raise InputError(f"{where}: the profiler may not read counters ({_FORBIDDEN}); attnsim doctor has the fix")
        raise InputError(f'{where} has no line that begins with "ID"; run ncu with {_ASK}')
    rows = list(csv.reader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"')))))
    header, *rest = rows
    if "Metric Name" in header:
        raise InputError(f"{where} has a line for each metric, not for each kernel; run ncu with {_ASK}")
    absent = [name for key, name in METRICS.items() if name not in header and key not in OPTIONAL]
    if absent:
        raise InputError(f"{where} has no column {', '.join(absent)}; add --metrics {','.join(METRICS.values())}")
    if not rest or rest[0][0]:
        raise InputError(f"{where} has no line of units below its header; run ncu with {_ASK}")
    units = dict(zip(header, rest[0], strict=False))
    return [_counted(dict(zip(header, row, strict=False)), units, where) for row in rest[1:]]


def _counted(row: Mapping[str, str], units: Mapping[str, str], where: str) -> Counted:
    entry = _ENTRY.match(row.get("Kernel Name", "").strip())
    if entry is None:
        raise InputError(f"{where}: a line has no kernel name: {row}")
    named = f"{where}, {entry[1]} (ID {' '.join(row['ID'].split())})"
    values = {
        key: _value(row.get(name, ""), units.get(name, ""), f"{named}: {name}", optional=key in OPTIONAL)
        for key, name in METRICS.items()
    }
    whole = {key: int(value or 0) for key, value in values.items() if key not in OPTIONAL}
    return Counted(entry[1], _blocks(row.get("Grid Size", "")), **whole, time_s=values["time_s"])


def _value(text: str, unit: str, what: str, *, optional: bool) -> float | None:
    """Parse a number to SI units; bytes must be whole, which reveals a decimal point that means thousands."""
    if optional and text.strip() in ("", "n/a"):
        return None
    if not _NUMBER.fullmatch(text.strip()):
        raise InputError(f"{what} is {text!r}; a number such as 1,234 is needed: run ncu with LC_ALL=C and {_ASK}")
    if unit not in UNITS:
        raise InputError(f"{what} is in {unit!r}; known: {', '.join(UNITS)}; run ncu with {_ASK}")
    value = float(text.replace(",", "")) * UNITS[unit]
    if unit == "byte" and not value.is_integer():
        raise InputError(f"{what} is {text!r} bytes, not a whole number; run ncu with LC_ALL=C")
    return value


def _blocks(grid: str) -> int | None:
    sizes = [int(size) for size in re.findall(r"\d+", grid)]
    return math.prod(sizes) if sizes else None


LENGTHS = (1024, 4096)
"""Tokens of the profiled shapes: inputs fit every L2, scores fit none at the larger one."""
HEADS = 16
SECONDS = 300
"""Time limit for one shape in seconds; the profiler runs every kernel several times."""


def shapes(gpu: Gpu) -> Iterator[tuple[Operation, Case]]:
    """Yield the profiled cases: each operation that runs on the GPU, at every length, causal if possible."""
    for one in OPERATIONS.values():
        if one.experimental or runs_on(one, gpu):
            continue
        for length in LENGTHS:
            decode = one.passes == "decode"
            yield one, parse_row({
                "gpu": gpu.id, "implementation": one.implementation, "pass": one.passes, "dtype": "bf16",
                "batch": 1, "heads_q": HEADS, "seq_q": 1 if decode else length, "seq_kv": length, "head_dim": 64,
                "causal": int(one.causal and not decode), "cache": "cold",
            })  # fmt: skip


def profiler() -> str:
    """Return the path of ncu.

    Raises
    ------
    InputError
        If it is not installed.
    """
    path = shutil.which("ncu")
    if path is None:
        raise InputError("ncu is not on PATH; give counters of another machine: --counters ncu.csv --cases table.csv")
    return path


def count(
    one: Operation, case: Case, run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run
) -> list[Counted]:
    """Profile one operation on one shape; returns its launches.

    Raises
    ------
    InputError
        If the profiler may not read counters, or the operation fails.
    """
    command = [
        profiler(), "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--metrics", ",".join(METRICS.values()), sys.executable, "-m", "attnsim", "kernels", "run", one.name,
        "--batch", str(case.batch), "--heads", str(case.heads_q), "--seq", str(max(case.seq_q, case.seq_kv)),
        "--head-dim", str(case.head_dim), "--dtype", case.dtype, *["--causal"] * case.causal,
    ]  # fmt: skip
    try:
        done = run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(
            f"ncu took longer than {SECONDS} s for {one.name}; profile it by hand, see docs/cli/probe.md"
        ) from None
    return parse_counters(done.stdout + done.stderr, f"ncu on {one.name}")
