"""Hardware files of other tools: what is read of them, that it predicts, and that nothing else than one line comes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attnsim
from attnsim.cli import main
from attnsim.errors import InputError
from attnsim.models.hardware.files import gpu_to_yaml, load_gpu
from attnsim.models.hardware.importing import import_hardware
from attnsim.models.hardware.importing.nvidia_smi import import_attached
from attnsim.models.hardware.importing.sections import Imported
from attnsim.models.question.workload import Workload
from tests.unit.answering import refusal

DATA = Path(__file__).parents[1] / "data"
FILES = ("llmcompass_a100.json", "aiconfigurator_h100.yaml", "nvidia_smi_h100.xml")
QUESTION = Workload(batch=1, heads_q=8, seq_q=1024, head_dim=128, dtype="fp16")


def changed(name: str, tmp_path: Path, old: str, new: str) -> Path:
    """A committed file with one piece of text replaced."""
    text = (DATA / name).read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / name
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_llmcompass_gives_what_the_datasheet_gives() -> None:
    found = import_hardware(DATA / "llmcompass_a100.json")
    gpu, real = found.gpu, load_gpu("a100-sxm4-80gb")
    for key in (
        "sm.count", "sm.registers", "sm.shared_memory", "sm.fp32_rate", "tensor.fp16", "l2.capacity", "clock.boost",
        "hbm.capacity",
    ):  # fmt: skip
        assert gpu.get(key) == real.get(key), key
        assert gpu.provenance[key].kind == "derived"
    assert gpu.get("hbm.bandwidth") == pytest.approx(real.get("hbm.bandwidth"), rel=0.01)
    assert gpu.get("l2.bandwidth") == 5120 * 1410e6
    assert found.lacking == ("power.tdp",)
    assert gpu.provenance["power.tdp"].kind == "assumed"
    assert "a100" in gpu.provenance["power.tdp"].source


def test_a_design_of_llmcompass_without_fp32_lanes_has_its_fp16_lanes(tmp_path: Path) -> None:
    """As its generation_system.json: 0 lanes of fp32 and 32 of fp16 in each of 4 sublanes."""
    path = changed("llmcompass_a100.json", tmp_path, '"fp32_count": 16', '"fp32_count": 0, "fp16_count": 32')
    found = import_hardware(path)
    assert found.gpu.sm.fp32_flops_per_clk == 2 * 4 * 32
    assert "fp32_count is 0: the lanes of fp16_count are taken for it" in found.remarks


def test_aiconfigurator_gives_the_sms_by_the_peak() -> None:
    found = import_hardware(DATA / "aiconfigurator_h100.yaml")
    assert found.like == "h100-sxm5-80gb"
    assert found.gpu.sm.count == 132
    assert found.gpu.peak_tensor_flops_per_s("fp16") == pytest.approx(989e12)
    assert found.gpu.peak_tensor_flops_per_s("fp8") == pytest.approx(1978e12)
    assert found.gpu.provenance["hbm.bandwidth"].kind == "datasheet"
    assert set(found.lacking) == {"l2.capacity", "clock.boost", "hbm.achievable_fraction"}


def test_aiconfigurator_has_one_16_bit_peak_under_either_key(tmp_path: Path) -> None:
    path = changed("aiconfigurator_h100.yaml", tmp_path, "bfloat16_tc_flops", "float16_tc_flops")
    assert import_hardware(path).gpu.sm == import_hardware(DATA / "aiconfigurator_h100.yaml").gpu.sm
    both = changed("aiconfigurator_h100.yaml", tmp_path, "  power:", "  float16_tc_flops: 494000000000000\n  power:")
    with pytest.raises(
        InputError, match=r"bfloat16_tc_flops is 9\d+, gpu\.float16_tc_flops is 494.*correct or delete one"
    ):
        import_hardware(both)


def test_fp8_that_is_no_faster_than_fp16_stays_so(tmp_path: Path) -> None:
    """GB10 as aiconfigurator has it: 213 TFLOP/s in fp16, 214 in fp8, compute capability 12.1."""
    path = tmp_path / "gb10.yaml"
    path.write_text(
        "gpu: {mem_bw: 273000000000, mem_capacity: 128538451968, float16_tc_flops: 213000000000000, "
        "fp8_tc_flops: 214000000000000, power: 140, sm_version: 121}\n"
    )
    gpu = import_hardware(path).gpu
    assert gpu.compute_capability == "12.1"
    assert gpu.peak_tensor_flops_per_s("fp16") == pytest.approx(213e12)
    assert gpu.peak_tensor_flops_per_s("fp8") == pytest.approx(214e12)


def smi(tmp_path: Path, name: str, memory: str, clock: str = "1695 MHz") -> Path:
    path = tmp_path / "log.xml"
    path.write_text(
        f"<nvidia_smi_log><gpu><product_name>{name}</product_name><fb_memory_usage><total>{memory}</total>"
        f"</fb_memory_usage><max_clocks><sm_clock>{clock}</sm_clock></max_clocks></gpu></nvidia_smi_log>"
    )
    return path


def test_what_a_card_s_own_datasheet_says_goes_before_what_it_is_likened_to(tmp_path: Path) -> None:
    path, a10 = smi(tmp_path, "NVIDIA A10", "23028 MiB"), load_gpu("a10")
    assert import_hardware(path).gpu.sm == a10.sm
    found = import_hardware(path, like=load_gpu("a10g"))  # 80 SMs at half the tensor rate
    for key in ("sm.count", "tensor.fp16", "tensor.bf16", "power.tdp", "hbm.bandwidth"):
        assert found.gpu.get(key) == a10.get(key), key
    assert found.gpu.provenance["sm.count"].kind == "datasheet"
    assert found.remarks[-1].startswith("not as on a10g, by what is known of NVIDIA A10 itself: sm.count, tensor.fp16")
    assert import_hardware(path, like=a10).lacking == ()


def test_what_is_inherited_is_assumed_whatever_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, like = smi(tmp_path, "NVIDIA B9000", "81559 MiB", "1500 MHz"), load_gpu("h100-pcie-80gb")
    found = import_hardware(path, like=like)
    kinds = {key: one.kind for key, one in found.gpu.provenance.items()}
    assert kinds["l2.bandwidth"] == kinds["hbm.bandwidth"] == kinds["sm.count"] == "assumed"
    assert like.provenance["l2.bandwidth"].kind == "measured"
    assert kinds["hbm.capacity"] == kinds["clock.boost"] == "measured"
    assert kinds["sm.max_threads"] == "datasheet"  # of the compute capability
    out = tmp_path / "mine.yaml"
    assert main(["gpus", "import", str(path), "--like", like.id, "--out", str(out)]) == 0
    mine = load_gpu(out)
    assert (mine.base_id, mine.changes) == ("mine", ())  # no calibration of another chip as if it were measured
    assert "assumed as on h100-pcie-80gb: sm.count" in capsys.readouterr().out


def test_nvidia_smi_gives_a_known_gpu_as_it_is_set() -> None:
    found = import_hardware(DATA / "nvidia_smi_h100.xml")
    assert found.like == "h100-sxm5-80gb"  # not the PCIe card, whose clock and power limit are others
    assert [*map(str, found.gpu.changes)] == ["power.limit = 500 W (was 700 W)"]
    assert found.gpu.provenance["power.limit"].kind == "measured"
    assert found.remarks == ("the first of 2 GPUs",)


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "81920 MiB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-40GB", "40960 MiB", "a100-sxm4-40gb"),
        ("NVIDIA A100 80GB PCIe", "81920 MiB", "a100-pcie-80gb"),
        ("NVIDIA H100 PCIe", "81559 MiB", "h100-pcie-80gb"),
        ("NVIDIA H200", "143771 MiB", "h200-sxm-141gb"),
        ("NVIDIA L40S", "46068 MiB", "l40s"),
        ("NVIDIA L4", "23034 MiB", "l4"),
        ("Tesla T4", "15360 MiB", "t4"),
        ("Tesla V100-SXM2-32GB", "32768 MiB", "v100-sxm2-32gb"),
        ("NVIDIA GeForce RTX 4090", "24564 MiB", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "97887 MiB", "rtx-pro-6000-server"),
    ],
)
def test_names_of_nvidia_smi_are_known(name: str, memory: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "log.xml"
    path.write_text(
        f"<nvidia_smi_log><gpu><product_name>{name}</product_name>"
        f"<fb_memory_usage><total>{memory}</total></fb_memory_usage></gpu></nvidia_smi_log>",
        encoding="utf-8",
    )
    found = import_hardware(path)
    assert found.like == expected
    assert found.gpu.changes == ()


@pytest.mark.parametrize("name", FILES)
def test_the_command_writes_a_file_that_loads_and_predicts(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.yaml"
    assert main(["gpus", "import", str(DATA / name), "--out", str(out), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)[0]
    gpu = load_gpu(str(out))
    assert gpu.id == record["id"] == "mine"
    assert {key: figure["value"] for key, figure in record["figures"].items()} == {
        key: gpu.get(key) for key in record["figures"]
    }
    assert all(figure.source for figure in gpu.provenance.values())
    assert (attnsim.predict(QUESTION, gpu, baseline=False).time_s or 0) > 0
    assert main(["gpus", "import", str(DATA / name), "--out", str(out)]) == 2  # it exists
    assert "--force" in capsys.readouterr().err


def test_a_wrong_file_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = changed("llmcompass_a100.json", tmp_path, '"core_count": 108', '"core_count": 129')
    refusal(capsys, "gpus", "import", str(path), "--out", str(tmp_path / "mine.yaml"))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("llmcompass_a100.json", '"core_count": 108', '"core_count": 129', "more than physical_core_count"),
        ("llmcompass_a100.json", "1410e6", '"1410 MHz"', "write a positive number in Hz, without the unit"),
        ("llmcompass_a100.json", "1410e6", "1.41", r"clock\.boost.*allowed: 1 MHz"),
        ("llmcompass_a100.json", "1410e6", "-1410e6", "positive number"),
        ("llmcompass_a100.json", "1410e6", "Infinity", "finite"),
        ("llmcompass_a100.json", '"SRAM_KB": 192', '"SRAM_KB": 8', "32 KiB and more"),
        ("llmcompass_a100.json", '"data_type": "fp16", "mac', '"data_type": "int8", "mac', "allowed: fp16, bf16"),
        ("llmcompass_a100.json", '"device": {', '"chip": {', "device is missing"),
        ("llmcompass_a100.json", "NVIDIA A100(80GB)x4", "AMD MI210", "GPUs of NVIDIA only"),
        ("aiconfigurator_h100.yaml", "sm_version: 90", "sm_version: 9.0", "allowed: 70 to 129"),
        ("aiconfigurator_h100.yaml", "  sm_version: 90\n", "", "no CUDA GPU"),
        ("aiconfigurator_h100.yaml", "mem_bw: 3350000000000", "mem_bw: 3350", r"hbm\.bandwidth.*1 GB/s"),
        ("aiconfigurator_h100.yaml", "mem_bw: 3350000000000", "mem_bw: 3350 GB/s", "without the unit"),
        ("aiconfigurator_h100.yaml", "fp8_tc_flops: 1978000000000000", "fp8_tc_flops: 1978", "write both in FLOP/s"),
        ("nvidia_smi_h100.xml", "H100 80GB HBM3", "B9000", "not a built-in GPU"),
        ("nvidia_smi_h100.xml", "500.00 W", "500.00 MHz", "is in MHz"),
        ("nvidia_smi_h100.xml", "81559 MiB", "81559 KB", "ambiguous"),
        (
            "nvidia_smi_h100.xml",
            'SYSTEM "nvsmi_device_v12.dtd"',
            '[<!ENTITY e SYSTEM "file:///etc/passwd">]',
            "entities",
        ),
        ("nvidia_smi_h100.xml", "</nvidia_smi_log>", "", "cannot be read as XML"),
        ("nvidia_smi_h100.xml", "<attached_gpus>2", f"{'<a>' * 40}{'</a>' * 40}<attached_gpus>2", "nested more than"),
    ],
)
def test_wrong_files_are_refused_in_one_line(name: str, old: str, new: str, told: str, tmp_path: Path) -> None:
    path = changed(name, tmp_path, old, new)
    with pytest.raises(InputError, match=told) as refused:
        import_hardware(path)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(name)


def test_files_that_are_no_hardware_files(tmp_path: Path) -> None:
    for name, content, told in (
        ("a.json", b"[" * 100_000, "nested too deep|JSON"),
        ("a.json", b"[1]", "should hold keys"),
        ("a.json", b"\xff\xfe", "UTF-8"),
        ("a.json", b" " * (1 << 21), "larger than"),
        ("a.toml", b"", "give --format"),
        ("a.xml", b"", "empty|no element"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=told):
            import_hardware(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        import_hardware(tmp_path / "absent.json")


def test_an_unknown_card_takes_the_rest_from_the_gpu_it_is_likened_to(tmp_path: Path) -> None:
    path = changed("nvidia_smi_h100.xml", tmp_path, "H100 80GB HBM3", "H100 Future")
    found = import_hardware(path, like=load_gpu("h200-sxm-141gb"))
    assert found.gpu.sm.count == load_gpu("h200-sxm-141gb").sm.count
    assert found.gpu.hbm.capacity_bytes == 81559 * 2**20
    assert found.gpu.changes


def outcome(path: Path) -> Imported | None:
    """What is read, None where it is refused in one line."""
    try:
        found = import_hardware(path)
    except InputError as error:
        assert "\n" not in str(error)
        return None
    return found


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(FILES))
def test_mutated_files_are_read_or_refused_in_one_line(data: st.DataObject, name: str, tmp_path: Path) -> None:
    raw = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        piece = data.draw(
            st.sampled_from(
                (b"", b"0", b"9", b"e9", b"-", b"null", b'"', b"{", b"[", b"<", b"&x;", b"nan", b"\xff", b"\n")
            )
            | st.binary(max_size=3)
        )
        raw[at : at + data.draw(st.integers(0, 6))] = piece
    path = tmp_path / name
    path.write_bytes(bytes(raw))
    found = outcome(path)
    if found is not None:  # whatever is read makes a file that loads to the same machine
        written = tmp_path / "written.yaml"
        written.write_text(gpu_to_yaml(found.gpu), encoding="utf-8")
        if found.format != "nvidia-smi" and found.gpu.id not in attnsim.builtin_gpu_ids():
            assert load_gpu(str(written)) == found.gpu


class FakeNvml:
    """pynvml as `import_nvml` uses it, for a card with 64 cores an SM."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, name: str, cores: int, memory: float) -> None:
        self.name, self.cores, self.memory = name, cores, memory
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, card: int) -> str:
        return self.name

    def nvmlDeviceGetCudaComputeCapability(self, card: int) -> tuple[int, int]:
        return 8, 0

    def nvmlDeviceGetNumGpuCores(self, card: int) -> int:
        return self.cores

    def nvmlDeviceGetMaxClockInfo(self, card: int, which: int) -> int:
        return 1410 if which == self.NVML_CLOCK_SM else 1593

    def nvmlDeviceGetMemoryBusWidth(self, card: int) -> int:
        return 5120

    def nvmlDeviceGetMemoryInfo(self, card: int) -> SimpleNamespace:
        return SimpleNamespace(total=self.memory)


def test_nvml_finds_the_card_or_describes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = FakeNvml("NVIDIA A100-SXM4-80GB", 6912, 80 * 2**30)
    monkeypatch.setitem(sys.modules, "pynvml", known)
    assert import_attached().like == "a100-sxm4-80gb"
    other = FakeNvml("NVIDIA PG506", 3072, 24 * 2**30)
    monkeypatch.setitem(sys.modules, "pynvml", other)
    found = import_attached().gpu
    assert (found.sm.count, found.clock.boost_hz) == (48, 1410e6)
    assert found.provenance["sm.count"].source == "NVML"
    assert found.get("hbm.bandwidth") == 2 * 1593e6 * 5120 / 8
    assert (known.open, other.open) == (0, 0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(InputError, match="nvidia-ml-py"):
        import_attached()
