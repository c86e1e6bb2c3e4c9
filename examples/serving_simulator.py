"""A serving simulator in thirty lines: chunked prefill and continuous batching, each step as long as attnsim predicts.

python examples/serving_simulator.py
"""

from __future__ import annotations

import random
import time

from attnsim.api.step_predictor import StepPredictor

BUDGET, SEQUENCES = 2048, 64
rng = random.Random(0)
waiting = [(rng.randrange(200, 4000), rng.randrange(50, 300)) for _ in range(96)]  # prompt and output of each request
predictor = StepPredictor("llama-3-8b", "h100-sxm5-80gb")
running: list[list[int]] = []  # prompt tokens left, cached tokens, output tokens left
now, steps, asked = 0.0, 0, 0.0
while waiting or running:
    while waiting and len(running) < SEQUENCES:
        prompt, output = waiting.pop()
        running.append([prompt, 0, output])
    left, batch = BUDGET, []
    for one in running:
        new = min(left, one[0] or 1)
        if new:
            batch.append((one, new))
            left -= new
    begun = time.perf_counter()
    now += predictor([(new, one[1]) for one, new in batch])
    asked += time.perf_counter() - begun
    steps += 1
    for one, new in batch:
        one[1] += new
        if one[0]:
            one[0] -= new
        else:
            one[2] -= 1
    running = [one for one in running if one[2] > 0]
print(
    f"{steps} steps take {now:.2f} s; {len(predictor.seen)} of them were replayed, {1e3 * asked / steps:.1f} ms a step"
)
