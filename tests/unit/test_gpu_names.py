"""What cards are called: every listed name has its GPU or a refusal that says why, and variants are what they say."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import attnsim.models
from attnsim.errors import Taken
from attnsim.models.hardware.files import builtin_gpu_ids, gpu_to_yaml, gpus_called, known_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import inconsistency
from attnsim.models.hardware.names import VARIANTS
from attnsim.models.hardware.sections import FIELDS
from attnsim.tables import read_csv
from tests.unit.answering import refused

HARDWARE = Path(attnsim.models.__path__[0]) / "hardware"
LISTED = [row for row in read_csv(HARDWARE / "gpu_names.csv") if "*" not in row["name"] and row["gpu"]]
FILED = {row["id"]: row for row in read_csv(HARDWARE / "variants.csv")}


def test_the_list_is_long_and_every_line_has_its_source() -> None:
    names = [row["name"] for row in LISTED]
    assert len(set(names)) == len(names) >= 120
    assert all(len(row["source"]) > 8 for row in LISTED)
    assert {one for row in LISTED for one in row["gpu"].split("; ")} <= set(known_gpu_ids())


@pytest.mark.parametrize("row", LISTED, ids=lambda row: row["name"])
def test_a_listed_name_is_its_gpu_however_it_is_written(row: dict[str, str]) -> None:
    first, *others = row["gpu"].split("; ")
    for name in (row["name"], row["name"].lower(), row["name"].upper().replace("-", "_"), f"NVIDIA  {row['name']}"):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert load_gpu(name).id == first
        assert [other in str(said[0].message) for other in others] == [True] * len(others) if others else not said
    assert [gpu.id for gpu in gpus_called(row["name"])] == [first, *others]


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("RTX 3060 Ti", "rtx-3060-ti"), ("rtx3090ti", "rtx-3090-ti"), ("4060", "rtx-4060"),
        ("V100 32GB PCIe", "v100-pcie-32gb"),
        ("NVIDIA-A100-SXM4-80GB", "a100-sxm4-80gb"), ("h100-64gb", "h100-sxm5-64gb"), ("H20 96GB", "h20"),
        ("nvidia_a100-pcie-40gb", "a100-pcie-40gb"), ("A100 80 GB PCIe", "a100-pcie-80gb"),
        ("RTX 8000", "quadro-rtx-8000"),
        ("NVIDIA RTX 4000 SFF Ada", "rtx-4000-sff-ada"),
        ("4090D", "rtx-4090-d"), ("H20 96G", "h20"), ("RTX3090 24G", "rtx-3090"), ("A10 Tensor Core GPU", "a10"),
        ("RTX Pro 6000 Blackwell Workstation", "rtx-pro-6000-workstation"), ("GH200 Grace Hopper 96GB", "gh200-96gb"),
        ("H200-NVL-141GB", "h200-nvl-141gb"),
    ],
)  # fmt: skip
def test_other_ways_to_write_a_name_follow_by_rule(written: str, found: str) -> None:
    assert load_gpu(written).id == found


@pytest.mark.parametrize(
    ("written", "why", "near"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a MIG instance is a part", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "a laptop's card", "rtx-4070"),
        ("NVIDIA GeForce RTX 2080 with Max-Q Design", "a laptop's card", "rtx-2080"),
        ("Tesla P100-PCIE-16GB", "older than Volta", "v100-pcie-16gb"),
        ("NVIDIA GeForce GTX 1660 SUPER", "without tensor cores", "nearest: "),
        ("NVIDIA Jetson AGX Orin", "the CPU shares", "nearest: "),
        ("8x H100", "several GPUs", "nearest: "),
        ("RTX 4090 48GB", "unknown GPU", "rtx-4090"),
        ("RTX 4000", "unknown GPU", "quadro-rtx-4000"),
        ("NVIDIA L40S-48C", "unknown GPU", "l40s"),
    ],
)
def test_a_name_that_is_no_card_of_ours_is_refused_with_the_nearest(written: str, why: str, near: str) -> None:
    told = refused(load_gpu, written)
    assert why in told and near in told.partition("nearest: ")[1] + told.partition("nearest: ")[2]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_states_its_line_and_assumes_the_rest(name: str, tmp_path: Path) -> None:
    gpu, base, row = load_gpu(name), load_gpu(VARIANTS[name].extends), FILED[name]
    assert (gpu.id, gpu.base_id, gpu.changes, inconsistency(gpu)) == (name, name, (), "")
    assert list(gpu.provenance) == list(FIELDS)
    for key, figure in gpu.provenance.items():
        assert figure.value == gpu.get(key), key
        if cell := row.get(key, ""):
            assert figure.value == pytest.approx(FIELDS[key].parse(cell.removeprefix("~"))), key
            assert (figure.kind == "assumed") == cell.startswith("~") and figure.source == row["source"], key
        elif key.startswith("tensor.") and row["tensor.fp16"] and figure.kind == "derived":
            assert figure.source == row["source"], key
        elif figure.kind != "assumed":  # a limit that the CUDA Programming Guide has for all of the capability
            assert figure.kind == "datasheet" and figure == base.provenance[key], key
        else:
            assert figure.source.startswith(("as on ", "in proportion to ")), key
    path = tmp_path / f"{name}.yaml"
    path.write_text(gpu_to_yaml(gpu), encoding="utf-8")
    assert load_gpu(path) == gpu


def test_what_hangs_on_a_figure_moves_with_it() -> None:
    a40, a10 = load_gpu("a40"), load_gpu("a10")
    assert a10.peak_tensor_flops_per_s("bf16") == pytest.approx(125e12, rel=0.001)  # the A10's datasheet
    clocks = a10.sm.count * a10.clock.boost_hz / (a40.sm.count * a40.clock.boost_hz)
    assert a10.l2.bandwidth_bytes_per_s == pytest.approx(a40.l2.bandwidth_bytes_per_s * clocks, rel=1e-6)
    assert a10.power.limit_w == 150
    turing = load_gpu("rtx-2080-ti")
    assert turing.peak_tensor_flops_per_s("fp16") == pytest.approx(53.8e12, rel=0.001)  # with fp32 accumulate
    nvl, sxm = load_gpu("h100-nvl-94gb"), load_gpu("h100-sxm5-80gb")
    assert nvl.clock.free_hz / sxm.clock.free_hz == pytest.approx(
        1785 / 1980
    )  # by the boost clock, not the tensor peak's
    assert load_gpu("gb10").compute_capability == "12.1"


def test_the_usual_names_mean_what_they_meant() -> None:
    with pytest.warns(Taken, match="h100 taken as h100-sxm5-80gb; others: h100-pcie-80gb$"):
        load_gpu("h100")
    assert not set(builtin_gpu_ids()) & set(VARIANTS)
