"""Tensor-core instructions against matrices laid out by the formulas of the PTX ISA, element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.ptx.counters import Counters, decode, encode
from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.run import run

Launch = Callable[..., Counters]
Array = NDArray[Any]
Position = Callable[[int, int], tuple[int, int]]
Ports = Mapping[str, tuple[str, str]]

RNG = np.random.default_rng(5)
WARPS = 3


def kernel(body: str, registers: Sequence[str], inputs: Ports, outputs: Ports) -> str:
    """PTX that loads 32-bit registers ``{name}{i}`` lane by lane from arrays, runs `body`, and stores the outputs."""
    lines = [f".reg .b32 %lane, %x, {', '.join(registers)};", ".reg .b64 %at;", "mov.u32 %lane, %tid.x;"]
    for name, (parameter, access) in {**inputs, **outputs}.items():
        names = [r for r in registers if r.startswith(name)]
        move = [f"ld.param.u64 %at, [{parameter}];", f"mad.wide.u32 %at, %lane, {4 * len(names)}, %at;"]
        if access == "ld":
            lines += move + [f"ld.global.b32 {r}, [%at+{4 * i}];" for i, r in enumerate(names)]
    lines.append(body)
    for name, (parameter, _) in outputs.items():
        names = [r for r in registers if r.startswith(name)]
        lines += [f"ld.param.u64 %at, [{parameter}];", f"mad.wide.u32 %at, %lane, {4 * len(names)}, %at;"]
        lines += [f"st.global.b32 [%at+{4 * i}], {r};" for i, r in enumerate(names)]
    parameters = ", ".join(f".param .u64 {p}" for p, _ in {**inputs, **outputs}.values())
    head = f".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry kernel({parameters})\n{{\n"
    return head + "\n".join(lines) + "\nret;\n}\n"


def positions(shape: str, kind: str, operand: str) -> Position:
    """(row, column) of element i of a lane's fragment: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k*"."""
    k = int(shape.removeprefix("m16n8k"))

    def of(lane: int, i: int) -> tuple[int, int]:
        group, member = lane // 4, lane % 4
        if operand == "C":
            return group + 8 * (i >= 2), 2 * member + i % 2
        if kind == "tf32":
            return (group + 8 * (i % 2), member + 4 * (i // 2)) if operand == "A" else (member + 4 * i, group)
        if operand == "B":
            return 2 * member + i % 2 + 8 * (i >= 2), group
        if k == 8:
            return group + 8 * (i >= 2), 2 * member + i % 2
        return group + 8 * (i in (2, 3, 6, 7)), 2 * member + i % 2 + 8 * (i >= 4)

    return of


def to_fragments(matrices: Array, of: Position, per_lane: int) -> Array:
    """``[warps, rows, columns]`` to ``[warps * 32, elements of a lane]``."""
    out = np.empty((len(matrices), 32, per_lane), matrices.dtype)
    for lane in range(32):
        for i in range(per_lane):
            row, column = of(lane, i)
            out[:, lane, i] = matrices[:, row, column]
    return out.reshape(-1, per_lane)


def from_fragments(fragments: Array, of: Position, rows: int, columns: int) -> Array:
    out = np.empty((len(fragments) // 32, rows, columns), fragments.dtype)
    for lane in range(32):
        for i in range(fragments.shape[1]):
            row, column = of(lane, i)
            out[:, row, column] = fragments.reshape(-1, 32, fragments.shape[1])[:, lane, i]
    return out


MMA = [
    ("m16n8k16", "f16", "f32"),
    ("m16n8k16", "bf16", "f32"),
    ("m16n8k8", "f16", "f32"),
    ("m16n8k8", "bf16", "f32"),
    ("m16n8k8", "tf32", "f32"),
    ("m16n8k4", "tf32", "f32"),
    ("m16n8k16", "f16", "f16"),
]


@pytest.mark.parametrize("part", [False, True], ids=["all warps", "one warp off"])
@pytest.mark.parametrize(("shape", "kind", "accumulator"), MMA, ids="-".join)
def test_mma(shape: str, kind: str, accumulator: str, part: bool) -> None:
    k = int(shape.removeprefix("m16n8k"))

    def rounded(size: tuple[int, ...]) -> Array:
        values = RNG.normal(size=size).astype(np.float32)
        if kind == "tf32":
            return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return encode(values, "fp16" if kind == "f16" else "bf16")

    a, b = rounded((WARPS, 16, k)), rounded((WARPS, k, 8))
    c: Array = RNG.normal(size=(WARPS, 16, 8)).astype(np.float16 if accumulator == "f16" else np.float32)
    per_lane = {"A": 16 * k // 32, "B": 8 * k // 32, "C": 4}
    fragments = {
        o: to_fragments(m, positions(shape, kind, o), per_lane[o]) for o, m in zip("ABC", (a, b, c), strict=True)
    }
    names = {o: [f"%{o.lower()}{i}" for i in range(f.shape[1] * f.itemsize // 4)] for o, f in fragments.items()}
    names["D"] = [f"%d{i}" for i in range(len(names["C"]))]
    braces = {o: "{" + ", ".join(r) + "}" for o, r in names.items()}
    body = f"mma.sync.aligned.{shape}.row.col.{accumulator}.{kind}.{kind}.{accumulator} "
    body += f"{braces['D']}, {braces['A']}, {braces['B']}, {braces['C']};"
    if part:
        body = f".reg .pred %off; setp.lt.u32 %off, %lane, 32; @%off bra SKIP;\n{body}\nSKIP:"
    registers = [r for row in names.values() for r in row]
    inputs = {f"%{o.lower()}": (o, "ld") for o in "ABC"}
    text = kernel(body, registers, inputs, {"%d": ("D", "st")})
    d = np.zeros((WARPS * 32, 4), c.dtype)
    counters = run(text, "kernel", 1, WARPS * 32, {**fragments, "D": d})
    got = from_fragments(d, positions(shape, kind, "C"), 16, 8)
    want = decode(a) @ decode(b) + c
    tolerance = 2e-3 if accumulator == "f16" else 1e-6
    np.testing.assert_allclose(got[part:], want[part:], atol=tolerance * 8, rtol=tolerance)
    assert counters.tensor_flops == (WARPS - part) * 2 * 16 * 8 * k


def test_mma_ignores_low_bits_of_tf32() -> None:
    ones = np.full((32, 4), 1 + 2.0**-12, np.float32)
    registers = [f"%{o}{i}" for o, n in (("a", 4), ("b", 2), ("d", 4)) for i in range(n)]
    body = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, {%b0, %b1}, "
    body += "{0f00000000, 0f00000000, 0f00000000, 0f00000000};"
    text = kernel(body, registers, {"%a": ("A", "ld"), "%b": ("B", "ld")}, {"%d": ("D", "st")})
    d = np.zeros((32, 4), np.float32)
    run(text, "kernel", 1, 32, {"A": ones, "B": ones[:, :2].copy(), "D": d})
    assert (d == 8).all()


@pytest.mark.parametrize("opcode", ["m16n8k32.row.col.s32.s8.s8.s32", "m16n8k16.row.col.f16.bf16.bf16.f16"])
def test_other_mma_are_refused_by_name(opcode: str) -> None:
    body = f"mma.sync.aligned.{opcode} {{%d0}}, {{%d0}}, {{%d0}}, {{%d0}};"
    with pytest.raises(UnsupportedInstruction, match=f"mma.sync.aligned.{opcode}"):
        run(kernel(body, ["%d0"], {}, {"%d": ("D", "st")}), "kernel", 1, 32, {"D": np.zeros(32, np.float32)})


LOAD_MATRIX = """
KERNEL(const uint16* in, uint32* out) {
    __shared__ __align__(128) uint16 tile[4 * 8 * 8 * WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = threadIdx.x; i < 256 * WARPS; i += blockDim.x) tile[i] = in[i];
    __syncthreads();
    uint32 r[4] = {};
    const uint32 address = shared_address(tile + warp * 256 + (lane % (8 * COUNT)) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.xCOUNT TRANS.shared.b16 {REGISTERS}, [%4];"
        : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3]) : "r"(address));
    for (int i = 0; i < COUNT; ++i) out[threadIdx.x * COUNT + i] = r[i];
}"""


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(launch: Launch, count: int, transposed: bool) -> None:
    """Lane l of a matrix holds row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1; transposed, of the transpose."""
    matrices = RNG.integers(0, 2**16, (2, 4, 8, 8)).astype(np.uint16)
    out = np.zeros((2, 32, count, 2), np.uint16)
    source = LOAD_MATRIX.replace("COUNT TRANS", f"{count}{'.trans' if transposed else ''}").replace("COUNT", str(count))
    source = source.replace("REGISTERS", ", ".join(f"%{i}" for i in range(count))).replace("WARPS", "2")
    counters = launch(source, {"in": matrices, "out": out.view(np.uint32)}, block=64)
    for lane in range(32):
        for half in range(2):
            row, column = lane // 4, 2 * (lane % 4) + half
            row, column = (column, row) if transposed else (row, column)
            np.testing.assert_array_equal(out[:, lane, :, half], matrices[:, :count, row, column])
    assert counters.shared_bytes_loaded == 2 * count * 128


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "trans"])
def test_stmatrix_reverses_ldmatrix(launch: Launch, transposed: bool) -> None:
    trans = ".trans" if transposed else ""
    source = f"""
    KERNEL(const uint32* in, uint32* out) {{
        __shared__ __align__(128) uint16 tile[256];
        const uint32 address = shared_address(tile + threadIdx.x * 8);
        uint32 r[4];
        for (int i = 0; i < 4; ++i) r[i] = in[threadIdx.x * 4 + i];
        asm volatile("stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%0], {{%1, %2, %3, %4}};" ::"r"(address),
            "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
        uint32 back[4];
        {"ldmatrix_x4_trans" if transposed else "ldmatrix_x4"}(back, address);
        for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = back[i];
    }}"""
    values = RNG.integers(0, 2**32, 128, np.uint32)
    out = np.zeros_like(values)
    launch(source, {"in": values, "out": out}, arch=90)
    np.testing.assert_array_equal(out, values)


def test_movmatrix_transposes() -> None:
    text = kernel(
        "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;", ["%a0", "%d0"], {"%a": ("A", "ld")}, {"%d": ("D", "st")}
    )
    a, d = RNG.integers(0, 2**16, (2, 8, 8)).astype(np.uint16), np.zeros((2, 8, 8), np.uint16)
    run(text, "kernel", 1, 64, {"A": a.view(np.uint32), "D": d.view(np.uint32)})
    np.testing.assert_array_equal(d, a.swapaxes(1, 2))
