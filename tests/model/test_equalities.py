"""Every implementation on questions drawn for it: bytes of its replay between two bounds, and tensors that flow.

An implementation that is added is checked without anybody remembering to.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS, ImplementationNumbers, Numbers
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.documents import Neighborhood
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import running
from attnsim.models.mechanisms.choosing import choose_implementation
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay
from tests.model.bounds import compulsory, requested, roofline_time

SHAPES = 6
OF_SEQUENCES = ("flashinfer.pod", "flashinfer.pod-streams", "flashinfer.pod-serial", "flashinfer.cascade")
"""Kernels of sequences that differ or share a prefix, in test_lengths.py."""
DRAWS = 4000
"""Shapes drawn to find those that an implementation takes; few are as choosy as one in two hundred."""
GPUS = tuple(load_gpu(name) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb"))
BANDS = (
    Mask.full(),
    Mask.causal(),
    Mask.sliding_window(70),
    Mask.sliding_window(33, causal=False),
    Mask(left=9, right=4),
)
PATTERNS = (
    Mask.longformer(60, 3),
    Mask.blocks(64, ((0, 1), (2, 0), (1, 3))),
    Mask.parse("random 2x384"),
    Mask.parse("causal, document 333"),
)
GRIDS = (
    (200, "neighborhood 200 window 31"),
    (301, "neighborhood 301 window 64 stride 8"),
    (130, "neighborhood 13x10 window 5x3"),
    (333, "neighborhood 9x37 window 4x20 stride 2x5"),
    (210, "neighborhood 5x6x7 window 3x3x5"),
)
"""Tokens of a grid in one to three dimensions, none a whole number of tiles, and the windows about them."""
BEST = ImplementationNumbers(**dict.fromkeys(IMPLEMENTATION_NUMBERS, 0.0))
"""No wait at all."""


def drawn(example: Workload, record: Implementation, draw: random.Random) -> Workload:
    """Any shape of the mechanism's kind: ragged, grouped, Nq != Nk, few queries, V of another width."""
    passes = example.passes if example.passes != "fwd" else draw.choice(record.passes)
    seq_q = draw.choice([1, 1, 2, 7]) if passes == "decode" else draw.choice([1, 17, 64, 129, 200, 256, 301, 333, 768])
    seq_kv = draw.choice([65, 640, 1000, 1500]) if passes == "decode" else draw.choice([seq_q, seq_q, 60, 333])
    head_dim = example.head_dim if example.latent else draw.choice([40, 64, 64, 96, 128, 128, 192, 256])
    heads_kv = draw.choice([1, 2, 16, 64]) if example.latent else draw.choice([1, 2])
    w = Workload(
        batch=draw.choice([1, 2]),
        heads_q=heads_kv * (1 if example.latent else draw.choice([1, 1, 2, 3, 7])),
        seq_q=seq_q,
        head_dim=head_dim,
        heads_kv=heads_kv,
        seq_kv=seq_kv,
        head_dim_v=example.head_dim_v if example.latent else draw.choice([head_dim, head_dim, 64]),
        dtype=draw.choice(record.dtypes) if "bwd" not in passes else "bf16",
        passes=passes,
        mask=draw.choice([*BANDS, *(PATTERNS if record.patterns else ())]),
        dropout=example.dropout or draw.random() < 0.1,
        latent=example.latent,
    )
    if any(isinstance(part, Neighborhood) for part in example.mask.parts):
        grid, mask = draw.choice(GRIDS)
        return replace(w, seq_q=grid, seq_kv=grid, mask=Mask.parse(mask))
    if example.selection is None or example.selection.block == 1:
        return w
    block = min(example.selection.block, draw.choice((32, 64)))
    blocks = -(-w.seq_q // block)
    return replace(w, selection=replace(example.selection, top=draw.randint(1, blocks), block=block))


def questions(record: Implementation) -> Iterator[tuple[Workload, Gpu]]:
    """Questions that the implementation answers, by its mechanisms and on its GPUs in turn, the same at every run."""
    draw, found = random.Random(record.name), 0
    runs = [(mechanism, gpu) for mechanism in running(record) for gpu in GPUS if runs_on(record, gpu)]
    for number in range(DRAWS):
        mechanism, gpu = runs[number % len(runs)]
        try:
            w = mechanism.question(drawn(mechanism.example, record, draw))
            choose_implementation(mechanism, record, w, gpu)
            record.build(w, gpu, None)
        except InputError:
            continue
        yield w, gpu
        found += 1
        if found == SHAPES:
            return
    raise AssertionError(f"{record.name}: {found} of {DRAWS} shapes drawn are played; draw others")


@pytest.mark.parametrize("name", [name for name in IMPLEMENTATIONS if name not in OF_SEQUENCES])
def test_a_replay_asks_for_the_bytes_of_the_stream_and_keeps_between_its_bounds(name: str) -> None:
    record = IMPLEMENTATIONS[name]
    for w, gpu in questions(record):
        told = f"{gpu.id}: {w}"
        schedule = record.build(w, gpu, None)
        exact = replay(schedule, gpu.replace("sm.count", 3), Numbers(), mode="exact", cache="cold")
        for kernel, seen in zip(schedule.kernels, exact.kernels, strict=True):
            assert seen.requested == kernel.requested(), f"{kernel.name}, {told}"
        fast = [
            replay(schedule, gpu, Numbers(one), cache="cold", launch="kernel")
            for one in (BEST, Numbers().implementation)
        ]
        for played in (exact, *fast):
            moved = played.hbm_read_bytes + played.hbm_write_bytes
            assert compulsory(schedule) <= moved * (1 + 1e-9) <= requested(schedule) * (1 + 2e-9), told
            assert played.l2_bytes == requested(schedule), told
        assert min(played.time_s for played in fast) >= roofline_time(schedule, w, gpu) * (1 - 1e-9), told
