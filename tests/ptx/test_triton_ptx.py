"""Triton's PTX of fused attention, forward and backward, on the interpreter: right, and counted as it must be."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest

from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import attention, attention_backward
from attnsim.ptx.outcome import TOLERANCE
from tests.ptx.triton_ptx import FOLDER, Attention

CASES = [
    Attention(arch, head_dim, causal)
    for arch in ("80", "90", "100")
    for head_dim in (64, 128)
    for causal in (False, True)
]
TILE = 128
"""Rows of a block, forward and backward."""


def off(found: Any, expected: Any) -> float:
    """The largest difference over the largest value."""
    return float(np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max())


def visited(case: Attention) -> int:
    """Scores that a head's tiles of 128 rows compute."""
    tiles = case.seq // TILE
    return TILE * TILE * (tiles * (tiles + 1) // 2 if case.causal else tiles**2)


def test_the_ptx_is_of_the_source_beside_it() -> None:
    """Else run benchmarks/make_triton_ptx.py again."""
    about = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    assert hashlib.sha256((FOLDER / about["source"]).read_bytes()).hexdigest() == about["sha256"]
    assert {path.name for path in FOLDER.glob("*.ptx.gz")} == {f"{one['name']}.ptx.gz" for one in about["kernels"]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel("forward"))
def test_forward(case: Attention) -> None:
    ran, o, sums = case.forward()
    q, k, v, _ = (case.inputs[name][None] for name in ("Q", "K", "V", "DO"))
    expected, lse = attention(q, k, v, Mask.causal() if case.causal else None)
    assert off(o, expected[0]) <= TOLERANCE["fp16"] and off(sums, lse[0] / math.log(2)) <= 1e-6
    assert ran.counters.tensor_flops == 4 * case.head_dim * visited(case)
    array, keys = case.inputs["Q"].nbytes, 2 * case.head_dim * visited(case) // TILE
    assert ran.counters.loads == {"Q": array, "K": keys, "V": keys}
    assert ran.counters.stores == {"O": array, "L": sums.nbytes}
    # A score each, and a factor of each row at each of its tiles of 64 keys, in every lane that holds some of the row.
    # For sm_100 Triton computes the first tile of a causal loop that has none, and throws it away.
    holders = {"80": 4, "90": 4, "100": case.head_dim // 64}[case.arch]
    scores = visited(case) + (TILE * 64 if case.arch == "100" and case.causal else 0)
    assert ran.counters.exponentials == scores + scores // 64 * holders


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel("backward"))
def test_backward(case: Attention) -> None:
    ran, gradients = case.backward()
    q, k, v, do = (case.inputs[name][None] for name in ("Q", "K", "V", "DO"))
    expected = attention_backward(q, k, v, do, Mask.causal() if case.causal else None)
    for name, want in zip(("DQ", "DK", "DV"), expected, strict=True):
        assert off(gradients[name], want[0]) <= TOLERANCE["fp16"], name
    # S and dP twice, once with dV and dK and once with dQ.
    assert ran.counters.tensor_flops == 7 * 2 * case.head_dim * visited(case)
    empty = 2 * TILE * 32 if case.arch == "100" and case.causal else 0  # as above, in both loops
    assert ran.counters.exponentials == 2 * visited(case) + empty
    assert ran.counters.stores == dict.fromkeys(("DQ", "DK", "DV"), case.inputs["Q"].nbytes)
