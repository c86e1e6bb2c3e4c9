"""Who reads a figure is declared with it, and true: what is read moves an answer, what nobody reads moves none."""

from functools import cache
from typing import Any

import pytest

from attnsim import Gpu, InputError, Mask, Workload, load_gpu, predict
from attnsim.models.hardware.sections import FIELDS
from attnsim.models.question.workload import Latent

PREFILL = Workload(batch=2, heads_q=16, seq_q=2048, head_dim=128, dtype="bf16")
SPARSE = Workload(1, 2, 1024, 64, mask=Mask.parse("global 64, window 256"))
QUESTIONS: tuple[tuple[str, Workload, str, dict[str, Any]], ...] = (
    ("rtx-4090", PREFILL, "flash", {}),
    ("h100-sxm5-80gb", PREFILL, "flash", {"launch": "graph"}),
    ("h100-sxm5-80gb", Workload(batch=2, heads_q=16, seq_q=2048, head_dim=128, dtype="fp8"), "flash", {}),
    ("a100-sxm4-80gb", Workload(batch=2, heads_q=16, seq_q=2048, head_dim=64, dtype="fp16"), "flash", {}),
    (
        "a100-sxm4-80gb",
        Workload(batch=1, heads_q=16, seq_q=1024, head_dim=64, dtype="fp32"),
        "naive",
        {"launch": "graph"},
    ),
    ("a100-sxm4-80gb", Workload(batch=8, heads_q=32, seq_q=1, head_dim=128, seq_kv=2048, passes="decode"), "naive", {}),
    ("a100-sxm4-80gb", Workload(1, 16, 300, 64, dtype="fp16", mask=Mask.causal()), "naive", {"launch": "graph"}),
    ("a100-sxm4-80gb", PREFILL, "flash", {"tiles": "retuned"}),
    ("a100-sxm4-80gb", SPARSE, "sparse", {"tiles": "retuned"}),
    ("h100-sxm5-80gb", Workload(1, 16, 1024, 192, head_dim_v=128, latent=Latent(512, 64)), "mla", {}),
    ("b200-sxm-180gb", PREFILL, "flash", {}),
    (
        "l40s",
        Workload(batch=4, heads_q=32, seq_q=1, seq_kv=4096, head_dim=16, passes="decode"),
        "flash",
        {"implementation": "xformers.triton-splitk"},
    ),
    ("l40s", Workload(batch=4, heads_q=16, seq_q=4096, head_dim=128, dtype="bf16"), "flash", {}),
)
FACTORS = (0.5, 2.0, 16.0, 0.1, 0.0001)


@cache
def answer(number: int, gpu: Gpu) -> object:
    _, workload, algorithm, conditions = QUESTIONS[number]
    try:
        found = predict(workload, gpu, algorithm, baseline=False, **conditions)
    except InputError:
        return "refused"
    return found.time_s, found.hbm_bytes, found.fits, found.tile


def changed(gpu: Gpu, key: str) -> list[Gpu]:
    """The GPU with one figure changed in several ways; `replace` would refuse those that nobody reads."""
    field, found = FIELDS[key], []
    for factor in FACTORS:
        now = gpu.get(key) or field.high / 1e3  # of a figure that is 0, some other value
        value = float(not gpu.get(key)) if field.unit == "bool" else now * factor
        value = float(max(1, round(value))) if field.integer else value
        try:
            field.check(value, value)
            found.append(gpu.with_change(key, value))
        except InputError:
            continue  # outside its range
    return found


def moves(number: int, key: str) -> bool:
    gpu = load_gpu(QUESTIONS[number][0])
    return any(answer(number, other) != answer(number, gpu) for other in changed(gpu, key))


@pytest.mark.parametrize("key", FIELDS)
def test_what_is_declared_of_a_figure_is_true(key: str) -> None:
    moved = any(moves(number, key) for number in range(len(QUESTIONS)))
    assert moved == (FIELDS[key].read not in ("nobody", "links"))
