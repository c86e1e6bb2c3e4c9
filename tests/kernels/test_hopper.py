"""The Hopper kernel in the interpreter: right, with its schedule's work, and stopped without any one of its waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.errors import InputError
from attnsim.kernels.arrays import exercise_attention
from attnsim.kernels.cpu_device import CpuDevice
from attnsim.kernels.device import Array, Grid
from attnsim.kernels.gpu import probe_kernels
from attnsim.kernels.hopper import flash_hopper, variants
from attnsim.kernels.variant import CUDA, Variant, compile_variant
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.fused.order import section_heads
from attnsim.models.implementations.own.hopper import build, tile_of
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.references.softmax import attention
from attnsim.models.schedule.schedule import Schedule
from attnsim.ptx import faults
from attnsim.ptx.bulk_copies import BulkCopies
from attnsim.ptx.counters import decode, encode
from attnsim.ptx.nvrtc import Compiled, find_nvrtc
from attnsim.ptx.outcome import TOLERANCE, Outcome
from attnsim.ptx.parse import parse
from attnsim.ptx.recording import Recorder

label = attrgetter("label")
AssertMatches = Callable[[CpuDevice, Schedule], None]

GPU = "h100-sxm5-80gb"
WINDOW = Mask.sliding_window(150, causal=False)

CASES: dict[str, Workload] = {
    "one query, one key": Workload(1, 1, 1, 64, dtype="fp16"),
    "700, clusters, two heads a key head": Workload(1, 2, 700, 128, heads_kv=1, seq_kv=400, dtype="fp16"),
    "one query, 500 keys": Workload(1, 2, 1, 128, seq_kv=500),
    "63": Workload(2, 1, 63, 128, dtype="fp16"),
    "127": Workload(1, 2, 127, 64),
    "128, whole tiles": Workload(1, 1, 128, 128, seq_kv=256, dtype="fp16"),
    "200 causal, grouped": Workload(1, 4, 200, 64, heads_kv=2, mask=Mask.causal()),
    "500, three turns of the ring": Workload(1, 1, 500, 64, seq_kv=700, dtype="fp16"),
    "200, three turns of 176 keys": Workload(1, 1, 200, 128, seq_kv=900, dtype="fp16"),
    "500 causal": Workload(1, 2, 500, 128, heads_kv=1, dtype="fp16", mask=Mask.causal()),
    "two batches, one key head": Workload(2, 3, 130, 64, heads_kv=1, seq_kv=129),
    "more keys than queries, causal": Workload(1, 2, 70, 128, seq_kv=301, mask=Mask.causal()),
    "more queries than keys, causal": Workload(1, 1, 500, 64, seq_kv=40, mask=Mask.causal()),
    "window, causal": Workload(1, 1, 300, 128, seq_kv=900, mask=Mask.sliding_window(170)),
    "window, both ways": Workload(1, 2, 400, 64, heads_kv=1, dtype="fp16", mask=WINDOW),
    "window of one key": Workload(1, 1, 200, 64, mask=Mask.sliding_window(1)),
    "left reach alone": Workload(1, 1, 260, 128, dtype="fp16", mask=Mask(left=40)),
}


def few(sms: int) -> CpuDevice:
    """A GPU of few SMs, whose blocks take several row tiles."""
    return CpuDevice(load_gpu(GPU).replace({"sm.count": sms}))


@pytest.mark.parametrize("case", CASES)
def test_right_and_with_the_work_of_its_schedule(case: str, assert_matches_schedule: AssertMatches) -> None:
    w, device = CASES[case], few(2)
    ran = exercise_attention(flash_hopper, device, w, seed=len(case))
    assert ran.largest_error() <= TOLERANCE[w.dtype], ran.errors()
    schedule, tile = build(w, device.gpu, None), tile_of(w)
    assert_matches_schedule(device, schedule)
    counters = device.launches[0].counters
    assert counters.tensor_flops == schedule.total("flops")
    steps = counters.tensor_flops // (4 * tile.rows * tile.keys * w.head_dim)
    assert counters.exponentials == schedule.total("exps") + 3 * tile.rows * steps  # four lanes share a row, each works
    assert counters.shared_bytes_loaded == schedule.total("smem_bytes")
    assert counters.bank_conflicts == counters.local_bytes == 0


class FirstBlocks(CpuDevice):
    """Plays only the first blocks of a grid."""

    def __init__(self, count: int) -> None:
        super().__init__(GPU)
        self.count = count

    def launch(self, variant: Variant, grid: Grid, arguments: Mapping[str, Array]) -> None:
        recorder = Recorder(parse(compile_variant(variant, "90a", cubin=False).ptx)[variant.entry])
        for block in range(self.count):
            recorder.block(block, grid, (variant.threads, 1, 1), arguments, variant.shared_memory_bytes)


LONG = 1 << 16
"""Keys of which two heads and no more fit a section of the launch order."""


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8])
def test_blocks_come_in_the_schedules_order(count: int) -> None:
    """Longest first in sections of two heads: of three heads and three row tiles, (0, 2), (1, 2), (0, 1) ... (2, 2)."""
    w = Workload(1, 3, 500, 64, seq_kv=LONG, dtype="fp16", mask=Mask(left=30, right=0))
    assert section_heads(w, tile_of(w), 3) == 2
    order = [(0, 2), (1, 2), (0, 1), (1, 1), (0, 0), (1, 0), (2, 2), (2, 1), (2, 0)]
    q, kv = np.ones((1, 3, 500, 64), np.float16), np.zeros((1, 3, LONG, 64), np.float16)
    device = FirstBlocks(count)
    o, lse = flash_hopper(device, q, kv, kv, mask=w.mask)
    written = ~np.isnan(lse[0, :, ::192])
    assert [(int(head), int(tile)) for head, tile in np.argwhere(written)] == sorted(order[:count])
    assert (decode(o)[0, written.nonzero()[0], 192 * written.nonzero()[1]] == 0).all()
    kernel = build(w, device.gpu, None).kernels[0]
    classes = [block for launch in kernel.launches for block in np.tile(launch.classes, launch.times)]
    ragged = [any("short" in name for name in _segments(kernel, block)) for block in classes]
    assert ragged == [tile == 2 for _, tile in order]


def _segments(kernel: Any, block: int) -> list[str]:
    repeats = kernel.repeats[block].sum(axis=0)
    return [segment.name for segment, times in zip(kernel.segments, repeats, strict=True) if times]


def test_full_attention_walks_head_by_head() -> None:
    q = np.ones((1, 2, 500, 64), np.float16)
    _, lse = flash_hopper(FirstBlocks(4), q, q[:, :1, :64].copy(), q[:, :1, :64].copy())
    assert np.argwhere(~np.isnan(lse[0, :, ::192])).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]


def test_blocks_that_stay_take_every_so_manieth_row_tile() -> None:
    """A grid is whole clusters; of eight row tiles the first of two blocks takes every second."""
    w = Workload(1, 2, 500, 128, seq_kv=400, dtype="fp16")
    counts = []
    for sms in (1, 2, 3, 8, 9):
        device = few(sms)
        ran = exercise_attention(flash_hopper, device, w)
        assert ran.largest_error() <= TOLERANCE["fp16"], ran.errors()
        counts.append(device.launches[0].grid[0])
    assert counts == [2, 2, 2, 8, 8]  # clusters of two
    q = np.ones((1, 2, 500, 128), np.float16)
    device = FirstBlocks(1)
    device.gpu = few(3).gpu
    _, lse = flash_hopper(device, q, q[:, :1, :64].copy(), q[:, :1, :64].copy())
    assert np.argwhere(~np.isnan(lse[0, :, ::128])).tolist() == [[0, 0], [0, 2], [1, 0], [1, 2]]


RANDOM = np.random.default_rng(7)
Q, K, V = (RANDOM.standard_normal((300, 64)) for _ in range(3))


def attended(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], mask: Mask, dtype: str = "fp16") -> Outcome:
    """Given values, not random ones, through kernel and reference."""
    inputs = tuple(encode(array[None, None], dtype) for array in (q, k, v))
    o, lse = flash_hopper(CpuDevice(GPU), *inputs, mask=mask)
    expected_o, expected_lse = attention(decode(inputs[0]), decode(inputs[1]), decode(inputs[2]), mask)
    return Outcome({"O": decode(o), "LSE": decode(lse)}, {"O": expected_o, "LSE": expected_lse})


@pytest.mark.parametrize(
    ("q", "k"),
    [
        (Q * 40, K * 40),  # scores of 1e4
        (np.zeros_like(Q), K),  # all scores alike
        (Q, np.where(np.arange(300)[:, None] == 77, 60.0, K)),  # one key dwarfs the rest, in the tile visited last
        (-np.abs(Q) * 30, np.abs(K) * 30),  # only very negative scores
        (np.ones_like(Q), np.linspace(30, 0, 300)[:, None] * np.ones((1, 64))),  # a maximum that grows tile by tile
    ],
    ids=["huge", "equal", "one key", "negative", "growing"],
)
@pytest.mark.parametrize("mask", [Mask(), Mask.causal()], ids=str)
def test_adversarial_scores(q: NDArray[Any], k: NDArray[Any], mask: Mask) -> None:
    ran = attended(q, k, V, mask)
    assert ran.largest_error() <= TOLERANCE["fp16"], ran.errors()


@pytest.mark.parametrize("mask", [Mask.causal(), Mask.sliding_window(20)], ids=str)
def test_rows_without_keys_are_zero(mask: Mask) -> None:
    """Whole blocks, a whole warpgroup and part of one see nothing."""
    ran = attended(np.tile(Q, (2, 1))[:500], K[:60], V[:60], mask, "bf16")
    assert (ran.outputs["O"][0, 0, :440] == 0).all()
    assert np.isneginf(ran.outputs["LSE"][0, 0, :440]).all()
    assert ran.largest_error() <= TOLERANCE["bf16"], ran.errors()


K_WAIT, V_WAIT = (f"mbarrier_wait(pipe.{t}_full(slot.stage), slot.parity);" for t in "kv")
K_EMPTY, V_EMPTY = (f"wait_empty(pipe.{t}_empty(slot.stage), slot.parity ^ 1);" for t in "kv")
Q_EMPTY = "mbarrier_wait(pipe.q_empty(), turn % 2 ^ 1);"
Q_RELEASE = "    if (threadIdx.x % 128 == 0) mbarrier_arrive(pipe.q_empty());\n"
LATER_K, LATER_V = f"{K_WAIT}\n        take_turn", f"{V_WAIT}  // a loop"
FIRST_K, FIRST_V = f"{K_WAIT}\n    multiply", f"{V_WAIT}\n\n#"
K_RELEASE = "if (leads) release(pipe.k_empty(slot.stage));\n        if"
FIRST_K_RELEASE = "if (leads) release(pipe.k_empty(slot.stage));\n    hide"
V_RELEASE = "        if (leads) release(pipe.v_empty(last));\n#"
LAST_V_RELEASE = "    if (leads) release(pipe.v_empty(slot.stage));\n    slot"
O_WAIT = "        wgmma_wait<0>();\n        pin(o);\n"
LAST_O_WAIT = "    wgmma_wait<0>();\n    pin(o);\n    if"
LAST_STEP = "    multiply_values(o, p, pipe.v(slot.stage));\n    wgmma_wait<0>();\n    pin(o);\n"
SYNC = "kTurnBarrier + consumer, kConsumers * 128"


def without(text: str, part: str) -> tuple[str, str]:
    """A text, and the text less a part of it."""
    assert text.count(part) == 1
    return text, text.replace(part, "")


MUTANTS: dict[str, tuple[type[faults.Fault], str, str]] = {
    "Q not waited for": (faults.Race, "mbarrier_wait(pipe.q_full(), turn % 2);", ""),
    "Q waited for in the first phase alone": (faults.Race, "pipe.q_full(), turn % 2);", "pipe.q_full(), 0);"),
    "Q copied over": (faults.CopyInFlight, Q_EMPTY, ""),
    "Q not released": (faults.Deadlock, Q_RELEASE, ""),
    "Q released before it is used": (faults.CopyInFlight, f"    {FIRST_K}", f"{Q_RELEASE}    {FIRST_K}"),
    "Q released twice": (faults.Deadlock, Q_RELEASE, Q_RELEASE * 2),
    "first K not waited for": (faults.CopyInFlight, *without(FIRST_K, K_WAIT)),
    "later K not waited for": (faults.CopyInFlight, *without(LATER_K, K_WAIT)),
    "K waited for in the wrong phase": (
        faults.CopyInFlight,
        LATER_K,
        LATER_K.replace("parity", "parity ^ 1"),
    ),
    "first V not waited for": (faults.Race, *without(FIRST_V, V_WAIT)),
    "later V not waited for": (faults.Race, *without(LATER_V, V_WAIT)),
    "K copied over": (faults.MisusedMbarrier, K_EMPTY, ""),
    "V copied over": (faults.MisusedMbarrier, V_EMPTY, ""),
    "producer in the wrong phase": (faults.Deadlock, K_EMPTY, K_EMPTY.replace(" ^ 1", "")),
    "first K not released": (faults.Deadlock, FIRST_K_RELEASE, "hide"),
    "K not released": (faults.Deadlock, K_RELEASE, "if"),
    "V not released": (faults.Deadlock, V_RELEASE, "#"),
    "last V not released": (faults.Deadlock, LAST_V_RELEASE, "slot"),
    "V released before it is used up": (faults.Race, O_WAIT + V_RELEASE, V_RELEASE[:-1] + O_WAIT + "#"),
    "last V released before it is used up": (
        faults.Race,
        LAST_STEP + LAST_V_RELEASE,
        LAST_V_RELEASE[:-4] + LAST_STEP + "slot",
    ),
    "released by one consumer for all": (
        faults.MisusedMbarrier,
        "k_empty(stage), kCluster * kConsumers)",
        "k_empty(stage), 1)",
    ),
    "S not waited for": (faults.RegisterInFlight, "wgmma_wait<1>();", ""),
    "S waited for too loosely": (faults.RegisterInFlight, "wgmma_wait<1>();", "wgmma_wait<2>();"),
    "O not waited for": (faults.RegisterInFlight, f"{O_WAIT}        if", "pin(o); if"),
    "last O not waited for": (faults.RegisterInFlight, LAST_O_WAIT, "    pin(o);\n    if"),
    "no fence before P V": (faults.RegisterInFlight, "pin(o);\n    wgmma_fence();", "pin(o);"),
    "mbarriers not shown": (faults.MisusedMbarrier, "mbarrier_init_fence();", ""),
    "no meeting after the start": (faults.MisusedMbarrier, "__syncthreads();", ";"),
    "nobody goes first": (faults.Deadlock, "open_turns(consumer);", ""),
    "turn kept": (faults.Deadlock, "pass_turn(consumer);", ""),
    "turns of two lengths": (faults.DivergentBarrier, f"sync({SYNC}", "sync(kTurnBarrier + consumer, 128"),
    "turns opened for every row tile": (faults.DivergentBarrier, Q_RELEASE, Q_RELEASE + "    open_turns(consumer);\n"),
    "one tile too many": (faults.CopyInFlight, "tiles.first; --tile, slot", "tiles.first - 1; --tile, slot"),
}


CLUSTER_MUTANTS: dict[str, tuple[type[faults.Fault], str, str]] = {
    "no meeting at the beginning": (
        faults.MisusedMbarrier,
        "        cluster_sync();\n\n",
        "        __syncthreads();\n\n",
    ),
    "no meeting at the end": (faults.MisusedMbarrier, "if (kCluster > 1) cluster_sync();", ""),
    "lets go of its own buffers alone": (
        faults.Race,
        "(barrier, threadIdx.x % 128);",
        "(barrier, blockIdx.x % 2);",
    ),
    "one of its threads arrives": (faults.Deadlock, "threadIdx.x % 128 < kCluster", "threadIdx.x % 128 < 1"),
    "counts on its own consumers": (
        faults.MisusedMbarrier,
        "k_empty(stage), kCluster * kConsumers",
        "k_empty(stage), kConsumers",
    ),
    "copies a slab to itself alone": (faults.Deadlock, "(1 << kCluster) - 1", "1 << slab"),
    "both copy the first slab": (faults.UninitialisedRead, "slab = blockIdx.x % kCluster", "slab = 0"),
    "announces its own slab alone": (
        faults.CopyInFlight,
        "expect(barrier, KeyTile::kBytes)",
        "expect(barrier, KeyTile::kSlabBytes)",
    ),
    "K copied over": (faults.MisusedMbarrier, K_EMPTY, ""),
}


def stopped(
    fault: type[faults.Fault], old: str, new: str, sms: int, w: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel with a part of it changed is stopped for the right reason."""
    source = (CUDA / "hopper.cu").read_text(encoding="utf-8")
    assert source.count(old) == 1, "not in the kernel any more"

    def compile_mutant(variant: Variant, arch: str, *, cubin: bool) -> Compiled:
        options = [*variant.options, f"-arch=compute_{arch}"]
        return Compiled(find_nvrtc().compile(source.replace(old, new), variant.source, options).ptx, b"", "")

    monkeypatch.setattr("attnsim.kernels.cpu_device.compile_variant", compile_mutant)
    with pytest.raises(fault):
        exercise_attention(flash_hopper, few(sms), w)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_synchronisation_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(*MUTANTS[name], 1, Workload(1, 1, 384, 64, seq_kv=600, dtype="fp16"), monkeypatch)


