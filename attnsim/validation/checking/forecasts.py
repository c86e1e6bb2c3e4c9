"""Forecasts: times, ranges and ratios that were committed before anybody measured the calls.

``measurements/forecasts`` has a table for each release, ``DATE.csv``, and ``releases.csv`` with the commit of each.
``benchmarks/forecasts.py`` adds a release; an old one is never changed, and a test checks its hash. Forecasts are for
chips and kernels (`unseen`) whose rows entered no fit and no choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from attnsim.api.answer import Outcome
from attnsim.api.answering import predict
from attnsim.api.tables import read
from attnsim.errors import InputError, some
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS, runs_on
from attnsim.models.implementations.implementation import Implementation
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import running
from attnsim.models.question.case_file import records
from attnsim.models.question.case_row import parse_row
from attnsim.models.question.workload import Workload
from attnsim.tables import read_csv
from attnsim.validation.checking.ratio_steps import stated_steps
from attnsim.validation.measured.aiconfigurator_files import FACTS
from attnsim.validation.measured.datasets import Row, batches, error_summary, grouped, published_cases, row_of
from attnsim.validation.measured.sources import BATCHES, MEASUREMENTS, ROLES, split

FOLDER = MEASUREMENTS / "forecasts"
RELEASES = FOLDER / "releases.csv"
KERNELS = (
    "flash-attn.2", "flash-attn.3", "flash-attn.4", "nvidia.cudnn", "flashinfer.fa2", "triton.tutorial", "torch.flex",
    "xformers.cutlass", "vllm.flash-attn-2", "vllm.flash-attn-3", "torch.baddbmm",
)  # fmt: skip
"""Kernels to forecast: those that public benchmarks time."""
BASES = ("h100-sxm5-80gb", "b200-sxm-180gb", "a100-sxm4-80gb")
"""Base chips of ratios: the first one with rows of the kernel."""
CACHE, LAUNCH = "cold", "stream"
"""Conditions of `triton.testing.do_bench`, which most public benchmarks use."""
PREFILL = tuple((16384 // seq, 2048 // dim, seq, dim) for seq in (2048, 8192) for dim in (64, 128))
"""Batch, heads, length, head_dim: 16 k tokens and width 2048, from the grid of FlashAttention's benchmark."""
TRAINED = PREFILL[-1]
"""The shape that is forecast for the backward pass too."""
DECODE = ((8, 8192), (64, 8192))
"""Batch and cached keys, for 32 query heads and 8 key/value heads of width 128."""
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a call that nobody had timed.

    `ratio` is its speedup over the same call and kernel on the chip `over`; "" and 0 if no base chip has rows.
    """

    gpu: str
    implementation: str
    passes: str
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: int
    time_s: float
    low_s: float
    high_s: float
    level: str
    over: str
    ratio: float
    ratio_low: float
    ratio_high: float

    @property
    def key(self) -> Key:
        """Key that a measured row must share, besides the chip."""
        return astuple(self)[1:10]


COLUMNS = tuple(one.name for one in fields(Forecast))


def seen() -> set[tuple[str, str]]:
    """Return (chip, kernel) pairs with a row, a table or a step in the repository, for whatever use."""
    rows: list[Row] = [row for path in BATCHES.glob("*.csv") if path.stem != "sources" for row in batches(path.stem)]
    for case in published_cases(*ROLES):
        with suppress(InputError):
            rows.append(row_of(case))
    found = {(row.gpu.base_id, name) for row in rows for name in row.record.calibrated_as}
    found |= {(gpu, one.implementation) for one in stated_steps() for gpu in (one.older, one.newer)}
    tables = {name for by in FACTS.kernels.values() for names in by.values() for name in names.values()}
    systems = {pattern.partition("/")[0] for pattern in split().aiconfigurator}
    chips = {FACTS.systems.get(system, system.replace("_", "-")) for system in systems}
    return found | {(gpu, name) for gpu in chips for name in tables}


def unseen(gpus: Iterable[Gpu] = ()) -> list[tuple[Gpu, Implementation]]:
    """Return the (chip, kernel) pairs to forecast, of all chips or of these: pairs that were never seen."""
    known = seen()
    return [
        (gpu, record)
        for gpu in list(gpus) or map(load_gpu, builtin_gpu_ids())
        for record in map(IMPLEMENTATIONS.__getitem__, KERNELS)
        if runs_on(record, gpu) and not known & {(gpu.id, name) for name in record.calibrated_as}
    ]


def questions(record: Implementation) -> Iterator[Workload]:
    """Yield the workloads to forecast for a kernel."""
    for size in PREFILL:
        for mask in (Mask.full(), Mask.causal()):
            w = Workload(*size, mask=mask)
            yield w
            if size == TRAINED and "bwd" in record.passes:
                yield w.with_passes("bwd")
    if "decode" in record.passes:
        for batch, seq in DECODE:
            yield Workload(batch, 32, 1, 128, heads_kv=8, seq_kv=seq, passes="decode")


def forecasts(gpu: Gpu, record: Implementation) -> Iterator[Forecast]:
    """Yield today's forecasts; calls that the kernel does not support, or that fit no memory, are left out."""
    known = seen()
    bases = [load_gpu(name) for name in BASES if name != gpu.id and (name, record.name) in known]
    for w in questions(record):
        with suppress(InputError):
            one = _predicted(w, gpu, record)
            if one.time_s is None or one.time_low_s is None or one.time_high_s is None:
                continue
            ratio = one.speedup_over(_predicted(w, bases[0], record)) if bases else None
            over = (bases[0].id, ratio.value, ratio.low, ratio.high) if ratio else ("", 0.0, 0.0, 0.0)
            times = (one.time_s, one.time_low_s, one.time_high_s, one.trust.level)
            yield Forecast(gpu.id, record.name, *_shape(one.workload), *times, *over)


