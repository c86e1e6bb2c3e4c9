"""``wmma``: every shape, format and layout, from CUDA's own header where it is here, against NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.ptx.counters import encode
from attnsim.ptx.faults import InactiveLane
from attnsim.ptx.foreign.run import run_ptx

REGISTERS = {
    ("f16", "a"): 8, ("f16", "b"): 8, ("tf32", "a"): 4, ("tf32", "b"): 4, ("f64", "a"): 1, ("f64", "b"): 1,
}  # fmt: skip
"""Of a fragment (PTX ISA 9.0, "Matrix Fragments for WMMA"); the others hold their matrix once."""
NUMPY = {"f16": np.float16, "f32": np.float32, "tf32": np.float32, "s8": np.int8, "u8": np.uint8, "s32": np.int32}


def registers(kind: str, matrix: str, elements: int) -> int:
    held = {"f16": 2, "bf16": 2, "s8": 4, "u8": 4}.get(kind, 1)
    return REGISTERS.get((kind, matrix)) or elements // (32 * held)


def kernel(shape: tuple[int, int, int], kind: str, result: str, layouts: tuple[str, ...], space: str = "") -> str:
    m, n, k = shape
    sizes = {"a": m * k, "b": k * n, "c": m * n, "d": m * n}
    kinds = {"a": kind, "b": kind, "c": result, "d": result}
    counts = {one: registers(kinds[one], one, size) for one, size in sizes.items()}
    word = {"f32": "f32", "f64": "f64"}
    names = {one: "{" + ", ".join(f"%{one}{i}" for i in range(count)) + "}" for one, count in counts.items()}
    tall = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}
    rows = dict(zip("abcd", (*layouts, layouts[2]), strict=True))
    leading = {one: tall[one][1] if rows[one] == "row" else tall[one][0] for one in "abcd"}
    types = f"{result}.{result}" if kind == "f16" else f"{result}.{kind}.{kind}.{result}"
    end = ".rn" if kind == "f64" else ""
    at = f"m{m}n{n}k{k}"
    declared = "".join(
        f".reg .{word.get(kinds[one], 'f64' if kinds[one] == 'f64' else 'b32')} %{one}<{count}>;\n"
        for one, count in counts.items()
    )
    load = "".join(f"ld.param.u64 %p{i}, [{one}];\n" for i, one in enumerate("abcd"))
    return (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c,"
        f" .param .u64 d) {{\n.reg .b64 %p<4>;\n.reg .b32 %s<4>;\n{declared}{load}"
        + "".join(f"mov.u32 %s{i}, {leading[one]};\n" for i, one in enumerate("abcd"))
        + "".join(
            f"wmma.load.{one}.sync.aligned.{rows[one]}.{at}{space}.{kinds[one]} {names[one]}, [%p{i}], %s{i};\n"
            for i, one in enumerate("abc")
        )
        + f"wmma.mma.sync.aligned.{layouts[0]}.{layouts[1]}.{at}.{types}{end} "
        f"{names['d']}, {names['a']}, {names['b']}, {names['c']};\n"
        f"wmma.store.d.sync.aligned.{rows['d']}.{at}{space}.{result} [%p3], {names['d']}, %s3;\nret;\n}}"
    )


WIDE = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
CASES = [
    *product(WIDE, (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"), ("s8", "s32"), ("u8", "s32"))),
    ((16, 16, 8), ("tf32", "f32")),
    ((8, 8, 4), ("f64", "f64")),
]


@pytest.mark.parametrize(("shape", "kinds"), CASES, ids=str)
def test_every_shape_format_and_layout(shape: tuple[int, int, int], kinds: tuple[str, str]) -> None:
    (m, n, k), (kind, result) = shape, kinds
    random = np.random.default_rng(0)
    for layouts in product(("row", "col"), repeat=3):
        a, b, c = (random.integers(0, 5, size).astype(np.float64) for size in ((m, k), (k, n), (m, n)))
        given: dict[str, Any] = {}
        for name, values, of, layout in zip("abc", (a, b, c), (kind, kind, result), layouts, strict=True):
            stored = np.ascontiguousarray(values if layout == "row" else values.T)
            given[name] = encode(stored, "bf16") if of == "bf16" else stored.astype(NUMPY.get(of, np.float64))
        given["d"] = np.zeros_like(given["c"])
        space = ".global" if layouts[0] == "row" else ""
        ran = run_ptx(kernel(shape, kind, result, layouts, space), grid=1, block=32, arguments=given)
        found = given["d"].astype(np.float64)
        np.testing.assert_array_equal(found if layouts[2] == "row" else found.T, a @ b + c)
        assert ran.counters.tensor_flops == 2 * m * n * k and ran.pipes["tensor"] == 1
        assert ran.counters.stores["d"] == given["d"].nbytes


def test_a_part_of_a_warp_and_forms_that_are_not_played_are_refused() -> None:
    text = kernel((16, 16, 16), "f16", "f32", ("row", "col", "row"))
    arrays = {name: np.zeros(256, np.float16) for name in "ab"} | {name: np.zeros(256, np.float32) for name in "cd"}
    with pytest.raises(InputError, match=r"wmma.load.a.sync.aligned.row.m8n8k32.s4"):
        other = text.replace("m16n16k16.f16 {%a", "m8n8k32.s4 {%a")
        run_ptx(other, grid=1, block=32, arguments=arrays)
    with pytest.raises(InactiveLane, match=r"wmma\.load"):
        run_ptx(text, grid=1, block=16, arguments=arrays)
