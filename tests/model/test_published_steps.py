"""Steps of whole models against servers that were timed, which no fit has seen."""

from statistics import mean

import pytest

from attnsim.api.step import step
from attnsim.api.step_answer import StepAnswer

H100, H200, B200 = "h100-sxm5-80gb", "h200-sxm-141gb", "b200-sxm-180gb"
DRAWN = 0.9
"""InferenceMAX draws lengths from 0.8 of what it says to all of it."""
LLAMA = (
    (H100, "vllm", 1024, 4, 4, 11.78),
    (H100, "vllm", 8192, 32, 8, 21.61),
    (H200, "vllm", 1024, 4, 8, 7.93),
    (H200, "vllm", 8192, 32, 4, 28.62),
    (H200, "tensorrt-llm", 1024, 4, 4, 7.98),
    (H200, "tensorrt-llm", 8192, 32, 8, 16.67),
    (B200, "vllm", 1024, 4, 4, 8.04),
    (B200, "vllm", 8192, 32, 8, 13.69),
    (B200, "tensorrt-llm", 1024, 4, 8, 5.45),
    (B200, "tensorrt-llm", 8192, 32, 4, 14.78),
)
"""Llama-3.1-70B in fp8, SemiAnalysis' InferenceMAX (aiconfigurator-core 0.12.0, systems/silicon_sample.csv): GPU,
server, tokens of a prompt, requests at a time, GPUs, and the mean ms of a token. 1,024 tokens are made."""
DEEPSEEK = ((H200, "sglang", 10.29), (B200, "sglang", 8.76), (B200, "tensorrt-llm", 10.30))
"""DeepSeek-V3, 8 GPUs, 4 requests of 1,024 tokens, of the same table."""


def mean_of_steps(model: str, gpu: str, library: str, prompt: int, batch: int, tp: int) -> tuple[float, float, float]:
    """Milliseconds of a mean step, each of `batch` - 1 prompts computed beside one; and its range."""
    isl, osl = round(DRAWN * prompt), round(DRAWN * 1024)
    keys, part = isl + osl // 2, (batch - 1) / osl
    decode, mixed = (
        step(model, gpu, lengths, tp=tp, dtype="fp8", library=library)
        for lengths in (f"1:{keys} x {batch}", f"1:{keys} x {batch - 1}, {isl}:{isl}")
    )

    def ms(of: StepAnswer, name: str) -> float:
        return 1e3 * float(getattr(of, name))

    low, time, high = (
        (1 - part) * ms(decode, name) + part * ms(mixed, name) for name in ("time_low_s", "time_s", "time_high_s")
    )
    return low, time, high


def test_servers_of_llama_lie_in_their_ranges_and_ten_percent_off() -> None:
    found = {row: mean_of_steps("llama-3-70b", *row[:5]) for row in LLAMA}
    assert {row: range_ for row, range_ in found.items() if not range_[0] < row[-1] < range_[2]} == {}
    assert mean(abs(time / row[-1] - 1) for row, (_, time, _) in found.items()) < 0.1


@pytest.mark.parametrize(("gpu", "library", "measured_ms"), DEEPSEEK)
def test_servers_of_deepseek_lie_in_their_ranges(gpu: str, library: str, measured_ms: float) -> None:
    low, time, high = mean_of_steps("deepseek-v3", gpu, library, 1024, 4, 8)
    assert low < measured_ms < high and time == pytest.approx(measured_ms, rel=0.15)
