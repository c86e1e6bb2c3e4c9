"""Each arithmetic instruction alone, in hand-written PTX, against NumPy or Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, DTypeLike, NDArray

from attnsim.ptx.run import run

Array = NDArray[Any]
Function = Callable[..., Any]

REGISTER = {1: ("b16", "b8"), 2: ("b16", "b16"), 4: ("b32", "b32"), 8: ("b64", "b64")}
"""Register type and load or store type, by bytes of the array's items."""


def evaluate(instruction: str, result: DTypeLike, *inputs: Array) -> Array:
    """Run ``%d = f(%a, %b, ...)`` on arrays, one item per thread; predicates %p and %q are stored as 0 or 1."""
    names = "abcefg"[: len(inputs)]
    size = len(inputs[0])
    out = np.zeros(size, result)
    body = [".reg .pred %p, %q;", f".reg .{REGISTER[out.itemsize][0]} %d;", ".reg .b64 %at<9>;", ".reg .b32 %i;"]
    body.append("mov.u32 %i, %tid.x;")
    for n, (name, values) in enumerate(zip(("d", *names), (out, *inputs), strict=True)):
        body += [f"ld.param.u64 %at{n}, [p{name}];", f"mad.wide.u32 %at{n}, %i, {values.itemsize}, %at{n};"]
        if name != "d":
            register, access = REGISTER[values.itemsize]
            body += [f".reg .{register} %{name};", f"ld.global.{access} %{name}, [%at{n}];"]
    body.append(instruction)
    if "%p" in instruction and "%d" not in instruction:
        body.append("selp.b32 %d, 1, 0, %p;")
    body.append(f"st.global.{REGISTER[out.itemsize][1]} [%at0], %d;")
    parameters = ", ".join(f".param .u64 p{name}" for name in ("d", *names))
    ptx = f".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry kernel({parameters})\n{{\n"
    arguments = {"d": out, **dict(zip(names, (np.ascontiguousarray(v) for v in inputs), strict=True))}
    run(ptx + "\n".join(body) + "\nret;\n}\n", "kernel", 1, size, arguments)
    return out


RNG = np.random.default_rng(3)
U32 = np.concatenate([RNG.integers(0, 2**32, 59, np.uint32), np.array([0, 1, 2**31, 2**32 - 1, 7], np.uint32)])
V32 = np.concatenate([RNG.integers(1, 2**16, 59, np.uint32), np.array([1, 2**32 - 1, 3, 2**31, 5], np.uint32)])
SHIFT = np.tile(np.array([0, 1, 5, 31, 32, 40, 63, 64], np.uint32), 8)
U64 = U32.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
V64 = U64[::-1].copy()
U16 = U32.astype(np.uint16)
V16 = np.maximum(V32.astype(np.uint16), 1)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 65504.0, 65520.0, 1e-7, 3e38, 1e-41, 2.5, -2.5, 0.5])
F32 = np.concatenate([RNG.normal(size=49), SPECIAL]).astype(np.float32)
G32 = np.concatenate([RNG.normal(size=49), SPECIAL[::-1]]).astype(np.float32)
H32 = np.concatenate([RNG.normal(size=49), np.ones(15)]).astype(np.float32)
F64 = F32.astype(np.float64)
with np.errstate(over="ignore"):
    F16, G16 = F32.astype(np.float16), G32.astype(np.float16)
CLEAN = RNG.normal(size=64).astype(np.float32)
POSITIVE = np.abs(CLEAN) + np.float32(0.01)
P = U32 > V32


def to_bf16(values: ArrayLike) -> Array:
    """Round to nearest even by hand: the nearer neighbour, or the even one."""
    values = np.asarray(values, np.float32)
    low = values.view(np.uint32) & np.uint32(0xFFFF0000)
    high = low + np.uint32(0x10000)
    with np.errstate(all="ignore"):
        below = np.abs(values.astype(np.float64) - low.view(np.float32))
        above = np.abs(high.view(np.float32) - values.astype(np.float64))
        above = np.where(np.isinf(high.view(np.float32)), 2.0**128 - np.abs(values.astype(np.float64)), above)
    up = (np.abs(above) < below) | ((np.abs(above) == below) & (low & np.uint32(0x10000) > 0))
    bits = np.where(up & np.isfinite(values), high, low) >> np.uint32(16)
    return np.where(np.isnan(values), 0x7FFF, bits).astype(np.uint16)


