"""Everything worth knowing from a GPU, in one command: correctness, speed, microbenchmarks, counters, sanitizer.

    python benchmarks/gpu_run.py --out run --minutes 9

needs NumPy and CuPy alone; PyTorch is timed beside our kernels where it is installed. Points are taken most valuable
first and each is on disk as soon as it is measured (``run/records.jsonl``), so the command may be killed and started
again: it goes on where it stopped. Speeds count useful FLOPs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.kernels import probe
from attnsim.kernels.arrays import DTYPES
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.outcome import TOLERANCE
from attnsim.kernels.records import Point, Records
from attnsim.kernels.sources import source_hash
from attnsim.models.errors import InputError
from attnsim.models.mask import Mask
from attnsim.models.workload import Workload

HERE = Path(__file__).resolve().parent
STEPS = ("machine", "correct", "flash", "decode", "sparse", "probe", "rest", "interpreter", "sanitizer", "counters")
TORCH_BACKENDS = ("flash", "cudnn", "math")
SIZES = (1, 63, 127, 500, 4096)
COUNTERS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum", "gpu__time_duration.sum")


@dataclass
class Gpu:
    """The GPU and what is made on first use: CuPy, the device, the stopwatch, PyTorch if there is one."""

    seed: int

    def __post_init__(self) -> None:
        from attnsim.kernels.gpu import CudaDevice, import_cupy
        from attnsim.kernels.timing import Stopwatch

        self.cupy = import_cupy()
        self.device = CudaDevice()
        self.watch = Stopwatch(self.device)
        try:
            import torch

            self.torch: Any = torch
        except ImportError:
            self.torch = None

    def random(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        """Normal numbers in a 16-bit format, made on the GPU; bf16 as its bits."""
        values = self.cupy.random.default_rng(self.seed + seed).standard_normal(shape, dtype="float32")
        if dtype == "fp16":
            return values.astype("float16")
        return ((values.view("uint32") + 0x8000) >> 16).astype("uint16")

    def inputs(self, w: Workload) -> tuple[Any, Any, Any]:
        """Q, K and V."""
        kv = (w.batch, w.heads_kv, w.seq_kv, w.head_dim)
        return (
            self.random((w.batch, w.heads_q, w.seq_q, w.head_dim), w.dtype, 0),
            self.random(kv, w.dtype, 1),
            self.random(kv, w.dtype, 2),
        )

    def timed(self, call: Callable[[], object], mode: str = "cold", **options: Any) -> dict[str, Any]:
        """All samples of a call and the GPU's state during them."""
        found = self.watch.time(call, mode, **options)  # type: ignore[arg-type]
        last = found.samples[-1].state
        return {
            "mode": mode,
            "median_s": found.median_s,
            "iqr_s": found.iqr_s,
            "samples_s": [sample.seconds for sample in found.samples],
            "throttled": found.throttled,
            "state": last.to_dict(),
        }

    def torch_attention(self, q: Any, k: Any, v: Any, backend: str, causal: bool) -> Callable[[], object]:
        """PyTorch's scaled_dot_product_attention with one backend, on the same memory and the current stream."""
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        kinds = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
        bf16 = DTYPES[str(q.dtype)] == "bf16"
        tensors = [torch.from_dlpack(array) for array in (q, k, v)]
        tensors = [tensor.view(torch.bfloat16) if bf16 else tensor for tensor in tensors]
        grouped = {"enable_gqa": True} if tensors[0].shape[1] != tensors[1].shape[1] else {}

        def call() -> object:
            stream = torch.cuda.ExternalStream(self.cupy.cuda.get_current_stream().ptr)
            with torch.cuda.stream(stream), sdpa_kernel(kinds[backend]):
                return torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal, **grouped)

        return call


def useful_flops(w: Workload) -> float:
    """2 B H pairs (d + dv) forward, 2.5 times that backward."""
    return 4.0 * w.batch * w.heads_q * w.visible_pairs * w.head_dim * (2.5 if w.passes == "bwd" else 1.0)


def machine(gpu: Gpu) -> dict[str, Any]:
    """What was measured, with what."""
    runtime = gpu.cupy.cuda.runtime
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    name = runtime.getDeviceProperties(0)["name"]
    return {
        "gpu": name.decode() if isinstance(name, bytes) else name,
        "id": gpu.device.gpu.id,
        "driver": gpu.watch.clocks.driver(),
        "cuda_driver": runtime.driverGetVersion(),
        "cuda_runtime": runtime.runtimeGetVersion(),
        "cupy": gpu.cupy.__version__,
        "torch": getattr(gpu.torch, "__version__", None),
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "clocks_missing": gpu.watch.clocks.missing,
        "state": gpu.watch.clocks.read().to_dict(),
        "kernel_hashes": {v.label: source_hash(v) for one in OPERATIONS.values() for v in one.variants()},
        "git_revision": revision.stdout.strip() or None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": gpu.seed,
    }


