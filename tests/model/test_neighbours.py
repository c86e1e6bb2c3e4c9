"""One token more or less is one token more or less: no cliff where a length is no multiple of a tile."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from attnsim.api.asking import ask
from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import ALGORITHMS
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import Replay, replay

H100 = load_gpu("h100-sxm5-80gb")


def played(name: str, w: Workload) -> Replay:
    return replay(IMPLEMENTATIONS[name].build(w, H100, None), H100, Numbers())


@pytest.mark.parametrize(
    "name",
    ["fla.gla-chunk", "fla.retention-chunk", "fla.delta-net-chunk", "mamba-ssm.ssd", "sglang.gdn-chunk",
     "vllm.kda-chunk", "causal-conv1d.triton"],
)  # fmt: skip
def test_a_shorter_last_chunk_moves_no_more_bytes(name: str) -> None:
    """2 x 16 heads of 65,535 tokens took up to 20 % longer than 65,536: all blocks read what neighbours share anew."""
    w = Workload(2, 16, 65536, 128, mask=Mask.causal())
    whole, shorter = (played(name, replace(w, seq_q=n, seq_kv=n)) for n in (65536, 65535))
    assert shorter.time_s == pytest.approx(whole.time_s, rel=0.01)
    moved, less = (one.hbm_read_bytes + one.hbm_write_bytes for one in (whole, shorter))
    assert less == pytest.approx(moved, rel=1e-3)


MODELLED = [
    name
    for name, item in ALGORITHMS.items()
    if item.example.passes != "decode" and item.example.latent is None and "neighborhood" not in str(item.example.mask)
]


def questions() -> Iterator[tuple[str, Workload, Gpu]]:
    """Sixty questions of many waves of thread blocks, over mechanisms, lengths and GPUs."""
    draw = random.Random(60)
    for number in range(60):
        example = ALGORITHMS[MODELLED[number % len(MODELLED)]].example
        seq = draw.choice((4096, 4097, 6000, 8192))
        yield (
            MODELLED[number % len(MODELLED)],
            replace(example, batch=4, seq_q=seq, seq_kv=seq),
            load_gpu(draw.choice(("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "l40s"))),
        )


def grown(one: Schedule, two: Schedule, times: Replay) -> float:
    """Seconds that the tiles of a longer schedule add: the larger of what its kernels multiply and move in excess."""
    shares = (
        max(second.total(amount) / max(1, first.total(amount)) for amount in ("flops", "bytes")) - 1
        for first, second in zip(one.kernels, two.kernels, strict=True)
    )
    return sum(kernel.time_s * max(0.0, share) for kernel, share in zip(times.kernels, shares, strict=True))


def test_one_token_more_or_less_is_a_hundredth_or_a_tile_of_each_kernel() -> None:
    asked, beyond = 0, set()
    for name, w, gpu in questions():
        try:
            record, plain = ask(w, gpu, name).record, ALGORITHMS[name].question(w)
        except InputError:  # no kernel of the mechanism on that GPU
            continue
        schedules = [
            record.build(replace(plain, seq_q=n, seq_kv=n), gpu, None) for n in range(w.seq_q - 1, w.seq_q + 2)
        ]
        times = [replay(schedule, gpu, Numbers()) for schedule in schedules]
        asked += 1
        for (one, less), (two, more) in pairwise(zip(schedules, times, strict=True)):
            block = sum(kernel.time_s / max(1.0, kernel.waves) for kernel in more.kernels)
            if abs(more.time_s - less.time_s) > max(0.01 * less.time_s, block + grown(one, two, more)):
                beyond.add((name, gpu.id))
    assert asked >= 45 and not beyond
