"""How fast the PTX interpreter plays our kernels: run `python benchmarks/interpreter_speed.py [--json]`.

A tile step is one row tile against one key tile. Two runs of each case: as the interpreter is, and one instruction
after another, as it plays once more after a fault. Both must give the same bits and the same counts. Time is the
processor's, of the best of three runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.flash import flash_forward
from attnsim.kernels.hopper import flash_hopper
from attnsim.ptx import program

KERNELS = {"flash": (flash_forward, "a100-sxm4-80gb"), "hopper": (flash_hopper, "h100-sxm5-80gb")}
SHAPES = {"one block": (1, 128, 2048), "one head": (1, 512, 1024), "many blocks": (4, 512, 512)}
"""Heads, queries, keys."""


@contextmanager
def one_by_one() -> Iterator[None]:
    """Every instruction alone."""
    original = program.Run.__init__
    with patch.object(program.Run, "__init__", lambda self, of, _grouped=True: original(self, of, False)):
        yield


@contextmanager
def as_it_is() -> Iterator[None]:
    """No change."""
    yield


WAYS = {"as it is": as_it_is, "one by one": one_by_one}


def measured(kernel: str, head_dim: int, shape: tuple[int, int, int]) -> tuple[float, Any]:
    """Tile steps a second, and what must not differ: output bits and counts."""
    call, gpu = KERNELS[kernel]
    heads, seq_q, seq_kv = shape
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, heads, n, head_dim)).astype(np.float16) for n in (seq_q, seq_kv, seq_kv))
    device = CpuDevice(gpu)
    outputs = call(device, q, k, v)  # compiles
    best = np.inf
    for _ in range(3):
        begin = time.process_time()
        call(device, q, k, v)
        best = min(best, time.process_time() - begin)
    launched = device.launches[-1]
    defines = dict(launched.variant.defines)
    rows = defines.get("BLOCK_M") or 64 * int(defines["CONSUMERS"])
    steps = launched.counters.tensor_flops / (4 * int(rows) * int(defines["BLOCK_N"]) * head_dim)
    return steps / best, ([output.tobytes() for output in outputs], launched.counters)


def main() -> None:
    """Print steps a second of every case, and of both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    rows = []
    as_json = parser.parse_args().json
    for kernel in KERNELS:
        for head_dim in (64, 128):
            for name, shape in SHAPES.items():
                speeds, answers = {}, []
                for way, change in WAYS.items():
                    with change():
                        speeds[way], answer = measured(kernel, head_dim, shape)
                    answers.append(answer)
                if any(answer != answers[0] for answer in answers):
                    sys.exit(f"{kernel}, head_dim {head_dim}, {name}: the two runs differ")
                rows.append({"kernel": kernel, "head_dim": head_dim, "case": name, "steps_per_s": speeds})
                if not as_json:
                    shown = ", ".join(f"{way} {speed:.0f}" for way, speed in speeds.items())
                    print(f"{kernel:<7} head_dim {head_dim:<4} {name:<12} tile steps/s: {shown}", flush=True)
    if as_json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
