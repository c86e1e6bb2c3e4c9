"""Registers, spills and shared memory of every kernel on every architecture, kept in a committed table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from attnsim.errors import InputError
from attnsim.kernels.catalog import Operation
from attnsim.kernels.variant import Variant, compile_variant, source_hash
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.own import resources as kernel_resources
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Kernel
from attnsim.tables import csv_text

ARCHITECTURES = ("80", "86", "89", "90", "90a", "100")
"""Architectures of the table; "90a" is for kernels that run on nothing else."""

GOLDEN = Path(str(kernel_resources.__file__)).with_name("resources.csv")
"""The committed table."""

Job = tuple[Variant, str]
"""A variant and an architecture to compile it for."""


@dataclass(frozen=True, slots=True, order=True)
class ResourceRow:
    """Resources of one kernel on one architecture.

    Parameters
    ----------
    kernel : str
        Label of the variant.
    arch : str
        "80", "90a".
    registers : int
        Per thread.
    spill_bytes, stack_bytes : int
        Per thread: bytes of spilled registers, stores and loads; and local memory.
    shared_memory_bytes : int
        Per block, dynamic and static.
    threads : int
        Threads of a block.
    source_hash : str
        Hash of the source text and the constants.
    """

    kernel: str
    arch: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_memory_bytes: int
    threads: int
    source_hash: str


def jobs(operations: Iterable[Operation], architectures: Sequence[str] = ARCHITECTURES) -> list[Job]:
    """Return every variant of the operations, for each architecture that it is meant for."""
    found = {variant.label: variant for operation in operations for variant in operation.variants()}
    return [(variant, arch) for variant in found.values() for arch in architectures if _meant_for(variant, arch)]


def _meant_for(variant: Variant, arch: str) -> bool:
    major, minor = variant.compute_capability
    if variant.arch_suffix:
        return arch == f"{major * 10 + minor}{variant.arch_suffix}"
    return arch.isdigit() and int(arch) >= major * 10 + minor


def inspect_variant(variant: Variant, arch: str) -> ResourceRow:
    """Compile a variant and read the assembler's report.

    Raises
    ------
    InputError
        If it does not compile.
    """
    used = compile_variant(variant, arch).resources(variant.entry)
    return ResourceRow(
        kernel=variant.label,
        arch=arch,
        registers=used.registers,
        spill_bytes=used.spill_bytes,
        stack_bytes=used.stack_bytes,
        shared_memory_bytes=variant.shared_memory_bytes + used.static_shared_bytes,
        threads=variant.threads,
        source_hash=source_hash(variant),
    )


def inspect_all(work: Sequence[Job], done: Callable[[Job], None] = lambda job: None) -> list[ResourceRow]:
    """Return the sorted rows of all jobs, compiled on all cores: NVRTC releases Python's lock.

    Parameters
    ----------
    done : callable
        Called with each finished job.
    """
    found: list[ResourceRow] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {pool.submit(inspect_variant, *job): job for job in work}
        try:
            for future in as_completed(running):
                found.append(future.result())
                done(running[future])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return sorted(found, key=_order)


def _order(one: ResourceRow) -> tuple[str, int, str]:
    return one.kernel, int(one.arch.rstrip("a")), one.arch


def resident_blocks(one: ResourceRow, gpu: Gpu) -> int:
    """Return the resident blocks per SM; 0 if not even one fits."""
    kernel = Kernel(
        name=one.kernel,
        threads=one.threads,
        registers_per_thread=one.registers,
        segments=(),
        repeats=np.zeros((0, 1, 0), np.int64),
        launches=(),
        uses=(),
        buffers=(("shared memory", one.shared_memory_bytes),),
    )
    try:
        return occupancy(kernel, gpu).blocks_per_sm
    except InputError:
        return 0


def runs_on(one: ResourceRow, gpu: Gpu) -> bool:
    """True if this row applies to a GPU: its architecture, or the nearest older one in the table."""
    if not one.arch.isdigit():
        return one.arch.rstrip("a") == str(gpu.compute_capability_number)
    older = [int(arch) for arch in ARCHITECTURES if arch.isdigit() and int(arch) <= gpu.compute_capability_number]
    return bool(older) and int(one.arch) == max(older)


def to_csv(table: Iterable[ResourceRow]) -> str:
    """Return the rows as the text of the committed table."""
    return csv_text([field.name for field in fields(ResourceRow)], map(asdict, sorted(table, key=_order)))
