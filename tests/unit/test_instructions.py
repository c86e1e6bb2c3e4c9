"""Counted instructions: of public machine code and of our own, in schedules, units and what-ifs."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.resources import files

import pytest

from attnsim import Mask, Workload, load_gpu, predict
from attnsim.api.explaining import explain
from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.units import COUNTED
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.flash_attention import flash2, flash3
from attnsim.models.implementations.fused.forward import flash_forward
from attnsim.models.implementations.fused.tile import FlashTile
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.implementations.own import flash, hopper, sparse
from attnsim.models.schedule.instructions import OF_PATH, step_counts, with_borrowed_counts
from attnsim.models.schedule.schedule import Kernel, Path, Schedule
from attnsim.tables import read_csv

A100, H100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
FWD = Workload(batch=8, heads_q=16, seq_q=4096, head_dim=128, dtype="fp16")
NO_SCORES = "backward_row_dots", "backward_convert"
BUILDS: dict[str, tuple[Callable[..., Schedule], Gpu]] = {"FA2": (flash2, A100), "FA3": (flash3, H100)}


@pytest.mark.parametrize("room", ["schedule", "implementations.own"])
def test_exponentials_of_the_machine_code_are_those_of_its_scores_and_row_factors(room: str) -> None:
    """Each of the four lanes that share a row computes its factor; a backward step has none.

    A loop that looks pages up divides twice, by two reciprocals; the memory-efficient kernels leave a row's factor to
    one lane of another piece; those of NSA have a second factor, of the log-sum-exp, and the pass for dQ none.
    FlashAttention-4 leaves factors to other warps and packs two FP32 operations of a lane into an instruction.
    """
    rows = list(read_csv(files(f"attnsim.models.{room}") / "instructions.csv"))
    parted = {row["kernel"] for row in rows if row.get("part")}
    for row in rows:
        exps, scores = 32 * int(row["exp"]), int(row["scores"])
        pipes = sum(int(row[pipe]) for pipe in ("exp", "fp32", "integer", "load_store"))
        pipes -= int(row["fp32"]) // 2 * row["kernel"].startswith("flash-attn.4")
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


def test_flash_attention_4_is_counted_by_its_source() -> None:
    """A lane of a warp of 32 x 128 has 128 scores in a step, and half as many packed operations of each kind."""
    half = 128 // 2
    forward, back = (step_counts(f"flash-attn.4{which}", 100, 128) for which in ("", " backward"))
    assert forward.scores == back.scores == 32 * 128 and forward.load_store == back.load_store == 0
    # A multiply-add and an addition, packed; a maximum of three and a conversion on the integer lanes; 6 for the step.
    assert (forward.fp32, forward.integer) == (2 * 2 * half, 2 * half)
    assert forward.issued == (2 + 2) * half + 128 + 6
    # A multiply-add, an addition and a multiplication; conversions of P and dS; 12 for the step.
    assert (back.fp32, back.integer) == (3 * 2 * half, 2 * half)
    assert back.issued == (3 + 2) * half + 128 + 12


@pytest.mark.parametrize(("gpu", "share"), [("b200-sxm-180gb", 3 / 16), ("b300-sxm-288gb", 0)])
def test_an_exponential_that_is_a_polynomial_runs_on_the_lanes(gpu: str, share: float) -> None:
    """Of 128 x 128 scores of a warpgroup on B200 3,072: 5 FP32 operations packed into 2.5 instructions, and 3 integers.

    On B300, whose exponential units are twice as fast, none.
    """
    (kernel,) = IMPLEMENTATIONS["flash-attn.4"].build(replace(FWD, dtype="bf16"), load_gpu(gpu), None).kernels
    softmax = {op for one in kernel.segments for op in one.ops if op.kind == "vector"}
    scores, four = 128 * 128, step_counts("flash-attn.4", 100, 128)
    polynomials = round(share * scores)
    assert {(op.scores, op.exps) for op in softmax} == {(scores, scores - polynomials)}
    assert {op.fp32 for op in softmax} == {4 * 32 * four.fp32 + 5 * polynomials}
    assert {op.int32 for op in softmax} == {4 * 32 * four.integer + 3 * polynomials}
    # Each is no instruction of the exponential unit any more.
    assert {op.issues for op in softmax} == {4 * four.issued + polynomials * (2.5 + 3 - 1) / 32}


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
    assert slow.busiest == "issue" and slow.time_s and slow.time_s > slow.units_s["issue"] > 2 * found.time_s  # type: ignore[operator]
    levers = {lever.unit for lever in explain(FWD, A100, implementation="flash-attn.2").levers}
    assert {"issue", "int32", "load_store"} <= levers
    assert (
        "issue" in predict(FWD, A100, implementation="nvidia.cudnn", baseline=False).units_s
    )  # as counted by its path
    in_passes = Workload(batch=8, heads_q=16, seq_q=1024, head_dim=128, dtype="fp16")
    assert "issue" not in predict(in_passes, H100, "naive", baseline=False).units_s  # wgmma and passes over memory


def test_integers_that_are_named_are_told_where_nothing_is_counted() -> None:
    """PyTorch's mask pass waits for the integer lanes, more than for the HBM that is busiest, and the lever says so."""
    w = Workload(batch=1, heads_q=16, seq_q=4096, head_dim=128, mask=Mask.causal())
    ask = partial(predict, w, implementation="torch.baddbmm", algorithm="naive", baseline=False)
    found, faster = ask(A100), ask(A100.replace("sm.int32_rate", 2 * A100.sm.int32_per_clk))
    named = IMPLEMENTATIONS["torch.baddbmm"].build(w, A100, None).total("int32")
    busy = named / A100.sm.int32_per_clk / A100.sm.count / A100.clock.full_hz
    assert found.units_s["int32"] == pytest.approx(busy, rel=1e-3)  # its products on mma.sync have none
    assert ask(H100).units_s.keys() & {one.name for one in COUNTED} == {"int32"}
    levers = {one.unit: one for one in explain(w, A100, "naive", implementation="torch.baddbmm").levers}
    assert found.time_s and faster.time_s
    assert levers["int32"].speedup == pytest.approx(found.time_s / faster.time_s)
    assert levers["int32"].speedup > max(1.15, levers["hbm"].speedup)


