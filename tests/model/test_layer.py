"""Projections: rates that are known; and what sharing keys must give."""

import pytest

from attnsim import Workload, attention_share, layer, load_model, predict
from attnsim.api.layer import GEMM_NUMBERS
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import find_implementation
from attnsim.models.implementations.frameworks.layer import Step, step_schedule
from attnsim.models.implementations.frameworks.projection import Product, cut
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import DTYPE_BYTES
from attnsim.simulator.replay import Replay, replay
from benchmarks.gemms import FIGURES, Figure

A100, H100, B200, T4 = (load_gpu(name) for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "t4"))
CAUSAL = Mask.causal()


def gemm(m: int, n: int, k: int, batch: int = 1) -> Step:
    return Step("GEMM", (Product("GEMM", (m, n, k), ("A", "B", "C"), batch),))


def play(step: Step, gpu: Gpu, **how: str) -> Replay:
    conditions = {"cache": "cold", "launch": "kernel"} | how
    return replay(step_schedule(step, gpu, "bf16"), gpu, GEMM_NUMBERS, **conditions)  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpu", "dtype"), [(A100, "bf16"), (H100, "fp8"), (B200, "fp16"), (T4, "fp32")])
@pytest.mark.parametrize(("m", "n", "k", "batch"), [(1, 4096, 1000, 1), (77, 600, 60, 6), (2000, 1536, 512, 1)])
def test_a_is_read_once_a_column_of_tiles_and_b_once_a_row(
    gpu: Gpu, dtype: str, m: int, n: int, k: int, batch: int
) -> None:
    step = gemm(m, n, k, batch)
    schedule, chosen, e = step_schedule(step, gpu, dtype), cut(step.products[0], gpu, dtype), DTYPE_BYTES[dtype]
    tile, parts = chosen.tile, chosen.splits
    down, across, deep = -(-m // tile.m), -(-n // tile.n), -(-k // (parts * tile.k))
    main = schedule.kernels[0].requested()
    columns = sum(-(-min(tile.n, n - at) * tile.asked(m) // tile.n) for at in range(0, n, tile.n))
    assert main["load", "A"] == batch * m * k * e * across and main["load", "B"] == batch * k * columns * e * down
    assert schedule.total("flops") == batch * down * across * parts * deep * 2 * tile.m * tile.n * tile.k
    moved = schedule.requested()
    assert sum(moved[key] for key in moved if key[1:] == ("store", "C")) == batch * m * n * max(2, e)
    if parts > 1:
        assert main["store", "C partial"] == moved["GEMM, sum of parts", "load", "C partial"] == parts * m * n * 4


@pytest.mark.parametrize(
    ("gpu", "low", "high"),
    # Large bf16 GEMMs of cuBLAS: 250 to 299 TFLOP/s on A100, up to 956 on H100 (aiconfigurator-core 0.12.0, gemm),
    # where 8,192^3 was measured at 797 (benchmarks/gemms.py).
    [(A100, 250e12, 300e12), (H100, 700e12, 960e12)],
)
def test_a_large_gemm_runs_at_the_rates_that_are_known(gpu: Gpu, low: float, high: float) -> None:
    step = gemm(8192, 8192, 8192)
    played = play(step, gpu)
    assert low < step.flops / played.time_s < high
    path = step_schedule(step, gpu, "bf16").kernels[0].path
    assert path == ("wgmma" if gpu is H100 else "mma_sync")


@pytest.mark.parametrize("figure", [one for one in FIGURES if one.within], ids=lambda one: one.what)
def test_products_and_eager_passes_take_as_long_as_measured(figure: Figure) -> None:
    assert figure.predicted_s() == pytest.approx(figure.measured_s, rel=figure.within)


@pytest.mark.parametrize("gpu", [A100, H100, B200])
@pytest.mark.parametrize("rows", [1, 16])
def test_a_decode_step_is_bound_by_the_bytes_of_the_weights(gpu: Gpu, rows: int) -> None:
    played = play(gemm(rows, 8192, 8192), gpu)
    weights = 2 * 8192 * 8192
    assert weights / gpu.hbm.bandwidth_bytes_per_s < played.time_s < 1.5 * weights / gpu.hbm.bandwidth_bytes_per_s
    assert weights < played.hbm_read_bytes + played.hbm_write_bytes < 1.2 * weights
    assert play(gemm(1, 8192, 8192), gpu).time_s == pytest.approx(play(gemm(16, 8192, 8192), gpu).time_s, rel=0.1)


def test_k_is_split_where_there_are_few_tiles_and_not_where_there_are_many() -> None:
    few, many = (cut(Product("x", (m, 4096, 4096), ("A", "B", "C")), H100, "bf16") for m in (8, 8192))
    assert few.splits > 1 and "split-K" in str(few)
    assert many.splits == 1 and str(many) == "128 x 256 x 64"
    assert len(step_schedule(gemm(8, 4096, 4096), H100, "bf16").kernels) == 2


def test_weights_are_read_from_hbm_once_and_inputs_once_a_group_of_columns() -> None:
    m, n, k = 65536, 8192, 1024  # inputs of 134 MB, beyond the L2; what running tiles read stays
    played = play(gemm(m, n, k), H100)
    tensors = {row.tensor: row.hbm_bytes for row in played.kernels[0].traffic}
    groups = n / 256 / 8
    assert tensors["B"] == 2 * n * k and tensors["C"] == 2 * m * n
    assert tensors["A"] == pytest.approx(groups * 2 * m * k)


def test_attention_takes_over_as_sequences_grow() -> None:
    answers = attention_share("llama-3-8b", H100, (512, 2048, 8192, 32768))
    shares = [answer.attention_share or 0.0 for answer in answers]
    assert shares == sorted(shares) and shares[0] < 0.1 and shares[-1] > 0.3
    w, model = answers[2].workload, answers[2].model
    by_flops = answers[2].attention[0].flops_useful / answers[2].flops_useful
    assert by_flops == pytest.approx(w.seq_q / (w.seq_q + 2 * model.hidden * (1 + 8 / 32) + 3 * 14336), rel=1e-3)


def test_projections_are_shared_by_a_batch_of_decode_steps_and_caches_are_not() -> None:
    one, many = (layer("llama-3-8b", H100, batch=batch, seq=8192, passes="decode") for batch in (1, 32))
    assert (many.attention_time_s or 0) > 8 * (one.attention_time_s or 1)
    rest = [(item.time_s or 0) - (item.attention_time_s or 0) for item in (one, many)]
    assert rest[1] < 1.3 * rest[0]


# What sharing keys and values must give, by the same schedules


def asked(heads_kv: int, **changes: object) -> Workload:
    shape = {"batch": 4, "heads_q": 16, "seq_q": 512, "head_dim": 128, "mask": CAUSAL} | changes
    return Workload(**shape, heads_kv=heads_kv)  # type: ignore[arg-type]


@pytest.mark.parametrize("implementation", ["flash-attn.2", "flash-attn.3", "torch.baddbmm"])
@pytest.mark.parametrize("passes", ["fwd", "decode"])
def test_grouped_heads_reach_from_multi_head_to_multi_query(implementation: str, passes: str) -> None:
    changes = {"passes": passes, "seq_kv": 4096} | ({"seq_q": 1} if passes == "decode" else {})
    record, algorithm = find_implementation(implementation), "naive" if implementation == "torch.baddbmm" else "flash"
    plain = Workload(batch=4, heads_q=16, seq_q=1 if passes == "decode" else 512, head_dim=128, mask=CAUSAL,
                     passes=passes, seq_kv=4096)  # fmt: skip
    for w, same in ((asked(16, **changes), plain), (asked(1, **changes), asked(1, **changes))):
        one, other = (predict(question, H100, algorithm, implementation=implementation) for question in (w, same))
        assert one.time_s == other.time_s and one.hbm_bytes == other.hbm_bytes
    for group in (1, 4, 16):
        w = asked(16 // group, **changes)
        sizes = {
            use.tensor: use.unique_bytes
            for kernel in record.build(w, H100, None).kernels
            for use in kernel.uses
            if use.tensor in ("K", "V")
        }
        assert set(sizes.values()) == {w.kv_cache_bytes // 2} == {plain.kv_cache_bytes // group // 2}


@pytest.mark.parametrize("implementation", ["flash-attn.2", "flash-attn.3"])
def test_a_group_that_is_packed_reads_its_keys_once(implementation: str) -> None:
    record = find_implementation(implementation)

    def keys_read(heads_kv: int) -> int:
        w = asked(heads_kv, seq_q=1, seq_kv=8192, passes="decode")
        loads = record.build(w, H100, None).requested()
        return sum(n for (_, kind, tensor), n in loads.items() if (kind, tensor) == ("load", "K"))

    assert keys_read(16) == 4 * keys_read(4) == 16 * keys_read(1)


def test_cross_attention_is_the_same_code_path() -> None:
    for implementation in ("flash-attn.2", "torch.baddbmm"):
        record = find_implementation(implementation)
        own, other = (record.build(asked(16, seq_kv=keys, mask=Mask()), A100, None) for keys in (512, 2048))
        assert [kernel.name for kernel in own.kernels] == [kernel.name for kernel in other.kernels]
        assert other.total("flops") == 4 * own.total("flops")


def test_a_cold_decode_step_takes_at_least_as_long_as_its_cache_takes_to_be_read() -> None:
    for name in ("llama-2-7b", "llama-3-8b", "gemma-2b"):
        w = load_model(name).workload(batch=8, seq=8192, passes="decode")
        answer = predict(w, H100, cache="cold", launch="kernel", baseline=False)
        assert (answer.time_s or 0) >= w.kv_cache_bytes / H100.hbm.bandwidth_bytes_per_s
