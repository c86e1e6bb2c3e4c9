"""CUDA files as they are published: names of entries, host code that is left out, headers that stand for others.

`benchmarks/inputs/cuda.yaml` has whole files with their answers.
"""

from __future__ import annotations

import stat
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.ptx import nvrtc
from attnsim.ptx.foreign.compilers import compile_file, compile_kernel
from attnsim.ptx.foreign.host_code import Error, errors_in, headers_of, marker_of, pieces, without_host_code
from attnsim.ptx.foreign.names import matching, readable
from attnsim.ptx.foreign.run import run_ptx
from attnsim.ptx.parse import parse


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("twice", "twice"),
        ("_Z5twicePKfPf", "twice"),
        ("_ZN5flash5twiceILi2EEEvPfi", "flash::twice<2>"),
        ("_Z6thriceIfEvPT_", "thrice<float>"),
        ("_Z1kI6__halfLi64ELb1ELin1EEvPT_", "k<__half, 64, true, -1>"),
        ("_Z1kIJfdEPKfEvv", "k<float, double, const float*>"),
        ("_ZN42_GLOBAL__N__00000000_4_k_cu_1764be04_193531kILi3EEEvPf", "k<3>"),
        ("_ZN1a1bI3fooIiEE1kEv", "a::b<foo<int>>::k"),
        ("_Znonsense", "_Znonsense"),
        ("_Z99short", "_Z99short"),
        ("_ZN3abc", "_ZN3abc"),
    ],
)
def test_names_are_read_and_what_cannot_be_read_is_left(mangled: str, name: str) -> None:
    assert readable(mangled) == name


def test_a_name_means_the_kernel_that_it_tells_apart_and_no_other() -> None:
    two, four, other = "_ZN5flash5twiceILi2EEEvPf", "_ZN5flash5twiceILi4EEEvPf", "_Z5scalePf"
    assert matching("flash::twice<2>", [two, four, other]) == [two]
    assert matching("twice<4>", [two, four]) == [four] and matching("twice", [two, four]) == [two, four]
    assert matching("twice", [two, other]) == [two] and matching("flash::twice", [two]) == [two]
    assert (
        matching("twice<8>", [two]) == [] and matching("scale", [other]) == [other] and matching("cale", [other]) == []
    )
    assert matching("scale", ["scale", other]) == ["scale"]


FILE = """
#define INLINE __device__ __forceinline__
#define ALSO INLINE
/* } */ // {
namespace a {
struct Both { ALSO int f() { return '}'; } void g() { h(); } };
struct Host { std::vector<int> v; };
}
template <typename T>
ALSO T twice(T x) { return x + x; }
#ifdef OTHER
void one(torch::Tensor x) {
#else
void two(torch::Tensor x) {
#endif
  kernel<<<1, 32>>>(48'000, "}");
}
extern "C" __global__ void kernel(float* x) { x[0] = twice(x[0]); }
constexpr int kRows = N;
static cublasHandle_t handle; int main() { return 0; }
"""


def line_of(text: str) -> int:
    return 1 + next(number for number, line in enumerate(FILE.splitlines()) if text in line)


def test_what_is_left_out_is_the_declaration_of_the_host_with_the_error() -> None:
    wrong = ["h();", "std::vector", "kernel<<<", "cublasHandle_t"]
    left, others = without_host_code({"k.cu": FILE}, [Error("k.cu", line_of(one), "wrong") for one in wrong])
    text = left["k.cu"]
    assert not others and text.count("\n") == FILE.count("\n") and len(text) == len(FILE)
    assert (
        not any(one in text for one in wrong) and "two(" not in text and "main()" not in text and "void g" not in text
    )
    for kept in ("int f()", "twice(T x)", "__global__ void kernel", "kRows", "namespace a"):
        assert kept in text


def test_a_function_that_is_evaluated_while_a_kernel_is_compiled_is_marked_for_the_device() -> None:
    text = "namespace a {\ntemplate <int N> constexpr int f(int n) { return n; }\n}\n"
    text += "static constexpr int g() { return 1; }\n"
    errors = [Error("k.cu", line, "A function without execution space annotations is") for line in (2, 4)]
    left, others = without_host_code({"k.cu": text}, errors)
    assert not others and left["k.cu"].replace("__device__ ", "") == text
    assert "<int N> __device__ constexpr int f" in left["k.cu"] and "static __device__ constexpr int g" in left["k.cu"]


def test_an_error_in_device_code_stays_one() -> None:
    for what in ("kRows", "twice(x[0])", "return x + x"):
        error = Error("k.cu", line_of(what), "wrong")
        assert without_host_code({"k.cu": FILE}, [error]) == ({"k.cu": FILE}, [error])
    elsewhere = Error("cuda_fp16.h", 3, "wrong")
    assert without_host_code({"k.cu": FILE}, [elsewhere])[1] == [elsewhere]


def test_declarations_end_where_they_do() -> None:
    heads = [one.head.split()[-1] for one in pieces(FILE) if one.head.strip()]
    assert heads == ["a", "x)", "x)", "x)", "x)", "N", "handle", "main()"]
    assert marker_of([FILE]).search("ALSO int x") and not marker_of([FILE]).search("ALSOLE int x")
    log = 'k.cu(3): error: wrong\n  x;\ncommon.h(12): catastrophic error: cannot open source file "y.h"\n'
    assert errors_in(log) == [Error("k.cu", 3, "wrong"), Error("common.h", 12, 'cannot open source file "y.h"')]