def bf16(values: ArrayLike) -> Array:
    return (np.asarray(values, np.uint32) << np.uint32(16)).view(np.float32)


def ints(function: Function, bits: int = 32) -> Function:
    """A function of Python integers, wrapped to a width."""

    def apply(*arrays: Array) -> Array:
        out = []
        for row in zip(*(a.tolist() for a in arrays), strict=True):
            out.append(function(*row) % (1 << bits))
        return np.array(out, f"u{bits // 8}")

    return apply


def s(a: Array) -> Array:
    return a.view(f"i{a.itemsize}")


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def funnel(high: int, low: int, n: int) -> int:
    return (high << 32 | low) >> n


INTEGER: dict[str, tuple[Any, ...]] = {
    "add.u32 %d, %a, %b;": (U32, V32, ints(lambda a, b: a + b)),
    "add.s64 %d, %a, %b;": (U64, V64, ints(lambda a, b: a + b, 64)),
    "add.s64 %d, %a, -24;": (U64, ints(lambda a: a - 24, 64)),
    "sub.s32 %d, %a, %b;": (U32, V32, ints(lambda a, b: a - b)),
    "add.sat.s32 %d, %a, %b;": (
        U32,
        V32,
        lambda a, b: np.clip(s(a).astype(np.int64) + s(b), -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32),
    ),
    "mul.lo.s32 %d, %a, %b;": (U32, V32, ints(lambda a, b: a * b)),
    "mul.hi.u32 %d, %a, %b;": (U32, V32, ints(lambda a, b: a * b >> 32)),
    "mul.hi.s32 %d, %a, %b;": (U32, V32, lambda a, b: ints(lambda x, y: x * y >> 32)(s(a), s(b))),
    "mul.hi.u64 %d, %a, %b;": (U64, V64, ints(lambda a, b: a * b >> 64, 64)),
    "mul.hi.s64 %d, %a, %b;": (U64, V64, lambda a, b: ints(lambda x, y: x * y >> 64, 64)(s(a), s(b))),
    "mul.lo.s16 %d, %a, %b;": (U16, V16, ints(lambda a, b: a * b, 16)),
    "mad.lo.s32 %d, %a, %b, %c;": (U32, V32, U32[::-1], ints(lambda a, b, c: a * b + c)),
    "mad.hi.u32 %d, %a, %b, %c;": (U32, V32, U32[::-1], ints(lambda a, b, c: (a * b >> 32) + c)),
    "div.u32 %d, %a, %b;": (U32, V32, ints(lambda a, b: a // b)),
    "div.s32 %d, %a, %b;": (U32, V32, lambda a, b: ints(truncated)(s(a), s(b))),
    "rem.u32 %d, %a, %b;": (U32, V32, ints(lambda a, b: a % b)),
    "rem.s32 %d, %a, %b;": (U32, V32, lambda a, b: ints(lambda x, y: x - truncated(x, y) * y)(s(a), s(b))),
    "div.s64 %d, %a, %b;": (U64, V64 | np.uint64(1), lambda a, b: ints(truncated, 64)(s(a), s(b))),
    "min.s32 %d, %a, %b;": (U32, V32, lambda a, b: np.minimum(s(a), s(b)).view(np.uint32)),
    "max.u32 %d, %a, %b;": (U32, V32, np.maximum),
    "neg.s32 %d, %a;": (U32, ints(lambda a: -a)),
    "abs.s32 %d, %a;": (U32, lambda a: np.abs(s(a)).view(np.uint32)),
    "sad.u32 %d, %a, %b, %c;": (U32, V32, U32[::-1], ints(lambda a, b, c: abs(a - b) + c)),
    "and.b32 %d, %a, %b;": (U32, V32, np.bitwise_and),
    "or.b64 %d, %a, %b;": (U64, V64, np.bitwise_or),
    "xor.b32 %d, %a, 0x7f;": (U32, lambda a: a ^ np.uint32(0x7F)),
    "not.b32 %d, %a;": (U32, np.invert),
    "cnot.b32 %d, %a;": (U32 & np.uint32(1), lambda a: np.uint32(1) - a),
    "shl.b32 %d, %a, %b;": (U32, SHIFT, ints(lambda a, n: a << n)),
    "shr.u32 %d, %a, %b;": (U32, SHIFT, ints(lambda a, n: a >> n)),
    "shr.s32 %d, %a, %b;": (U32, SHIFT, lambda a, n: ints(lambda x, y: x >> y)(s(a), n)),
    "shl.b64 %d, %a, %b;": (U64, SHIFT, ints(lambda a, n: a << n, 64)),
    "shr.s64 %d, %a, %b;": (U64, SHIFT, lambda a, n: ints(lambda x, y: x >> y, 64)(s(a), n)),
    "shf.l.wrap.b32 %d, %a, %b, %c;": (U32, V32, SHIFT, ints(lambda a, b, n: funnel(b, a, 32 - n % 32))),
    "shf.r.wrap.b32 %d, %a, %b, %c;": (U32, V32, SHIFT, ints(lambda a, b, n: funnel(b, a, n % 32))),
    "shf.l.clamp.b32 %d, %a, %b, %c;": (U32, V32, SHIFT, ints(lambda a, b, n: funnel(b, a, 32 - min(n, 32)))),
    "shf.r.clamp.b32 %d, %a, %b, %c;": (U32, V32, SHIFT, ints(lambda a, b, n: funnel(b, a, min(n, 32)))),
    "lop3.b32 %d, %a, %b, %c, 0xca;": (U32, V32, U32[::-1], lambda a, b, c: (a & b) | (~a & c)),
    "lop3.b32 %d, %a, %b, %c, 0x96;": (U32, V32, U32[::-1], lambda a, b, c: a ^ b ^ c),
    "bfe.u32 %d, %a, %b, 5;": (U32, SHIFT, ints(lambda a, n: a >> n & 31)),
    "bfe.s32 %d, %a, 3, 7;": (U32, ints(lambda a: ((a >> 3 & 127) ^ 64) - 64)),
    "bfe.u64 %d, %a, 40, 13;": (U64, ints(lambda a: a >> 40 & 0x1FFF, 64)),
    "bfi.b32 %d, %a, %b, 4, 9;": (U32, V32, ints(lambda a, b: (b & ~(511 << 4)) | (a & 511) << 4)),
    "bfi.b32 %d, %a, %b, 24, 32;": (U32, V32, ints(lambda a, b: (b & 0xFFFFFF) | a << 24)),
    "popc.b32 %d, %a;": (U32, ints(int.bit_count)),
    "clz.b32 %d, %a;": (U32, ints(lambda a: 32 - a.bit_length())),
    "bfind.u32 %d, %a;": (U32, ints(lambda a: a.bit_length() - 1)),
    "bfind.s32 %d, %a;": (U32, lambda a: ints(lambda x: (x if x >= 0 else ~x).bit_length() - 1)(s(a))),
    "brev.b32 %d, %a;": (U32, ints(lambda a: int(f"{a:032b}"[::-1], 2))),
    "brev.b64 %d, %a;": (U64, ints(lambda a: int(f"{a:064b}"[::-1], 2), 64)),
    "prmt.b32 %d, %a, %b, 0x7610;": (U32, V32, lambda a, b: (a & np.uint32(0xFFFF)) | (b & np.uint32(0xFFFF0000))),
    "prmt.b32 %d, %a, %b, 0x3254;": (U32, V32, lambda a, b: (a & np.uint32(0xFFFF0000)) | (b & np.uint32(0xFFFF))),
    "prmt.b32 %d, %a, 0, 0x9991;": (U32, lambda a: (s(a) << 16 >> 24).view(np.uint32)),
    "dp4a.s32.s32 %d, %a, %b, 5;": (
        U32,
        V32,
        lambda a, b: ((a.view(np.int8).reshape(-1, 4).astype(int) * b.view(np.int8).reshape(-1, 4)).sum(1) + 5).astype(
            np.uint32
        ),
    ),
    "selp.b32 %d, %a, %b, %p;": (U32, V32, lambda a, b: np.where(a > b, a, b)),
    "slct.u32.s32 %d, %a, %b, %b;": (U32, V32, lambda a, b: np.where(s(b) >= 0, a, b)),
    "set.gt.u32.u32 %d, %a, %b;": (U32, V32, lambda a, b: np.where(a > b, 0xFFFFFFFF, 0)),
    "{ .reg .b32 %t; add.u32 %t, %a, 1; mov.b32 %d, %t; }": (U32, ints(lambda a: a + 1)),
    "mov.b32 {%r1, %r2}, %a; mov.b32 %d, {%r2, %r1};": (U32, ints(lambda a: a >> 16 | a << 16)),
}


@pytest.mark.parametrize("text", INTEGER)
def test_integer(text: str) -> None:
    *inputs, expected = INTEGER[text]
    prefix = "setp.gt.u32 %p, %a, %b; " if "%p" in text else ".reg .b16 %r<3>; "
    got = evaluate(prefix + text, inputs[0].dtype if "popc" not in text else np.uint32, *inputs)
    np.testing.assert_array_equal(got, expected(*inputs))


def test_wide_products() -> None:
    got = evaluate("mul.wide.s32 %d, %a, %b;", np.int64, U32, V32)
    np.testing.assert_array_equal(got, s(U32).astype(np.int64) * s(V32))
    got = evaluate("mad.wide.u32 %d, %a, %b, %c;", np.uint64, U32, V32, U64)
    np.testing.assert_array_equal(got, U32.astype(np.uint64) * V32 + U64)
    got = evaluate("mul.wide.u16 %d, %a, %b;", np.uint32, U16, V16)
    np.testing.assert_array_equal(got, U16.astype(np.uint32) * V16)


def ordered_ne(a: Array, b: Array) -> Any:
    return (a < b) | (a > b)


COMPARISONS: dict[str, tuple[Any, ...]] = {
    "setp.lt.u32": (U32, V32, np.less),
    "setp.lt.s32": (U32, V32, lambda a, b: s(a) < s(b)),
    "setp.hs.u32": (U32, V32, np.greater_equal),
    "setp.ne.s64": (U64, V64, np.not_equal),
    "setp.eq.b16": (U16, V16, np.equal),
    "setp.lt.f32": (F32, G32, np.less),
    "setp.ne.f32": (F32, G32, ordered_ne),
    "setp.equ.f32": (F32, G32, lambda a, b: ~ordered_ne(a, b)),
    "setp.neu.f32": (F32, G32, lambda a, b: ~(a == b)),
    "setp.ltu.f32": (F32, G32, lambda a, b: ~(a >= b)),
    "setp.geu.f32": (F32, G32, lambda a, b: ~(a < b)),
    "setp.nan.f32": (F32, G32, lambda a, b: np.isnan(a) | np.isnan(b)),
    "setp.num.f64": (F64, F64[::-1], lambda a, b: ~(np.isnan(a) | np.isnan(b))),
    "setp.gt.f16": (F16, G16, np.greater),
    "setp.gt.bf16": (to_bf16(F32), to_bf16(G32), lambda a, b: bf16(a) > bf16(b)),
}


@pytest.mark.parametrize("text", COMPARISONS)
def test_comparison(text: str) -> None:
    a, b, expected = COMPARISONS[text]
    np.testing.assert_array_equal(evaluate(f"{text} %p, %a, %b;", np.uint32, a, b), expected(a, b))


def test_predicates() -> None:
    """Combination, the complement in ``p|q``, negated operands, logic of predicates and guards."""
    text = "setp.gt.u32 %q, %a, %b; setp.lt.and.u32 %p, %a, 0x80000000, !%q;"
    np.testing.assert_array_equal(evaluate(text, np.uint32, U32, V32), (U32 < 2**31) & ~P)
    text = "setp.gt.u32 %q|%p, %a, %b;"
    np.testing.assert_array_equal(evaluate(text, np.uint32, U32, V32), ~P)
    text = "setp.gt.u32 %q, %a, %b; not.pred %q, %q; setp.eq.u32 %p, %a, 1; or.pred %p, %p, %q;"
    np.testing.assert_array_equal(evaluate(text, np.uint32, U32, V32), ~P | (U32 == 1))
    text = "setp.gt.u32 %q, %a, %b; mov.b32 %d, %a; @!%q add.u32 %d, %b, 1; @%q sub.u32 %d, %a, 1;"
    np.testing.assert_array_equal(evaluate(text, np.uint32, U32, V32), np.where(P, U32 - 1, V32 + 1))


def single(function: Function) -> Function:
    """A function in float64 rounded to float32."""
    return lambda *values: function(*(v.astype(np.float64) for v in values)).astype(np.float32)


def half(function: Function) -> Function:
    return lambda *values: function(*(v.astype(np.float64) for v in values)).astype(np.float16)


def flushed(values: Array) -> Any:
    return np.where(np.abs(values) < np.float32(2.0**-126), np.copysign(np.float32(0), values), values)


EXACT: dict[str, tuple[Any, ...]] = {
    "add.f32 %d, %a, %b;": (F32, G32, np.add),
    "sub.rn.f32 %d, %a, %b;": (F32, G32, np.subtract),
    "mul.f32 %d, %a, %b;": (F32, G32, np.multiply),
    "mul.ftz.f32 %d, %a, %b;": (F32, H32, lambda a, b: flushed(flushed(a) * b)),
    "fma.rn.f32 %d, %a, %b, %c;": (F32, G32, H32, single(lambda a, b, c: a * b + c)),
    "fma.rn.f32 %d, %a, 0f3FB8AA3B, 0fC1200000;": (F32, single(lambda a: a * np.float32(1.442695) - 10)),
    "fma.rn.relu.f16 %d, %a, %b, %c;": (F16, F16, G16, half(lambda a, b, c: np.where(a * b + c < 0, 0, a * b + c))),
    "fma.rn.f64 %d, %a, 0d4000000000000000, %b;": (F64, F64[::-1], lambda a, b: 2 * a + b),
    "min.f32 %d, %a, %b;": (F32, G32, np.fmin),
    "max.f32 %d, %a, %b;": (F32, G32, np.fmax),
    "max.NaN.f32 %d, %a, %b;": (F32, G32, np.maximum),
    "neg.f32 %d, %a;": (F32, np.negative),
    "abs.f32 %d, %a;": (F32, np.abs),
    "div.rn.f32 %d, %a, %b;": (F32, G32, np.divide),
    "sqrt.rn.f32 %d, %a;": (F32, np.sqrt),
    "rcp.rn.f32 %d, %a;": (F32, single(np.reciprocal)),
    "add.sat.f32 %d, %a, %b;": (F32, G32, lambda a, b: np.fmin(np.fmax(a + b, np.float32(0)), np.float32(1))),
    "add.f64 %d, %a, %b;": (F64, F64[::-1], np.add),
    "copysign.f32 %d, %a, %b;": (F32, G32, lambda a, b: np.copysign(b, a)),
    "add.f16 %d, %a, %b;": (F16, G16, half(np.add)),
    "mul.f16 %d, %a, %b;": (F16, G16, half(np.multiply)),
    "max.f16 %d, %a, %b;": (F16, G16, np.fmax),
    "mov.b32 %d, %a;": (F32, lambda a: a),
    "selp.f32 %d, %a, %b, %q;": (F32, G32, lambda a, b: np.where(a > b, a, b)),
}


@pytest.mark.parametrize("text", EXACT)
def test_float(text: str) -> None:
    """Bit for bit, NaN apart."""
    *inputs, expected = EXACT[text]
    prefix = "setp.gt.f32 %q, %a, %b; " if "%q" in text else ""
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(prefix + text, inputs[0].dtype, *inputs), expected(*inputs))


APPROXIMATE: dict[str, tuple[Any, Function]] = {
    "ex2.approx.ftz.f32": (
        np.concatenate([CLEAN[:60] * 20, [0, -np.inf, np.inf, -127.5]]),
        lambda a: flushed(np.exp2(a)),
    ),
    "lg2.approx.f32": (np.concatenate([POSITIVE[:61], [0, np.inf, 1]]), np.log2),
    "rcp.approx.ftz.f32": (np.concatenate([CLEAN[:61], [0, np.inf, -0.0]]), np.reciprocal),
    "rsqrt.approx.f32": (np.concatenate([POSITIVE[:61], [0, np.inf, 4]]), lambda a: 1 / np.sqrt(a)),
    "sqrt.approx.f32": (POSITIVE, np.sqrt),
    "sin.approx.f32": (CLEAN, np.sin),
    "cos.approx.f32": (CLEAN, np.cos),
    "tanh.approx.f32": (CLEAN, np.tanh),
}


@pytest.mark.parametrize("text", APPROXIMATE)
def test_approximate_float(text: str) -> None:
    values, expected = APPROXIMATE[text]
    values = np.asarray(values, np.float32)
    with np.errstate(all="ignore"):
        got = evaluate(f"{text} %d, %a;", np.float32, values)
        np.testing.assert_allclose(got, expected(values.astype(np.float64)), rtol=3e-7)


def test_exponential_of_minus_infinity_is_zero() -> None:
    got = evaluate("ex2.approx.ftz.f32 %d, %a;", np.float32, np.full(32, -np.inf, np.float32))
    assert not got.any()


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "min", "max", "fma.rn"])
@pytest.mark.parametrize("kind", ["f16x2", "bf16x2", "bf16"])
def test_sixteen_bit(operation: str, kind: str) -> None:
    """Pairs lane by lane, and bf16 by rounding of the float32 result."""
    a, b, c = (RNG.normal(size=128).astype(np.float32) for _ in range(3))
    functions: dict[str, Function] = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "min": np.fmin,
        "max": np.fmax,
        "fma.rn": lambda x, y, z: x * y + z,
    }
    function = functions[operation]
    fused = operation == "fma.rn"
    if kind == "f16x2":
        bits = [v.astype(np.float16).view(np.uint16) for v in (a, b, c)[: 2 + fused]]
        want = function(*(v.view(np.float16).astype(np.float64) for v in bits)).astype(np.float16).view(np.uint16)
    else:
        bits = [to_bf16(v) for v in (a, b, c)[: 2 + fused]]
        want = to_bf16(function(*(bf16(v).astype(np.float64) for v in bits)))
    operands = "%a, %b, %c" if fused else "%a, %b"
    arrays = bits if kind == "bf16" else [v.view(np.uint32) for v in bits]
    got = evaluate(f"{operation}.{kind} %d, {operands};", arrays[0].dtype, *arrays)
    np.testing.assert_array_equal(got.view(np.uint16), want)