@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_every_synchronisation_of_a_cluster_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(*CLUSTER_MUTANTS[name], 2, Workload(1, 1, 512, 128, seq_kv=600, dtype="fp16"), monkeypatch)


def test_right_when_copies_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere they come when nothing else can go on."""
    begin = BulkCopies.begin

    def begin_and_end(copies: BulkCopies, *arguments: Any) -> None:
        begin(copies, *arguments)
        while copies.land_oldest():
            pass

    monkeypatch.setattr(BulkCopies, "begin", begin_and_end)
    ran = exercise_attention(flash_hopper, few(2), CASES["500, three turns of the ring"])
    assert ran.largest_error() <= TOLERANCE["fp16"], ran.errors()


@pytest.mark.parametrize("one", variants(), ids=label)
def test_the_assembler_keeps_wgmma_asynchronous_and_spills_nothing(one: Variant) -> None:
    """C7510 says that wgmma is serialised, C7519 that a fence has to be added."""
    compiled = compile_variant(one, "90a")
    found = compiled.resources(one.entry)
    assert (found.spill_bytes, found.stack_bytes) == (0, 0)
    assert "C75" not in compiled.log


def test_microbenchmark_of_wgmma_does_what_it_is_credited_with() -> None:
    device = CpuDevice(GPU)
    for rounds in (1, 3):
        probe_kernels.spin(device, "probe_wgmma", rounds=rounds, blocks=2)
    few, many = (one.counters.tensor_flops for one in device.launches)
    assert many - few == 2 * probe_kernels.work_of("probe_wgmma", rounds=2)


def test_what_does_not_fit_is_refused() -> None:
    q = np.zeros((1, 1, 64, 64), np.float16)
    with pytest.raises(InputError, match=r"needs compute capability 9\.0 \(H100, H200 or GH200\)"):
        flash_hopper(CpuDevice("a100-sxm4-80gb"), q, q, q)
    wide = np.zeros((1, 1, 64, 256), np.float16)
    with pytest.raises(InputError, match="head_dim is 256; this kernel takes 64, 128"):
        flash_hopper(CpuDevice(GPU), wide, wide, wide)
    with pytest.raises(InputError, match=r"scale is 0.*; allowed: more than 0"):
        flash_hopper(CpuDevice(GPU), q, q, q, scale=0.0)
    with pytest.raises(InputError, match=r"head_dim 64 and 128, not 256/256; take attnsim.flash"):
        build(Workload(1, 1, 64, 256), CpuDevice(GPU).gpu, None)
