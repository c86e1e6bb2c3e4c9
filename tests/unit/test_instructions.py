"""Counted instructions: of public machine code and of our own, in schedules, units and what-ifs."""

from dataclasses import replace
from functools import partial
from importlib.resources import files

import pytest

from attnsim import Mask, Workload, load_gpu, predict
from attnsim.api.explaining import explain
from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose, priors_of
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import COUNTED
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.flash_attention import flash2, flash3
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.own import flash, hopper, sparse
from attnsim.models.schedule.instructions import step_counts
from attnsim.models.schedule.lending import lent
from attnsim.models.schedule.schedule import Kernel
from attnsim.tables import read_csv

A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
FWD = Workload(batch=8, heads_q=16, seq_q=4096, head_dim=128, dtype="fp16")
NO_SCORES = "backward_row_dots", "backward_convert"
BUILDS = {"FA2": (flash2, A100), "FA3": (flash3, H100)}


@pytest.mark.parametrize("room", ["schedule", "implementations.own"])
def test_exponentials_of_the_machine_code_are_those_of_its_scores_and_row_factors(room: str) -> None:
    """Each of the four lanes that share a row computes its factor; a backward step has none.

    A loop that looks pages up divides twice, by two reciprocals; the memory-efficient kernels leave a row's factor to
    one lane of another piece; those of NSA have a second factor, of the log-sum-exp, and the pass for dQ none.
    """
    rows = list(read_csv(files(f"attnsim.models.{room}") / "instructions.csv"))
    parted = {row["kernel"] for row in rows if row.get("part")}
    for row in rows:
        exps, scores = 32 * int(row["exp"]), int(row["scores"])
        pipes = sum(int(row[pipe]) for pipe in ("exp", "fp32", "integer", "load_store"))
        issued, part = int(row["issued"]), row.get("part", "")
        if part.startswith("ranges"):  # what one range more takes; tests of ranges that are not there become fewer
            assert abs(pipes) <= abs(issued), row["kernel"]
            continue
        assert pipes <= issued, row["kernel"]
        assert issued <= 3 * pipes or "+" in part, row["kernel"]  # branches and the like of a short stretch
        if row["kernel"] in parted:
            continue  # exponentials are in one of the parts, reciprocals in another
        if row["kernel"].startswith(NO_SCORES):
            assert not exps
            continue
        if row["kernel"].startswith("sigmoid"):
            exps //= 2  # and a reciprocal each
        looked_up = 2 * 32 * row["kernel"].endswith("split")
        factors = 0 if "backward" in row["kernel"] else exps - scores - looked_up
        assert exps == scores + factors + looked_up and factors in (0, 4 * 16, 4 * 32, 2 * 4 * 32), row["kernel"]


