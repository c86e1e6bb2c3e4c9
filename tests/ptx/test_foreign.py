"""Kernels that are not ours: from PTX, a CUDA file or Triton to outputs, counts by argument and pipe, and faults."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attnsim.kernels as ak
from attnsim.errors import InputError
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.flash import flash_forward, variant
from attnsim.kernels.variant import compile_variant
from attnsim.models.implementations.own.flash import choose_tile
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention
from attnsim.ptx import outcome
from attnsim.ptx.counters import FORMATS, PIPES, decode, encode, pipe_of
from attnsim.ptx.faults import Race
from attnsim.ptx.foreign.arguments import Argument, load_named, parse_arguments
from attnsim.ptx.foreign.compilers import compile_file, compile_triton
from attnsim.ptx.foreign.run import PtxRun
from attnsim.ptx.nvrtc import find_nvrtc
from attnsim.ptx.outcome import TOLERANCE

PTX = (Path(__file__).parents[1] / "data" / "foreign.ptx").read_text()


def scaled(count: int = 100, **changes: Any) -> PtxRun:
    arguments = {"x": np.arange(100, dtype=np.float32), "y": np.zeros(100, np.float32), "n": count, "scale": 0.5}
    return ak.run_ptx(PTX, "scaled", **{"grid": 2, "arguments": arguments, **changes})  # type: ignore[no-any-return]


def test_outputs_bytes_sectors_and_pipes_of_a_kernel_of_ptx() -> None:
    ran = scaled()
    assert ran.block == (64, 1, 1) and list(ran.outputs) == ["y"]  # the block is what the kernel asks for
    np.testing.assert_array_equal(ran.outputs["y"], np.arange(100) / 2)
    traffic = {(one.argument, one.way): (one.requested_bytes, one.sectors, one.sector_bytes) for one in ran.traffic()}
    assert traffic == {("x", "load"): (400, 13, 416), ("y", "store"): (400, 13, 416)}
    # Four warps, all of them with threads below n; the threads of the last that are not return before the others.
    # Each of four parameters is a move.
    assert ran.pipes == {"FMA": 4 * 3, "ALU": 4 * 3, "LSU": 4 * 2, "control": 4 * 2 + 1, "moves": 4 * 6}
    assert ran.counts()["instructions"] == sum(ran.pipes.values()) and ran.counts()["flops"] == 100


def test_our_own_flash_kernel_is_right_as_anybodys() -> None:
    """The same PTX, grid and numbers that our device would launch: the same counts, and the same bits."""
    w, device = Workload(1, 2, 70, 64, dtype="fp16"), CpuDevice()
    q, k, v = (encode(np.random.default_rng(i).standard_normal((1, 2, 70, 64)), "fp16") for i in range(3))
    launched: dict[str, Any] = {}
    device.launch = lambda variant, grid, arguments: launched.update(  # type: ignore[method-assign]
        grid=grid, arguments=arguments
    )
    flash_forward(device, q, k, v)
    tile = choose_tile(w, device.gpu, None)
    compiled, row_tiles = variant("fp16", 64, tile), -(-w.seq_q // tile.rows)
    ran = ak.run_ptx(
        compile_variant(compiled, "80", cubin=False).ptx,
        grid=launched["grid"],
        block=compiled.threads,
        arguments=launched["arguments"],
        shared_memory_bytes=compiled.shared_memory_bytes,
    )
    expected, _ = attention(decode(q), decode(k), decode(v))
    assert np.abs(decode(ran.outputs["O"]) - expected).max() <= TOLERANCE["fp16"] * np.abs(expected).max()
    assert {(one.argument, one.requested_bytes) for one in ran.traffic() if one.way == "load"} == {
        (name, 2 * 70 * 64 * 2 * times) for name, times in (("Q", 1), ("K", row_tiles), ("V", row_tiles))
    }
    assert ran.counters.tensor_flops and ran.pipes["tensor"] and ran.pipes["XU"]


def test_a_race_is_told_with_its_line() -> None:
    with pytest.raises(Race, match=r"race, .*'ld.shared.f32 .*' \(line \d+ of the PTX\), block \(0, 0, 0\)") as error:
        ak.run_ptx(PTX, "race", grid=1, block=128, arguments={"y": np.zeros(128, np.float32)})
    line = int(str(error.value).split("(line ")[1].split()[0])
    assert "ld.shared.f32 %f1, [%r5];" in PTX.splitlines()[line - 1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"entry": "other"}, "other: no such entry point; the PTX has recursive, scaled, endless, unknown, race"),
        ({"entry": None}, "the PTX has 5 entry points; choose one: recursive, scaled"),
        ({"grid": 0}, "grid is 0; give one to three sizes of 1 or more"),
        ({"grid": (1, 2, 3, 4)}, "grid is 1 x 2 x 3 x 4; give one to three"),
        ({"grid": (1, 70000)}, "grid is 1 x 70000 x 1; allowed: 1 x 1 x 1 to 2147483647 x 65535 x 65535"),
        ({"block": 32}, "block is 32 x 1 x 1; scaled was compiled for 64 x 1 x 1"),
        ({"entry": "race", "block": (64, 4)}, "block is 64 x 4 x 1, 256 threads; race takes 128"),
        ({"entry": "race"}, "race does not say how many threads a block has; give the block"),
        ({"entry": "recursive", "block": 32}, r"'call.uni .*' \(line 19 of the PTX\): a call; .*without recursion"),
        (
            {"entry": "unknown", "block": 32, "arguments": {}},
            r"\(line 60 of the PTX\): 'frobnicate.sync.b32' is not",
        ),
        ({"shared_memory_bytes": -1}, "shared memory is -1 bytes"),
        ({"arguments": {"x": np.zeros(4, np.float32)}}, "missing: number 2 is .u64 y; number 3 is .u32 n; number 4"),
        ({"arguments": dict.fromkeys("abcde", 1)}, "takes 4 arguments, 5 given; too many: e"),
        (
            {"arguments": dict.fromkeys("abcd", np.zeros(4))},
            "c is an array; the kernel has .u32 n there: give a number",
        ),
        ({"arguments": {"x": np.zeros(0), "y": 1, "n": 2, "s": 1}}, r"x has shape \[0\]; give sizes"),
        ({"arguments": {"x": 1, "y": 1, "n": 2.5, "s": 1}}, "n is 2.5; the kernel has .u32 n there: give a whole"),
        ({"arguments": {"x": 1, "y": 1, "n": 1 << 40, "s": 1}}, "n is 1099511627776; its parameter is uint32"),
        ({"arguments": {"x": 1, "y": 1, "n": np.int64(1), "s": 1}}, "n has 8 bytes, its parameter takes 4"),
    ],
)
def test_bad_input_is_told_in_a_line(changes: dict[str, Any], told: str) -> None:
    arguments = {"x": np.zeros(4, np.float32), "y": np.zeros(4, np.float32), "n": 4, "scale": 1}
    given = {"entry": "scaled", "grid": 1, "arguments": arguments, **changes}
    with pytest.raises(InputError, match=told) as error:
        ak.run_ptx(PTX, **given)
    assert "\n" not in str(error.value)


def test_an_address_outside_an_array_is_bad_input_and_leads_to_the_line() -> None:
    with pytest.raises(InputError, match=r"\(line 44 of the PTX\).*: load of 4 .* 0 bytes past the end of x"):
        scaled(count=101)


def test_a_run_past_the_step_limit_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnsim.ptx.program.STEPS_LIMIT", 1000)
    with pytest.raises(InputError, match=r"'bra AGAIN' \(line 54 of the PTX\).*no end after 1000 instructions"):
        ak.run_ptx(PTX, "endless", grid=1, block=32, arguments={})


def test_every_instruction_that_our_kernels_use_has_a_pipe() -> None:
    from attnsim.ptx.parse import parse

    device = CpuDevice()
    tile = choose_tile(Workload(1, 1, 64, 64), device.gpu, None)
    (function,) = parse(compile_variant(variant("bf16", 64, tile), "80", cubin=False).ptx).values()
    found = {(one.name, one.modifiers[-1] if one.modifiers else ""): pipe_of(one) for one in function.instructions}
    assert set(found.values()) <= PIPES.keys()
    assert found["ex2", "f32"] == "XU" and found["add", "f32"] == "FMA" and found["add", "s32"] == "ALU"
    assert {pipe for (name, _), pipe in found.items() if name in ("mma", "ldmatrix")} == {"tensor", "LSU"}


# --- arguments


@pytest.mark.parametrize("format", FORMATS)
def test_arguments_of_every_format(format: str) -> None:
    given = Argument.parse(f"A={format}[3, 5]:range").value("normal", np.random.default_rng(0))
    assert isinstance(given, np.ndarray) and given.dtype == FORMATS[format] and given.shape == (3, 5)
    values = decode(given) if format == "bf16" else given
    np.testing.assert_array_equal(values, np.arange(15).reshape(3, 5))


def test_contents_of_arguments(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.save(tmp_path / "a.npy", np.full((2, 3), 7, np.float16))
    kept = Argument.parse(f"A=fp16[2,3]:{tmp_path / 'a.npy'}").value("nan", random)
    assert (kept == 7).all()  # type: ignore[union-attr]
    for text, held in (("A=fp16[9]", 1), ("A=fp16[9]:normal", 0), ("A=fp16[9]:empty", 9), ("A=bf16[2]:zeros", 0)):
        found = Argument.parse(text).value("nan", random)
        assert isinstance(found, np.ndarray) and int(np.isnan(decode(found)).sum()) == held, text
    assert Argument.parse("N=0x10").value("", random) == 16 and Argument.parse("s=1e-3").value("", random) == 1e-3
    wide = Argument.parse("N=i64:5").value("", random)
    assert wide == 5 and isinstance(wide, np.int64) and Argument.parse("C=true").value("", random) is True


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["Q"], "'Q' is not of the form NAME=FORMAT"),
        (["=fp16[3]"], "is not of the form"),
        (["Q=fp17[3]"], "Q has format 'fp17'; allowed: fp16, bf16"),
        (["Q=fp16[3"], r"Q has shape '\[3'"),
        (["Q=fp16[3,0]"], "give sizes of 1 or more, as Q=fp16"),
        (["Q=fp16[]"], "give sizes of 1 or more"),
        (["Q=fp16[3]:soup"], "Q holds 'soup'; give Q=fp16.*empty, zeros, range, normal, growing"),
        (["I=i32[3]"], "I is of i32 and says nothing of its content; give .* empty, zeros, range or"),
        (["I=i32[3]:nan"], "I holds 'nan'"),
        (["N=four"], "N is 'four'; allowed: NAME="),
        (["N=i8:300"], "N is 300; its parameter is int8, -128 to 127"),
        (["N=f8:3"], "N has format 'f8'"),
        (["Q=fp16[3]:no.npy"], "no.npy is no array"),
        (["N=1", "N=2"], "N is given 2 times"),
    ],
)
def test_arguments_that_are_none(texts: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        [one.value("normal", np.random.default_rng(0)) for one in parse_arguments(texts)]


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 4), np.float32))
    with pytest.raises(InputError, match=r"A is float16 \[2, 3\], .*a.npy holds float32 \[2, 4\]"):
        Argument.parse(f"A=fp16[2,3]:{tmp_path / 'a.npy'}").value("normal", np.random.default_rng(0))


# --- references


def test_a_reference_gets_its_inputs_by_name_and_every_output_is_compared() -> None:
    ran = scaled()
    inputs = outcome.values_of({"x": np.arange(100, dtype=np.float32), "n": 100, "scale": 0.5})
    for reference in (
        lambda x, scale: x * scale,
        lambda **given: {"y": given["x"] * given["scale"]},
        lambda x, other=0.5: (x * other,),
    ):
        (one,) = outcome.differences(ran.outputs, outcome.expected_of(reference, inputs, ran.outputs))
        assert (one.output, one.max_abs, one.max_rel) == ("y", 0, 0)
    (off,) = outcome.differences(ran.outputs, {"y": np.arange(100) / 2 + 0.99})
    assert off.max_abs == pytest.approx(0.99) and off.max_rel == pytest.approx(0.99 / 50.49)
    (never,) = outcome.differences(ran.outputs, {"y": np.where(np.arange(100) == 3, np.nan, np.arange(100) / 2)})
    assert never.max_abs == never.max_rel == np.inf


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        (lambda x, other: x, "asks for other; the arguments are x"),
        (lambda x: x / "a", "fails: .*Error"),
        (lambda x: (x, x), r"returns 2 arrays, the kernel stored to 1: y; return a dict"),
        (lambda x: {"z": x}, "returns z, which the kernel did not store to"),
        (lambda x: x[:5], r"returns y of shape \[5\], the kernel \[100\]"),
        (7, "is int; give a function"),
    ],
)
def test_a_reference_that_does_not_fit_is_told(reference: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        outcome.expected_of(reference, {"x": np.arange(100.0)}, {"y": np.zeros(100)})


def test_tolerances_go_by_the_coarsest_format() -> None:
    half, brain, single = np.zeros(1, np.float16), np.zeros(1, np.uint16), np.zeros(1, np.float32)
    assert outcome.tolerance_of({"a": half, "b": brain}) == TOLERANCE["bf16"]
    assert outcome.tolerance_of({"a": half, "b": single, "n": 3}) == TOLERANCE["fp16"]
    assert outcome.tolerance_of({"b": single}) == outcome.TOLERANCE_FP32


def test_functions_are_found_by_file_and_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "somebodys_own.py").write_text("def double(x):\n    return 2 * x\n")
    for name, text in (("broken_one", "1 / 0"), ("needs_more", "import nowhere"), ("leaves", "raise SystemExit(3)")):
        (tmp_path / f"{name}.py").write_text(f"{text}\n")
    assert load_named(f"{tmp_path / 'somebodys_own.py'}:double")(4) == 8
    monkeypatch.chdir(tmp_path)
    assert load_named("somebodys_own:double")(4) == 8 and str(tmp_path) not in sys.path
    for text, told in (
        ("double", "is not of the form FILE.py:FUNCTION"),
        ("nowhere.py:double", "nowhere.py: no such file"),
        ("nowhere_at_all:double", "cannot be imported: No module named 'nowhere_at_all'$"),
        ("needs_more.py:double", "; install nowhere, which it needs$"),
        ("leaves.py:double", "cannot be imported: SystemExit: 3"),
        ("broken_one.py:double", "cannot be imported: ZeroDivisionError"),
        ("somebodys_own:doubel", "has no doubel; nearest: double"),
    ):
        with pytest.raises(InputError, match=told):
            load_named(text)


# --- compilers


def test_a_call_in_the_only_kernel_of_a_file_is_told_as_one(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text(
        "__device__ __noinline__ int fall(int n) { return n < 2 ? n : fall(n - 1) + fall(n - 2); }\n"
        "__global__ void k(int* x, int n) { x[threadIdx.x] = fall(n); }\n"
    )
    with pytest.raises(InputError, match=r"'call.uni .*fall.*' \(line \d+ of the PTX\): a call; .* without recursion"):
        ak.run_ptx(compile_file(source), grid=1, block=32, arguments={"x": np.zeros(32, np.int32), "n": 5})


def test_a_cuda_file_is_compiled_with_the_headers_beside_it(tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("constexpr float kFactor = N;\n")
    source = tmp_path / "k.cu"
    source.write_text('#include "factor.h"\nextern "C" __global__ void k(float* x) { x[threadIdx.x] *= kFactor; }\n')
    x = np.ones(32, np.float32)
    ran = ak.run_ptx(compile_file(source, "80", ["-DN=3"]), grid=1, block=32, arguments={"x": x})
    assert (x == 3).all() and ran.entry == "k"
    with pytest.raises(InputError, match=r"k.cu does not compile for sm_80: .*\"N\" is undefined"):
        compile_file(source)
    with pytest.raises(InputError, match=r"--arch 12: NVRTC .* compiles for 7"):
        compile_file(source, "12")
    with pytest.raises(InputError, match=r"none.cu: cannot be read \(No such file or directory\); give a CUDA file"):
        compile_file(tmp_path / "none.cu")


def test_without_nvrtc_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "k.cu").write_text("")
    for name in ("cuda.bindings", "cupy_backends.cuda.libs"):
        monkeypatch.setitem(sys.modules, name, None)
    find_nvrtc.cache_clear()
    try:
        with pytest.raises(InputError, match=r"needs NVRTC, which is not here; install it: pip install 'attnsim\[cuda"):
            compile_file(tmp_path / "k.cu")
    finally:
        find_nvrtc.cache_clear()


TRITON_PTX = """
.visible .entry twice(.param .u64 .ptr .global .align 1 a, .param .u64 .ptr .global .align 1 b, .param .u32 n,
                      .param .u64 .ptr .global .align 1 scratch, .param .u64 .ptr .global .align 1 profile)