def clamped(low: int, high: int, rounding: Function) -> Function:
    return lambda a: np.where(np.isnan(a), 0, np.clip(rounding(a.astype(np.float64)), low, high))


CONVERSIONS: dict[str, tuple[Any, ...]] = {
    "cvt.rzi.s32.f32": (F32, np.int32, clamped(-(2**31), 2**31 - 1, np.trunc)),
    "cvt.rni.s32.f32": (F32, np.int32, clamped(-(2**31), 2**31 - 1, np.rint)),
    "cvt.rmi.s32.f32": (F32, np.int32, clamped(-(2**31), 2**31 - 1, np.floor)),
    "cvt.rpi.u32.f32": (F32, np.uint32, clamped(0, 2**32 - 1, np.ceil)),
    "cvt.rzi.s32.f16": (F16, np.int32, clamped(-(2**31), 2**31 - 1, np.trunc)),
    "cvt.rn.f32.s32": (U32, np.float32, lambda a: s(a).astype(np.float32)),
    "cvt.rn.f32.u32": (U32, np.float32, lambda a: a.astype(np.float32)),
    "cvt.rn.f16.s32": (U32 & np.uint32(0xFFF), np.float16, lambda a: a.astype(np.float16)),
    "cvt.rn.f64.s64": (U64, np.float64, lambda a: s(a).astype(np.float64)),
    "cvt.rni.f32.f32": (F32, np.float32, np.rint),
    "cvt.rmi.f32.f32": (F32, np.float32, np.floor),
    "cvt.f64.f32": (F32, np.float64, lambda a: a.astype(np.float64)),
    "cvt.rn.f32.f64": (F64 * 1.000000012, np.float32, lambda a: a.astype(np.float32)),
    "cvt.f32.f16": (F16, np.float32, lambda a: a.astype(np.float32)),
    "cvt.rn.f16.f32": (F32, np.float16, lambda a: a.astype(np.float16)),
    "cvt.rn.bf16.f32": (F32, np.uint16, to_bf16),
    "cvt.f32.bf16": (to_bf16(CLEAN), np.float32, bf16),
    "cvt.sat.f32.f32": (F32, np.float32, lambda a: np.where(np.isnan(a), 0, np.clip(a, 0, 1))),
    "cvt.rn.relu.f16.f32": (F32, np.float16, lambda a: np.where(a < 0, 0, a).astype(np.float16)),
    "cvt.u64.u32": (U32, np.uint64, lambda a: a.astype(np.uint64)),
    "cvt.s64.s32": (U32, np.int64, lambda a: s(a).astype(np.int64)),
    "cvt.u32.u64": (U64, np.uint32, lambda a: a.astype(np.uint32)),
    "cvt.s32.s8": (U32, np.int32, lambda a: a.astype(np.int8).astype(np.int32)),
    "cvt.u16.u32": (U32, np.uint16, lambda a: a.astype(np.uint16)),
    "cvt.sat.u8.s32": (U32, np.uint16, lambda a: np.clip(s(a), 0, 255)),
    "cvt.sat.s16.s32": (U32, np.int16, lambda a: np.clip(s(a), -(2**15), 2**15 - 1)),
}


