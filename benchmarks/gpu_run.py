"""Everything worth knowing from a GPU, in one command: correctness, speed, microbenchmarks, counters, sanitizer.

    python benchmarks/gpu_run.py --out run --minutes 9

needs NumPy and CuPy alone, and no installation of attnsim; PyTorch is timed beside our kernels where it is installed.
Points are taken most valuable first and each is on disk as soon as it is measured (``run/records.jsonl``), so the
command may be killed and started again: it goes on where it stopped. Whatever goes wrong is a record, and the run goes
on; after an error that the device keeps, a crash, or a kernel that never ends, in a new process. Keys hold the versions
of the kernels: what was measured of older ones is measured anew. Speeds count useful FLOPs.

    attnsim measure --from run/records.jsonl --out run --keep

makes rows of it where attnsim is installed, for `attnsim fit` and `attnsim accuracy`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.errors import InputError
from attnsim.kernels.arrays import DTYPES
from attnsim.kernels.catalog import OPERATIONS, Operation
from attnsim.kernels.gpu import probe_kernels
from attnsim.kernels.gpu.cuda_device import LASTING
from attnsim.kernels.gpu.grid import CONDITIONS, case, cases, check, masks_of, useful_flops
from attnsim.kernels.gpu.measuring import (
    Bench,
    as_dict,
    attached_bench,
    by_value,
    correctness_points,
    machine_points,
    null_points,
    probe_points,
    runs_on,
    time_points,
)
from attnsim.kernels.gpu.prepared import inputs, prepare
from attnsim.kernels.gpu.records import Point, Records, now, version_of
from attnsim.kernels.gpu.timing import Timing
from attnsim.kernels.variant import Variant, compile_variant
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.ptx.outcome import INPUTS
from benchmarks.gpu_children import PROFILER_S, SANITIZER_S, counted, sanitized
from benchmarks.gpu_watch import AGAIN, noted, watch

STEPS = (
    *("machine", "compile", "smoke", "flash", "decode", "probe", "sparse", "correct", "rest", "interpreter"),
    *("counters", "sanitizer"),
)
LIMIT_S = 60.0
LIMITS_S = {"smoke": 20.0, "compile": 300.0, "correct": 120.0, "probe": 120.0, "interpreter": 120.0,
            "counters": PROFILER_S + 30, "sanitizer": SANITIZER_S + 30}  # fmt: skip
"""Seconds that a point may take, by step where it is not `LIMIT_S`, before the run is ended and goes on behind it."""
SMOKE_S = 60.0
"""Seconds of the smoke test, after which no further point of it is begun."""
ROUNDS = 3
"""How often kernels that are compared take turns, so that clocks and temperature drift over all of them alike."""
TORCH_BACKENDS = {"flash": "torch.sdpa-flash", "cudnn": "torch.sdpa-cudnn", "math": "torch.sdpa-math"}
"""PyTorch's backends and the implementations that they are."""
SIZES = (1, 63, 127, 500, 4096)
REST = 400
"""Points of the grid of `attnsim measure`, which has ten times as many."""


class Run:
    """The GPU, what runs on it, and PyTorch if there is one.

    Parameters
    ----------
    bench : Bench
    """

    def __init__(self, bench: Bench) -> None:
        from attnsim.kernels.gpu.cuda_device import import_cupy

        self.bench, self.device, self.cupy, self.session = bench, bench.device, import_cupy(), now()
        self.operations = [one for one in by_value(list(OPERATIONS)) if not runs_on(one, bench.device.gpu)]
        try:
            import torch

            self.torch: Any = torch
        except ImportError:
            self.torch = None

    def timed(self, call: Callable[[], object], mode: Any = "cold", **options: Any) -> dict[str, Any]:
        """All samples of a call and the GPU's state during them."""
        return self.bench.watch.time(call, mode, **options).to_dict()

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


def versions(*names: str) -> str:
    """The versions of operations' kernels, for keys."""
    return " ".join(f"{name} {version_of(OPERATIONS[name])}" for name in names)


def machine(gpu: Run) -> Iterator[Point]:
    """What was measured, with what; PyTorch's version too."""
    for point in machine_points(gpu.bench, gpu.operations, gpu.session):
        torch = {"torch": getattr(gpu.torch, "__version__", None)}
        yield Point(point.key, point.measure, {**point.about, **torch})


def compile_all(gpu: Run) -> Iterator[Point]:
    """Every kernel of the run, on all cores, into the cache that launches read."""
    wanted = {variant.label: variant for one in gpu.operations for variant in one.variants()}
    together = "".join(sorted(version_of(one) for one in gpu.operations))
    yield Point(
        f"compile {hashlib.sha256(together.encode()).hexdigest()[:16]}", partial(compiled, gpu, list(wanted.values()))
    )


