"""Closed form == sum of the tile stream == exact replay, for every mechanism of the registry on 20 shapes each.

`test_cost.py` goes through the implementations, this through the registry: a mechanism that is added is checked without
anybody remembering to.
"""

import random
from dataclasses import replace
from functools import lru_cache

import pytest

from attnsim.errors import InputError
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.closed_forms.cost import cost_of
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mask.neighborhood import Neighborhood
from attnsim.models.mechanisms import MECHANISMS, Mechanism
from attnsim.models.mechanisms.choosing import choose_implementation
from attnsim.models.question.workload import Workload
from attnsim.simulator.replay import replay

SHAPES = 20
DRAWS = 4000
"""Shapes drawn to find those that a mechanism's kernels take; few are as choosy as one in two hundred."""
GPUS = tuple(load_gpu(name) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb"))
BANDS = (
    Mask.full(),
    Mask.causal(),
    Mask.sliding_window(70),
    Mask.sliding_window(33, causal=False),
    Mask(left=9, right=4),
)
PATTERNS = (Mask.longformer(60, 3), Mask.blocks(64, ((0, 1), (2, 0), (1, 3))))
GRIDS = (
    (200, "neighborhood 200 window 31"),
    (301, "neighborhood 301 window 64 stride 8"),
    (130, "neighborhood 13x10 window 5x3"),
    (333, "neighborhood 9x37 window 4x20 stride 2x5"),
    (210, "neighborhood 5x6x7 window 3x3x5"),
)
"""Tokens of a grid in one to three dimensions, none a whole number of tiles, and the windows about them."""
PLAYED = {name: item for name, item in MECHANISMS.items() if item.implementations}


def drawn(record: Mechanism, draw: random.Random) -> Workload:
    """Any shape of the mechanism's kind: ragged, grouped, Nq != Nk, few queries, V of another width."""
    example = record.example
    passes = draw.choice(["fwd", "fwd", "decode", "bwd", "fwd+bwd"])
    if example.passes != "fwd":
        passes = example.passes
    seq_q = draw.choice([1, 1, 2, 7]) if passes == "decode" else draw.choice([1, 17, 64, 129, 200, 256, 301])
    seq_kv = draw.choice([65, 640, 1000, 1500]) if passes == "decode" else draw.choice([seq_q, seq_q, 60, 333])
    head_dim = draw.choice([40, 64, 64, 96, 128, 128, 192, 256])
    heads_kv = draw.choice([1, 2])
    if example.latent is not None:
        head_dim = example.head_dim
    w = Workload(
        batch=draw.choice([1, 2]),
        heads_q=heads_kv * (1 if example.latent else draw.choice([1, 1, 2, 3, 7])),
        seq_q=seq_q,
        head_dim=head_dim,
        heads_kv=heads_kv,
        seq_kv=seq_kv,
        head_dim_v=example.head_dim_v if example.latent else draw.choice([head_dim, head_dim, 64]),
        dtype="fp8" if example.dtype == "fp8" else draw.choice(["fp16", "bf16"]),
        passes=passes,
        mask=draw.choice([*BANDS, *(PATTERNS if record.group == "sparse" else ())]),
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


@lru_cache
def shapes(name: str) -> tuple[tuple[Workload, Implementation, Gpu], ...]:
    """Twenty questions that the mechanism's implementations answer in turn, the same at every run."""
    record, draw = PLAYED[name], random.Random(name)
    runs = [
        (implementation, gpu)
        for implementation in (IMPLEMENTATIONS[name] for name in record.implementations)
        for gpu in GPUS
        if runs_on(implementation, gpu)
    ]
    found: list[tuple[Workload, Implementation, Gpu]] = []
    for number in range(DRAWS):
        implementation, gpu = runs[number % len(runs)]
        try:
            w = record.question(drawn(record, draw))
            choose_implementation(record, implementation, w, gpu)
            implementation.build(w, gpu, None)
        except InputError:
            continue
        found.append((w, implementation, gpu))
        if len(found) == SHAPES:
            return tuple(found)
    raise AssertionError(f"{name}: {len(found)} of {DRAWS} shapes drawn are played; draw others")


@pytest.mark.parametrize("name", PLAYED)
def test_closed_form_stream_and_exact_replay_are_equal(name: str) -> None:
    for w, implementation, gpu in shapes(name):
        told = f"{implementation.name} on {gpu.id}: {w}"
        schedule = implementation.build(w, gpu, None)
        form = cost_of(w, schedule)
        assert dict(form.requested_bytes) == schedule.requested(), told
        assert form.flops_executed == schedule.total("flops"), told
        assert form.smem_bytes == schedule.total("smem_bytes"), told
        # A streaming kernel shares its exponentials out over whole blocks: up to one a block is lost.
        streaming = sum(kernel.blocks for kernel in schedule.kernels if not kernel.name.startswith("flash"))
        assert 0 <= form.exponentials - schedule.total("exps") <= streaming, told
        played = replay(schedule, gpu.replace("sm.count", 3), Numbers(), mode="exact", cache="cold")
        for kernel, seen in zip(schedule.kernels, played.kernels, strict=True):
            assert seen.requested == kernel.requested(), f"{kernel.name}, {told}"
        assert played.l2_bytes == form.no_reuse_bytes, told
        assert form.compulsory_bytes <= (played.hbm_read_bytes + played.hbm_write_bytes) * (1 + 1e-9), told
        assert played.hbm_read_bytes + played.hbm_write_bytes <= form.no_reuse_bytes * (1 + 1e-9), told


@pytest.mark.parametrize("name", PLAYED)
def test_the_shapes_are_those_that_are_easily_got_wrong(name: str) -> None:
    questions = [w for w, _, _ in shapes(name)]
    assert len(set(map(str, questions))) >= SHAPES // 2
    assert any(w.seq_q % 64 or w.seq_kv % 64 for w in questions)
