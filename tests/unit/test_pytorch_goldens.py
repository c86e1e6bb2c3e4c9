"""The float64 references against PyTorch's scaled_dot_product_attention, from a committed file of its results."""

from typing import Any

import numpy as np
import pytest

from attnsim.models.references.softmax import attention, attention_backward
from attnsim.models.references.tiled import (
    flash1_reference,
    flash_reference,
    split_kv_reference,
)
from benchmarks.make_pytorch_goldens import CASES, GOLDEN, Case

LIMIT = 300_000
FORWARD: dict[str, Any] = {
    "plain": attention,
    "flash": flash_reference,
    "flash, small tiles": lambda *a, **k: flash_reference(*a, rows=8, keys=5, **k),
    "flash-1": lambda *a, **k: flash1_reference(*a, rows=4, keys=9, **k),
    "split-kv": lambda *a, **k: split_kv_reference(*a, splits=3, keys=6, **k),
}


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    with np.load(GOLDEN) as file:
        return dict(file)


def assert_close(found: Any, expected: Any, case: Case, what: str) -> None:
    """Equal up to rounding: scores of size s, and so the exponents of the probabilities, are rounded to s x 2^-53."""
    largest = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=1e-12 * case.size, atol=1e-13 * case.size * largest, err_msg=what)


@pytest.mark.parametrize("seed", range(len(CASES)), ids=[case.name for case in CASES])
def test_outputs_are_pytorch_s(seed: int, golden: dict[str, Any]) -> None:
    case = CASES[seed]
    q, k, v, do = case.inputs(seed)
    assert sum(float(x.sum()) for x in (q, k, v, do)) == pytest.approx(float(golden[f"{case.name}/inputs"]), rel=1e-12)
    for name, reference in FORWARD.items():
        o, _ = reference(q, k, v, case.mask, scale=case.scale)
        assert_close(o, golden[f"{case.name}/o"], case, name)


@pytest.mark.parametrize("seed", range(len(CASES)), ids=[case.name for case in CASES])
def test_gradients_are_pytorch_s(seed: int, golden: dict[str, Any]) -> None:
    case = CASES[seed]
    q, k, v, do = case.inputs(seed)
    gradients = attention_backward(q, k, v, do, case.mask, scale=case.scale)
    for tensor, gradient in zip(("dq", "dk", "dv"), gradients, strict=True):
        assert_close(gradient, golden[f"{case.name}/{tensor}"], case, tensor)


def test_the_file_is_small_and_holds_nothing_else(golden: dict[str, Any]) -> None:
    assert GOLDEN.stat().st_size < LIMIT
    expected = {f"{case.name}/{what}" for case in CASES for what in ("o", "dq", "dk", "dv", "inputs")}
    assert set(golden) == expected | {"torch_version"}
