"""Compile tests/data/triton/attention.py with Triton, to PTX that tests run and lift without Triton.

`python benchmarks/make_triton_ptx.py` needs Triton, which attnsim does not: install it into an environment of its own
(`pip install triton numpy`; no GPU and no PyTorch) and run this there with PYTHONPATH set to the repository and to
attnsim's requirements. The results, tests/data/triton/*.ptx.gz and index.json beside them, are committed.

Tiles are those of Triton's tutorial 06 (triton-lang/triton, python/tutorials/06-fused-attention.py): forward 128 x 64
with 3 stages, one of the configurations that it tunes over; backward 128 x 32 with 5 stages; row dots 128 rows. All
have four warps at head_dim 64 and eight at 128: with the tutorial's four the backward of sm_80 spills 40 KB a thread
there. Registers and spilled bytes are those that Triton's own ptxas reports.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # else the PTX holds the names of files here

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "triton"
ARCHITECTURES = ("80", "90", "100")
HEAD_DIMS = (64, 128)
COMMON = {"enable_fp_fusion": True}


def cases() -> list[dict[str, Any]]:
    """What is compiled: a name, the function, its constants and options."""
    found = []
    for head_dim in HEAD_DIMS:
        warps = 4 if head_dim == 64 else 8
        forward = {"BLOCK_M": 128, "BLOCK_N": 64, "HEAD_DIM": head_dim}
        backward = {"TILE": 128, "STEP": 32, "HEAD_DIM": head_dim}
        found.append(
            case(f"row_dots_d{head_dim}", "attention_row_dots", {"BLOCK_M": 128, "HEAD_DIM": head_dim}, warps, 3)
        )
        for mask in ("full", "causal"):
            causal = {"CAUSAL": int(mask == "causal")}
            name = f"d{head_dim}_{mask}"
            found.append(case(f"forward_{name}", "attention_forward", causal | forward, warps, 3))
            found.append(case(f"backward_{name}", "attention_backward", causal | backward, warps, 5))
    return found


def case(name: str, function: str, constants: dict[str, int], warps: int, stages: int) -> dict[str, Any]:
    """One kernel to compile."""
    return {"name": name, "function": function, "constants": constants, "num_warps": warps, "num_stages": stages}


def arguments(function: Any, constants: dict[str, int]) -> dict[str, Any]:
    """Arguments of the formats that it is compiled for: fp16 arrays, fp32 row sums."""
    kinds = {"L": np.float32, "D": np.float32}
    names = [one.name for one in function.params if not one.is_constexpr]
    numbers = {"scale": 0.125, "scale_log2": 0.18, "N": 128}
    return {name: numbers.get(name, np.zeros(1, kinds.get(name, np.float16))) for name in names} | constants


def resources(ptx: str, arch: str) -> dict[str, int]:
    """Registers of a thread and bytes spilled, as Triton's ptxas says."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.ptx").write_text(ptx)
        target = f"--gpu-name={sm_arch_from_capability(int(arch))}"
        command = [get_ptxas(int(arch)).path, "-v", target, "k.ptx", "-o", "k.cubin"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    told = (ran.stdout + ran.stderr).replace(",", "").split()
    spilled = [int(told[at - 2]) for at, word in enumerate(told) if word == "spill"]
    return {"registers": int(told[told.index("registers") - 1]), "spill_bytes": sum(spilled)}


def main() -> None:
    """Compile all, and write what each needs to be launched."""
    import triton

    sys.path.insert(0, str(FOLDER))
    import attention

    from attnsim.ptx.foreign.compilers import compile_triton

    kernels = []
    for one in cases():
        for arch in ARCHITECTURES:
            function = getattr(attention, one["function"])
            options = {"num_warps": one["num_warps"], "num_stages": one["num_stages"], **COMMON}
            compiled, launched = compile_triton(function, arguments(function, one["constants"]), arch, options)
            name = f"{one['name']}_sm{arch}"
            (FOLDER / f"{name}.ptx.gz").write_bytes(gzip.compress(compiled.ptx.encode(), mtime=0))
            kernels.append(
                {
                    "name": name,
                    "entry": compiled.entry,
                    "arch": arch,
                    "constants": one["constants"],
                    "num_warps": one["num_warps"],
                    "num_stages": one["num_stages"],
                    "threads": compiled.threads,
                    "shared_memory_bytes": compiled.shared_memory_bytes,
                    "scratch_bytes": compiled.scratch_bytes,
                    "arguments": list(launched),
                    **resources(compiled.ptx, arch),
                }
            )
            print(kernels[-1], flush=True)
    source = (FOLDER / "attention.py").read_bytes()
    about = {"triton": triton.__version__, "source": "attention.py", "sha256": hashlib.sha256(source).hexdigest()}
    (FOLDER / "index.json").write_text(json.dumps({**about, "kernels": kernels}, indent=1) + "\n")


if __name__ == "__main__":
    main()