def operations() -> list[Operation]:
    """The most valuable first."""
    order = ("flash", "flash-hopper", "decode", "sparse", "flash-backward", "linear", "naive", "naive-passes")
    return [OPERATIONS[name] for name in order]


def case(
    one: Operation, seq: int, head_dim: int, dtype: str = "bf16", causal: bool = False, heads: int = 4
) -> Workload:
    """A workload that the operation answers."""
    decode = one.passes == "decode"
    return Workload(
        batch=1,
        heads_q=heads,
        heads_kv=max(1, heads // 4) if one.gqa else heads,
        seq_q=1 if decode else seq,
        seq_kv=seq,
        head_dim=head_dim,
        dtype=dtype,
        passes=one.passes,
        mask=Mask.parse(one.masks[0]) if one.masks else Mask.causal() if causal and not decode else Mask(),
    )


def correctness(gpu: Gpu) -> Iterator[Point]:
    """Every kernel against float64, outputs poisoned first; small sizes of all before large ones of any."""
    from attnsim.kernels.gpu import CudaDevice

    poisoned = CudaDevice(poison=True, synchronous=True)

    def check(one: Operation, w: Workload) -> dict[str, Any]:
        errors = one.exercise(poisoned, w, gpu.seed).errors()
        return {"errors": errors, "tolerance": TOLERANCE[w.dtype], "ok": max(errors.values()) <= TOLERANCE[w.dtype]}

    for seq in SIZES:
        for one in operations():
            for dtype in ("bf16", "fp16"):
                for head_dim in one.head_dims if seq <= 500 else one.head_dims[:2]:
                    for causal in (False, True) if one.causal and one.passes != "decode" else (False,):
                        w = case(one, seq, head_dim, dtype, causal, heads=4 if seq <= 500 else 1)
                        yield Point(f"correct {one.name} {w}", lambda one=one, w=w: check(one, w))


def flash(gpu: Gpu) -> Iterator[Point]:
    """Flash forward, ours and Hopper's beside PyTorch's backends: 16k tokens a batch, 2,048 / d heads."""
    for seq in (4096, 16384, 2048, 8192, 1024, 512):
        for head_dim in (128, 64):
            for causal in (False, True):
                heads = 2048 // head_dim
                w = Workload(16384 // seq, heads, seq, head_dim, mask=Mask.causal() if causal else Mask())
                yield Point(f"flash {w}", lambda w=w: side_by_side(gpu, w, ("flash", "flash-hopper")))


def side_by_side(gpu: Gpu, w: Workload, names: tuple[str, ...]) -> dict[str, Any]:
    """Times of our operations and of PyTorch's backends on the same inputs."""
    q, k, v = gpu.inputs(w)
    flops = useful_flops(w)
    out: dict[str, Any] = {"workload": str(w), "useful_flops": flops, "times": {}}
    calls: dict[str, Callable[[], object]] = {}
    for name in names:
        operation = OPERATIONS[name].call()
        calls[name] = lambda operation=operation: operation(gpu.device, q, k, v, mask=w.mask)
    if gpu.torch is not None and not w.mask.is_windowed:
        for backend in TORCH_BACKENDS:
            if backend == "math" and w.batch * w.heads_q * w.seq_q * w.seq_kv > 1 << 32:
                continue  # fp32 scores of more than 16 GiB
            calls[f"torch {backend}"] = gpu.torch_attention(q, k, v, backend, w.mask.is_causal)
    for name, call in calls.items():
        try:
            found = gpu.timed(call)
            out["times"][name] = found | {"flops_per_s": flops / found["median_s"]}
        except (RuntimeError, InputError) as error:
            out["times"][name] = {"error": str(error).splitlines()[0]}
    return out


def decode(gpu: Gpu) -> Iterator[Point]:
    """GQA 32/8 decoding from a cache of at least four times the L2, beside a kernel that only reads as much."""
    for head_dim in (128, 64):
        for batch, seq in ((64, 8192), (16, 8192), (1, 65536), (8, 32768), (128, 2048)):
            w = Workload(batch, 32, 1, head_dim, heads_kv=8, seq_kv=seq, passes="decode")

            def measure(w: Workload = w) -> dict[str, Any]:
                q, k, v = gpu.inputs(w)
                size = k.nbytes + v.nbytes
                both = gpu.cupy.empty((size,), "uint8")
                reading = gpu.timed(lambda: probe.read(gpu.device, both))
                operation = OPERATIONS["decode"].call()
                ours = gpu.timed(lambda: operation(gpu.device, q, k, v, mask=w.mask))
                return {
                    "workload": str(w),
                    "kv_bytes": size,
                    "kv_over_l2": size / float(gpu.device.gpu.l2.capacity_bytes),
                    "read_bytes_per_s": size / reading["median_s"],
                    "share_of_read": reading["median_s"] / ours["median_s"],
                    "times": {"read": reading, "decode": ours},
                }

            yield Point(f"decode {w}", measure)


def sparse(gpu: Gpu) -> Iterator[Point]:
    """Windows of falling width: time against visited tiles, and against dense flash."""
    for seq in (16384, 65536):
        for head_dim in (128, 64):
            dense = Workload(1, 16, seq, head_dim)
            for share in (1, 2, 4, 8, 16, 32, 64):
                mask = Mask() if share == 1 else Mask.sliding_window(max(1, seq // (2 * share)), causal=False)

                def measure(w: Workload = dense, mask: Mask = mask) -> dict[str, Any]:
                    q, k, v = gpu.inputs(w)
                    operation, whole = OPERATIONS["sparse"].call(), OPERATIONS["flash"].call()
                    return {
                        "workload": str(w),
                        "mask": str(mask),
                        "density": mask.visible_pairs(w.seq_q, w.seq_kv) / (w.seq_q * w.seq_kv),
                        "times": {
                            "sparse": gpu.timed(lambda: operation(gpu.device, q, k, v, mask=mask)),
                            "dense flash": gpu.timed(lambda: whole(gpu.device, q, k, v), samples=10),
                        },
                    }

                yield Point(f"sparse {dense} {mask}", measure)


def probes(gpu: Gpu) -> Iterator[Point]:
    """The microbenchmarks, as one point: they take seconds."""
    yield Point("probe", lambda: {"rates": [vars_of(rate) for rate in probe.measure(gpu.device, gpu.watch)]})


def vars_of(rate: probe.Rate) -> dict[str, Any]:
    """A rate, ready for JSON."""
    return {name: getattr(rate, name) for name in ("name", "value", "spread", "unit", "samples")}


def rest(gpu: Gpu) -> Iterator[Point]:
    """The remaining operations, and other formats and cache states, on a coarse grid."""
    for seq in (4096, 1024, 16384):
        for head_dim in (128, 64):
            for one in operations():
                if one.passes != "fwd" or one.masks or (one.name.startswith("naive") and seq > 4096):
                    continue
                for dtype, mode in (("bf16", "cold"), ("bf16", "warm"), ("fp16", "cold")):
                    w = Workload(max(1, 8192 // seq), 16, seq, head_dim, dtype=dtype)

                    def measure(one: Operation = one, w: Workload = w, mode: str = mode) -> dict[str, Any]:
                        q, k, v = gpu.inputs(w)
                        operation = one.call()
                        found = gpu.timed(lambda: operation(gpu.device, q, k, v), mode)
                        return {"workload": str(w), "implementation": one.implementation, "times": {one.name: found}}

                    yield Point(f"rest {one.name} {mode} {w}", measure)
    for seq in (1024, 4096):
        for head_dim in (64, 128):
            w = Workload(8192 // seq, 16, seq, head_dim, passes="bwd")
            yield Point(f"rest flash-backward {w}", lambda w=w: backward(gpu, w))


def backward(gpu: Gpu, w: Workload) -> dict[str, Any]:
    """Time of the backward kernels; O and the log-sum-exp are those of our forward."""
    q, k, v = gpu.inputs(w)
    o, lse = OPERATIONS["flash"].call()(gpu.device, q, k, v, mask=w.mask)
    do = gpu.random(q.shape, w.dtype, 3)
    operation = OPERATIONS["flash-backward"].call()
    found = gpu.timed(lambda: operation(gpu.device, q, k, v, o, lse, do, mask=w.mask))
    flops = useful_flops(w)
    return {"workload": str(w), "times": {"flash-backward": found | {"flops_per_s": flops / found["median_s"]}}}


def interpreter(gpu: Gpu) -> Iterator[Point]:
    """The CPU interpreter beside the GPU on the same sources and inputs: the share of outputs equal bit for bit."""
    from attnsim.kernels.cpu.device import CpuDevice

    for one in operations():
        if one.experimental:
            continue
        for dtype in ("bf16", "fp16"):
            w = case(one, 127, 64, dtype)

            def measure(one: Operation = one, w: Workload = w) -> dict[str, Any]:
                there = one.exercise(gpu.device, w, gpu.seed).outputs
                here = one.exercise(CpuDevice(gpu.device.gpu), w, gpu.seed).outputs
                return {
                    "workload": str(w),
                    "equal": {name: float(np.mean(there[name] == here[name])) for name in there},
                    "largest_difference": {
                        name: float(np.nanmax(np.abs(np.nan_to_num(there[name]) - np.nan_to_num(here[name]))))
                        for name in there
                    },
                }

            yield Point(f"interpreter {one.name} {w}", measure)


def sanitizer(gpu: Gpu) -> Iterator[Point]:
    """Compute-sanitizer's memcheck and racecheck over every kernel at two ragged sizes."""
    for tool in ("memcheck", "racecheck", "initcheck"):
        for one in operations():
            yield Point(f"sanitizer {tool} {one.name}", lambda tool=tool, one=one: sanitized(tool, one.name))


def sanitized(tool: str, name: str) -> dict[str, Any]:
    """One operation under compute-sanitizer."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return {"skipped": "compute-sanitizer is not installed"}
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, __file__, "--child", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=child_environment())
    return {"ok": done.returncode == 0, "exit": done.returncode, "tail": (done.stdout + done.stderr)[-2000:]}


def counters(gpu: Gpu) -> Iterator[Point]:
    """HBM and L2 bytes of every operation, where the profiler may read them."""
    for one in operations():
        yield Point(f"counters {one.name}", lambda one=one: counted(one.name))


def counted(name: str) -> dict[str, Any]:
    """One operation under ncu; clocks are left as they are."""
    program = shutil.which("ncu")
    if program is None:
        return {"skipped": "ncu is not installed"}
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    command = [program, *options, "--metrics", ",".join(COUNTERS), sys.executable, __file__, "--child", name, "--large"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=child_environment())
    return {"exit": done.returncode, "csv": done.stdout[-20000:], "tail": done.stderr[-1000:]}


def child_environment() -> dict[str, str]:
    """This process's, with the checkout importable."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}


def child(name: str, large: bool) -> None:
    """What a profiler or sanitizer watches: one operation at one large or two small sizes."""
    from attnsim.kernels.gpu import CudaDevice

    one, device = OPERATIONS[name], CudaDevice(synchronous=True)
    for seq in (4096,) if large else (63, 200):
        one.exercise(device, case(one, seq, 64, heads=1 if large else 4), 0)


PLAN: dict[str, Callable[[Gpu], Iterator[Point]]] = {
    "machine": lambda gpu: iter(
        [Point(f"machine {datetime.now(UTC).isoformat(timespec='seconds')}", lambda: machine(gpu))]
    ),
    "correct": correctness,
    "flash": flash,
    "decode": decode,
    "sparse": sparse,
    "probe": probes,
    "rest": rest,
    "interpreter": interpreter,
    "sanitizer": sanitizer,
    "counters": counters,
}


def line(key: str, record: dict[str, Any]) -> str:
    """A record in one line for the terminal."""
    if "error" in record:
        return f"{key}: {record['error'].splitlines()[0]}"
    if "errors" in record:
        worst = max(record["errors"].values())
        return f"{key}: {'ok' if record['ok'] else 'WRONG'}, {worst:.1e} of {record['tolerance']:.1e}"
    parts = []
    for name, found in record.get("times", {}).items():
        if "error" in found:
            parts.append(f"{name} failed")
        elif "flops_per_s" in found:
            parts.append(f"{name} {found['flops_per_s'] / 1e12:.0f} TFLOP/s")
        else:
            parts.append(f"{name} {found['median_s'] * 1e6:.1f} us")
    if "share_of_read" in record:
        parts.append(f"{record['share_of_read']:.0%} of a read-only kernel")
    parts += [f"{rate['name']} {rate['value']:.4g} {rate['unit']}" for rate in record.get("rates", ())]
    parts += [f"{name} {record[name]}" for name in ("ok", "exit", "skipped", "equal") if name in record]
    return f"{key}: {', '.join(parts)}"


def main() -> int:
    """Take the points in order until the time is used up; exit 1 when a kernel was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("run"), help="folder of records.jsonl")
    parser.add_argument("--minutes", type=float, default=9.0, help="no point is begun after this time")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"some of {', '.join(STEPS)}")
    parser.add_argument("--seed", type=int, default=None, help="of the random inputs; default: the clock")
    parser.add_argument("--child", choices=sorted(OPERATIONS), help=argparse.SUPPRESS)
    parser.add_argument("--large", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.large)
        return 0
    steps = options.steps.split(",")
    if unknown := [step for step in steps if step not in STEPS]:
        parser.error(f"unknown step {', '.join(unknown)}; allowed: {', '.join(STEPS)}")
    deadline = time.monotonic() + 60 * options.minutes
    records = Records(options.out / "records.jsonl")
    gpu = Gpu(int(time.time()) % (1 << 31) if options.seed is None else options.seed)
    for step in steps:
        for key, record in records.run(PLAN[step](gpu), deadline):
            print(line(key, record), flush=True)
    wrong = [key for key, record in records.done.items() if record.get("ok") is False]
    print(json.dumps({"records": len(records.done), "wrong": wrong, "file": str(records.path)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"gpu_run: {error}", file=sys.stderr)
        sys.exit(2)
