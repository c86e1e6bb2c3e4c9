"""Detects NVIDIA cards, driver and usable GPUs on this machine, and runs NVIDIA's tools."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.device import Device
from attnsim.kernels.gpu.cuda_device import CudaDevice, attached, import_cupy
from attnsim.kernels.variant import CUDA
from attnsim.models.question.workload import Workload
from attnsim.ptx.nvrtc import CompileError, assemblers, find_nvrtc
from attnsim.ptx.outcome import TOLERANCE

NVIDIA_VENDOR = "0x10de"
"""PCI vendor id."""

TIMEOUT_S = 90
"""Time limit for a tool on a small kernel, in seconds."""


@dataclass(frozen=True, slots=True)
class Host:
    """NVIDIA hardware and driver of this machine.

    Parameters
    ----------
    cards : int
        Number of attached NVIDIA devices (on PCI, or by the driver's device files).
    driver_cuda : int
        Newest CUDA release that the driver supports, 13000 for 13.0; 0 without a driver.
    gpus : tuple of str
        Descriptions of the GPUs that CuPy can use.
    trouble : str
        Reason why CuPy cannot use a GPU.
    """

    cards: int
    driver_cuda: int
    gpus: tuple[str, ...]
    trouble: str

    @classmethod
    def here(cls) -> Host:
        """Examine this machine."""
        cards, driver = _count_cards(), _driver_cuda()
        try:
            gpus, trouble = tuple(_usable_gpus()), ""
        except Exception as error:  # whatever stops CuPy is what has to be told
            gpus, trouble = (), one_line(error)
        return cls(max(cards, len(gpus)), driver, gpus, trouble)


def _count_cards() -> int:
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    classes = [vendor.with_name("class") for vendor in vendors if read(vendor).strip() == NVIDIA_VENDOR]
    on_bus = sum(read(path).startswith("0x03") for path in classes)  # display and 3D controllers
    return max(on_bus, sum(1 for _ in Path("/dev").glob("nvidia[0-9]*")))


def _driver_cuda() -> int:
    version = ctypes.c_int(0)
    try:
        library = ctypes.CDLL("libcuda.so.1")
        status: Callable[[Any], int] = library.cuDriverGetVersion
        return version.value if status(ctypes.byref(version)) == 0 else 0
    except (OSError, AttributeError):
        return 0


def _usable_gpus() -> Iterator[str]:
    cupy = import_cupy()
    for number in range(cupy.cuda.runtime.getDeviceCount()):
        one = attached(number)
        sms = one.attributes.get("MultiProcessorCount", 0)
        yield f"{one.name}, sm_{one.capability}, {sms} SMs, {one.memory_bytes / 1e9:.0f} GB"


def tried(command: list[str]) -> tuple[int, str]:
    """Run a tool; returns its exit code and all its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, one_line(error)
    return done.returncode, done.stdout + done.stderr


def read(path: Path) -> str:
    """Read a system file; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def one_line(error: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(error).split())


Status = Literal["ok", "missing", "not needed"]

PACKAGES = ("numpy", "scipy", "simpy", "pandas", "pydantic", "pint", "pyyaml", "typer", "rich", "matplotlib", "joblib")
"""Packages that predictions need; kernels on a GPU need only NumPy and CuPy."""

_TINY = "import cupy; cupy.arange(1 << 20).sum(); cupy.cuda.Device().synchronize()"


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one tool or library.

    Parameters
    ----------
    status : {"ok", "missing", "not needed"}
        "not needed": absent, but nothing here uses it without a GPU.
    found : str
        Versions, or what was tried and the result.
    fix : str
        A command or advice; "" if nothing is to be done.
    """

    what: str
    status: Status
    found: str
    fix: str = ""


def examine() -> Iterator[Finding]:
    """Yield every part, each after the parts that it depends on."""
    machine = Host.here()
    yield _packages()
    yield _nvrtc()
    yield _ptxas()
    yield _triton()
    yield _extras()
    yield _sources()
    yield _interpreter()
    for part in (_gpu, _driver, _cupy, _launch, _nvml, _profiler, _counters, _sanitizer):
        yield part(machine)


def _absent(machine: Host, what: str, found: str, fix: str) -> Finding:
    """Return the finding for an absent part: "missing" with a GPU, "not needed" without one."""
    if machine.cards:
        return Finding(what, "missing", found, fix)
    return Finding(what, "not needed", f"{found}; no GPU here")


def _packages() -> Finding:
    found, absent = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            absent.append(name)
    text = f"Python {sys.version.split()[0]}, {', '.join(found)}"
    if absent:
        return Finding("packages", "missing", f"{text}; without {', '.join(absent)}", f"pip install {' '.join(absent)}")
    return Finding("packages", "ok", text)


def _nvrtc() -> Finding:
    fix = "pip install 'attnsim[cuda-cpu]'"
    try:
        nvrtc = find_nvrtc()
        nvrtc.compile('extern "C" __global__ void k(float* x) { *x = 1.0f; }', "k.cu", ["-arch=sm_80"])
    except InputError as error:
        return Finding("NVRTC", "missing", str(error).partition(";")[0], fix)
    except CompileError as error:
        return Finding("NVRTC", "missing", f"cannot compile a kernel of one line: {one_line(error)}", fix)
    newest = max(nvrtc.architectures)
    return Finding("NVRTC", "ok", f"{'.'.join(map(str, nvrtc.version))} through {nvrtc.binding}, up to sm_{newest}")


def _ptxas() -> Finding:
    if not (found := assemblers()):
        return Finding("ptxas", "not needed", "not here; kernels trace asks for it: pip install nvidia-cuda-nvcc")
    others = f"; where it refuses PTX, {', '.join(map(str, found[1:]))}" if found[1:] else ""
    return Finding("ptxas", "ok", f"{found[0]}{others}")


def _triton() -> Finding:
    try:
        return Finding("Triton", "ok", metadata.version("triton"))
    except metadata.PackageNotFoundError:
        text = "not here; kernels run --triton asks for it: pip install 'attnsim[triton]'"
        return Finding("Triton", "not needed", text)


def _extras() -> Finding:
    """Find attnsim's installed extras."""
    try:
        required = metadata.requires("attnsim") or []
    except metadata.PackageNotFoundError:
        return Finding("extras", "not needed", "attnsim is not installed as a package, which has them")
    lines = [re.match(r"([\w.-]+).*\bextra == ['\"]([\w-]+)", one) for one in required]
    named = sorted({one[2] for one in lines if one})
    absent = {one[2] for one in lines if one and one[1] != "attnsim" and not _is_here(one[1])}
    text = ", ".join(one for one in named if one not in absent) or "none"
    rest = ", ".join(one for one in named if one in absent)
    return Finding("extras", "ok", text + (f"; without {rest}: pip install 'attnsim[NAME]'" if rest else ""))


def _is_here(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def _sources() -> Finding:
    count = sum(1 for suffix in ("*.cu", "*.cuh") for _ in CUDA.glob(suffix))
    if not count:
        return Finding("CUDA sources", "missing", f"none in {CUDA}", "pip install --force-reinstall attnsim")
    return Finding("CUDA sources", "ok", f"{count} files; they include no CUDA header, so none has to be installed")


def _interpreter() -> Finding:
    try:
        return Finding("interpreter", "ok", _exercised(CpuDevice()))
    except Exception as error:  # an examination reports whatever goes wrong
        return Finding("interpreter", "missing", one_line(error), "pip install 'attnsim[cuda-cpu]'")


def _gpu(machine: Host) -> Finding:
    if machine.gpus:
        return Finding("GPU", "ok", "; ".join(machine.gpus))
    if machine.cards:
        return Finding("GPU", "missing", f"{machine.cards} attached, none usable: {machine.trouble}", "see below")
    return Finding("GPU", "not needed", "none attached; kernels run on the CPU, nothing can be timed")


def _driver(machine: Host) -> Finding:
    if not machine.driver_cuda:
        container = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
        fix = "start the container with --gpus all" if container else "sudo ubuntu-drivers install, then reboot"
        return _absent(machine, "driver", "no libcuda.so.1 that answers", fix)
    version = f"{machine.driver_cuda // 1000}.{machine.driver_cuda % 1000 // 10}"
    version_line = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", read(Path("/proc/driver/nvidia/version")))
    release = f"{version_line[1]}, " if version_line else ""
    if machine.driver_cuda < 13000:
        return Finding(
            "driver",
            "missing",
            f"{release}knows CUDA up to {version}; cupy-cuda13x needs 13.0",
            "install driver 580 or newer, or: pip install cupy-cuda12x in place of cupy-cuda13x",
        )
    return Finding("driver", "ok", f"{release}CUDA up to {version}")


def _cupy(machine: Host) -> Finding:
    try:
        import cupy
    except ImportError as error:
        return _absent(machine, "CuPy", one_line(error), "pip install 'attnsim[gpu]'")
    if machine.gpus:
        return Finding("CuPy", "ok", f"{cupy.__version__}, CUDA runtime {cupy.cuda.runtime.runtimeGetVersion()}")
    return _absent(machine, "CuPy", f"{cupy.__version__} installed, but: {machine.trouble}", "mend the driver, above")


def _launch(machine: Host) -> Finding:
    """Check that one of our kernels compiles, loads and runs on the GPU."""
    if not machine.gpus:
        return _absent(machine, "launch", "not tried", "mend what is missing above")

    try:
        return Finding("launch", "ok", _exercised(CudaDevice(synchronous=True)))
    except (InputError, RuntimeError) as error:
        return Finding(
            "launch", "missing", one_line(error), "mend what is missing above, and report this if nothing is"
        )


def _nvml(machine: Host) -> Finding:
    try:
        import pynvml
    except ImportError:
        return _absent(machine, "NVML", "nvidia-ml-py is not installed", "pip install nvidia-ml-py")
    try:
        pynvml.nvmlInit()
        text = f"driver {pynvml.nvmlSystemGetDriverVersion()}, {pynvml.nvmlDeviceGetCount()} GPUs: clocks can be read"
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return _absent(machine, "NVML", one_line(error), "mend the driver, above")
    return Finding("NVML", "ok", text)


def _profiler(machine: Host) -> Finding:
    path = shutil.which("ncu")
    if path is None:
        return _absent(machine, "profiler", "ncu is not on PATH", "install Nsight Compute: apt install nsight-compute")
    version = re.search(r"Version ([\d.]+)", tried([path, "--version"])[1])
    return Finding("profiler", "ok", f"{path} {version[1] if version else ''}".rstrip())


def _counters(machine: Host) -> Finding:
    """Check that the profiler may read the GPU's counters (NVIDIA, ERR_NVGPUCTRPERM)."""
    what = "counters"
    fix = (
        "run as root, or: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
        "sudo tee /etc/modprobe.d/nvidia-profiling.conf, then reboot; in a container add --cap-add SYS_ADMIN"
    )
    restricted = re.search(r"RmProfilingAdminOnly: (\d)", read(Path("/proc/driver/nvidia/params")))
    path = shutil.which("ncu")
    if not machine.gpus or path is None:
        return _absent(machine, what, "not tried: they need a usable GPU and ncu", "mend what is missing above")
    allowed = (
        {"1": "administrators only", "0": "every user"}[restricted[1]] if restricted else "driver does not say who may"
    )
    command = [path, "--metrics", "dram__bytes_read.sum", "--launch-count", "1", sys.executable, "-c", _TINY]
    code, text = tried(command)
    if "ERR_NVGPUCTRPERM" in text:
        return Finding(what, "missing", f"ERR_NVGPUCTRPERM ({allowed}); byte counts are then not measured", fix)
    if code or "dram__bytes_read" not in text:
        last = text.strip().splitlines()[-1:] or [f"exit code {code}"]
        return Finding(what, "missing", f"ncu gives no counter: {one_line(last[0])}", fix)
    return Finding(what, "ok", f"dram__bytes_read.sum was read ({allowed})")


def _sanitizer(machine: Host) -> Finding:
    what = "sanitizer"
    path = shutil.which("compute-sanitizer")
    if path is None:
        return _absent(machine, what, "compute-sanitizer is not on PATH", "apt install cuda-sanitizer-13-0")
    if not machine.gpus:
        return _absent(machine, what, f"{path}, not tried without a usable GPU", "mend what is missing above")
    code, text = tried([path, "--error-exitcode", "9", sys.executable, "-c", _TINY])
    if code or "ERROR SUMMARY: 0 errors" not in text:
        last = text.strip().splitlines()[-1:] or [f"exit code {code}"]
        return Finding(
            what, "missing", f"fails on a correct kernel: {one_line(last[0])}", "match its release to the driver's"
        )
    return Finding(what, "ok", f"{path} runs a correct kernel without a complaint")


def _exercised(device: Device) -> str:
    """Run flash attention on a device and describe the result; raises the error that it ends in."""
    question = Workload(1, 1, 64, 64)
    started = time.perf_counter()
    error = OPERATIONS["flash"].exercise(device, question).largest_error()
    if error > TOLERANCE[question.dtype]:
        raise InputError(f"flash on {question} is wrong: error {error:.1e}, allowed {TOLERANCE[question.dtype]:.1e}")
    return f"flash on 64 x 64 agrees with float64 to {error:.1e}, {time.perf_counter() - started:.1f} s"
