"""A serving simulator in thirty lines: chunked prefill and continuous batching, each step as long as attnsim predicts.

python examples/serving_simulator.py [TRACE]

TRACE has requests, as `attnsim serving` reads them; without one 96 requests come at once.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from attnsim.api.requests import Request, read_requests
from attnsim.api.step_predictor import StepPredictor

BUDGET, SEQUENCES = 2048, 64
rng = random.Random(0)
made = [Request(0.0, rng.randrange(200, 4000), rng.randrange(50, 300)) for _ in range(96)]
waiting = list(read_requests(Path(sys.argv[1])) if len(sys.argv) > 1 else made)[::-1]  # by arrival, the last first
predictor = StepPredictor("llama-3-8b", "h100-sxm5-80gb")
running: list[list[int]] = []  # prompt tokens left, cached tokens, output tokens left
now, steps, asked = 0.0, 0, 0.0
while waiting or running:
    now = max(now, waiting[-1].arrival_s) if not running else now
    while waiting and waiting[-1].arrival_s <= now and len(running) < SEQUENCES:
        request = waiting.pop()
        running.append([request.prompt, 0, request.output])
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
        one[0] -= min(new, one[0])
        one[2] -= not one[0]
    running = [one for one in running if one[2] > 0]
print(
    f"{steps} steps take {now:.2f} s; {len(predictor.seen)} of them were replayed, {1e3 * asked / steps:.1f} ms a step"
)
