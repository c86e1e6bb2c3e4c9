"""Fit the calibrations: robust least squares on log time, whole groups of rows held out.

A job fits the numbers of one or more implementations, and of a GPU where it says so, on the rows of its sources. It is
then fitted again without each group (a band of lengths for one number of heads, or a whole head_dim), and those numbers
are kept in the calibration file: they predict the rows that they did not see.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnsim.models.calibrations.numbers import (
    GPU_NUMBERS,
    IMPLEMENTATION_NUMBERS,
    LOGARITHMIC,
    OPEN,
    QUADRATIC,
    GpuNumbers,
    ImplementationNumbers,
    Number,
    Numbers,
    is_determined,
    unit_of,
)
from attnsim.models.hardware.files import load_gpu
from attnsim.validation.measured.datasets import Row, published_rows
from attnsim.validation.measuring.records import code_digest, domain_of, evaluation, rows_digest, write_yaml

SHORTEST = 512
"""Shorter prefill and training rows are left out of the fits: they time launches, not attention."""
ROBUST_SCALE = 0.05
"""Residuals beyond about 5 % weigh linearly instead of quadratically (soft L1)."""
FITTED_ROWS = 70
"""Larger sets are thinned evenly for the fit (not for the errors): neighbours on a dense grid tell nothing new."""
TOLERANCE = 1e-3
"""Relative change of the loss, or of a coordinate, at which a fit stops: below it waves make a staircase."""
STEP = 0.02
"""Finite-difference step in the unit interval of each number: waves make the loss stepwise."""
PRIOR_WEIGHT = 0.05
"""Pull of each number towards its prior, as a residual per unit coordinate: too weak to move what the rows determine,
enough to hold what they do not."""
HELD_COST = 1.02
"""Growth of the mean error up to which numbers that the rows leave open one by one are held at their priors. Together
they may well be determined: on PyTorch's unfused rows holding them took the error from 12.5 to 20.5 %."""
BANDS = ((0, 1024), (1025, 4096), (4097, 1 << 30))
"""Bands of the longer of seq_q and seq_kv."""

FLASH = (
    "tensor_efficiency",
    "smem_exposed",
    "softmax_instructions",
    "interference",
    "step_clks",
    "block_clks",
)
BLACKWELL = ("tensor_efficiency", "softmax_instructions", "interference", "block_clks", "call_s", "extra")
"""Where the tensor unit itself reads shared memory, and a step's latency is hidden by another tile of rows."""
SERVING = ("tensor_efficiency", "softmax_instructions", "step_clks", "block_clks", "call_s")
"""Of a serving kernel: exposed operand reads and interference trade with these, and stay those it starts from."""
LAUNCHED = ("block_clks", "call_s", "extra")
"""Of a kernel that another caller's rows have determined already, the same source: what is around its inner loop."""
EAGER = ("tensor_efficiency", "step_clks", "block_clks", "call_s", "extra")


@dataclass(frozen=True, slots=True)
class Job:
    """What is fitted together.

    Parameters
    ----------
    name : str
    gpu : str
        GPU whose numbers are fitted or used.
    gpu_free : tuple of str
        GPU numbers to fit; empty: those of an earlier job are used.
    free : mapping of str to tuple of str
        Numbers to fit, by implementation.
    sources : tuple of str
        Keys of the measurements.
    like : str
        Earlier job's GPU whose numbers are the start when this GPU has none.
    others : tuple of str
        Further GPUs whose rows are used, with numbers from earlier jobs.
    """

    name: str
    gpu: str
    gpu_free: tuple[str, ...]
    free: Mapping[str, tuple[str, ...]]
    sources: tuple[str, ...]
    like: str = ""
    others: tuple[str, ...] = ()