def test_fp32_products_run_at_the_full_rate_of_the_fp32_lanes() -> None:
    """What mma.sync reaches of the tensor cores is none of theirs (1.5 times too slow on H100 before)."""
    w = Workload(batch=1, heads_q=16, seq_q=2048, head_dim=64, dtype="fp32")
    gpus = H100, H100.replace("tensor.mma_sync_fraction", 1.0)
    fused = [predict(w, gpu, algorithm="flash", baseline=False) for gpu in gpus]
    assert fused[0].time_s == fused[1].time_s and fused[0].busiest == "tensor"


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


def test_who_names_counts_has_them_in_its_own_schedules() -> None:
    """Its calibration was fitted with them; without a name they are those of its path, in the schedule or borrowed."""
    seen = 0
    for name, architecture in calibrations():
        record = IMPLEMENTATIONS[name]
        gpu = next(load_gpu(one) for one in GPUS if load_gpu(one).architecture == architecture)
        for passes in ("fwd", "bwd", "decode"):
            for kernel in built(record, gpu, passes):
                assert kernel.counted or not record.counts, (name, architecture, passes)
                assert record.counts or not kernel.counted or kernel.path == "tcgen05", (name, architecture, passes)
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("gpu", GPUS)
def test_what_warps_do_beside_products_is_counted_whoever_the_numbers_are_from(gpu: str) -> None:
    """The counts go with the numbers, else with the instruction path; threads that multiply by themselves have none."""
    there, lenders = load_gpu(gpu), set()
    for name, passes in ASKED:
        numbers = choose(IMPLEMENTATIONS[name], there).numbers
        for kernel in built(IMPLEMENTATIONS[name], there, passes):
            played = with_borrowed_counts(kernel, numbers.counts, there)
            works = kernel.path == "mma_sync" or any(op.kind == "vector" for one in kernel.segments for op in one.ops)
            lender = numbers.counts or OF_PATH.get(kernel.path, "")
            assert played.counted == bool(kernel.counted or (lender and works)), (name, passes, kernel.name)
            if played is not kernel:
                lenders.add(lender)
                assert played.requested() == kernel.requested()
                for amount in ("flops", "exps", "scores", "smem_bytes", "tmem_bytes"):
                    assert played.total(amount) == kernel.total(amount), (name, passes, amount)
                assert with_borrowed_counts(kernel, numbers.counts, there) is played
    features = there.features
    assert {*lenders} >= {"flash-attn.2", *["flash-attn.3"] * features.wgmma, *["flash-attn.4"] * features.tcgen05}


@pytest.mark.parametrize("path", OF_PATH)
def test_a_kernel_that_nobody_counted_has_the_instructions_of_its_path(path: Path) -> None:
    """And one that has a path of its own threads, or is played with counts that are named, has not."""
    tile = FlashTile(128, 128, warps=8, path=path)
    plain = flash_forward(FWD, H100, tile)
    found = with_borrowed_counts(plain, "", H100)
    assert not plain.counted and found.counted
    assert found.total("issues") == with_borrowed_counts(plain, OF_PATH[path], H100).total("issues")
    assert found.total("issues") != with_borrowed_counts(plain, "triton.tutorial", H100).total("issues")
    alone = replace(plain, path="simt")
    assert with_borrowed_counts(alone, "", H100) is alone


def test_a_softmax_that_borrows_has_the_borrowed_instructions() -> None:
    """FlashAttention-2 uncounted, borrowing its own counts, is its counted kernel, except for the mask's lanes."""
    for passes, mask in (("fwd", Mask()), ("bwd", Mask()), ("fwd", Mask.causal())):
        w = replace(FWD, passes=passes, mask=mask)
        for one, plain in zip(flash2(w, A100, None).kernels, flash2(w, A100, None, machine="").kernels, strict=True):
            found = with_borrowed_counts(plain, "flash-attn.2", A100)
            for amount in ("issues", "load_stores"):
                assert found.total(amount) == pytest.approx(one.total(amount), rel=0.01), (one.name, amount)
            both = [kernel.total("fp32") + kernel.total("int32") for kernel in (found, one)]
            assert both[0] == pytest.approx(both[1], rel=0.01), one.name


def test_at_most_five_numbers_are_fitted_and_what_the_rows_leave_open_is_at_its_prior() -> None:
    for (name, architecture), one in calibrations().items():
        assert len(one.fitted) <= 5, (name, architecture, one.fitted)
        for number in one.undetermined:
            assert number not in one.fitted
            assert getattr(one.numbers, number) == pytest.approx(IMPLEMENTATION_NUMBERS[number].prior, rel=1e-5)
