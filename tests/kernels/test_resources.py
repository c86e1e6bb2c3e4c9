"""The committed table of registers, spills and shared memory: complete, of these sources, as the compiler says."""

from __future__ import annotations

import csv
import functools

import pytest

from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.resources import (
    ARCHITECTURES,
    GOLDEN,
    ResourceRow,
    inspect_variant,
    jobs,
    resident_blocks,
    runs_on,
    to_csv,
)
from attnsim.kernels.variant import Variant, source_hash
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.implementations.own.linear_tiles import CAUSAL, OUTPUT, STATE, block_of
from attnsim.models.implementations.own.resources import registers_of

REWRITE = "run: attnsim kernels check --write, and look at what changed"


def from_csv(text: str) -> list[ResourceRow]:
    texts = {"kernel", "arch", "source_hash"}
    return [
        ResourceRow(**{name: value if name in texts else int(value) for name, value in line.items()})  # type: ignore[arg-type]
        for line in csv.DictReader(text.splitlines())
    ]


@functools.cache
def golden() -> dict[tuple[str, str], ResourceRow]:
    return {(row.kernel, row.arch): row for row in from_csv(GOLDEN.read_text(encoding="utf-8"))}


def test_every_variant_is_in_the_table_as_its_source_now_is() -> None:
    wanted = {(variant.label, arch): variant for variant, arch in jobs(OPERATIONS.values())}
    missing, gone = sorted(wanted.keys() - golden().keys()), sorted(golden().keys() - wanted.keys())
    assert not missing and not gone, f"missing {missing[:3]}, no longer there {gone[:3]}; {REWRITE}"
    stale = [key for key, variant in wanted.items() if golden()[key].source_hash != source_hash(variant)]
    assert not stale, f"{len(stale)} rows are of another source, such as {stale[:3]}; {REWRITE}"


def sample() -> list[tuple[Variant, str]]:
    """One variant an operation, the one that takes the most shared memory, on the oldest and on a newer GPU."""
    chosen = []
    for operation in OPERATIONS.values():
        variant = max(operation.variants(), key=lambda one: (one.shared_memory_bytes, one.label))
        chosen += [job for job in jobs([operation]) if job[0] == variant and job[1] in ("80", "90", "90a")]
    return list(dict.fromkeys(chosen))


@pytest.mark.parametrize(("variant", "arch"), sample(), ids=lambda value: getattr(value, "label", value))
def test_the_compiler_still_says_the_same(variant: Variant, arch: str) -> None:
    assert inspect_variant(variant, arch) == golden()[variant.label, arch], REWRITE


def test_nothing_spills_and_no_array_lies_in_local_memory() -> None:
    slow = [key for key, row in golden().items() if row.spill_bytes or row.stack_bytes]
    assert not slow, slow


def test_registers_leave_room_for_the_blocks_that_are_counted_on() -> None:
    """Two on an SM of unfused attention; of linear attention with S in registers as many as its ranges count on."""
    for variant, arch in jobs([OPERATIONS["naive"], OPERATIONS["linear"]]):
        row, blocks = golden()[variant.label, arch], 2
        if variant.entry in (STATE, OUTPUT, CAUSAL):
            blocks = block_of(variant.entry, int(dict(variant.defines)["HEAD_DIM"])).residents
        elif variant.entry.startswith("linear"):
            continue
        assert blocks * variant.threads * (-(-row.registers // 8) * 8) <= 65536, variant.label
        assert row.shared_memory_bytes == variant.shared_memory_bytes, variant.label


def test_the_text_is_sorted_and_survives_a_round_trip() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    assert to_csv(reversed(from_csv(text))) == text
    assert text.splitlines()[0].split(",") == [*ResourceRow.__dataclass_fields__]


def test_every_kernel_fits_a_gpu_that_it_is_meant_for() -> None:
    gpus = [load_gpu(name) for name in builtin_gpu_ids()]
    for kernel in {row.kernel for row in golden().values()}:
        rows = [row for row in golden().values() if row.kernel == kernel]
        assert any(resident_blocks(row, gpu) for row in rows for gpu in gpus if runs_on(row, gpu)), kernel


def test_the_simulator_reads_registers_from_it() -> None:
    for (kernel, arch), row in golden().items():
        gpu = next((load_gpu(name) for name in builtin_gpu_ids() if runs_on(row, load_gpu(name))), None)
        assert gpu is not None, arch
        assert registers_of(kernel, gpu, row.threads) == row.registers


def test_a_kernel_that_is_not_in_the_table_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(LookupError, match=r"no row of flash\(Half,63\); write it anew: attnsim kernels check --write"):
        registers_of("flash(Half,63)", load_gpu("l4"), 128)
    row = next(row for row in golden().values() if row.arch == "80")
    assert registers_of(row.kernel, load_gpu("t4"), 512) == 128  # older than all: what 512 threads may have


def test_an_architecture_beyond_the_table_takes_the_nearest_older_one() -> None:
    row = next(row for row in golden().values() if row.arch == "100")
    assert runs_on(row, load_gpu("rtx-pro-6000-server")) and not runs_on(row, load_gpu("h100-sxm5-80gb"))
    assert not any(runs_on(row, load_gpu("t4")) for row in golden().values())


def test_jobs_leave_out_what_a_variant_is_not_meant_for() -> None:
    every = {arch for _, arch in jobs(OPERATIONS.values())}
    assert every == set(ARCHITECTURES)
    for variant, arch in jobs(OPERATIONS.values()):
        assert (arch == "90a") == bool(variant.arch_suffix)