def step(kernel: Kernel, name: str) -> list[int]:
    """Instructions a warp of the operations of a segment."""
    (found,) = (one for one in kernel.segments if one.name == name)
    return [op.issues * kernel.warpgroups * 32 // kernel.threads for op in found.ops if op.issues]


def test_a_step_issues_what_its_machine_code_has() -> None:
    """FlashAttention-2 at head_dim 128 on sm_80: 256 HMMA and 80 LDSM of 884 instructions; 320 and 144 of 900 back."""
    (forward,) = flash2(FWD, A100, None).kernels
    products, rest = step(forward, "step")[::2], step(forward, "step")[1]
    assert (sum(products), rest) == (256 + 80, 884 - 256 - 80)
    back = next(one for one in flash2(replace(FWD, passes="bwd"), A100, None).kernels if one.name == "flash_bwd")
    assert sum(step(back, "row step")) == 900
    causal = replace(FWD, mask=Mask.causal())
    (hopper_kernel,) = flash3(causal, H100, None).kernels
    assert sum(op.issues for one in hopper_kernel.segments if one.name == "step" for op in one.ops) == 4 * (469 - 16)


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("passes", ["fwd", "bwd"])
def test_counting_changes_no_bytes_flops_or_exponentials(name: str, passes: str) -> None:
    build, gpu = BUILDS[name]
    w = replace(FWD, passes=passes, mask=Mask.causal())
    counted, plain = build(w, gpu, None), partial(build, machine="")(w, gpu, None)
    assert counted.total("issues") > 0 == plain.total("issues")
    assert counted.requested() == plain.requested()
    for amount in ("flops", "exps", "scores", "smem_bytes"):
        assert counted.total(amount) == plain.total(amount), amount


def test_the_nearest_older_architecture_and_head_dim_are_taken() -> None:
    assert step_counts("flash-attn.2", 89, 128) == step_counts("flash-attn.2", 80, 128)
    assert step_counts("flash-attn.2", 100, 96) == step_counts("flash-attn.2", 90, 64)
    assert step_counts("flash-attn.3", 80, 256) == step_counts("flash-attn.3", 90, 256)


@pytest.mark.parametrize(
    ("module", "gpu"), [(flash, A100), (flash, H100), (hopper, H100), (sparse, A100), (sparse, H100)]
)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_our_own_forward_kernels_are_counted(module: object, gpu: Gpu, dtype: str, head_dim: int) -> None:
    w = Workload(batch=8, heads_q=16, seq_q=4096, head_dim=head_dim, dtype=dtype)
    assert module.build(w, gpu, None).total("issues") > 0  # type: ignore[attr-defined]


def test_the_schedulers_are_a_unit_that_can_be_slow() -> None:
    ask = partial(predict, FWD, implementation="flash-attn.2", baseline=False)
    found = ask(A100)
    assert {one.name for one in COUNTED} <= found.units_s.keys()
    kernels = flash2(FWD, A100, None)
    busy = kernels.total("issues") / 4 / A100.sm.count / A100.clock.full_hz
    assert found.units_s["issue"] == pytest.approx(busy, rel=1e-3)
    slow = ask(A100.replace("sm.issue_rate", "0.5 op/clk"))
    assert slow.bound == "issue" and slow.time_s and slow.time_s > slow.units_s["issue"] > 2 * found.time_s  # type: ignore[operator]
    levers = {lever.unit for lever in explain(FWD, A100, implementation="flash-attn.2").levers}
    assert {"issue", "int32", "load_store"} <= levers
    assert "issue" not in predict(FWD, A100, implementation="nvidia.cudnn", baseline=False).units_s


def test_integers_that_are_named_are_told_where_nothing_is_counted() -> None:
    """PyTorch's mask pass waits for the integer lanes, more than for the HBM that is busiest, and the lever says so."""
    w = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
    ask = partial(predict, w, implementation="torch.baddbmm", algorithm="naive", baseline=False)
    found, faster = ask(A100), ask(A100.replace("sm.int32_rate", 2 * A100.sm.int32_per_clk))
    assert found.units_s.keys() & {one.name for one in COUNTED} == {"int32"}
    levers = {one.unit: one for one in explain(w, A100, "naive", implementation="torch.baddbmm").levers}
    assert found.time_s and faster.time_s
    assert levers["int32"].speedup == pytest.approx(found.time_s / faster.time_s)
    assert levers["int32"].speedup > max(1.15, levers["hbm"].speedup)


def test_fp32_products_run_at_the_full_rate_of_the_fp32_lanes() -> None:
    """What mma.sync reaches of the tensor cores is none of theirs (1.5 times too slow on H100 before)."""
    w = Workload(batch=1, heads_q=16, seq_q=2048, head_dim=64, dtype="fp32")
    gpus = H100, H100.replace("tensor.mma_sync_fraction", 1.0)
    fused = [predict(w, gpu, algorithm="flash", baseline=False) for gpu in gpus]
    assert fused[0].time_s == fused[1].time_s and fused[0].bound == "tensor"


def built(record: Implementation, gpu: Gpu, passes: str) -> list[Kernel]:
    """Its kernels that multiply; none where it refuses the question."""
    seq_q = 1 if passes == "decode" else 512
    w = Workload(batch=2, heads_q=8, seq_q=seq_q, seq_kv=512, head_dim=128, passes=passes, dtype="bf16")
    try:
        return [kernel for kernel in record.build(w, gpu, None).kernels if kernel.total("flops")]
    except InputError:
        return []


GPUS = ("a100-sxm4-80gb", "l40s", "h100-sxm5-80gb", "b200-sxm-180gb")
ASKED = [(name, passes) for name, one in IMPLEMENTATIONS.items() if not one.picks for passes in one.passes]


def test_a_calibration_goes_with_counts_where_its_own_schedules_have_them() -> None:
    seen = 0
    for name, architecture in calibrations():
        record = IMPLEMENTATIONS[name]
        gpu = next(load_gpu(one) for one in GPUS if load_gpu(one).architecture == architecture)
        for passes in ("fwd", "bwd", "decode"):
            for kernel in built(record, gpu, passes):
                assert kernel.counted == bool(record.counts), (name, architecture, passes)
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("gpu", GPUS)
def test_who_borrows_numbers_borrows_the_counts_that_belong_to_them(gpu: str) -> None:
    """And nobody who is counted borrows numbers of a kernel that is not."""
    there, lenders = load_gpu(gpu), set()
    for name, passes in ASKED:
        numbers = choose(IMPLEMENTATIONS[name], there).numbers
        for kernel in built(IMPLEMENTATIONS[name], there, passes):
            played = lent(kernel, numbers.counts, there)
            assert played.counted == bool(numbers.counts), (name, passes)
            assert numbers.counts or not kernel.counted, (name, passes)
            if played is not kernel:
                lenders.add(numbers.counts)
                assert played.requested() == kernel.requested()
                for amount in ("flops", "exps", "scores", "smem_bytes", "tmem_bytes"):
                    assert played.total(amount) == kernel.total(amount), (name, passes, amount)
                assert lent(kernel, numbers.counts, there) is played
    assert lenders or gpu == "b200-sxm-180gb"


def test_a_lent_softmax_has_the_instructions_of_the_lender() -> None:
    """FlashAttention-2's kernel uncounted and lent its own counts is its counted kernel, but for the mask's lanes."""
    for passes, mask in (("fwd", Mask()), ("bwd", Mask()), ("fwd", Mask.causal())):
        w = replace(FWD, passes=passes, mask=mask)
        for one, plain in zip(flash2(w, A100, None).kernels, flash2(w, A100, None, machine="").kernels, strict=True):
            found = lent(plain, "flash-attn.2", A100)
            for amount in ("issues", "load_stores"):
                assert found.total(amount) == pytest.approx(one.total(amount), rel=0.01), (one.name, amount)
            both = [kernel.total("fp32") + kernel.total("int32") for kernel in (found, one)]
            assert both[0] == pytest.approx(both[1], rel=0.01), one.name


def test_at_most_four_numbers_are_fitted_and_what_the_rows_leave_open_is_at_its_prior() -> None:
    for (name, architecture), one in calibrations().items():
        assert len(one.fitted) <= 4, (name, architecture, one.fitted)
        priors = priors_of(IMPLEMENTATIONS[name])
        for number in one.undetermined:
            assert number not in one.fitted
            assert getattr(one.numbers, number) == pytest.approx(getattr(priors, number), rel=1e-5)