def workers() -> Executor:
    """A process for each core: compilers of one process would wait for one another."""
    return ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))  # a fork would share the GPU's driver


def attempt(variant: Variant, arch: str) -> str | None:
    """Compile a kernel; what went wrong, if anything did."""
    try:
        compile_variant(variant, arch)
    except Exception as error:  # noted: the points that need it say so too
        return f"{variant.label}: {error}".splitlines()[0]
    return None


def compiled(gpu: Run, wanted: list[Variant]) -> dict[str, Any]:
    """Seconds, and what did not compile."""
    number = gpu.device.gpu.compute_capability_number
    start = time.monotonic()
    with workers() as pool:
        tried = [pool.submit(attempt, variant, f"{number}{variant.arch_suffix}") for variant in wanted]
        failed = [told for one in tried if (told := one.result())]
    return {"kernels": len(wanted), "failed": failed, "seconds": time.monotonic() - start}


def beside(gpu: Run, w: Workload) -> dict[str, Any]:
    """What a record says of a question put to several kernels in turn: rows of a table are made of it."""
    cache, launch = CONDITIONS["cold"]
    about = {"kind": "beside", "session": gpu.session, "workload": as_dict(w), "useful_flops": useful_flops(w)}
    return {**about, "cache": cache, "launch": launch}


def whose(gpu: Run, name: str) -> dict[str, str]:
    """Implementation and version behind the name of a timed call; nothing for one that is none."""
    if name in OPERATIONS:
        one = OPERATIONS[name]
        return {"operation": name, "implementation": one.implementation, "version": version_of(one)}
    backend = TORCH_BACKENDS.get(name.removeprefix("torch "))
    return {"implementation": backend, "version": gpu.torch.__version__.partition("+")[0]} if backend else {}


def smoke(gpu: Run) -> Iterator[Point]:
    """Every kernel at ragged lengths on normal and adversarial inputs, for a minute: what is wrong is known first."""
    end = time.monotonic() + SMOKE_S
    for seq in (200, 500):
        for kind in INPUTS:
            for one in gpu.operations:
                if kind != "normal" and kind not in one.adversarial:
                    continue
                for mask in masks_of(one, seq)[-2:]:
                    if time.monotonic() >= end:
                        return
                    w = case(one, seq, 64, mask=mask)
                    yield adversarial_point(gpu, one, w, kind)


def adversarial_point(gpu: Run, one: Operation, w: Workload, kind: str) -> Point:
    """An operation against float64 on inputs of a kind."""
    about = {"kind": "smoke", "operation": one.name, "version": version_of(one), "workload": str(w), "inputs": kind}
    measure = partial(check, one, gpu.bench.checked, w, gpu.bench.seed, kind)
    return Point(f"smoke {versions(one.name)} {kind} {w}", measure, about)


def correctness(gpu: Run) -> Iterator[Point]:
    """Every kernel against float64, outputs poisoned first; small sizes of all before large ones of any.

    Then every format and width on adversarial inputs.
    """
    for seq in SIZES:
        yield from correctness_points(gpu.bench, gpu.operations, lambda one, seq=seq: cases(one, seq))
    for one in gpu.operations:
        for kind in one.adversarial:
            for w in cases(one, 500):
                yield adversarial_point(gpu, one, w, kind)