def _predicted(w: Workload, gpu: Gpu, record: Implementation) -> Outcome:
    return predict(
        w, gpu, running(record)[0].name, implementation=record.name, baseline=False, cache=CACHE, launch=LAUNCH
    )


def releases() -> dict[str, str]:
    """Return the commit of each release by date, the oldest first."""
    return {row["date"]: row["commit"] for row in read_csv(RELEASES)} if RELEASES.exists() else {}


def fixed(date: str) -> list[Forecast]:
    """Read the committed forecasts of a release."""
    kinds = {one.name: {"int": int, "float": float}.get(str(one.type), str) for one in fields(Forecast)}
    rows = read_csv(FOLDER / f"{date}.csv")
    return [Forecast(**{name: kinds[name](text) for name, text in row.items()}) for row in rows]


def score(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Compare a table of later measurements with the forecasts.

    Returns
    -------
    dict of str to list of dict
        "time" and "ratio", by ``release, gpu, implementation, pass``: ``rows, mean, median, p90`` of ``|forecast /
        measured - 1|``, ``bias``, and ``held``, the share inside the range. A ratio needs a row of the base chip too.
        "not scored": ``rows, why``.

    Raises
    ------
    InputError
        If the table cannot be read, or none of its rows was forecast.
    """
    measured, why = _measured(path)
    every = {date: {(one.gpu, *one.key): one for one in fixed(date)} for date in releases()}
    if not every:
        raise InputError("no forecast is fixed yet; python benchmarks/forecasts.py --write fixes those of today")
    times, ratios, used = [], [], set()
    for date, known in every.items():
        for key, time in measured.items():
            if one := known.get(key):
                cell = (date, one.gpu, one.implementation, one.passes)
                times.append((cell, one.time_s, one.low_s, one.high_s, time))
                used |= {key, (one.over, *one.key)}
                if base := measured.get((one.over, *one.key)):
                    ratios.append((cell, one.ratio, one.ratio_low, one.ratio_high, base / time))
    if not times:
        chips = dict.fromkeys(key[0] for known in every.values() for key in known)
        named = some(chips, "docs/forecasts.md")
        refused = f"; first refused: {why[0]}" if why else ""
        raise InputError(f"{path}: none of its {len(measured) + len(why)} calls was forecast; chips: {named}{refused}")
    why += [f"not forecast: {key[1]} on {key[0]}" for key in measured if key not in used]
    counts = [{"rows": len(same), "why": text} for text, same in grouped(why, str).items()]
    return {"time": _scored(times), "ratio": _scored(ratios), "not scored": counts}


def _measured(path: Path) -> tuple[dict[Key, float], list[str]]:
    """Return the times of a table by call (mean over repeated calls), and the reasons why rows have none."""
    frame, columns = read(path)
    found: dict[Key, list[float]] = {}
    why = []
    for line in records(frame):
        try:
            row = row_of(parse_row(line, columns))
            found.setdefault(_key(row), []).append(row.measured_s)
        except InputError as error:
            why.append(str(error))
    return {key: float(np.mean(times)) for key, times in found.items()}, why


def _key(row: Row) -> Key:
    w, case = row.workload, row.case
    if case.time_s is None:
        raise InputError("no time")
    if case.dtype not in ("bf16", "fp16") or case.window is not None or case.lengths or w.head_dim != w.head_dim_v:
        raise InputError("forecasts are of 16-bit formats, one length, equal widths and no window")
    return row.gpu.base_id, row.record.name, *_shape(w)


def _shape(w: Workload) -> tuple[str, int, int, int, int, int, int, int]:
    """Return the key of a call; one new token sees all keys under either mask."""
    causal = int(w.mask.is_causal and w.seq_q > 1)
    return w.passes, w.batch, w.heads_q, w.heads_kv, w.seq_q, w.seq_kv, w.head_dim, causal


def _scored(pairs: Sequence[tuple[tuple[str, ...], float, float, float, float]]) -> list[dict[str, Any]]:
    table = []
    for cell, members in grouped(pairs, lambda one: one[0]).items():
        forecast, low, high, true = np.array([one[1:] for one in members]).T
        held = float(((low <= true) & (true <= high)).mean())
        line = dict(zip(("release", "gpu", "implementation", "pass"), cell, strict=True)) | {"rows": len(members)}
        bias = float(np.log(forecast / true).mean())
        line |= error_summary(np.abs(forecast / true - 1))
        table.append(line | {"bias": round(bias, 4), "held": round(held, 4)})
    return table