@pytest.mark.parametrize("text", CONVERSIONS)
def test_conversion(text: str) -> None:
    values, dtype, expected = CONVERSIONS[text]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(f"{text} %d, %a;", dtype, values), expected(values))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["f64", "u32"])
def test_directed_rounding(mode: str, source: str) -> None:
    values = CLEAN.astype(np.float64) * (1 + 1e-9) if source == "f64" else U32
    got = evaluate(f"cvt.{mode}.f32.{source} %d, %a;", np.float32, values).astype(np.float64)
    exact = values.astype(np.float64)
    side = {"rz": np.abs(got) <= np.abs(exact), "rm": got <= exact, "rp": got >= exact}[mode]
    assert side.all()
    np.testing.assert_allclose(got, exact, rtol=2.0**-23)


def test_toward_zero_to_sixteen_bits() -> None:
    got = evaluate("cvt.rz.f16.f32 %d, %a;", np.float16, CLEAN).astype(np.float32)
    assert ((np.abs(got) <= np.abs(CLEAN)) & (np.abs(CLEAN) - np.abs(got) < np.abs(CLEAN) * 2.0**-10)).all()
    got = evaluate("cvt.rz.bf16.f32 %d, %a;", np.uint16, CLEAN)
    np.testing.assert_array_equal(got, CLEAN.view(np.uint32) >> 16)


