"""The list of operations: every record leads to something, and all parts of it agree with one another."""

from __future__ import annotations

import inspect
import tomllib

import pytest

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS, Operation, find_operation
from attnsim.kernels.variant import CUDA, Variant, files_of
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import OWN_KERNELS
from attnsim.models.question.workload import Workload

EVERY = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())


@EVERY
def test_an_operation_takes_a_device_first_and_its_arrays_by_position(operation: Operation) -> None:
    parameters = list(inspect.signature(operation.call()).parameters.values())
    assert parameters[0].name == "device"
    assert len([one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]) >= 4


@EVERY
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_kernels_of_a_schedule_are_compiled_for_it(operation: Operation, dtype: str) -> None:
    """Name and resources of every planned kernel are those of some variant."""
    known = {(v.entry, v.threads, v.shared_memory_bytes) for v in operation.variants()}
    gpu = load_gpu(operation.example_gpu)
    for width in operation.head_dims:
        for seq in (1, 500, 4096):
            w = Workload(2, 4, 1 if operation.passes == "decode" else seq, width, seq_kv=seq, dtype=dtype)
            for kernel in operation.schedule(w.with_passes(operation.passes), gpu).kernels:
                assert (kernel.name, kernel.threads, kernel.shared_memory_bytes) in known, kernel.name


@EVERY
def test_variants_have_a_source_and_labels_of_their_own(operation: Operation) -> None:
    for variant in operation.variants():
        assert all((CUDA / name).is_file() for name in files_of(variant.source))
        assert variant.threads % 32 == 0 and variant.compute_capability >= (8, 0)
        assert len(dict(variant.defines)) == len(variant.defines), "a constant is given twice"


def test_a_label_means_one_compilation() -> None:
    """Registers are looked up by label: two different variants under one label would share a row."""
    found: dict[str, Variant] = {}
    for operation in OPERATIONS.values():
        for variant in operation.variants():
            assert found.setdefault(variant.label, variant) == variant, variant.label


def test_every_own_implementation_is_an_operation_and_the_other_way_round() -> None:
    assert {one.implementation for one in OPERATIONS.values()} == {one.name for one in OWN_KERNELS}


def test_sources_and_table_go_into_the_wheel() -> None:
    root = CUDA.parents[2]
    wheel = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel.keys() == {"packages", "dev-mode-dirs"} and wheel["packages"] == ["attnsim"]  # all of it, that is
    ignored = (root / ".gitignore").read_text("utf-8")
    assert not any(ending in ignored for ending in (".cu", ".csv", "attnsim"))


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown kernel 'flsh'; nearest: flash"):
        find_operation("flsh")
