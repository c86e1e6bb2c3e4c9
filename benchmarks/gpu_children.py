"""What watches an operation in a process of its own: compute-sanitizer and Nsight Compute.

As a command, `python benchmarks/gpu_children.py NAME`, the process that they watch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a clone with nothing installed

from attnsim.errors import InputError
from attnsim.kernels.catalog import OPERATIONS
from attnsim.kernels.gpu.grid import case, masks_of
from attnsim.kernels.gpu.prepared import prepare

COUNTERS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum", "gpu__time_duration.sum")
SECTIONS = ("ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "MemoryWorkloadAnalysis", "LaunchStats")
"""Of Nsight Compute: tensor pipe, issue slots, stalls, bytes by level; they name the counters that each GPU has."""
SEQ, HEAD_DIM, HEADS = 8192, 128, 16
"""What is counted: no reference is computed of it."""
SANITIZER_S, PROFILER_S = 120.0, 180.0
"""Seconds after which one is ended: they slow a kernel down a hundredfold."""


def sanitized(tool: str, name: str) -> dict[str, Any]:
    """One operation under compute-sanitizer."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        return {"skipped": "compute-sanitizer is not installed"}
    command = [program, "--tool", tool, "--error-exitcode", "9", sys.executable, __file__, name]
    done = watched(command, SANITIZER_S)
    return (
        done
        if "error" in done
        else {"ok": done["exit"] == 0, "exit": done["exit"], "tail": (done["out"] + done["err"])[-2000:]}
    )


def watched(command: list[str], seconds: float) -> dict[str, Any]:
    """A command's exit code and output; one that takes too long is ended, and what it has said until then is kept."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the watcher and whom it watches
        out, err = process.communicate()
        return {"error": f"ended after {seconds:g} s", "tail": (out + err)[-2000:]}
    return {"exit": process.returncode, "out": out, "err": err}


def counted(name: str) -> dict[str, Any]:
    """One operation under ncu; clocks are left as they are."""
    program = shutil.which("ncu")
    if program is None:
        return {"skipped": "ncu is not installed"}
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    options += [word for section in SECTIONS for word in ("--section", section)]
    command = [program, *options, "--metrics", ",".join(COUNTERS), sys.executable, __file__, name, "--large"]
    done = watched(command, PROFILER_S)
    return (
        done if "error" in done else {"exit": done["exit"], "csv": done["out"][-200000:], "tail": done["err"][-1000:]}
    )


def child(name: str, large: bool) -> None:
    """What a profiler or sanitizer watches: one operation at one large or two small sizes."""
    from attnsim.kernels.gpu.cuda_device import CudaDevice
    from attnsim.kernels.gpu.prepared import RepeatedNormals

    one, device = OPERATIONS[name], CudaDevice(synchronous=True)
    if large:
        w = case(one, SEQ, HEAD_DIM, mask=masks_of(one, SEQ)[0], heads=HEADS)
        prepare(one, device, w, RepeatedNormals(device, 0))()
        device.synchronize()
        return
    for seq, kind in ((63, "normal"), (200, "growing")):
        one.exercise(device, case(one, seq, 64, mask=masks_of(one, seq)[0]), 0, kind)


def main() -> None:
    """Run what is watched."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(OPERATIONS))
    parser.add_argument("--large", action="store_true", help="one large size in place of two small ones")
    options = parser.parse_args()
    child(options.name, options.large)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"gpu_children: {error}", file=sys.stderr)
        sys.exit(2)