@pytest.mark.parametrize(
    ("kind", "convert"), [("f16x2", lambda v: v.astype(np.float16).view(np.uint16)), ("bf16x2", to_bf16)]
)
def test_packing_conversion(kind: str, convert: Function) -> None:
    """The first operand goes into the upper half."""
    got = evaluate(f"cvt.rn.{kind}.f32 %d, %a, %b;", np.uint32, CLEAN, H32)
    np.testing.assert_array_equal(got, convert(CLEAN).astype(np.uint32) << 16 | convert(H32))


def test_tf32() -> None:
    got = evaluate("cvt.rna.tf32.f32 %d, %a;", np.float32, CLEAN)
    assert not (got.view(np.uint32) & 0x1FFF).any()
    np.testing.assert_allclose(got, CLEAN, rtol=2.0**-11)


def test_extension_by_type() -> None:
    """Loads of bytes and halves extend into wider registers by the sign of their type."""
    bytes_ = RNG.integers(0, 256, 64).astype(np.uint8)
    for kind, dtype in (("u8", np.uint8), ("s8", np.int8)):
        got = evaluate(f"ld.global.{kind} %d, [%at1];", np.int32, bytes_)
        np.testing.assert_array_equal(got, bytes_.view(dtype))
    got = evaluate("ld.global.s16 %d, [%at1];", np.int64, U16)
    np.testing.assert_array_equal(got, s(U16))
    np.testing.assert_array_equal(evaluate("ld.global.u16 %d, [%at1];", np.uint32, U16), U16)
