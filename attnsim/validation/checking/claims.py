"""Compares facts that others stated with the replay: papers' figures, peak rates, and profilers' pipe utilisation.

Papers' figures are bytes by count and times by calibration. Ceilings are the GPU file's figures at the rated boost
clock: the tensor cores' rate of the instruction path, the exponential units, the L2 for all requested bytes, and the
HBM for compulsory bytes; a measured row that is faster than one of them allows is a fault of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from attnsim.errors import InputError
from attnsim.files import read_typed
from attnsim.models.calibrations.choose import choose
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule
from attnsim.simulator.replay import Replay, replay
from attnsim.tables import read_csv
from attnsim.validation.checking.evidence import SERVING_SAMPLE, serving_rows
from attnsim.validation.measured.datasets import Row, batches, published_cases, row_of
from attnsim.validation.measured.sources import BATCHES, MEASUREMENTS, ROLES

PAPER, CLAIMING = "FlashAttention, arXiv 2205.14135", "flash-attn.1"
GPT2_GPU = "a100-sxm4-40gb"
"""The paper says A100; its appendix tables name the 40 GB card, which is assumed here."""

GPT2_PUBLISHED = {"naive": (40.3e9, 41.7e-3), "flash-1": (4.4e9, 7.3e-3)}
"""HBM bytes and time of GPT-2 medium attention, forward and backward (FlashAttention, arXiv 2205.14135, figure 2)."""

GPT2_FORMS = (
    ("naive", "ideal.unfused", "mask as the GEMM's C operand", True),
    ("naive", "torch.eager", "mask in a pass of its own", False),
    ("flash-1", "flash-attn.1", "", True),
)
"""Algorithm, implementation, application of the mask, and whether that is assumed to be the paper's."""
GPT2 = Workload(64, 16, 1024, 64, dtype="fp16", passes="fwd+bwd")


@dataclass(frozen=True, slots=True)
class Speedup:
    """A speedup over standard attention that a paper states.

    Parameters
    ----------
    claim, source, setting : str
        The statement, its place, and what is known of the measurement.
    low, high : float
        The stated range; both ends are equal for a single figure.
    passes : {"fwd", "fwd+bwd"}
    batch, heads : int
        Shape, with head_dim 64 in fp16, without mask and dropout.
    lengths : tuple of int
        Sequence lengths of the statement.
    """

    claim: str
    source: str
    setting: str
    gpu: str
    low: float
    high: float
    passes: str
    batch: int
    heads: int
    lengths: tuple[int, ...]


SPEEDUPS = read_typed(Path(__file__).with_name("speedups.yaml"), "speedup", tuple[Speedup, ...])
"""Speedups stated in the first FlashAttention paper, with their settings."""


def gpt2_medium() -> list[dict[str, Any]]:
    """Compare GPT-2 medium attention, forward + backward: batch 64, 16 heads, 1,024 tokens, head_dim 64, fp16.

    The paper leaves open whether the figure is causal and has dropout, and how the mask is applied. We assume: causal,
    with dropout, and the mask added inside the first GEMM (as its C operand), so that it costs no pass over the N x N
    matrix. The table has the other readings too.

    Returns
    -------
    list of dict
        ``algorithm, implementation, mask, note, assumed, hbm_bytes, published_bytes, bytes_ratio, time_s,
        published_s, time_ratio``.
    """
    out = []
    for algorithm, name, note, assumed in GPT2_FORMS:
        for mask in (Mask.causal(), Mask.full()):
            seen = _replayed(replace(GPT2, mask=mask, dropout=True), GPT2_GPU, name)
            moved = seen.hbm_read_bytes + seen.hbm_write_bytes
            bytes_stated, time_stated = GPT2_PUBLISHED[algorithm]
            out.append(
                {
                    "algorithm": algorithm,
                    "implementation": name,
                    "mask": str(mask),
                    "note": note,
                    "assumed": mask.is_causal and assumed,
                    "hbm_bytes": moved,
                    "published_bytes": bytes_stated,
                    "bytes_ratio": moved / bytes_stated,
                    "time_s": seen.time_s,
                    "published_s": time_stated,
                    "time_ratio": seen.time_s / time_stated,
                }
            )
    return out


