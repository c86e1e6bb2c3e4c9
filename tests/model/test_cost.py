"""What calls cost: known figures, the order of masks, and the columns of sweeps against the stream of a schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnsim.arrays import Bools, Ints
from attnsim.models.calibrations.numbers import Numbers
from attnsim.models.closed_forms.columns import ShapeTable, costs
from attnsim.models.closed_forms.useful import softmax
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.gemm import library_counts
from attnsim.models.schedule.passes import Access, streaming
from attnsim.models.schedule.schedule import Schedule
from attnsim.simulator.replay import replay
from tests.model.bounds import compulsory, requested

A100, H100 = (load_gpu(name) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb"))
MASKS = (
    Mask.full(),
    Mask.causal(),
    Mask.sliding_window(1),
    Mask.sliding_window(70),
    Mask.sliding_window(200, causal=False),
)


def build(name: str, w: Workload, gpu: Gpu = A100) -> Schedule:
    return IMPLEMENTATIONS[name].build(w, gpu, None)


def test_the_stream_of_every_class_adds_up_to_what_is_requested() -> None:
    for kernel in build("flash-attn.2", Workload(2, 4, 333, 64, 2, 500, mask=Mask.causal())).kernels:
        added: dict[tuple[str, str], int] = {}
        for block_class, count in enumerate(kernel.class_counts.tolist()):
            for segment, n in kernel.runs(block_class):
                for op in kernel.segments[segment].ops:
                    if op.bytes:
                        key = (op.kind, op.tensor)
                        added[key] = added.get(key, 0) + op.bytes * n * count
        assert added == kernel.requested()


@pytest.mark.parametrize(("passes", "kernel", "tensor"), [("fwd", "flash1_fwd", "O"), ("bwd", "flash1_bwd", "dQ")])
def test_flash_1_writes_every_causal_row_once(passes: str, kernel: str, tensor: str) -> None:
    w = Workload(1, 8, 1024, 64, dtype="fp16", passes=passes, mask=Mask.causal())
    assert build("flash-attn.1", w).requested()[kernel, "store", tensor] == 8 * 1024 * 64 * 2


def test_flash_1_reads_every_query_row_once_per_key_block() -> None:
    """485 keys are two blocks of 256."""
    assert (
        build("flash-attn.1", Workload(1, 1, 485, 64, dtype="fp16")).requested()["flash1_fwd", "load", "Q"]
        == 2 * 485 * 64 * 2
    )


def test_keys_and_values_of_one_pass() -> None:
    """Llama-3-8B at 8,192 tokens: 8 KV heads x 8192 x 128 x (K, V) x 2 bytes = 32 MiB a layer."""
    moved = build("flash-attn.3", Workload(1, 32, 1, 128, 8, 8192, passes="decode"), H100).requested()
    assert sum(n for (_, kind, tensor), n in moved.items() if kind == "load" and tensor in "KV") == 32 << 20


def test_compulsory_bytes_are_inputs_read_once_and_everything_written() -> None:
    """Unfused: each copy and S, P beside the inputs and O; what an earlier kernel made is not read from outside."""
    w = Workload(2, 8, 512, 64, 2)
    q, kv, scores = 2 * 8 * 512 * 64 * 2, 2 * 2 * 512 * 64 * 2, 2 * 8 * 512 * 512 * 2
    assert {key[1:]: size for key, size in build("torch.baddbmm", w).compulsory().items()} == {
        **{("load", "Q"): q, ("load", "K"): kv, ("load", "V"): kv},
        **{("store", "Q'"): q, ("store", "K'"): kv, ("store", "V'"): kv},
        **{("store", "S"): scores, ("store", "P"): scores, ("store", "O"): q},
    }
    split = build("flash-attn.2", Workload(1, 8, 1, 64, seq_kv=8192, passes="decode"))
    parts = split.splits.count
    out, partial = 8 * (64 * 2 + 4), parts * 8 * (64 + 1) * 4  # with the log-sum-exp of each row
    assert parts > 1 and compulsory(split) == 2 * 8 * 8192 * 64 * 2 + 8 * 64 * 2 + out + partial


def test_a_pass_in_place_reads_what_was_there_before() -> None:
    size = 1 << 20
    kernel = streaming("scale", [Access("Q", size), Access("Q", size, written=True)], elements=size)
    once = Schedule("scale", "scale", (kernel,), "", 2 * size)
    assert once.compulsory() == {("scale", "load", "Q"): size, ("scale", "store", "Q"): size}
    assert replay(once, A100, Numbers(), cache="cold").hbm_read_bytes == size
    sort = streaming("sort", [Access("Q", size, written=True), Access("Q", size)], elements=size)
    assert compulsory(replace(once, kernels=(sort, kernel))) == size


@pytest.mark.parametrize(("passes", "factor"), [("fwd", 1.0), ("decode", 1.0), ("bwd", 2.5), ("fwd+bwd", 3.5)])
def test_useful_flops_are_the_papers(passes: str, factor: float) -> None:
    """4 N^2 d heads batch forward, half of it causal (arXiv 2307.08691, section 4.1)."""
    w = Workload(2, 16, 2048, 128, passes=passes)
    assert softmax(w).flops == softmax(w).dense == factor * 4 * 2048**2 * 128 * 16 * 2
    causal = Workload(2, 16, 2048, 128, passes=passes, mask=Mask.causal())
    assert softmax(causal).flops == factor * 4 * (2048 * 2049 // 2) * 128 * 16 * 2
    assert softmax(causal).dense == softmax(w).flops


@given(
    st.integers(1, 4000),
    st.integers(1, 4000),
    st.none() | st.integers(0, 4000),
    st.none() | st.integers(0, 300),
)
def test_executed_flops_cover_the_useful_ones(seq_q: int, seq_kv: int, left: int | None, right: int | None) -> None:
    w = Workload(1, 2, seq_q, 64, seq_kv=seq_kv, mask=Mask(left, right))
    schedule = build("triton.tutorial", w)
    assert softmax(w).flops <= min(schedule.total("flops"), softmax(w).dense)
    assert compulsory(schedule) <= requested(schedule)


@given(st.integers(1, 600), st.integers(1, 400), st.integers(1, 500))
def test_masks_order_the_work_of_one_tile(seq: int, window: int, extra: int) -> None:
    """Window <= causal <= full, and a window as long as the sequence is causal."""

    def work(mask: Mask) -> tuple[int, int]:
        schedule = build("triton.tutorial", Workload(1, 1, seq, 64, mask=mask))
        return schedule.total("flops"), requested(schedule)

    window_, causal, full = work(Mask.sliding_window(window)), work(Mask.causal()), work(Mask.full())
    assert window_[0] <= causal[0] <= full[0] and window_[1] <= causal[1] <= full[1]
    assert work(Mask.sliding_window(seq + extra)) == causal


def table_row(w: Workload, rows: int, keys: int) -> list[int]:
    left, right = (-1 if reach is None else reach for reach in (w.mask.left, w.mask.right))
    shape = [w.batch, w.heads_q, w.heads_kv, w.seq_q, w.seq_kv, w.head_dim, w.head_dim_v, w.element_bytes]
    return [*shape, left, right, rows, keys]


def products(rows: Bools, batch: Ints, m: Ints, n: Ints, k: Ints, e: Ints) -> Ints:
    return library_counts(A100, "bf16", batch, m, n, k, int(e[0]))


@settings(max_examples=40, deadline=None)
@example(2, 1, Mask(199, 199), False)  # limits that nothing reaches
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from(MASKS), st.booleans())
def test_columns_are_the_sums_of_the_stream(seq_q: int, seq_kv: int, mask: Mask, fused: bool) -> None:
    w = Workload(2, 6, seq_q, 80, 2, seq_kv, 64, mask=mask)
    schedule = build("triton.tutorial" if fused else "torch.baddbmm", w)
    table = costs(ShapeTable(*np.array([table_row(w, 128 * fused, 64 * fused)] * 2).T), products)
    moved = {kind: sum(n for key, n in schedule.requested().items() if key[1] == kind) for kind in ("load", "store")}
    for field, expected in {
        "flops_useful": softmax(w).flops,
        "flops_dense": softmax(w).dense,
        "flops_executed": schedule.total("flops"),
        "load_bytes": moved["load"],
        "store_bytes": moved["store"],
        "compulsory_bytes": compulsory(schedule),
        "no_reuse_bytes": requested(schedule),
        "peak_memory_bytes": schedule.peak_memory_bytes,
    }.items():
        assert getattr(table, field).tolist() == [expected] * 2, field
    # A streaming pass shares its exponentials out over whole blocks: up to one a block is lost.
    lost = 0 if fused else sum(kernel.blocks for kernel in schedule.kernels)
    assert 0 <= table.exponentials[0] - schedule.total("exps") <= lost


def test_a_million_tokens_is_one_row_like_any_other() -> None:
    w = Workload(1, 32, 1 << 20, 128, 8, mask=Mask.causal())
    table = costs(ShapeTable(*np.array([table_row(w, 128, 64)]).T))
    assert int(table.flops_useful[0]) == softmax(w).flops
    assert int(table.flops_executed[0]) / softmax(w).flops == pytest.approx(1, abs=2e-4)
