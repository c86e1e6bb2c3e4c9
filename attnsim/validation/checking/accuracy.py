"""How wrong the predictions are, on rows that the fit did not see, and every constant behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnsim.models.calibrations.calibration import calibrations, gpu_calibrations, gpu_ranges
from attnsim.models.calibrations.numbers import GPU_NUMBERS, IMPLEMENTATION_NUMBERS
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mechanisms.gated import GATED_NAMES
from attnsim.validation.checking.by_hand import chosen
from attnsim.validation.fitting.held_out import HeldOut
from attnsim.validation.measured.datasets import Row
from attnsim.validation.measured.groups import SHORTEST
from attnsim.validation.measured.predicting import error_summary

LONGEST = 1 << 40
LENGTHS = ((0, 511), (512, 1023), (1024, 4095), (4096, LONGEST))
"""Length bands of the table, by the longer of seq_q and seq_kv."""

_SERVING = {"vllm": "vLLM", "sglang": "SGLang"}
"""Libraries whose errors before Blackwell are summed up by framework, GPU and call, from `SHORTEST` tokens up."""


def accuracy_table(found: Sequence[HeldOut]) -> list[dict[str, Any]]:
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
    for one in found:
        case = one.row.case
        key = (case.source, one.row.record.name, case.gpu, case.passes, one.split)
        cells.setdefault(key, []).append((max(case.seq_q, case.seq_kv), one.error))
    table = []
    for cell, errors in sorted(cells.items()):
        names: dict[str, Any] = dict(zip(("source", "implementation", "gpu", "pass", "split"), cell, strict=True))
        for low, high in LENGTHS:
            band = [error for length, error in errors if low <= length <= high]
            if band:
                table.append(names | {"band": f"{low}+" if high == LONGEST else f"{low}-{high}"} | _summary(band))
        table.append(names | {"band": "all"} | _summary([error for _, error in errors]))
    return table


def targets_table(found: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """The same errors summed up by what a user asks for: one line a kind of prediction and split."""
    kinds: dict[tuple[str, str], list[float]] = {}
    for one in found:
        if kind := kind_of(one.row):
            kinds.setdefault((kind, one.split), []).append(one.error)
    return [{"what": kind, "split": split} | _summary(errors) for (kind, split), errors in sorted(kinds.items())]


_PAPERS = {
    "flash-attn.2": ("FlashAttention-2", "papers' tables"),
    "flash-attn.3": ("FlashAttention-3", "paper's table"),
}
"""What a user calls an implementation that its papers measured, and whose tables those are."""


def kind_of(row: Row) -> str:
    """What a user would call the row, "" for rows that no line sums up."""
    case, record, length = row.case, row.record, max(row.case.seq_q, row.case.seq_kv)
    if record.name in _PAPERS and case.source.startswith("fa"):
        title, tables = _PAPERS[record.name]
        return f"{title}, {row.gpu.architecture}, {tables}"
    if record.runs in GATED_NAMES:
        return f"{record.name}, {row.gpu.architecture}"
    if record.library in _SERVING and row.gpu.compute_capability_number < 100:
        call = "encoder" if not row.workload.mask.is_causal and case.passes == "fwd" and not case.window else ""
        call = call or ("decode" if case.passes == "decode" else "prefill")
        window = ", window" if case.window else ""
        return f"{_SERVING[record.library]}, {case.gpu.split('-')[0].upper()}, {call}{window}" * (length >= SHORTEST)
    if record.unfused:
        return f"unfused PyTorch, {row.gpu.architecture}, N >= 1024" if length >= 1024 else ""
    if case.source.startswith("cudnn"):
        return "cuDNN sweeps, A100 PCIe" + ("" if record.closed else f", {record.name}")
    return f"{record.name}, {row.gpu.architecture}"


def _summary(errors: Sequence[float]) -> dict[str, Any]:
    return {"rows": len(errors), **error_summary(errors), "worst": round(max(errors), 4)}


def constants() -> list[dict[str, Any]]:
    """Every constant that is neither a datasheet figure nor a fact of public source: fitted, or chosen by hand.

    Returns
    -------
    list of dict
        ``owner, number, value, low, high, fitted, unit, meaning``; `low` and `high` are the 95 % confidence interval.
        `fitted` is "yes", "open" for a number at its prior because the rows do not determine it, or "by hand".
    """
    out = []
    for gpu, (_, gpu_numbers) in gpu_calibrations().items():
        for name, value in asdict(gpu_numbers).items():
            if value is not None and value != GPU_NUMBERS[name].prior:
                out.append(_constant(gpu, name, value, gpu_ranges()[gpu].get(name)))
    for (owner, architecture), calibration in calibrations().items():
        for name in (*calibration.fitted, *calibration.undetermined):
            value, interval = getattr(calibration.numbers, name), calibration.ranges.get(name)
            row = _constant(f"{owner}, {architecture}", name, value, interval)
            out.append(row | ({"meaning": IMPLEMENTATIONS[owner].extra.meaning} if name == "extra" else {}))
    unfitted = {"low": None, "high": None, "fitted": "by hand", "unit": ""}
    for one in chosen():
        out.append({"owner": one.module, "number": one.name, "value": one.shown} | unfitted | {"meaning": one.meaning})
    return out


def _constant(owner: str, name: str, value: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    number = GPU_NUMBERS.get(name) or IMPLEMENTATION_NUMBERS[name]
    low, high = interval or (None, None)
    known = "yes" if interval else "open"
    row = {"owner": owner, "number": name, "value": value, "low": low, "high": high, "fitted": known}
    return row | {"unit": number.unit, "meaning": number.meaning}