.reqntid 128, 1, 1
{ .reg .b32 %r<3>; .reg .b64 %d<5>; .reg .f32 %f<3>;
  ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 4;
  add.s64 %d3, %d0, %d2; add.s64 %d4, %d1, %d2;
  ld.global.f32 %f0, [%d3]; add.f32 %f1, %f0, %f0; st.global.f32 [%d4], %f1; ret; }
"""


class FakeTriton:
    """The few names of Triton that compile a kernel, and what they were told. That real ones do is not tested here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = {name: ModuleType(name) for name in ("triton", "triton.backends", "triton.backends.compiler")}
        names["triton.compiler"] = ModuleType("triton.compiler")
        names["triton"].compile = self.compile  # type: ignore[attr-defined]
        names["triton.compiler"].ASTSource = lambda **told: self.__dict__.update(told)  # type: ignore[attr-defined]
        names["triton.backends.compiler"].GPUTarget = lambda *told: told  # type: ignore[attr-defined]
        for name, module in names.items():
            monkeypatch.setitem(sys.modules, name, module)
        self.broken = False

    def compile(self, source: object, target: tuple[Any, ...], options: dict[str, int]) -> Any:
        if self.broken:
            raise RuntimeError("PassManager::run failed")
        self.target, self.options = target, options
        metadata = SimpleNamespace(name="twice", num_warps=4, shared=256, global_scratch_size=32)
        return SimpleNamespace(asm={"ptx": TRITON_PTX}, metadata=metadata)


