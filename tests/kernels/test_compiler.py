"""NVRTC, what its assembler reports, the hash of what it was given, and the cache of what it gave."""

import gzip
import threading
from pathlib import Path

import pytest

from attnsim.errors import InputError
from attnsim.kernels import variant
from attnsim.kernels.variant import Variant, compile_variant
from attnsim.ptx import compile_cache
from attnsim.ptx.nvrtc import Compiled, Nvrtc, find_nvrtc

SOURCE = """
#include "outer.cuh"
extern "C" __global__ void __launch_bounds__(32) fill(float* x) { x[threadIdx.x] = twice(VALUE); }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sources of its own, an empty cache, and nothing compiled in this process."""
    cuda = tmp_path / "cuda"
    cuda.mkdir()
    (cuda / "fill.cu").write_text(SOURCE)
    (cuda / "outer.cuh").write_text('#pragma once\n#include "inner.cuh"\n')
    (cuda / "inner.cuh").write_text("#pragma once\n__device__ float twice(float x) { return 2 * x; }\n")
    monkeypatch.setattr(variant, "CUDA", cuda)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    return cuda


def forget() -> None:
    compile_variant.cache_clear()
    variant.files_of.cache_clear()
    variant._text_hash.cache_clear()


def fill(value: int = 3) -> Variant:
    return Variant(source="fill.cu", entry="fill", defines=(("VALUE", value),), threads=32)


def test_ptx_cubin_and_the_assemblers_report(folder: Path) -> None:
    only_ptx, both = compile_variant(fill(), "80", cubin=False), compile_variant(fill(), "90")
    assert ".target sm_80" in only_ptx.ptx and only_ptx.cubin == b""
    assert both.cubin.startswith(b"\x7fELF")
    used = both.resources("fill")
    assert 0 < used.registers <= 32 and (used.spill_bytes, used.stack_bytes, used.static_shared_bytes) == (0, 0, 0)
    with pytest.raises(InputError, match="no such kernel"):
        both.resources("other")


def test_what_does_not_compile_is_told_with_the_compilers_words(folder: Path) -> None:
    (folder / "inner.cuh").write_text("this is not C++\n")
    with pytest.raises(InputError, match=r"fill\(3\) does not compile for sm_80:\s.*error"):
        compile_variant(fill(), "80")


def test_without_nvrtc_the_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> Nvrtc:
        raise ImportError

    find_nvrtc.cache_clear()
    monkeypatch.setattr("attnsim.ptx.nvrtc._from_cuda_bindings", absent)
    monkeypatch.setattr("attnsim.ptx.nvrtc._from_cupy", absent)
    try:
        with pytest.raises(InputError, match=r"attnsim\[cuda-cpu\]"):
            compile_variant(fill(), "80")
    finally:
        find_nvrtc.cache_clear()


def test_the_hash_follows_headers_and_constants_but_not_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = variant.source_hash(fill())
    assert variant.files_of("fill.cu") == ("fill.cu", "inner.cuh", "outer.cuh")
    assert variant.source_hash(fill(4)) != before
    elsewhere = tmp_path / "moved"
    folder.rename(elsewhere)
    monkeypatch.setattr(variant, "CUDA", elsewhere)
    forget()
    assert variant.source_hash(fill()) == before
    (elsewhere / "inner.cuh").write_text("#pragma once\n__device__ float twice(float x) { return x + x; }\n")
    forget()
    assert variant.source_hash(fill()) != before


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are really compiled from here on."""
    real = find_nvrtc()
    compiled: list[str] = []

    def compile_text(text: str, file: str, options: list[str]) -> Compiled:
        compiled.append(file)
        return real.compile(text, file, options)

    counted = Nvrtc(real.binding, real.version, real.architectures, compile_text)  # type: ignore[arg-type]
    monkeypatch.setattr(variant, "find_nvrtc", lambda: counted)
    return compiled


def test_a_second_process_compiles_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = counting(monkeypatch)
    first = compile_variant(fill(), "80")
    forget()  # as a new process would start
    assert compile_variant(fill(), "80") == first and compiled == ["fill.cu"]
    (folder / "inner.cuh").write_text("#pragma once\n__device__ float twice(float x) { return x + x; }\n")
    forget()
    compile_variant(fill(), "80")
    assert compiled == ["fill.cu", "fill.cu"]


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{}",
        gzip.compress(b"{}")[:-4],
        *map(gzip.compress, (b"{", b'{"ptx": "", "cubin": "%", "log": ""}', b"[]")),
    ],
    ids=["empty", "plain", "cut", "unclosed", "no-cubin", "no-object"],  # gzip's bytes hold the time
)
def test_a_damaged_entry_counts_as_absent(folder: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    compiled = counting(monkeypatch)
    good = compile_variant(fill(), "80")
    (entry,) = compile_cache.folder().iterdir()
    entry.write_bytes(damage)
    forget()
    assert compile_variant(fill(), "80").cubin == good.cubin and len(compiled) == 2
    forget()
    assert compile_variant(fill(), "80").cubin == good.cubin and len(compiled) == 2


def test_a_cache_that_cannot_be_written_is_done_without(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "file"))
    assert compile_variant(fill(), "80").cubin


def test_writers_of_one_entry_do_not_disturb_each_other(folder: Path) -> None:
    binary = Compiled("ptx" * 10_000, b"cubin" * 10_000, "log")
    seen: list[Compiled | None] = []

    def work() -> None:
        for _ in range(20):
            compile_cache.write("key", binary)
            seen.append(compile_cache.read("key"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [binary] * 80
    assert [path.name for path in compile_cache.folder().iterdir()] == ["key.json.gz"]


def test_old_entries_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_cache.write("key", Compiled("", b"", ""))
    assert compile_cache.prune() == 0
    monkeypatch.setattr(compile_cache, "KEPT_DAYS", -1)
    assert compile_cache.prune() == 1 and compile_cache.read("key") is None
