"""GPU files: reading, extending, rules for what is missing, writing, the schema, and what is refused."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

import attnsim.models
from attnsim.errors import Taken
from attnsim.models.hardware.files import builtin_gpu_ids, gpu_to_yaml, load_gpu, write_json_schema
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from tests.unit.answering import refused

MODELS = Path(attnsim.models.__path__[0])
IDS = builtin_gpu_ids()
FIGURE = "{value: %s, kind: assumed, source: test}"


@pytest.fixture
def h100() -> Gpu:
    return load_gpu("h100-sxm5-80gb")


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("gpu_id", IDS)
def test_yaml_round_trip(tmp_path: Path, gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    assert load_gpu(write(tmp_path, "gpu.yaml", gpu_to_yaml(gpu))) == gpu
    changed = gpu.replace("hbm.bandwidth", "2x").replace("sm.shared_memory", "2x").replace("clock.tensor", "1.1x")
    text = gpu_to_yaml(changed)
    assert f"extends: {gpu_id}" in text
    assert set(yaml.safe_load(text)) == {"id", "name", "extends", "changes", "sm", "hbm", "l2", "clock"}
    again = load_gpu(write(tmp_path, "changed.yaml", text))
    assert again == changed
    assert again.provenance == changed.provenance


def test_extends_overrides_only_what_is_given(tmp_path: Path, h100: Gpu) -> None:
    text = f"extends: h100-sxm5-80gb\nhbm:\n  bandwidth: {FIGURE % '6 TB/s'}\n"
    gpu = load_gpu(write(tmp_path, "mine.yaml", text))
    assert (gpu.id, gpu.base_id) == ("mine", "h100-sxm5-80gb")
    assert [*map(str, gpu.changes)] == ["hbm.bandwidth = 6 TB/s (was 3.35 TB/s)"]
    assert [key for key in FIELDS if gpu.get(key) != h100.get(key)] == ["hbm.bandwidth"]
    assert gpu.provenance["hbm.bandwidth"].source == "test"
    second = f"extends: mine.yaml\nsm:\n  shared_memory: {FIGURE % '400 KiB'}\n"
    gpu = load_gpu(write(tmp_path, "second.yaml", second))
    assert gpu.hbm.bandwidth_bytes_per_s == 6e12
    assert gpu.sm.shared_memory_per_block_bytes == 399 * 1024
    assert gpu.base_id == "h100-sxm5-80gb"
    assert [change.keys for change in gpu.changes] == [
        {"hbm.bandwidth"},
        {"sm.shared_memory", "sm.shared_memory_per_block"},
    ]


def test_a_changes_list_cannot_hide_a_change(tmp_path: Path) -> None:
    text = f"extends: l4\nchanges: [nothing at all]\nhbm: {{bandwidth: {FIGURE % '6 TB/s'}}}\n"
    [change] = load_gpu(write(tmp_path, "mine.yaml", text)).changes
    assert str(change) == "hbm.bandwidth = 6 TB/s (was 300 GB/s)"


MINIMAL = f"""
name: Mine
compute_capability: "9.0"
sm: {{count: {FIGURE % 100}}}
tensor: {{fp16: {FIGURE % "4096 FLOP/clk"}}}
l2: {{capacity: {FIGURE % "60 MiB"}}}
hbm: {{capacity: {FIGURE % "80 GB"}, bandwidth: {FIGURE % "3 TB/s"}}}
clock: {{boost: {FIGURE % "1.8 GHz"}}}
power: {{tdp: {FIGURE % "500 W"}}}
"""


def test_what_is_missing_comes_from_rules_and_is_marked_assumed(tmp_path: Path) -> None:
    gpu = load_gpu(write(tmp_path, "mine.yaml", MINIMAL))
    assert gpu.architecture == "hopper"
    assert gpu.hbm.achievable_fraction == 0.85
    assert gpu.l2.bandwidth_bytes_per_s == pytest.approx(37.1 * 100 * 1.8e9, rel=1e-3)
    assert (gpu.launch.stream_s, gpu.launch.graph_s) == (2.5e-6, 1.3e-6)
    assert gpu.hbm.latency_clk == 700
    assert gpu.tensor.fp8_flops_per_clk == 8192
    assert gpu.clock.full_hz == gpu.clock.free_hz == gpu.clock.tensor_hz == 1.8e9
    for key, figure in gpu.provenance.items():
        assert figure.kind == ("datasheet" if figure.source.startswith("CUDA Programming Guide") else "assumed"), key
        assert figure.source == "test" or figure.kind == "datasheet" or figure.source.startswith("rule: "), key
    assert gpu.provenance["sm.max_threads"].kind == "datasheet"
    hbm3 = load_gpu(write(tmp_path, "hbm3.yaml", MINIMAL + "memory: HBM3\n"))
    assert hbm3.hbm.achievable_fraction == 0.92


@pytest.mark.parametrize("capability", ["7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0"])
def test_rules_cover_every_compute_capability(tmp_path: Path, capability: str) -> None:
    gpu = load_gpu(write(tmp_path, "mine.yaml", MINIMAL.replace('"9.0"', f'"{capability}"')))
    assert set(gpu.provenance) == set(FIELDS)


def test_blackwell_ultra_has_twice_the_exponentials_and_the_rest_of_blackwell(tmp_path: Path) -> None:
    older, newer = (
        load_gpu(write(tmp_path, "mine.yaml", MINIMAL.replace('"9.0"', f'"{one}"'))) for one in ("10.0", "10.3")
    )
    assert (older.sm.exp_per_clk, newer.sm.exp_per_clk) == (16.0, 32.0)
    assert newer.l2.latency_clk == older.l2.latency_clk == 293
    assert newer.features == older.features


def test_h20_has_a_quarter_of_hopper_s_tensor_rate_and_its_share_for_mma_sync(h100: Gpu) -> None:
    h20 = load_gpu("h20")
    assert 4 * h20.tensor.fp16_flops_per_clk == h100.tensor.fp16_flops_per_clk
    assert h20.tensor.mma_sync_fraction == h100.tensor.mma_sync_fraction == 0.629


def test_a_name_that_is_none_has_the_nearest() -> None:
    assert "gb300" in refused(load_gpu, "gb300-nvl72").partition("nearest: ")[2].partition(";")[0].split(", ")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("a6000", "rtx-a6000"), ("5090", "rtx-5090"), ("RTX 4090", "rtx-4090"), ("rtx3080", "rtx-3080"),
        ("b300", "b300-sxm"), ("h800", "h800-sxm"), ("h100", "h100-sxm5-80gb"), ("H100-SXM", "h100-sxm5-80gb"),
        ("NVIDIA A100", "a100-sxm4-80gb"), ("a100-40gb", "a100-sxm4-40gb"), ("h100-pcie", "h100-pcie-80gb"),
        ("h20-sxm", "h20"), ("l40s-48gb", "l40s"), ("A800-SXM", "a800"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::attnsim.errors.Taken")
def test_what_people_call_a_gpu_leads_to_it(written: str, found: str) -> None:
    assert load_gpu(written) is load_gpu(found)


def test_which_board_was_taken_is_said() -> None:
    with pytest.warns(Taken, match="h100 taken as h100-sxm5-80gb; others: h100-pcie-80gb"):
        load_gpu("h100")


@pytest.mark.parametrize("written", ["mi300x", "MI355X", "tpu-v5e", "gaudi3", "rx7900", "m4"])
def test_processors_of_others_are_refused_as_such(written: str) -> None:
    assert "GPUs of NVIDIA only" in refused(load_gpu, written)


def test_changed_gpu_of_ones_own_round_trips(tmp_path: Path) -> None:
    mine = load_gpu(write(tmp_path, "mine.yaml", MINIMAL))
    changed = mine.replace("sm.count", "2x")
    assert load_gpu(write(tmp_path, "changed.yaml", gpu_to_yaml(changed))) == changed
    text = f"extends: mine.yaml\nhbm: {{bandwidth: {FIGURE % '6 TB/s'}}}\n"
    second = load_gpu(write(tmp_path, "second.yaml", text))
    assert second.base_id == "mine"
    assert load_gpu(write(tmp_path, "third.yaml", gpu_to_yaml(second))) == second


BAD_FILES = {
    "negative": (
        f"extends: l4\nhbm: {{bandwidth: {FIGURE % '-3 TB/s'}}}",
        ["hbm.bandwidth", "'-3 TB/s'", "1 GB/s to"],
    ),
    "no-unit": (f"extends: l4\nhbm: {{bandwidth: {FIGURE % 3000000000000}}}", ["no unit"]),
    "wrong-unit": (f"extends: l4\nhbm: {{bandwidth: {FIGURE % '3 GHz'}}}", ["GHz"]),
    "infinite": (f"extends: l4\nhbm: {{bandwidth: {FIGURE % '.inf'}}}", ["inf"]),
    "list": (f"extends: l4\nhbm: {{bandwidth: {FIGURE % '[1, 2]'}}}", ["hbm.bandwidth"]),
    "truth": (f"extends: l4\nsm: {{count: {FIGURE % 'true'}}}", ["sm.count"]),
    "bare-value": ("extends: l4\nhbm: {bandwidth: 3 TB/s}", ["hbm.bandwidth", "source"]),
    "no-source": ("extends: l4\nhbm: {bandwidth: {value: 3 TB/s, kind: assumed}}", ["source is missing"]),
    "no-kind": ("extends: l4\nhbm: {bandwidth: {value: 3 TB/s, source: x}}", ["kind is missing"]),
    "bad-kind": (
        "extends: l4\nhbm: {bandwidth: {value: 3 TB/s, kind: guess, source: x}}",
        ["'guess'", "measured"],
    ),
    "empty-source": ("extends: l4\nhbm: {bandwidth: {value: 3 TB/s, kind: assumed, source: ''}}", ["empty"]),
    "unknown-key": (
        f"extends: l4\nhbm: {{bandwith: {FIGURE % '3 TB/s'}}}",
        ["hbm.bandwith", "hbm.bandwidth"],
    ),
    "unknown-section": ("extends: l4\nhmb: {}", ["'hmb'", "hbm"]),
    "section-list": ("extends: l4\nhbm: [1]", ["hbm", "bandwidth"]),
    "twice": ("extends: l4\nextends: t4", ["line 2", "twice"]),
    "twice-within": (
        f"extends: l4\nhbm:\n  bandwidth: {FIGURE % '3 TB/s'}\n  bandwidth: {FIGURE % '4 TB/s'}",
        ["line 4", "twice"],
    ),
    "unknown-base": ("extends: h100", ["'h100'", "h100-sxm5-80gb"]),
    "missing-base": ("extends: ./nowhere.yaml", ["nowhere.yaml", "no such file"]),
    "itself": ("extends: itself.yaml", ["circle"]),
    "other-architecture": ("extends: l4\narchitecture: hopper", ["'hopper'", "'ada'"]),
    "contradiction": (MINIMAL + "architecture: ada", ["architecture", "hopper"]),
    "missing-figure": (MINIMAL.replace("tdp", "tpd"), ["power.tpd", "power.tdp"]),
    "no-count": (MINIMAL.replace("sm:", "#"), ["sm.count is missing"]),
    "no-clock": (MINIMAL.replace("clock:", "#"), ["clock.boost is missing"]),
    "capability": (MINIMAL.replace('"9.0"', '"6.1"'), ["'6.1'", "'8.0'"]),
    "capability-number": (MINIMAL.replace('"9.0"', "9.0"), ["compute_capability"]),
    "stolen-id": (MINIMAL + "id: h100-sxm5-80gb", ["h100-sxm5-80gb", "id of its own"]),
    "stolen-base": (MINIMAL + "base_id: h100-sxm5-80gb", ["base_id", "extends"]),
    "bad-id": ("extends: l4\nid: ../../etc", ["id", "rename"]),
    "per-block": (f"extends: l4\nsm: {{shared_memory_per_block: {FIGURE % '200 KiB'}}}", ["100 KiB"]),
    "not-yaml": ("extends: [l4", ["line", "YAML"]),
    "merge": ("a: &a {x: 1}\nsm: {<<: *a}", ["plain words"]),
    "python-tag": ("extends: !!python/object/apply:os.system [ls]", ["YAML"]),
    "deep": ("[" * 5000, ["YAML"]),
    "deep-and-closed": ("a: " + "[" * 100_000 + "]" * 100_000, ["YAML"]),
    "aliases": ("a: &a [1]\nb: &b [*a, *a]\nextends: [*b, *b]", ["a"]),
    "list-file": ("- l4", ["list"]),
    "empty": ("", ["nothing"]),
    "huge": ("#" * 300_000, ["larger than 256 KiB"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_refused_in_one_line(tmp_path: Path, case: str) -> None:
    text, words = BAD_FILES[case]
    message = refused(load_gpu, write(tmp_path, f"{case}.yaml", text))
    assert f"{case}.yaml" in message
    for word in words:
        assert word in message


def test_unreadable_paths_and_ids_are_refused(tmp_path: Path) -> None:
    assert "h100-sxm5-80gb" in refused(load_gpu, "h100-smx5-80gb")
    assert "nearest" in refused(load_gpu, "")
    assert "cannot be read" in refused(load_gpu, str(tmp_path / "none.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    assert "cannot be read" in refused(load_gpu, str(tmp_path / "folder.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff\xfe")
    assert "UTF-8" in refused(load_gpu, str(tmp_path / "latin.yaml"))
    for name in ("a", "b"):
        write(tmp_path, f"{name}.yaml", f"extends: {'b' if name == 'a' else 'a'}.yaml")
    assert "a.yaml -> b.yaml -> a.yaml" in refused(load_gpu, str(tmp_path / "a.yaml"))


# --- the published schema


def test_schema_is_up_to_date_and_files_validate(tmp_path: Path) -> None:
    write_json_schema(tmp_path / "schema.json")
    published = (MODELS / "hardware" / "gpu.schema.json").read_text(encoding="utf-8")
    assert (tmp_path / "schema.json").read_text(encoding="utf-8") == published
    schema = json.loads(published)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for gpu_id in IDS:
        document = yaml.safe_load((MODELS / "hardware" / "gpus" / f"{gpu_id}.yaml").read_text(encoding="utf-8"))
        validator.validate(document)
    for text in (BAD_FILES["no-kind"][0], BAD_FILES["unknown-key"][0], MINIMAL.replace("power:", "#")):
        assert not validator.is_valid(yaml.safe_load(text))