def test_headers_stand_for_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "own.h").write_text('#include "deep.h"\n#include <vector>\n#include <cuda_fp16.h>\n')
    (tmp_path / "deep.h").write_text("constexpr int kDeep = 3;\n")
    text = '#include "own.h"\n#include <torch/extension.h>\n#include <cute/tensor.hpp>\n'
    found = headers_of(tmp_path / "k.cu", text, [])
    assert "kDeep" in found["deep.h"] and found["vector"] == found["stdio.h"] == "" and "own.h" in found
    assert "cuda_fp16.h" in found["torch/extension.h"]  # c10/util/Half.h includes it
    assert "cute/tensor.hpp" not in found and "cuda_fp16.h" not in found


def test_a_template_is_compiled_for_what_is_asked_and_told_where_it_is_not(tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text(
        "template <int N, typename T> __global__ void times(T* x) { x[threadIdx.x] *= N; }\n"
        "void host() { times<2, float><<<1, 32>>>(nullptr); }\n"
    )
    ptx, entry = compile_kernel(source, entry="times<3, float>")
    x = np.ones(32, np.float32)
    run_ptx(ptx, entry, grid=1, block=32, arguments={"x": x})
    assert (x == 3).all() and list(parse(ptx)) == [entry]
    with pytest.raises(InputError, match=r"times is a template of <int N, typename T>; .* --entry 'times<...>'"):
        compile_file(source)
    with pytest.raises(InputError, match=r"--entry 'thrice<3>': .*\"thrice\" is undefined; give a kernel of the file"):
        compile_kernel(source, entry="thrice<3>")


@pytest.mark.parametrize("form", ["add", "sub", "mul", "fma"])
@pytest.mark.parametrize("toward", ["rm", "rp", "rz"])
def test_directed_rounding_is_that_of_the_exact_value(form: str, toward: str) -> None:
    random = np.random.default_rng(0)
    a, b, c = (
        np.ldexp(random.standard_normal(512), random.integers(-40, 40, 512)).astype(np.float32) for _ in range(3)
    )
    operands = "%f0, %f1, %f2" if form == "fma" else "%f0, %f1"
    loads = "".join(
        f"ld.param.u64 %a, [{name}];\nadd.s64 %a, %a, %i;\nld.global.f32 %f{i}, [%a];\n" for i, name in enumerate("abc")
    )
    ptx = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, "
        ".param .u64 y) {\n.reg .b64 %a; .reg .b64 %i; .reg .f32 %f<4>; .reg .b32 %t;\nmov.u32 %t, %tid.x;\n"
        f"mul.wide.u32 %i, %t, 4;\n{loads}{form}.{toward}.f32 %f3, {operands};\nld.param.u64 %a, [y];\n"
        "add.s64 %a, %a, %i;\nst.global.f32 [%a], %f3;\nret;\n}"
    )
    y = np.zeros(512, np.float32)
    run_ptx(ptx, grid=1, block=512, arguments={"a": a, "b": b, "c": c, "y": y})
    for one in range(512):
        p, q, r = (Fraction(float(values[one])) for values in (a, b, c))
        exact = {"add": p + q, "sub": p - q, "mul": p * q, "fma": p * q + r}[form]
        found, down = Fraction(float(y[one])), toward == "rm" or (toward == "rz" and exact > 0)
        beyond = Fraction(float(np.nextafter(y[one], np.float32(np.inf if down else -np.inf))))
        assert found <= exact < beyond if down else beyond < exact <= found


def test_the_newest_assembler_that_takes_the_ptx_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version, code in (("old", "12.4.1", 0), ("new", "13.2.5", 0), ("newest", "14.0.1", 1)):
        program = tmp_path / name / "ptxas"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "release, V{version}" && exit 0\n'
            f"echo 'ptxas fatal : from {name}' >&2\nfor last; do :; done\nprintf {name} > \"$last\"\nexit {code}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", ":".join(str(tmp_path / one) for one in ("old", "newest", "new")) + ":/bin:/usr/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [])
    nvrtc.assemblers.cache_clear()
    try:
        assert [one.version for one in nvrtc.assemblers()] == [(14, 0, 1), (13, 2, 5), (12, 4, 1)]
        assert nvrtc.assemble("", "80")[1] == b"new"
        monkeypatch.setenv("PATH", str(tmp_path / "newest") + ":/bin:/usr/bin")
        nvrtc.assemblers.cache_clear()
        with pytest.raises(InputError, match="ptxas refuses the PTX for sm_80: ptxas fatal : from newest"):
            nvrtc.assemble("", "80")
        monkeypatch.setenv("PATH", "")
        nvrtc.assemblers.cache_clear()
        with pytest.raises(InputError, match=r"ptxas is not here \(pip install nvidia-cuda-nvcc"):
            nvrtc.assemble("", "80")
    finally:
        nvrtc.assemblers.cache_clear()