def jit_function() -> Any:
    names = ("a", "b", "n", "BLOCK", "EVEN")
    parameters = [
        SimpleNamespace(name=name, is_constexpr=name.isupper(), has_default=name == "EVEN", default=True)
        for name in names
    ]
    return SimpleNamespace(__name__="twice", arg_names=list(names), params=parameters)


def test_a_triton_kernel_is_compiled_offline_and_given_its_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTriton(monkeypatch)
    a, b = np.ones(128, np.float32), np.zeros(128, np.float32)
    given = {"BLOCK": 128, "b": b, "a": a, "n": 128}  # in any order
    compiled, launched = compile_triton(jit_function(), given, "90", {"num_stages": 3})
    told = vars(fake)
    assert told["signature"] == {"a": "*fp32", "b": "*fp32", "n": "i32", "BLOCK": "constexpr", "EVEN": "constexpr"}
    assert told["constexprs"] == {"BLOCK": 128, "EVEN": True}
    assert told["attrs"] == {(i,): [["tt.divisibility", 16]] for i in range(2)}
    assert fake.target == ("cuda", 90, 32) and fake.options == {"num_stages": 3}
    assert (compiled.threads, compiled.shared_memory_bytes, list(launched)) == (128, 256, ["a", "b", "n"])
    arguments = compiled.with_scratch(launched, blocks=3)
    assert list(arguments) == ["a", "b", "n", "global_scratch", "profile_scratch"]
    assert arguments["global_scratch"].nbytes == 3 * 32
    ran = ak.run_ptx(compiled.ptx, compiled.entry, grid=1, arguments=arguments, shared_memory_bytes=256)
    assert (b == 2).all() and ran.counters.loads == {"a": 512}