def speedups() -> list[dict[str, Any]]:
    """Compare stated speedups of FlashAttention-1 over standard attention (PyTorch, one pass per operation).

    The paper often does not say whether mask and dropout are included. So the table has the plain call, and the causal
    call with dropout.

    Returns
    -------
    list of dict
        ``claim, source, setting, gpu, seq, low, high``, and ``full, causal`` (speedups, dropout with causal) with
        ``full_error, causal_error``: 0 inside the stated range, else the relative distance from it.
    """
    out = []
    for item in SPEEDUPS:
        stated = {"claim": item.claim, "source": f"{PAPER}, {item.source}", "setting": item.setting, "gpu": item.gpu}
        for seq in item.lengths:
            plain = Workload(item.batch, item.heads, seq, 64, dtype="fp16", passes=item.passes)
            row: dict[str, Any] = stated | {"seq": seq, "low": item.low, "high": item.high}
            for name, w in (("full", plain), ("causal", replace(plain, mask=Mask.causal(), dropout=True))):
                row[name] = _replayed(w, item.gpu, "torch.eager").time_s / _replayed(w, item.gpu, "flash-attn.1").time_s
                row[f"{name}_error"] = _outside(row[name], item.low, item.high)
            out.append(row)
    return out


def counts() -> list[dict[str, Any]]:
    """Compare figures that follow from shapes and datasheets alone: unit clocks by head_dim, size of the scores.

    Returns
    -------
    list of dict
        ``claim, source, stated, ours, error``.
    """
    found = (*_unit_clocks(), *_score_bytes(), _backward_flops())
    return [
        dict(zip(("claim", "source", "stated", "ours"), row, strict=True), error=row[3] / row[2] - 1) for row in found
    ]


_Count = tuple[str, str, float, float]
"""Claim, source, stated figure and our figure."""


def _unit_clocks() -> Iterator[_Count]:
    """Yield tensor-core over exponential-unit clocks of the forward pass: 4 d FLOPs and one exponential per score."""
    source = "FlashAttention-3, arXiv 2407.08608, section 3.1 (3.9 T exp/s beside 989 TFLOP/s); datasheets"
    for gpu_id, name, head_dim, stated in (
        ("h100-sxm5-80gb", "flash-attn.3", 64, 1.0),
        ("h100-sxm5-80gb", "flash-attn.3", 128, 2.0),
        ("b200-sxm-180gb", "flash-attn.4", 64, 0.5),
        ("b200-sxm-180gb", "flash-attn.4", 128, 1.0),
    ):
        gpu = load_gpu(gpu_id)
        schedule = IMPLEMENTATIONS[name].build(Workload(1, 1, 4096, head_dim), gpu, None)
        tensor = schedule.total("flops") / gpu.tensor_flops_per_clk("bf16")
        exponentials = schedule.total("scores") / gpu.sm.exp_per_clk
        claim = f"{gpu_id}, head_dim {head_dim}: tensor over exponential clocks of a tile"
        yield claim, source, stated, tensor / exponentials


def _score_bytes() -> Iterator[_Count]:
    gpu = load_gpu("a100-sxm4-80gb")
    for heads, stated in ((1, 256 << 20), (32, 8 << 30)):
        w = Workload(1, heads, 8192, 64, dtype="fp32")
        written = IMPLEMENTATIONS["torch.baddbmm"].build(w, gpu, None).requested()["S = Q K^T", "store", "S"]
        claim = f"S of {heads} head{'s' if heads > 1 else ''}, 8,192 tokens, fp32: bytes"
        yield claim, "N^2 elements of 4 bytes a head", float(stated), float(written)


def _backward_flops() -> _Count:
    w, record, gpu = Workload(1, 1, 4096, 128), IMPLEMENTATIONS["flash-attn.2"], load_gpu("a100-sxm4-80gb")
    forward, backward = (record.build(w.with_passes(p), gpu, None).total("flops") for p in ("fwd", "bwd"))
    claim = "FLOPs of the backward over the forward, five GEMMs over two"
    return claim, "FlashAttention-2, arXiv 2307.08691, section 4.1", 2.5, backward / forward


@lru_cache(maxsize=256)
def _replayed(w: Workload, gpu_id: str, implementation: str) -> Replay:
    record, gpu = IMPLEMENTATIONS[implementation], load_gpu(gpu_id)
    return replay(record.build(w, gpu, None), gpu, choose(record, gpu).numbers)


def _outside(value: float, low: float, high: float) -> float:
    """Return the signed relative distance of a value from a range, 0 inside."""
    return min(0.0, value / low - 1) + max(0.0, value / high - 1)


