"""A run goes on past its faults and tells all of them, each kind once for a line, with how often it was found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import attnsim.kernels as ak
from attnsim.errors import InputError
from attnsim.ptx import faults
from attnsim.ptx.counters import Counters
from attnsim.ptx.run import run
from tests.ptx.conftest import ptx_of
from tests.ptx.triton_ptx import Attention, compiled

Launch = Callable[..., Counters]

SOURCE = """
KERNEL(const float* in, float* out, int n) {
    __shared__ float a[64], b[64];
    a[threadIdx.x] = in[threadIdx.x + blockIdx.x * 64];       // past the end in the last block
    float x = a[63 - threadIdx.x];                            // race
    __syncthreads();
    for (int i = 0; i < n; ++i) x += static_cast<volatile float*>(b)[threadIdx.x];  // nobody wrote
    out[threadIdx.x + blockIdx.x * 64] = x;                   // past the end too
}
"""


def test_every_fault_of_a_run_is_told_with_its_line(launch: Launch) -> None:
    given = {"in": np.ones(150, np.float32), "out": np.zeros(190, np.float32), "n": np.int32(3)}
    with pytest.raises(faults.Fault) as error:
        launch(SOURCE, given, block=64, grid=3)
    found = [error.value, *error.value.others]
    kinds = [type(one).__name__ for one in found]
    assert kinds == ["OutOfBounds", "Race", "UninitialisedRead", "OutOfBounds"]
    assert len({one.line for one in found}) == 4 and all(one.line for one in found)
    assert found[0].what == "load of 4 bytes at 0 bytes past the end of in, which has 600 bytes"
    assert "block (2, 0, 0), thread (22, 0, 0)" in found[0].place
    assert [one.times for one in found] == [1, 1, 3, 1]  # three turns of the loop
    assert str(found[0]).endswith(
        "; more of this run: "
        + ", ".join(f"{kind} (line {one.line})" for kind, one in zip(kinds[1:], found[1:], strict=True))
    )


def test_bad_accesses_alone_are_bad_input_in_one_line() -> None:
    ptx = ptx_of("KERNEL(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x]; }", 80)
    arrays = {"in": np.arange(40, dtype=np.int32), "out": np.zeros(36, np.int32)}
    with pytest.raises(
        InputError, match=r"load of 4 bytes at 0 bytes past .*; more of this run: OutOfBounds \(line"
    ) as told:
        ak.run_ptx(ptx, grid=1, block=64, arguments=arrays)
    assert "\n" not in str(told.value)
    np.testing.assert_array_equal(arrays["out"], np.arange(36))  # the other threads went on


def test_a_run_with_many_faults_keeps_some() -> None:
    lines = "".join(f"st.shared.u32 [%r1+{4 * i}], 1;\nld.shared.u32 %r2, [%r3+{4 * i}];\n" for i in range(40))
    ptx = (
        ".version 8.0\n.target sm_80\n.visible .entry k()\n{ .reg .b32 %r<5>; .shared .b32 s[200];\n"
        f"mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; xor.b32 %r3, %r1, 128;\n{lines}ret; }}"
    )
    with pytest.raises(faults.Race) as error:
        run(ptx, "k", 1, 64, {})
    found = error.value
    assert len(found.others) == faults.MOST - 1 and found.left_out > 0
    assert str(found).endswith(f", {found.left_out} not listed")


def test_two_barriers_less_are_two_faults() -> None:
    """Triton's forward for sm_80: without two of its barriers both places are told, in one run."""
    case, kernel = Attention("80", 64, False), compiled("forward_d64_full_sm80")
    lines = kernel.ptx.splitlines()
    barriers = [i for i, line in enumerate(lines) if line.strip().startswith("bar.sync")]
    arrays = {**case.inputs, "O": case.empty(), "L": case.rows(), "N": 256, "scale_log2": 0.18}
    alone = []
    for taken in ([barriers[0]], [barriers[-1]], [barriers[0], barriers[-1]]):
        ptx = "\n".join("" if i in taken else line for i, line in enumerate(lines))
        filled = kernel.with_scratch({n: arrays[n] for n in ("Q", "K", "V", "O", "L", "scale_log2", "N")}, 2)
        with pytest.raises(faults.Fault) as error:
            ak.run_ptx(ptx, grid=(2, 1), arguments=filled, shared_memory_bytes=kernel.shared_memory_bytes)
        alone.append({(type(one), one.line) for one in (error.value, *error.value.others)})
    assert alone[2] >= alone[0] | alone[1] and not alone[0] & alone[1]