def test_what_decorators_choose_is_compiled_in_and_of_several_configurations_one_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeTriton(monkeypatch)
    given = {"a": np.ones(128, np.float32), "b": np.zeros(128, np.float32), "n": 128}
    one = SimpleNamespace(kwargs={"BLOCK": 128}, num_warps=8, num_stages=2)
    two = SimpleNamespace(kwargs={"BLOCK": 64}, num_warps=4, num_stages=3)
    ruled = SimpleNamespace(
        arg_names=[], values={"EVEN": lambda args: args["n"] % args["BLOCK"] == 0}, fn=jit_function()
    )
    compile_triton(SimpleNamespace(arg_names=[], configs=[one], fn=ruled), given, options={"num_stages": 4})
    assert vars(fake)["constexprs"] == {"BLOCK": 128, "EVEN": True}
    assert fake.options == {"num_warps": 8, "num_stages": 4}
    tuned = SimpleNamespace(arg_names=[], configs=[one, two], fn=ruled)
    compile_triton(tuned, {**given, "BLOCK": 100})
    assert vars(fake)["constexprs"] == {"BLOCK": 100, "EVEN": False} and fake.options == {}
    with pytest.raises(
        InputError, match=r"twice is tuned over 2 .* BLOCK of none is given; the first is --arg BLOCK=128 "
    ):
        compile_triton(tuned, given)


