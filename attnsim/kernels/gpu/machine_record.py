"""The record of a measurement's machine: GPU, driver, versions, kernel hashes, git revision, date."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
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
