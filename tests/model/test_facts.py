"""Schedules do what the libraries' public sources say: `facts.toml`, typed from those and not from this package."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from attnsim import Mask, Workload, load_gpu
from attnsim.models.implementations.registry import IMPLEMENTATIONS
from attnsim.models.schedule.schedule import Kernel, Schedule

TABLE = tomllib.loads(Path(__file__).with_name("facts.toml").read_text(encoding="utf-8"))["source"]
FACTS = [(source["at"], *fact) for source in TABLE for fact in source["facts"]]
PLACES = {"first": 0, "third": 2, "fourth": 3, "last": -1}
WORDS: dict[str, dict[str, Any]] = {
    "causal": {"mask": Mask.causal()},
    "decode": {"passes": "decode"},
    "bwd": {"passes": "bwd"},
    "dropout": {"dropout": True},
    "fp8": {"dtype": "fp8"},
    "MLA": {"head_dim": 192, "head_dim_v": 128, "latent": "512x64"},
    "neighborhood": {"mask": Mask.parse("neighborhood 64x64 window 13x13")},
    "MoBA": {"selection": "top 4x512"},
}


def workload(text: str) -> Workload:
    """`heads=16 seq=2048 head_dim=128 causal` as a question in bf16."""
    asked: dict[str, Any] = {"dtype": "bf16"}
    for word in text.split():
        name, _, value = word.partition("=")
        asked |= {name: int(value)} if value else WORDS[name]
    return Workload(**asked)


def kernel_value(kernel: Kernel, name: str) -> float:
    return {
        "threads": kernel.threads,
        "grid": kernel.blocks,
        "smem": kernel.shared_memory_bytes / 1024,
        "multicast": kernel.multicast,
        "exps": kernel.total("exps"),
    }[name]


def overlaps(ops: list[tuple[str, str]]) -> bool:
    """Whether a softmax stands between a product with V and the wait for it."""
    product, wait = ("mma_async", "O"), ("mma_wait", "O")
    return product in ops and ops.index(product) < ops.index(("vector", "P")) < ops.index(wait)


def value(schedule: Schedule, field: str) -> object:
    """What a schedule says of a field of the table."""
    place, _, name = field.rpartition(".")
    if place:
        named = [kernel for kernel in schedule.kernels if kernel.name == place]
        return kernel_value(named[0] if named else schedule.kernels[PLACES[place]], name)
    said_tiles = re.findall(r"(backward )?(\d+) x (\d+)", str(schedule.tile))
    tiles = {bool(back): f"{m}x{n}" for back, m, n in reversed(said_tiles)}
    found: dict[str, object] = {
        "tile": tiles.get(False),
        "back": tiles.get(True),
        "splits": schedule.splits.count,
        "kernels": len(schedule.kernels),
        "rows": int(said_tiles[0][1]) if said_tiles else None,
        "overlap": any(overlaps([op[:2] for op in part.ops]) for part in schedule.main.segments),
        "lpt": "longest_first" in getattr(getattr(schedule.tile, "forward", None), "order", ""),
        "ahead": sum(op[:2] == ("load", "O partial") for op in schedule.kernels[-1].segments[0].ops),
        "products": sum(kernel.total("flops") > 0 for kernel in schedule.kernels),
    }
    if name in ("parts", "stages"):
        said = re.search(rf"(\d+) {name}", schedule.tile_text)
        return int(said[1]) if said else 1
    return found[name] if name in found else kernel_value(schedule.main, name)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact[2]}:{fact[4]}".replace(" ", "_"))
def test_schedule_is_what_the_source_says(fact: tuple[str, ...]) -> None:
    """A known gap stands there with what is built instead: who closes it takes both out of the table."""
    at, line, name, gpu, question, expected, *gap = fact
    schedule = IMPLEMENTATIONS[name].build(workload(question), load_gpu(gpu), None)
    wanted = dict(word.split("=") for word in expected.split()) | dict(
        word.split("=") for word in "".join(gap[:1]).split()
    )
    wrong = [
        f"{field} is {found}; {at}:{line} says {expected}"
        for field, want in wanted.items()
        if (found := value(schedule, field)) != (float(want) if want.isdigit() else want)
    ]
    assert not wrong, [*wrong, *gap[1:]]


WHOLE = [fact for fact in FACTS if not any(word in fact[4] for word in ("MLA", "MoBA", "window"))]


@pytest.mark.parametrize(
    "fact", [fact for fact in WHOLE if "mamba" not in fact[2]], ids=lambda fact: f"{fact[2]}:{fact[1]}"
)
def test_memory_gives_and_takes_every_tensor_once_at_least(fact: tuple[str, ...]) -> None:
    """Compulsory bytes of Q, K, V and O are the tensors' own, whatever the tile, and no fewer are asked for.

    An asynchronous product is waited for once.
    """
    w = workload(fact[4])
    main = IMPLEMENTATIONS[fact[2]].build(w, load_gpu(fact[3]), None).main
    rows, keys = w.batch * w.heads_q * w.seq_q, w.batch * w.heads_kv * w.seq_kv
    sizes = {
        "Q": rows * w.head_dim * w.element_bytes,
        "O": rows * w.head_dim_v * w.output_bytes,
        "K": keys * w.head_dim * w.element_bytes,
        "V": keys * w.head_dim_v * w.element_bytes,
    }
    for use in main.uses:
        if use.tensor in sizes:
            asked = main.requested()["store" if use.written else "load", use.tensor]
            assert use.unique_bytes == sizes[use.tensor] <= asked, use.tensor
    unwaited = [sum((op.kind == "mma_async") - (op.kind == "mma_wait") for op in part.ops) for part in main.segments]
    assert main.executions @ unwaited == 0