def test_what_triton_cannot_compile_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, given = FakeTriton(monkeypatch), {"a": np.zeros(1), "b": np.zeros(1), "n": 1, "BLOCK": 1}
    for kernel, arguments, arch, told in (
        (len, given, "80", "len is no Triton kernel; decorate it with @triton.jit"),
        (jit_function(), {"a": 1, "c": 2}, "80", "twice takes a, b, n, BLOCK, EVEN; missing: b, n, BLOCK; too many: c"),
        (jit_function(), {**given, "n": "x"}, "80", "argument n is 'x'; give an array or a number"),
        (jit_function(), given, "hopper", "--arch hopper: Triton takes a compute capability"),
    ):
        with pytest.raises(InputError, match=told):
            compile_triton(kernel, arguments, arch)
    fake.broken = True
    with pytest.raises(InputError, match="twice does not compile for sm_80: RuntimeError: PassManager"):
        compile_triton(jit_function(), given)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(InputError, match=r"needs Triton .*pip install 'attnsim\[triton\]'"):
        compile_triton(jit_function(), given)


@pytest.mark.parametrize("form", ["shfl.sync.b32 %r1, %r1, 0, 31, -1", "mad.hi.sat.s32 %r1, %r1, %r1, %r1"])
def test_a_form_that_nobody_plays_is_refused_with_its_line_before_anything_runs(form: str) -> None:
    ptx = f".visible .entry k(.param .u64 x)\n{{\n.reg .b32 %r<2>;\nmov.u32 %r1, 1;\n{form};\nret;\n}}"
    with pytest.raises(InputError, match=rf"'{re.escape(form)}' \(line 5 of the PTX\): .* is not known"):
        ak.run_ptx(ptx, grid=1, block=32, arguments={"x": np.zeros(1, np.float32)})