JOBS = (
    Job(
        "vllm-a100",
        "a100-sxm4-80gb",
        ("hbm_fraction", "l2_fraction", "l2_capacity_fraction", "launch_scale"),
        {"vllm_flash_attn": (*FLASH, "call_s", "extra")},
        ("aic_attention_vllm_0.14.0",),
    ),
    Job(
        "cudnn-a100-pcie",
        "a100-pcie-80gb",
        ("hbm_fraction", "clock_fraction"),
        {
            "cudnn": (*FLASH, "extra"),
            "cudnn_oss_sm80": (*FLASH, "extra"),
            "flash_attn_v4_cute": FLASH,
        },
        (
            "cudnn_fe_inf_prefill_20260928",
            "cudnn_fe_inf_decode_20260928",
            "cudnn_fe_inf_gptoss_20260928",
            "cudnn_fe_train_20260928",
        ),
        like="a100-sxm4-80gb",
    ),
    Job(
        "papers-a100",
        "a100-sxm4-80gb",
        (),
        {
            "flash_attn_v2": (*FLASH, "extra"),
            "pytorch": EAGER,
            "flash_attn_v1": (*FLASH, "extra"),
            "flash_attn_triton": (*FLASH, "extra"),
            "xformers_cutlass": (*FLASH, "extra"),
        },
        # Not fa1_appE6: its FlashAttention-1 is an older kernel than the 1.0.9 of figure 4, and 1.5 times slower.
        ("fa2_fig4", "cudnn_fe_train_20260928"),
        others=("a100-pcie-80gb",),
    ),
    Job(
        "flash1-paper-a100",
        "a100-sxm4-40gb",
        (),
        {"pytorch_eager": ("block_clks", "call_s")},
        ("fa1_appE6",),
        like="a100-sxm4-80gb",
    ),
    Job(
        "vllm-h100",
        "h100-sxm5-80gb",
        ("hbm_fraction", "l2_fraction"),
        {"vllm_flash_attn_fa3": (*SERVING, "extra")},
        ("aic_attention_vllm_0.24.0_h100",),
    ),
    Job(
        "sglang-h100",
        "h100-sxm5-80gb",
        (),
        {"fa3": LAUNCHED},
        ("aic_attention_sglang_0.5.14_h100",),
    ),
    Job(
        "papers-h100",
        "h100-sxm5-80gb",
        (),
        {
            "flash_attn_v2": (*FLASH, "extra"),
            "flash_attn_v3": FLASH,
            "pytorch": EAGER,
        },
        ("fa2_fig7", "fa3_fig5"),
    ),
    Job(
        "others-h100",
        "h100-sxm5-80gb",
        (),
        {
            "flash_attn_v1": (*FLASH, "extra"),
            "flash_attn_triton": FLASH,
            "cudnn": FLASH,
        },
        ("fa2_fig7", "fa3_fig5"),
    ),
    Job(
        "vllm-b200",
        "b200-sxm-180gb",
        ("hbm_fraction",),
        {"vllm_trtllm": BLACKWELL},
        ("aic_attention_vllm_0.24.0_b200",),
    ),
    Job(
        "trtllm-b200",
        "b200-sxm-180gb",
        (),
        {"trtllm": BLACKWELL},
        ("aic_attention_trtllm_1.3.0rc20_b200",),
    ),
    Job(
        "flash4-b200",
        "b200-sxm-180gb",
        (),
        {"flash_attn_v4": BLACKWELL[:-1]},
        ("aic_attention_sglang_0.5.14_b200",),
    ),
    Job(
        "trtllm-h100",
        "h100-sxm5-80gb",
        (),
        {"trtllm": BLACKWELL},
        ("aic_attention_trtllm_1.3.0rc20_h100",),
    ),
)


def groups(row: Row) -> dict[str, str]:
    """The group a row belongs to in each split: its band of lengths x heads, and its head_dim."""
    case = row.case
    length = max(case.seq_q, case.seq_kv)
    band = next(index for index, (low, high) in enumerate(BANDS) if low <= length <= high)
    heads = "few" if case.heads_q * case.batch <= 64 else "many"
    return {"band": f"length {BANDS[band][0]}+, {heads} heads", "head_dim": f"head_dim {case.head_dim}"}


def usable(row: Row) -> bool:
    """Whether a row may be fitted on."""
    return row.case.passes == "decode" or max(row.case.seq_q, row.case.seq_kv) >= SHORTEST