def flash(gpu: Run) -> Iterator[Point]:
    """Flash forward, ours and Hopper's beside PyTorch's backends: 16k tokens a batch, 2,048 / d heads."""
    for seq in (4096, 16384, 2048, 8192, 1024, 512):
        for head_dim in (128, 64):
            for causal in (False, True):
                heads = 2048 // head_dim
                w = Workload(16384 // seq, heads, seq, head_dim, mask=Mask.causal() if causal else Mask())
                names = tuple(one.name for one in gpu.operations if one.name in ("flash", "flash-hopper"))
                key = f"flash {versions(*names)} torch {getattr(gpu.torch, '__version__', None)} {w}"
                yield Point(key, partial(side_by_side, gpu, w, names), beside(gpu, w))


def side_by_side(gpu: Run, w: Workload, names: tuple[str, ...]) -> dict[str, Any]:
    """Times of our operations and of PyTorch's backends on the same inputs, in turns: A, B, A, B, A, B."""
    q, k, v = inputs(w, gpu.bench.random)
    flops, out = useful_flops(w), dict[str, Any](times={})
    calls: dict[str, Callable[[], object]] = {}
    for name in names:
        operation = OPERATIONS[name].call()
        calls[name] = lambda operation=operation: operation(gpu.device, q, k, v, mask=w.mask)
    if gpu.torch is not None and not w.mask.is_windowed:
        for backend in TORCH_BACKENDS:
            if backend == "math" and w.batch * w.heads_q * w.seq_q * w.seq_kv > 1 << 32:
                continue  # fp32 scores of more than 16 GiB
            calls[f"torch {backend}"] = gpu.torch_attention(q, k, v, backend, w.mask.is_causal)
    found: dict[str, Timing] = {}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            if name in out["times"]:  # it has failed
                continue
            try:
                timing = gpu.bench.watch.time(call, samples=30 // ROUNDS)
                before = found[name].samples if name in found else ()
                found[name] = replace(timing, samples=before + timing.samples)
            except Exception as error:  # of one; the others are timed
                if LASTING in str(error):
                    raise
                out["times"][name] = {"error": (str(error) or type(error).__name__).splitlines()[0]}
    for name, timing in found.items():
        if name not in out["times"]:
            out["times"][name] = timing.to_dict() | {"flops_per_s": flops / timing.median_s} | whose(gpu, name)
    return out


def decode(gpu: Run) -> Iterator[Point]:
    """GQA 32/8 decoding from a cache of at least four times the L2, beside a kernel that only reads as much."""
    for head_dim in (128, 64):
        for batch, seq in ((64, 8192), (16, 8192), (1, 65536), (8, 32768), (128, 2048)):
            w = Workload(batch, 32, 1, head_dim, heads_kv=8, seq_kv=seq, passes="decode")

            def measure(w: Workload = w) -> dict[str, Any]:
                q, k, v = inputs(w, gpu.bench.random)
                size = k.nbytes + v.nbytes
                both = gpu.device.empty((size,), "uint8")
                reading = gpu.timed(lambda: probe_kernels.read(gpu.device, both))
                operation = OPERATIONS["decode"].call()
                ours = gpu.timed(lambda: operation(gpu.device, q, k, v, mask=w.mask))
                return {
                    "kv_bytes": size,
                    "kv_over_l2": size / float(gpu.device.gpu.l2.capacity_bytes),
                    "read_bytes_per_s": size / reading["median_s"],
                    "share_of_read": reading["median_s"] / ours["median_s"],
                    "times": {"read": reading, "decode": ours | whose(gpu, "decode")},
                }

            yield Point(f"decode {versions('decode')} {w}", measure, beside(gpu, w))


def sparse(gpu: Run) -> Iterator[Point]:
    """Windows of falling width: time against visited tiles, and against dense flash."""
    for seq in (16384, 65536):
        for head_dim in (128, 64):
            dense = Workload(1, 16, seq, head_dim)
            for share in (1, 2, 4, 8, 16, 32, 64):
                mask = Mask() if share == 1 else Mask.sliding_window(max(1, seq // (2 * share)), causal=False)

                w = replace(dense, mask=mask)

                def measure(w: Workload = w, dense: Workload = dense) -> dict[str, Any]:
                    random = gpu.bench.random
                    windowed = prepare(OPERATIONS["sparse"], gpu.device, w, random)
                    whole = prepare(OPERATIONS["flash"], gpu.device, dense, random)
                    return {
                        "density": w.visible_pairs / (w.seq_q * w.seq_kv),
                        "times": {
                            "sparse": gpu.timed(windowed) | whose(gpu, "sparse"),
                            "dense flash": gpu.timed(whole, samples=10),
                        },
                    }

                yield Point(f"sparse {versions('sparse', 'flash')} {dense} {mask}", measure, beside(gpu, w))


def probes(gpu: Run) -> Iterator[Point]:
    """The microbenchmarks: `attnsim probe --from` makes a GPU file of them."""
    yield from probe_points(gpu.bench, gpu.session)


def rest(gpu: Run) -> Iterator[Point]:
    """The beginning of the grid of `attnsim measure`, whose `--from` makes a case table of it."""
    yield from null_points(gpu.bench, gpu.session)
    yield from itertools.islice(time_points(gpu.bench, gpu.operations, gpu.session), REST)


def interpreter(gpu: Run) -> Iterator[Point]:
    """The CPU interpreter beside the GPU on the same sources and inputs: the share of outputs equal bit for bit."""
    from attnsim.kernels.cpu_device import CpuDevice

    for one in gpu.operations:
        if one.experimental:
            continue
        for dtype in ("bf16", "fp16"):
            w = case(one, 127, 64, dtype, masks_of(one, 127)[0])

            def measure(one: Operation = one, w: Workload = w) -> dict[str, Any]:
                there = one.exercise(gpu.device, w, gpu.bench.seed).outputs
                here = one.exercise(CpuDevice(gpu.device.gpu), w, gpu.bench.seed).outputs
                return {
                    "workload": str(w),
                    "equal": {name: float(np.mean(there[name] == here[name])) for name in there},
                    "largest_difference": {
                        name: float(np.nanmax(np.abs(np.nan_to_num(there[name]) - np.nan_to_num(here[name]))))
                        for name in there
                    },
                }

            yield Point(f"interpreter {versions(one.name)} {w}", measure)


def sanitizer(gpu: Run) -> Iterator[Point]:
    """Compute-sanitizer's memcheck and racecheck over every kernel at two ragged sizes."""
    for tool in ("memcheck", "racecheck", "initcheck"):
        for one in gpu.operations:
            yield Point(f"sanitizer {tool} {versions(one.name)}", partial(sanitized, tool, one.name))


def counters(gpu: Run) -> Iterator[Point]:
    """HBM and L2 bytes of every operation, where the profiler may read them."""
    for one in gpu.operations:
        yield Point(f"counters {versions(one.name)}", partial(counted, one.name))


PLAN: dict[str, Callable[[Run], Iterator[Point]]] = {
    "machine": machine,
    "compile": compile_all,
    "smoke": smoke,
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


def guarded(step: str, points: Iterable[Point], session: str) -> Iterator[Point]:
    """The points of a step; where there is no telling what comes next, that is a point too, and the step's last."""
    try:
        yield from points
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}"}
        yield Point(f"{step} ended {session}", lambda: told)


def line(key: str, record: dict[str, Any]) -> str:
    """A record in one line for the terminal."""
    if "error" in record:
        return f"{key}: {record['error'].splitlines()[0]}"
    if "errors" in record:
        worst = max(float("inf") if error is None else error for error in record["errors"].values())
        return f"{key}: {'ok' if record['ok'] else 'WRONG'}, {worst:.1e} of {record['tolerance']:.1e}"
    parts = [f"{record['median_s'] * 1e6:.1f} us"] if "median_s" in record else []
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
    parts += [f"{name} {record[name]}" for name in ("ok", "exit", "skipped", "equal", "kernels") if name in record]
    parts += [f"failed: {', '.join(record['failed'])}"] if record.get("failed") else []
    return f"{key}: {', '.join(parts)}"


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("run"), help="folder of records.jsonl")
    parser.add_argument("--minutes", type=float, default=9.0, help="no point is begun after this time")
    parser.add_argument("--steps", default=",".join(STEPS), help=f"some of {', '.join(STEPS)}")
    parser.add_argument("--seed", type=int, default=None, help="of the random inputs; default: the clock")
    parser.add_argument("--unwatched", action="store_true", help="in this process, which a kernel may hang")
    options = parser.parse_args()
    if unknown := [step for step in options.steps.split(",") if step not in STEPS]:
        parser.error(f"unknown step {', '.join(unknown)}; allowed: {', '.join(STEPS)}")
    return options


def main() -> int:
    """Take the points in order until the time is used up; exit 1 when a kernel was wrong."""
    options = arguments()
    if options.unwatched:
        return take(options)

    def start(seconds: float) -> list[str]:
        words = ["--unwatched", "--out", str(options.out), "--minutes", f"{seconds / 60:.3f}", "--steps", options.steps]
        words += ["--seed", str(options.seed)] if options.seed is not None else []
        return [sys.executable, str(Path(__file__).resolve()), *words]

    return watch(start, options.out, 60 * options.minutes)


def take(options: argparse.Namespace) -> int:
    """The run itself; asks for a new process where the device stays in error."""
    deadline = time.monotonic() + 60 * options.minutes
    records = Records(options.out / "records.jsonl")
    gpu = Run(attached_bench(int(time.time()) % (1 << 31) if options.seed is None else options.seed))
    deadly = {(one.get("operation"), one.get("version")) for one in records.done.values() if one.get("ended")}
    for one in [one for one in gpu.operations if (one.name, version_of(one)) in deadly]:
        print(f"{one.name} is left out: it has hung or killed the run", flush=True)
        gpu.operations.remove(one)
    for step in options.steps.split(","):
        points = noted(guarded(step, PLAN[step](gpu), gpu.session), options.out, LIMITS_S.get(step, LIMIT_S))
        for key, record in records.run(points, deadline):
            print(line(key, record), flush=True)
            if LASTING in record.get("error", ""):
                return AGAIN
    wrong = [key for key, record in records.done.items() if record.get("ok") is False]
    print(json.dumps({"records": len(records.done), "wrong": wrong, "file": str(records.path)}))
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"gpu_run: {error}", file=sys.stderr)
        sys.exit(2)
