"""Compile the Triton kernels that published times are of, as the releases nearest to them compile them.

| times | kernel | Triton |
|---|---|---|
| FlashAttention-2, figure 4 (A100) | ``triton/ops/flash_attention.py`` of the wheel itself | 2.1.0 |
| FlashAttention-3, figure 5 (H100) | tests/data/triton/published/tutorial.py, the form of tutorial 06 of 2024 | 3.0.0 |

Neither needs a GPU or PyTorch. Each release goes into a folder of its own, one after the other:
``pip install --no-deps --target FOLDER triton==3.0.0 filelock``, then
``PYTHONPATH=FOLDER python benchmarks/make_published_triton_ptx.py``; kernels of the other release stay as they are.
The results, PTX and machine code in tests/data/triton/published, are committed: what one assembler makes of the PTX for
sm_90a differs from what the next does.

Tiles, warps and stages: those that ``_attention`` of the wheel launches; of the tutorial those that it tunes over,
always 4 warps, since its `keep` drops 8 at every tile below 128 x 128, with the fewest of its stages, 3: more only hold
more of the shared memory. Its tiles of 64 rows are left out: per product they ask the L2 for twice the K and V, and
were 1.3 to 1.5 times as long as the faster of these at 1,024 tokens. Arguments that are multiples of 16, and strides of
1, are compiled in as Triton's launcher would.
"""

from __future__ import annotations

import importlib
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # else the PTX holds the names of files here

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "data" / "triton" / "published"
HEAD_DIMS, MASKS = (64, 128), {"full": False, "causal": True}
ARRAYS = {
    **dict.fromkeys(("Q", "K", "V", "O", "Out", "DO", "DQ", "DK", "DV"), "*fp16"),
    **dict.fromkeys(("L", "D", "Delta"), "*fp32"),
}
NUMBERS = {"sm_scale": "fp32", "scale_log2": "fp32"}
ONES = ("stride_qk", "stride_kk", "stride_vn", "stride_on")
"""Strides of the last dimension; those of V are named so in the source."""


def kernels_of_ops() -> Iterator[dict[str, Any]]:
    """Those of ``triton.ops.flash_attention``, as its ``_attention`` launches them."""
    import triton.ops.flash_attention as ops

    for d in HEAD_DIMS:
        dots = {"BLOCK_M": 128, "D_HEAD": d}
        yield {"name": f"ops_dots_d{d}", "function": ops._bwd_preprocess, "constants": dots, "warps": 4, "stages": 3}
        for mask, causal in MASKS.items():
            forward = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_DMODEL": d, "IS_CAUSAL": causal}
            warps = 4 if d <= 64 else 8
            name = f"ops_forward_d{d}_{mask}"
            yield {"name": name, "function": ops._fwd_kernel, "constants": forward, "warps": warps, "stages": 4}
            for form, parallel in (("turns", False), ("parts", True)):
                backward = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_DMODEL": d}
                backward |= {"SEQUENCE_PARALLEL": parallel, "CAUSAL": causal}
                name = f"ops_backward_{form}_d{d}_{mask}"
                yield {"name": name, "function": ops._bwd_kernel, "constants": backward, "warps": 8, "stages": 1}


def kernels_of_tutorial() -> Iterator[dict[str, Any]]:
    """The tiles of 128 rows that the tutorial tunes over."""
    sys.path.insert(0, str(FOLDER))
    tutorial: Any = importlib.import_module("tutorial")

    for d in HEAD_DIMS:
        for mask, causal in MASKS.items():
            for keys in (32, 64):
                constants = {"CAUSAL": int(causal), "BLOCK_M": 128, "BLOCK_N": keys, "HEAD_DIM": d}
                name = f"tutorial_128x{keys}_d{d}_{mask}"
                function = tutorial.attention_forward
                yield {"name": name, "function": function, "constants": constants, "warps": 4, "stages": 3}


def typed(one: dict[str, Any]) -> tuple[dict[int, str], dict[int, Any], set[int]]:
    """Types of the arguments by place, what is compiled in, and which are multiples of 16."""
    types_, constants, aligned = dict[int, str](), dict[int, Any](), set[int]()
    for place, name in enumerate(one["function"].arg_names):
        if name in one["constants"] or name in ONES:
            constants[place] = one["constants"].get(name, 1)
            continue
        wide = name == "DQ" and not one["constants"].get("SEQUENCE_PARALLEL", True)
        types_[place] = "*fp32" if wide else ARRAYS.get(name) or NUMBERS.get(name, "i32")
        if name not in NUMBERS:
            aligned.add(place)
    return types_, constants, aligned