@dataclass(frozen=True, eq=False)
class Problem:
    """Rows, the numbers that are free, and the numbers that are not."""

    rows: tuple[Row, ...]
    keys: tuple[tuple[str, str], ...]  # (implementation or "", number)
    gpu: GpuNumbers
    implementations: Mapping[str, ImplementationNumbers]
    others: Mapping[str, GpuNumbers]  # of rows on other GPUs than the one whose numbers are free
    hbm: float  # prior of the HBM fraction

    def definition(self, key: tuple[str, str]) -> Number:
        """Bounds and meaning of a free number."""
        return IMPLEMENTATION_NUMBERS[key[1]] if key[0] else GPU_NUMBERS[key[1]]

    def value(self, key: tuple[str, str], unit: float) -> float:
        """The number at a point of its unit interval."""
        number = self.definition(key)
        if key[1] in LOGARITHMIC:
            return float(number.low * (number.high / number.low) ** unit)
        part = unit * unit if key[1] in QUADRATIC else unit
        return number.low + (number.high - number.low) * part

    def unit(self, key: tuple[str, str], value: float) -> float:
        """The point of the unit interval where the number has a value."""
        return unit_of(self.definition(key), key[1], value)

    def start(self) -> NDArray[np.float64]:
        """Unit coordinates of the present numbers."""
        out = []
        for owner, name in self.keys:
            now = getattr(self.implementations[owner] if owner else self.gpu, name)
            out.append(self.unit((owner, name), self.hbm if now is None else now))
        return np.asarray(np.clip(np.array(out), 0.01, 0.99))

    def priors(self) -> NDArray[np.float64]:
        """Unit coordinates of the priors."""
        values = [self.hbm if key[1] == "hbm_fraction" else self.definition(key).prior for key in self.keys]
        return np.array([self.unit(key, value) for key, value in zip(self.keys, values, strict=True)])

    def numbers(self, units: NDArray[np.float64]) -> dict[str, Numbers]:
        """Numbers by implementation at a point."""
        gpu, records = self.gpu, dict(self.implementations)
        for key, unit in zip(self.keys, units.tolist(), strict=True):
            value = self.value(key, unit)
            if key[0]:
                records[key[0]] = replace(records[key[0]], **{key[1]: value})
            else:
                gpu = replace(gpu, **{key[1]: value})
        return {name: Numbers(record, gpu) for name, record in records.items()}

    def residuals(self, units: NDArray[np.float64], owners: frozenset[str] | None = None) -> NDArray[np.float64]:
        """log(predicted / measured) of each row; NaN for implementations not in `owners`, which need no new replay."""
        numbers = self.numbers(units)
        return np.array(
            [
                math.log(predict_s(row, numbers[row.record.name], self.others) / row.measured_s)
                if owners is None or row.record.name in owners
                else math.nan
                for row in self.rows
            ]
        )

    def held_at_prior(self, keys: Sequence[tuple[str, str]]) -> Problem:
        """The same problem with these numbers at their priors and no longer free."""
        gpu, records = self.gpu, dict(self.implementations)
        for owner, name in keys:
            prior = self.hbm if name == "hbm_fraction" else self.definition((owner, name)).prior
            if owner:
                records[owner] = replace(records[owner], **{name: prior})
            else:
                gpu = replace(gpu, **{name: prior})
        free = tuple(key for key in self.keys if key not in keys)
        return replace(self, keys=free, gpu=gpu, implementations=records)

    def pulled(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """The residuals, and the pull of the priors."""
        return np.concatenate([self.residuals(units), PRIOR_WEIGHT * (units - self.priors())])

    def jacobian(self, units: NDArray[np.float64]) -> NDArray[np.float64]:
        """Derivatives of the residuals; a number of one implementation moves only its own rows."""
        base = self.residuals(units)
        columns = []
        for index, (owner, _) in enumerate(self.keys):
            step = STEP if units[index] + STEP <= 1 else -STEP
            moved = units.copy()
            moved[index] += step
            there = self.residuals(moved, frozenset((owner,)) if owner else None)
            columns.append(np.where(np.isnan(there), 0.0, (there - base) / step))
        return np.concatenate([np.stack(columns, axis=1), PRIOR_WEIGHT * np.eye(len(self.keys))])


def predict_s(row: Row, numbers: Numbers, others: Mapping[str, GpuNumbers]) -> float:
    """The row's replayed time; a row on another GPU takes that GPU's numbers."""
    other = others.get(row.gpu.base_id)
    return row.predict_s(numbers if other is None else replace(numbers, gpu=other))


@dataclass(frozen=True, eq=False)
class Solution:
    """Fitted numbers by implementation, and the confidence interval of each free one."""

    numbers: dict[str, Numbers]
    units: NDArray[np.float64]
    ranges: dict[tuple[str, str], tuple[float, float]]
    jacobian: NDArray[np.float64]
    variance: float

    def undetermined(self, keys: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Numbers that the rows leave open: held one after the other, the widest first, until the rest are determined.

        Two numbers that do the same to every row are both open, but once one of them is held the other is not.
        """
        free, held = list(range(len(keys))), []
        while len(free) > 1:
            widths = 2 * _spreads(self.jacobian[:, free], self.variance)
            widest = int(np.argmax(widths))
            if widths[widest] < OPEN:
                break
            held.append(free.pop(widest))
        return tuple(keys[index] for index in sorted(held))


def solve(problem: Problem, start: NDArray[np.float64], iterations: int) -> Solution:
    """Minimise the soft-L1 loss of log time within the bounds."""
    from scipy.optimize import least_squares

    found = least_squares(
        problem.pulled,
        start,
        jac=problem.jacobian,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        max_nfev=iterations,
        x_scale=0.2,
        ftol=TOLERANCE,
        xtol=TOLERANCE,
    )
    residuals, jacobian = np.asarray(found.fun), np.asarray(found.jac)
    count = len(problem.rows)
    variance = float(residuals[:count] @ residuals[:count]) / max(1, count - len(start))
    spread = _spreads(jacobian, variance)
    ranges = {
        key: (
            problem.value(key, float(np.clip(unit - width, 0, 1))),
            problem.value(key, float(np.clip(unit + width, 0, 1))),
        )
        for key, unit, width in zip(problem.keys, found.x, spread, strict=True)
    }
    return Solution(problem.numbers(found.x), found.x, ranges, jacobian, variance)


def _spreads(jacobian: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    """Half-widths of the 95 % confidence intervals in unit coordinates."""
    covariance = variance * np.linalg.pinv(jacobian.T @ jacobian)
    return np.asarray(1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0)))


def rows_of(job: Job) -> tuple[Row, ...]:
    """The rows a job is fitted on."""
    return tuple(
        row
        for row in published_rows()
        if row.case.source in job.sources
        and row.record.name in job.free
        and row.gpu.base_id in (job.gpu, *job.others)
        and usable(row)
    )


def _like(owner: str) -> str:
    from attnsim.models.implementations.choose import IMPLEMENTATIONS

    return IMPLEMENTATIONS[owner].like


def _without(problem: Problem, split: str, group: str, start: NDArray[np.float64], iterations: int) -> Solution:
    rest = tuple(row for row in problem.rows if groups(row)[split] != group)
    return solve(replace(problem, rows=rest), start, iterations)


def fit_job(
    job: Job,
    known: Mapping[str, GpuNumbers],
    begin: Mapping[str, ImplementationNumbers],
    *,
    iterations: int = 9,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[Solution, dict[str, Solution], Problem]:
    """Fit a job, then again without each group; returns the solution, those by "split: group", and the problem."""
    from joblib import Parallel, delayed

    rows = rows_of(job)
    thinned = rows[:: max(1, round(len(rows) / FITTED_ROWS))]
    keys = tuple(("", name) for name in job.gpu_free)
    keys += tuple((owner, name) for owner, names in job.free.items() for name in names)
    gpu = known.get(job.gpu) or replace(known.get(job.like, GpuNumbers()), hbm_fraction=None)
    records = {owner: begin.get(owner) or begin.get(_like(owner)) or ImplementationNumbers() for owner in job.free}
    others = {name: known.get(name) or replace(gpu, hbm_fraction=None, clock_fraction=1.0) for name in job.others}
    problem = Problem(thinned, keys, gpu, records, others, load_gpu(job.gpu).hbm.achievable_fraction)
    best = solve(problem, problem.start(), iterations)
    open_ = best.undetermined(problem.keys)
    if open_:  # what the rows leave open is held at its prior, the others fitted once more, if that costs nothing
        names = ", ".join(" ".join(key).strip() for key in open_)
        fewer = problem.held_at_prior(open_)
        held = solve(fewer, fewer.start(), iterations)
        then, now = (
            float(np.abs(one.residuals(found.units)).mean()) for one, found in ((problem, best), (fewer, held))
        )
        free_of_cost = now <= HELD_COST * then
        progress(
            f"{job.name}: {'held at' if free_of_cost else 'not held at'} the prior: {names} ({then:.1%}, {now:.1%})"
        )
        if free_of_cost:
            problem, best = fewer, held
    progress(f"{job.name}: {len(rows)} rows, {len(keys)} numbers, {_spread(problem, best.units)}")
    folds = [
        (split, group)
        for split in ("band", "head_dim")
        for group in sorted({groups(row)[split] for row in rows})
        if len({groups(row)[split] for row in rows}) > 1
    ]
    solved = Parallel(n_jobs=min(2, os.cpu_count() or 1))(
        delayed(_without)(problem, split, group, best.units, max(2, iterations // 4)) for split, group in folds
    )
    named = {f"{split}: {group}": fold for (split, group), fold in zip(folds, solved, strict=True)}
    return best, named, replace(problem, rows=rows)


def _spread(problem: Problem, units: NDArray[np.float64]) -> str:
    errors = np.abs(np.exp(problem.residuals(units)) - 1)
    return f"mean {errors.mean():.1%}, median {np.median(errors):.1%}, worst {errors.max():.1%} (fitted rows)"


def separate(jobs: Iterable[Job]) -> Iterable[Job]:
    """Jobs with no GPU number to share, taken apart by implementation: smaller problems with the same answer."""
    for job in jobs:
        if job.gpu_free:
            yield job
        else:
            for owner, names in job.free.items():
                yield replace(job, name=f"{job.name}:{owner}", free={owner: names})


def fit(folder: Path, names: Sequence[str] = (), progress: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Run the jobs in order and write the calibration files.

    Parameters
    ----------
    folder : Path
        ``models/calibrations`` of the source tree.
    names : sequence of str
        Jobs to run; the others keep their files. Empty runs all.
    progress : callable
        Told one line per job.
    """
    from attnsim.models.calibrations.calibration import calibrations, gpu_calibrations

    known = {gpu: numbers for gpu, (_, numbers) in gpu_calibrations().items()}
    begin = {name: c.numbers for (name, _), c in calibrations().items()}
    written = []
    for job in separate(JOBS):
        if names and not any(job.name.startswith(name) for name in names):
            continue
        best, folds, problem = fit_job(job, known, begin, progress=progress)
        first = next(iter(best.numbers.values()))
        known[job.gpu] = first.gpu
        begin |= {owner: numbers.implementation for owner, numbers in best.numbers.items()}
        if job.gpu_free:
            written.append(write_yaml(folder / "gpus" / f"{job.gpu}.yaml", _gpu_file(job, best, problem)))
        for owner in job.free:
            name = f"{owner}.{problem.rows[0].gpu.architecture}.yaml"
            written.append(write_yaml(folder / "implementations" / name, _file(job, owner, best, folds, problem)))
    return written


def _number(value: float, key: tuple[str, str], best: Solution, free: Iterable[tuple[str, str]]) -> dict[str, Any]:
    out: dict[str, Any] = {"value": float(f"{value:.6g}"), "fitted": key in free}
    if key in best.ranges:
        low, high = (float(f"{end:.4g}") for end in best.ranges[key])
        out |= {"low": low, "high": high, "determined": is_determined(key[1], low, high)}
    return out


def _gpu_file(job: Job, best: Solution, problem: Problem) -> dict[str, Any]:
    gpu = next(iter(best.numbers.values())).gpu
    numbers = {k: v for k, v in asdict(gpu).items() if v is not None}
    return {
        "gpu": job.gpu,
        "architecture": problem.rows[0].gpu.architecture,
        "fitted_with": sorted(job.free),
        "sources": sorted(job.sources),
        "rows": len(problem.rows),
        "rows_sha256": rows_digest(problem.rows),
        "code_sha256": code_digest(),
        "numbers": {k: _number(v, ("", k), best, problem.keys) for k, v in numbers.items()},
    }


def _file(job: Job, owner: str, best: Solution, folds: Mapping[str, Solution], problem: Problem) -> dict[str, Any]:
    mine = [row for row in problem.rows if row.record.name == owner]
    held = held_out(mine, {name: fold.numbers[owner] for name, fold in folds.items()}, problem.others)
    if not held:  # one group only: nothing was held out, and `folds` stays empty
        held = {"fitted": [(row, predict_s(row, best.numbers[owner], problem.others)) for row in mine]}
    numbers = asdict(best.numbers[owner].implementation)
    return {
        "implementation": owner,
        "architecture": problem.rows[0].gpu.architecture,
        "gpu": job.gpu,
        "sources": sorted({row.case.source for row in mine}),
        "rows": len(mine),
        "rows_sha256": rows_digest(mine),
        "code_sha256": code_digest(),
        "numbers": {k: _number(v, (owner, k), best, problem.keys) for k, v in numbers.items()},
        **evaluation(held),
        "domain": domain_of(mine),
        "folds": {
            name: {
                part: {
                    k: float(f"{v:.6g}") for k, v in asdict(getattr(fold.numbers[owner], part)).items() if v is not None
                }
                for part in ("implementation", "gpu")
            }
            for name, fold in folds.items()
            if any(f"{split}: {group}" == name for row in mine for split, group in groups(row).items())
        },
    }


def held_out(
    rows: Sequence[Row], folds: Mapping[str, Numbers], others: Mapping[str, GpuNumbers]
) -> dict[str, list[tuple[Row, float]]]:
    """Rows with the prediction of the fold that did not see them, by split."""
    out: dict[str, list[tuple[Row, float]]] = {}
    for row in rows:
        for split, group in groups(row).items():
            numbers = folds.get(f"{split}: {group}")
            if numbers is not None:
                out.setdefault(split, []).append((row, predict_s(row, numbers, others)))
    return out
