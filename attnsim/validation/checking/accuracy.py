"""How wrong the predictions are, on rows that the fit did not see, and every constant behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from attnsim.models.calibrations.calibration import calibrations, gpu_calibrations, gpu_ranges
from attnsim.models.calibrations.numbers import GPU_NUMBERS, IMPLEMENTATION_NUMBERS, is_determined
from attnsim.models.implementations import flash_attention_4 as flash4
from attnsim.models.implementations import serving, trtllm
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.implementations.frameworks import naive, projection
from attnsim.models.implementations.fused import backward as flash_backward
from attnsim.models.implementations.fused import loops as flash
from attnsim.models.implementations.latent import records as latent_kernels
from attnsim.models.schedule import passes
from attnsim.simulator import grid, memory
from attnsim.validation.fitting.fit import SHORTEST
from attnsim.validation.fitting.held_out import HeldOut, held_out_predictions
from attnsim.validation.measured.datasets import Row

LENGTHS = ((0, 511), (512, 1023), (1024, 4095), (4096, 1 << 40))
"""Length bands of the table, by the longer of seq_q and seq_kv."""

_SERVING = {
    "vllm_flash_attn": "vLLM",
    "vllm_flash_attn_fa3": "vLLM",
    "vllm_vit_flash_attn_fa3": "vLLM",
    "flash_attention": "SGLang",
    "fa3": "SGLang",
    "flash_attn_v3_varlen": "SGLang",
}
"""Who calls the kernels whose errors are summed up by framework, GPU and call, from `SHORTEST` tokens up."""

Unseen = tuple[Row, str, float]
"""A row, what was left out of the fit that predicted it, and the error."""

HAND_CHOSEN = (
    ("simulator.grid", "QUEUEING", grid.QUEUEING, "power of the smooth maximum of a round and of the memory"),
    ("simulator.grid", "PHASE", grid.PHASE, "how far apart the residents of an SM begin in the fast mode's samples"),
    ("simulator.grid", "SHORTER", grid.SHORTER, "part of a block by which the mean is shorter than the one played"),
    (
        "simulator.grid",
        "THINNED_MEMORY",
        grid.THINNED_MEMORY,
        "share of the memory above which no thinned chip is played",
    ),
    ("simulator.memory", "KNEE", memory.KNEE, "footprint over capacity where L2 hits begin to fail and end"),
    (
        "algorithms.flash",
        "MASK_INSTRUCTIONS",
        flash.MASK_INSTRUCTIONS,
        "compare and select, per score of a masked tile",
    ),
    (
        "algorithms.flash_backward",
        "DS_INSTRUCTIONS",
        flash_backward.DS_INSTRUCTIONS,
        "dS = P (dP - D), per score",
    ),
    ("algorithms.naive", "SOFTMAX_INSTRUCTIONS", naive.SOFTMAX_INSTRUCTIONS, "per element of a softmax pass"),
    (
        "algorithms.passes",
        "BROADCAST_INSTRUCTIONS",
        passes.BROADCAST_INSTRUCTIONS,
        "offset arithmetic of a broadcast pass",
    ),
    ("algorithms.naive", "DROPOUT_INSTRUCTIONS", naive.DROPOUT_INSTRUCTIONS, "Philox, per element"),
    ("algorithms.passes", "STREAM_BYTES", passes.STREAM_BYTES, "bytes a block of a helper kernel reads"),
    (
        "algorithms.passes",
        "GemmTile",
        "128 x 128 x 32, 3 stages, 4 warps",
        "tile of cuBLAS's batched GEMMs (closed)",
    ),
    (
        "algorithms.projection",
        "TILES, RASTER, CLUSTER, MOST_SPLITS",
        f"{sum(map(len, projection.TILES.values()))} tiles, {projection.RASTER}, {projection.CLUSTER}, "
        f"{projection.MOST_SPLITS}",
        "cuBLAS's dense GEMMs (closed)",
    ),
    (
        "algorithms.projection",
        "ROTARY_INSTRUCTIONS",
        projection.ROTARY_INSTRUCTIONS,
        "per element of a rotary embedding",
    ),
    (
        "api.layer",
        "GEMM_NUMBERS",
        "tensor_efficiency 0.95, l2_fraction 1, smem_exposed 0",
        "of projections, which no calibration holds",
    ),
    (
        "algorithms.serving",
        "GROUP_CLKS",
        serving.GROUP_CLKS,
        "FA3's scheduler, from one group of 31 sequences to the next",
    ),
    ("algorithms.helpers", "cache_write", "8 instructions per 16 bytes", "addresses of a paged cache write"),
    ("algorithms.helpers", "combine", "4 per split and row, 2 per element", "FP32 instructions of a combine kernel"),
    (
        "latent_kernels",
        "COMBINE_IN_FLIGHT, GEN_IN_FLIGHT",
        f"{latent_kernels.COMBINE_IN_FLIGHT}, {latent_kernels.GEN_IN_FLIGHT}",
        "partial results a combining block of latent attention has asked for",
    ),
    (
        "algorithms.tiles",
        "xformers registers",
        "128 and 168 a thread",
        "register counts of the memory-efficient kernels",
    ),
    (
        "algorithms.tiles",
        "cudnn",
        "128 x 128 one a SM; 16 x 128",
        "stand-in tiles of a closed kernel, read off its waves",
    ),
    ("algorithms.trtllm", "ROPE_INSTRUCTIONS", trtllm.ROPE_INSTRUCTIONS, "per element of TensorRT-LLM's first kernel"),
    ("algorithms.trtllm", "BIAS_INSTRUCTIONS", trtllm.BIAS_INSTRUCTIONS, "the same without a rotation"),
    ("algorithms.trtllm", "SHUFFLE_AND_ADD", trtllm.SHUFFLE_AND_ADD, "sum over the lanes that share a key"),
    (
        "algorithms.trtllm_tiles",
        "gen_multicast",
        "2 with one tile of rows, else 1",
        "blocks that share a read of K and V at head_dim 256 (closed kernel, read off its times)",
    ),
    (
        "algorithms.flash4",
        "POLYNOMIAL_INSTRUCTIONS",
        flash4.POLYNOMIAL_INSTRUCTIONS,
        "per exponential on the FMA pipes",
    ),
)
"""Constants in code that are neither datasheet nor public source; they hold for every implementation alike."""


def accuracy_table(found: Sequence[Unseen] | None = None) -> list[dict[str, Any]]:
    """Errors by source, implementation, GPU, pass, split and length band, each from rows the fit did not see.

    Returns
    -------
    list of dict
        ``source, implementation, gpu, pass, split, band, rows, mean, median, p90, worst``; errors are fractions of
        the measured time, ``|predicted / measured - 1|``. `split` says what was left out of the fit: a "band" of
        lengths and heads, a whole "head_dim", or "never fitted" for implementations without a calibration of their
        own, which borrow the nearest. `band` "all" is the total of the lines above it.
    """
    cells: dict[tuple[str, ...], list[tuple[int, float]]] = {}
    for row, split, error in held_out_errors() if found is None else found:
        key = (row.case.source, row.case.implementation or "", row.case.gpu, row.case.passes, split)
        cells.setdefault(key, []).append((max(row.case.seq_q, row.case.seq_kv), error))
    table = []
    for cell, errors in sorted(cells.items()):
        names: dict[str, Any] = dict(zip(("source", "implementation", "gpu", "pass", "split"), cell, strict=True))
        for low, high in LENGTHS:
            band = [error for length, error in errors if low <= length <= high]
            if band:
                table.append(names | {"band": _band(low, high)} | _summary(band))
        table.append(names | {"band": "all"} | _summary([error for _, error in errors]))
    return table


def targets_table(found: Sequence[Unseen] | None = None) -> list[dict[str, Any]]:
    """The same errors summed up by what a user asks for: one line a kind of prediction and split."""
    kinds: dict[tuple[str, str], list[float]] = {}
    for row, split, error in held_out_errors() if found is None else found:
        kind = kind_of(row)
        if kind:
            kinds.setdefault((kind, split), []).append(error)
    return [{"what": kind, "split": split} | _summary(errors) for (kind, split), errors in sorted(kinds.items())]


def kind_of(row: Row) -> str:
    """What a user would call the row, "" for rows that no line sums up."""
    case, length = row.case, max(row.case.seq_q, row.case.seq_kv)
    match row.record.name:
        case "flash_attn_v2" if case.source.startswith("fa"):
            return f"FlashAttention-2, {row.gpu.architecture}, papers' tables"
        case "flash_attn_v3":
            return "FlashAttention-3, hopper, paper's table"
        case name if name in _SERVING:
            call = "encoder" if not row.workload.mask.is_causal and case.passes == "fwd" and not case.window else ""
            call = call or ("decode" if case.passes == "decode" else "prefill")
            window = ", window" if case.window else ""
            return f"{_SERVING[name]}, {case.gpu.split('-')[0].upper()}, {call}{window}" if length >= SHORTEST else ""
        case "pytorch" | "pytorch_eager":
            return f"unfused PyTorch, {row.gpu.architecture}, N >= 1024" if length >= 1024 else ""
        case name if case.source.startswith("cudnn"):
            return "cuDNN sweeps, A100 PCIe" + ("" if name.startswith("cudnn") else f", {name}")
        case name:
            return f"{name}, {row.gpu.architecture}"


def held_out_errors(found: Sequence[HeldOut] | None = None) -> list[Unseen]:
    """(row, split, error) for every published row and every fold that did not see it."""
    return [(one.row, one.split, one.error) for one in (held_out_predictions() if found is None else found)]


def _band(low: int, high: int) -> str:
    return f"{low}+" if high >= 1 << 40 else f"{low}-{high}"


def _summary(errors: Sequence[float]) -> dict[str, Any]:
    values = np.array(errors)
    return {
        "rows": len(values),
        "mean": round(float(values.mean()), 4),
        "median": round(float(np.median(values)), 4),
        "p90": round(float(np.quantile(values, 0.9)), 4),
        "worst": round(float(values.max()), 4),
    }


def constants() -> list[dict[str, Any]]:
    """Every constant that is neither a datasheet figure nor a fact of public source: fitted, or chosen by hand.

    Returns
    -------
    list of dict
        ``owner, number, value, low, high, fitted, unit, meaning``; `low` and `high` are the 95 % confidence interval.
        `fitted` is "yes", "open" for a number that the rows do not determine, "carried" for one of another card, or
        "by hand".
    """
    out = []
    for gpu, (_, gpu_numbers) in gpu_calibrations().items():
        for name, value in asdict(gpu_numbers).items():
            number = GPU_NUMBERS[name]
            if value is not None and value != number.prior:
                out.append(_constant(gpu, name, value, gpu_ranges()[gpu].get(name), number.unit, number.meaning))
    for (owner, architecture), calibration in calibrations().items():
        for name in calibration.fitted:
            number = IMPLEMENTATION_NUMBERS[name]
            meaning = IMPLEMENTATIONS[owner].extra if name == "extra" else number.meaning
            value = getattr(calibration.numbers, name)
            out.append(
                _constant(
                    f"{owner}, {architecture}",
                    name,
                    value,
                    calibration.ranges.get(name),
                    number.unit,
                    meaning,
                )
            )
    for owner, name, chosen, meaning in HAND_CHOSEN:
        out.append(_constant(owner, name, chosen, None, "", meaning) | {"fitted": "by hand"})
    return out


def _constant(
    owner: str, name: str, value: object, interval: tuple[float, float] | None, unit: str, meaning: str
) -> dict[str, Any]:
    low, high = interval or (None, None)
    known = "carried" if interval is None else "yes" if is_determined(name, *interval) else "open"
    row = {"owner": owner, "number": name, "value": value, "low": low, "high": high, "fitted": known}
    return row | {"unit": unit, "meaning": meaning}