def by_2(one: dict[str, Any]) -> tuple[str, int]:
    """PTX for sm_80 and its shared memory, from Triton 2.1."""
    import triton
    from triton.compiler import compiler

    compiler.make_stub = lambda *_: ""  # a launcher in C, which needs the driver
    compiler.CompiledKernel = lambda *said: SimpleNamespace(metadata=said[2], asm=said[3])  # it would be loaded
    types_, constants, aligned = typed(one)
    ones = tuple(place for place in constants if one["function"].arg_names[place] in ONES)
    told = SimpleNamespace(divisible_by_16=tuple(sorted(aligned)), equal_to_1=ones)
    told.ids_of_folded_args, told.divisible_by_8 = ones, told.divisible_by_16
    types_ |= dict.fromkeys(ones, "i32")
    options = {"num_warps": one["warps"], "num_stages": one["stages"], "cc": 80, "device": 0, "device_type": "cuda"}
    built = triton.compile(one["function"], signature=types_, constants=constants, configs=(told,), **options)
    return built.asm["ptx"], int(built.metadata["shared"])


def by_3(one: dict[str, Any]) -> tuple[str, int]:
    """PTX for sm_90a and its shared memory, from Triton 3.0."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, AttrsDescriptor

    types_, constants, aligned = typed(one)
    source = ASTSource(one["function"], types_, constants, AttrsDescriptor(aligned, set()))
    options = {"num_warps": one["warps"], "num_stages": one["stages"]}
    built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return built.asm["ptx"], int(built.metadata.shared)


RELEASES: dict[str, tuple[Callable[[], Iterator[dict[str, Any]]], Callable[[dict[str, Any]], tuple[str, int]]]] = {
    "2.1.0": (kernels_of_ops, by_2),
    "3.0.0": (kernels_of_tutorial, by_3),
}


def machine_code(ptx: str, assembler: Path) -> tuple[bytes, dict[str, int]]:
    """The cubin, registers of a thread and bytes that it spills, by the release's own ptxas."""
    target = next(line.split()[1] for line in ptx.splitlines() if line.startswith(".target"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.ptx").write_text(ptx)
        command = [str(assembler), "-v", f"--gpu-name={target.rstrip(',')}", "k.ptx", "-o", "k.cubin"]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        cubin = (Path(folder) / "k.cubin").read_bytes()
    told = ran.stdout + ran.stderr
    spilled = sum(int(size) for size in re.findall(r"(\d+) bytes spill", told))
    return cubin, {"registers": int(re.findall(r"Used (\d+) registers", told)[0]), "spill_bytes": spilled}


def main() -> None:
    """Compile all of the release that is there, and write what each needs to be launched."""
    sys.modules.setdefault("torch", _no_torch())
    import triton

    if triton.__version__ not in RELEASES:
        sys.exit(f"Triton {triton.__version__} is here; the published kernels are those of {', '.join(RELEASES)}")
    kernels, compiled = RELEASES[triton.__version__]
    assembler = next(Path(triton.__file__).parent.rglob("bin/ptxas"))
    index = FOLDER / "index.json"
    told = json.loads(index.read_text())["kernels"] if index.exists() else []
    told = [one for one in told if one["triton"] != triton.__version__]
    for one in kernels():
        ptx, shared = compiled(one)
        cubin, used = machine_code(ptx, assembler)
        (FOLDER / f"{one['name']}.ptx.xz").write_bytes(lzma.compress(ptx.encode(), preset=9))
        (FOLDER / f"{one['name']}.cubin.xz").write_bytes(lzma.compress(cubin, preset=9))
        told.append(
            {
                "name": one["name"],
                "triton": triton.__version__,
                "entry": re.findall(r"\.entry (\w+)", ptx)[0],
                "constants": one["constants"],
                "threads": 32 * one["warps"],
                "num_stages": one["stages"],
                "shared_memory_bytes": shared,
                "arguments": [one["function"].arg_names[place] for place in typed(one)[0]],
                **used,
            }
        )
        print(told[-1], flush=True)
    index.write_text(json.dumps({"kernels": sorted(told, key=lambda one: str(one["name"]))}, indent=1) + "\n")


def _no_torch() -> types.ModuleType:
    """What Triton imports of PyTorch and does not need to compile."""
    torch = types.ModuleType("torch")
    torch.autograd = SimpleNamespace(Function=type("Function", (), {"apply": None}))  # type: ignore[attr-defined]
    torch.cuda = SimpleNamespace(get_device_capability=lambda *_: (8, 0))  # type: ignore[attr-defined]
    torch.version = SimpleNamespace(hip=None, cuda="12")  # type: ignore[attr-defined]
    torch.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]
    return torch


if __name__ == "__main__":
    main()
