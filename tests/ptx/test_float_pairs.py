"""``f32x2``: two float32 in a register, each half as if it stood alone."""

from __future__ import annotations

import numpy as np
import pytest

from attnsim.ptx.faults import UnsupportedInstruction
from attnsim.ptx.run import run

KERNEL = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry kernel(.param .u64 in, .param .u64 out)
{{
.reg .b64 %in, %out, %a, %b, %c, %d;
.reg .b32 %t;
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
mad.wide.u32 %in, %t, 24, %in;
mad.wide.u32 %out, %t, 8, %out;
ld.global.b64 %a, [%in];
ld.global.b64 %b, [%in+8];
ld.global.b64 %c, [%in+16];
{line}
st.global.b64 [%out], %d;
ret;
}}
"""


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        ("add.rn.f32x2 %d, %a, %b;", 2),
        ("sub.f32x2 %d, %a, %b;", 2),
        ("mul.f32x2 %d, %a, %b;", 2),
        ("fma.rn.f32x2 %d, %a, %b, %c;", 4),
        ("add.ftz.f32x2 %d, %a, %b;", 2),
    ],
)
def test_each_half_stands_alone(line: str, flops: int) -> None:
    values = np.random.default_rng(5).standard_normal((64, 3, 2)).astype(np.float32)
    values[0, :2] = 1e-39  # subnormal
    values[1, 0], values[1, 1] = (np.inf, np.nan), (1, 2)
    out = np.zeros((64, 2), np.float32)
    counters = run(KERNEL.format(line=line), "kernel", 1, 64, {"in": values, "out": out})
    a, b, c = (values[:, i].astype(np.float64) for i in range(3))
    name = line.partition(".")[0]
    want = {"add": a + b, "sub": a - b, "mul": a * b, "fma": a * b + c}[name].astype(np.float32)
    if "ftz" in line:
        want[0] = 0
    np.testing.assert_array_equal(out, want)
    assert counters.flops == 64 * flops


def test_other_arithmetic_of_pairs_is_refused() -> None:
    with pytest.raises(UnsupportedInstruction, match=r"'max\.f32x2' is not known"):
        run(KERNEL.format(line="max.f32x2 %d, %a, %b;"), "kernel", 1, 64, {})