@dataclass(frozen=True, slots=True)
class Known:
    """Rows of a source on a GPU that are known to exceed a unit's ceiling, and the reason."""

    source: str
    gpu: str
    unit: str
    reason: str


def least_s(schedule: Schedule, gpu: Gpu, cache: str) -> Mapping[str, float]:
    """Return the least seconds that each unit needs for a schedule's work.

    Up to its capacity, a warm L2 holds the inputs, and any L2 holds the last written data.
    """
    clks, l2 = gpu.sm.count * gpu.clock.boost_hz, gpu.l2.bandwidth_bytes_per_s
    found = dict.fromkeys(("tensor", "exp", "l2", "hbm"), 0.0)
    for kernel in schedule.kernels:
        found["tensor"] += kernel.total("flops") / (_flops_per_clk(kernel, gpu) * clks)
        found["exp"] += kernel.total("exps") / (gpu.sm.exp_per_clk * clks)
        for (kind, _), size in kernel.requested().items():
            found["l2"] += size / (kernel.multicast if kind == "load" else gpu.l2.write_share) / l2
    for kind, kept in (("load", cache != "cold"), ("store", True)):
        moved = sum(size for (_, direction, _), size in schedule.compulsory().items() if direction == kind)
        found["hbm"] += max(0, moved - kept * gpu.l2.capacity_bytes) / gpu.hbm.bandwidth_bytes_per_s
    return found


def _flops_per_clk(kernel: Kernel, gpu: Gpu) -> float:
    if kernel.path == "simt":
        return gpu.sm.fp32_flops_per_clk
    of = gpu.mma_sync_flops_per_clk if kernel.path == "mma_sync" else gpu.tensor_flops_per_clk
    return of(kernel.dtype)


def measured_rows() -> Iterator[Row]:
    """Yield every measured row with a schedule: published rows of every role, batches, a sample of serving tables."""
    yield from (
        row for table in sorted(BATCHES.glob("*.csv")) if table.stem != "sources" for row in batches(table.stem)
    )
    for case in published_cases(*ROLES):
        with suppress(InputError):
            yield row_of(case)
    yield from serving_rows(SERVING_SAMPLE)


def above(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows that exceed a ceiling.

    Returns
    -------
    list of dict
        ``source, gpu, implementation, question, unit, least_s, measured_s, reason``: `unit` is the unit with the
        largest least time; `reason` is the known reason, or "".
    """
    reasons = {(one.source, one.gpu, one.unit): one.reason for one in known()}
    table = []
    for row in rows:
        try:
            needed = least_s(row.schedule, row.gpu, row.case.cache)
        except InputError:
            continue  # refused, as `attnsim accuracy --sources` tells
        unit = max(needed, key=needed.__getitem__)
        if needed[unit] > row.measured_s:
            where = row.case.source, row.gpu.base_id
            names = dict(zip(("source", "gpu"), where, strict=True)) | {"implementation": row.record.name}
            times = {"least_s": needed[unit], "measured_s": row.measured_s}
            why = reasons.get((*where, unit), "")
            table.append(names | {"question": str(row.workload), "unit": unit} | times | {"reason": why})
    return table


def known() -> tuple[Known, ...]:
    """Return the committed rows above a ceiling, with their reasons."""
    return read_typed(MEASUREMENTS / "above.yaml", "rows above a ceiling", tuple[Known, ...])


def shares_table() -> list[dict[str, Any]]:
    """Return the shares of ``measurements/shares.csv``, which no fitted number rests on.

    Returns
    -------
    list of dict
        ``gpu, implementation, profiler, measured, predicted, off``: shares of a call. `predicted` is the share of the
        busiest unit among those that the profiler's figure covers; `off` is predicted minus measured.
    """
    table = []
    for line in read_csv(MEASUREMENTS / "shares.csv"):
        row = row_of(parse_row(line))
        played = row.replay(choose(row.record, row.gpu).numbers)
        busy = [played.units_s().get(unit, 0.0) for unit in line["units"].split()]
        measured, predicted = float(line["share"]), max(busy) / played.time_s
        names = {"gpu": row.gpu.base_id, "implementation": row.record.name, "profiler": line["profiler"]}
        shares = {"measured": measured, "predicted": predicted, "off": predicted - measured}
        table.append(names | {name: round(share, 4) for name, share in shares.items()})
    return table
