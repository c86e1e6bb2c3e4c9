"""Validates the model, tells errors away from home, and records the errors of the committed calibrations.

`validate` predicts everything that was recorded or published, and compares. `sources_report` has every source that no
fit has seen, and the components of trust. `record` keeps every fitted number, and recomputes the statements about them:
held-out errors, residuals, hashes of rows and code, and the widths of trust. `differences` compares the committed
errors with those of the present code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attnsim.api.trust import LEVELS, Trust, assess
from attnsim.errors import InputError
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.models.digest import code_digest
from attnsim.validation.checking import hypothetical
from attnsim.validation.checking.accuracy import accuracy_table, targets_table
from attnsim.validation.checking.components import HOME, components_table, measured
from attnsim.validation.checking.evidence import SERVING_SAMPLE, Predicted, Refused, evidence, serving_rows
from attnsim.validation.checking.ratio_steps import kernels_table, pairs_table, ratios_record, ratios_table, steps
from attnsim.validation.fitting.held_out import NEVER, HeldOut, held_out_predictions
from attnsim.validation.fitting.records import PREDICTING, evaluation, origins, rows_digest, write_yaml
from attnsim.validation.measured import aiconfigurator
from attnsim.validation.measured.aiconfigurator_files import PACKAGE, VERSION
from attnsim.validation.measured.datasets import Row, error_summary, grouped, predict_all, published_rows, tabled
from attnsim.validation.measured.groups import usable
from attnsim.validation.measured.sources import KNOWN, ROLES, laboratory_of, role_of, source_of, sources

ALL = "all"


def sources_report() -> dict[str, list[dict[str, Any]]]:
    """Return errors away from home; rows of the large tables are included if their package is installed.

    Returns
    -------
    dict of str to list of dict
        "total" over all rows and by role; "group", `levels_table`; "source", `sources_table`; "component",
        `components_table`; "ratio", "pair" and "kernels", for ratios of two times; "refused", rows without a
        prediction by reason.
    """
    found = evidence()
    groups, stepped = found.groups, steps()
    return {
        "total": totals(found.away),
        "group": levels_table(found.away),
        "source": sources_table(found.away),
        "component": components_table(groups),
        "ratio": ratios_table(stepped),
        "pair": pairs_table(stepped),
        "kernels": kernels_table([*found.home, *found.away], groups),
        "refused": refused_table(found.refused),
    }


def totals(away: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return ``use, rows, mean, median, bias, held`` over all rows off home, and by role."""
    table = [{"use": ALL} | _summary(away)]
    for role in ROLES:
        if part := [one for one in away if role_of(one.row.case.source) == role]:
            table.append({"use": role} | _summary(part))
    return table


def levels_table(away: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return the same columns by ``use, level, pass, architecture``, for strangers and for all others."""

    def cell(one: Predicted) -> tuple[str, ...]:
        role, case = role_of(one.row.case.source), one.row.case
        use = "others" if role in KNOWN else role
        return use, stated(one.row).level, case.passes, one.row.gpu.architecture

    return tabled(away, ("use", "level", "pass", "architecture"), cell, _summary)


def sources_table(away: Sequence[Predicted]) -> list[dict[str, Any]]:
    """Return the errors of each source off home on each GPU.

    Returns
    -------
    list of dict
        ``laboratory, source, use, gpu, rows, mean, median, bias, held``: `mean` and `median` of ``|predicted / measured
        - 1|``; `bias`, the mean logarithm of predicted over measured; `held`, the share of rows inside the 90 % range.
    """

    def cell(one: Predicted) -> tuple[str, ...]:
        source = one.row.case.source
        return laboratory_of(source), source_of(source), role_of(source), one.row.gpu.base_id

    return tabled(away, ("laboratory", "source", "use", "gpu"), cell, _summary)


def _summary(some: Sequence[Predicted]) -> dict[str, Any]:
    logs = np.array([one.log_error for one in some])
    errors = np.abs(np.expm1(-logs))
    half = np.log([stated(one.row).high for one in some])
    return {
        "rows": len(some),
        "mean": round(float(errors.mean()), 4),
        "median": round(float(np.median(errors)), 4),
        "bias": round(float(-logs.mean()), 4),
        "held": round(float((np.abs(logs) <= half).mean()), 4),
    }


def stated(row: Row) -> Trust:
    """Return the trust that a user gets for a row."""
    found = choose(row.record, row.gpu)
    operations = "operations" in row.case.options
    return assess(row.workload, row.gpu, found, row.record, version=row.case.version or "", operations=operations)


def refused_table(refused: Iterable[Refused]) -> list[dict[str, Any]]:
    """Return the rows without a prediction as ``source, gpu, implementation, rows, why``."""
    counts = Counter(refused)
    return [
        {"source": one.source, "gpu": one.gpu, "implementation": one.implementation, "rows": rows, "why": one.why}
        for one, rows in counts.items()
    ]


TOLERANCE = 5e-4
"""Allowed difference of a recomputed error, as a share of the time: rounding on another machine."""


def differences(found: Sequence[HeldOut] | None = None) -> list[dict[str, Any]]:
    """Return every committed error and its recomputed value.

    Returns
    -------
    list of dict
        ``calibration, rows, committed, now, same``: mean errors as fractions; `same` also covers the number of rows,
        the median, the 90th percentile and the worst.
    """
    held = _by_calibration(held_out_predictions() if found is None else found)
    table = []
    for name, calibration in sorted(calibrations().items()):
        if not calibration.folds:
            continue
        now, then = evaluation(held[name])["held_out"], calibration.held_out
        same = now["rows"] == then.rows and all(
            abs(now[key] - getattr(then, key)) <= TOLERANCE for key in ("mean", "median", "p90", "worst")
        )
        row = {"calibration": ", ".join(name), "rows": now["rows"], "committed": then.mean, "now": now["mean"]}
        table.append(row | {"same": same})
    return table


def _by_calibration(found: Sequence[HeldOut]) -> dict[tuple[str, str], list[HeldOut]]:
    return grouped((one for one in found if one.split != NEVER and usable(one.row)), lambda one: one.calibration)


def record(folder: Path, progress: Callable[[str], None] = lambda line: None) -> list[Path]:
    """Rewrite the record of every committed calibration and the widths of trust; no fitted number changes.

    Parameters
    ----------
    folder : Path
        ``models/calibrations`` of the source tree.
    progress : callable
        Called with one line per step.

    Raises
    ------
    InputError
        Without the package of the serving rows, on which the widths rest too.
    """
    if not aiconfigurator.available():
        raise InputError(aiconfigurator.missing())
    progress("predicting held-out rows")
    found = held_out_predictions()
    written = []
    for (name, architecture), held in sorted(_by_calibration(found).items()):
        fresh = {"code_sha256": code_digest(*PREDICTING)} | origins([one.row for one in held]) | evaluation(held)
        written.append(_renewed(folder / "implementations" / f"{name}.{architecture}.yaml", fresh))
    progress("predicting rows of other sources, with numbers from elsewhere, and on pairs of GPUs")
    written.append(_widths(folder, found))
    return written


def _renewed(path: Path, fresh: dict[str, Any]) -> Path:
    """Rewrite a calibration file with new values under their keys."""
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return write_yaml(path, data | fresh)


def _widths(folder: Path, found: Sequence[HeldOut]) -> Path:
    known_rows = evidence(found=found)
    groups = known_rows.groups
    widths = measured(groups)
    table = {row.pop("component"): row for row in components_table(groups)}
    checks = {name: table[name] for name in widths.sd}
    return write_yaml(
        folder / "trust.yaml",
        {
            "sources": [*(name for name, one in sources().items() if one.role in KNOWN), f"{PACKAGE}-{VERSION}"],
            "sample": SERVING_SAMPLE,
            "rows_sha256": rows_digest(published_rows()),
            "code_sha256": code_digest(*PREDICTING),
            "factor": round(widths.factor, 4),
            "within": round(widths.within, 4),
            "home": table[HOME],
            "components": checks,
            "ratios": ratios_record(steps(), [*known_rows.home, *known_rows.away], groups),
        },
    )


def undetermined() -> list[dict[str, Any]]:
    """Return numbers that their fit does not determine, at their priors: ``calibration, open, fitted, numbers``."""
    return [
        {
            "calibration": ", ".join(name),
            "open": len(found.undetermined),
            "fitted": len(found.ranges),
            "numbers": ", ".join(found.undetermined),
        }
        for name, found in sorted(calibrations().items())
        if found.undetermined
    ]


TITLES = {
    "error": "Errors on rows the fit did not see",
    "serving": "Serving tables (a sample), with the numbers that a question gets today",
    "own": "Our own kernels, measured, with the numbers that a question gets today",
    "given": "Tables of --measured, with the numbers that a question gets today",
    "dataset": "Rows of the serving tables",
    "hypothetical": "GPUs as if they did not exist",
    "trust": "90 % intervals: true times inside, and width",
    "stated": "The same of the intervals as stated, on serving rows that did not set them",
    "calibration": "Committed calibrations, mean errors on held-out rows",
    "undetermined": "Fitted numbers that their rows leave open",
    "assumed": "What measured rows do not say of their conditions, and how it is taken",
    "noise": "Noise of the data: one measured time over another, mean size of the log",
    "error_by_length": "Errors by source, implementation, pass and length",
}
"""Tables of a report, in the order of a page."""
SHARES = ("mean", "median", "p90", "worst", "step", "at_home", "coverage", "mean_error", "committed", "now")
"""Columns of the tables that are shares."""
STEPS = 4
"""Number of calls of `progress` by `validate`."""


@dataclass(frozen=True, slots=True)
class Served:
    """A row of the large tables and its prediction with the present numbers."""

    row: Row
    numbers: str
    predicted_s: float
    trust: Trust


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `validate`.

    Parameters
    ----------
    points : list of dict
        Every prediction with its measurement: ``kind, source, implementation, gpu, pass, split, seq_q, seq_kv,
        head_dim, measured_s, predicted_s, ratio``. Kinds are "held out" (published rows, each predicted without its
        group), "serving" (a sample of the large tables, none without that package), "own" (our kernels) and "given" (a
        user's tables).
    tables : dict of str to list of dict
        - "error": by what is predicted and what was left out of the fit; "error_by_length": by source and length;
        - "serving", "own" and "given": with the present numbers;
        - "dataset": used and rejected rows of the large tables;
        - "calibration": committed and recomputed errors;
        - "trust": the components of the intervals and their check; "stated": coverage of the stated intervals, on
          serving rows;
        - "hypothetical": GPUs as if they did not exist;
        - "undetermined": numbers that their rows do not determine;
        - "assumed": conditions (cache, launch, version) that rows do not state, and the assumption;
        - "noise": noise of the data, a lower bound for errors.
    missing : str
        What could not be checked; "" if everything was.
    """

    points: list[dict[str, Any]]
    tables: dict[str, list[dict[str, Any]]]
    missing: str

    @property
    def ok(self) -> bool:
        """True if every committed calibration still has its committed errors."""
        return all(row["same"] for row in self.tables["calibration"])


def point(kind: str, row: Row, split: str, predicted_s: float) -> dict[str, Any]:
    """Return a line of `Report.points`."""
    case = row.case
    return {
        "kind": kind, "source": case.source, "implementation": row.record.name, "gpu": case.gpu, "pass": case.passes,
        "split": split, "seq_q": case.seq_q, "seq_kv": case.seq_kv, "head_dim": case.head_dim,
        "measured_s": row.measured_s, "predicted_s": predicted_s, "ratio": predicted_s / row.measured_s,
    }  # fmt: skip


def validate(
    sample: int, progress: Callable[[], None] = lambda: None, own: Sequence[Row] = (), given: Sequence[Row] = ()
) -> Report:
    """Predict everything recorded and published; rows of fits are predicted with numbers that were fitted without them.

    Parameters
    ----------
    sample : int
        Rows of the large tables for each GPU, kernel and pass.
    own : sequence of Row
        Measured rows of our own kernels.
    given : sequence of Row
        Measured rows of a user's tables.
    progress : callable
        Called `STEPS` times.
    """
    held = held_out_predictions()
    progress()
    served = predictions(serving_rows(sample, SEED))
    progress()
    trust = components_table(evidence(sample, held).groups)
    progress()
    transfers = hypothetical.errors(hypothetical.outcomes(sample=sample))
    progress()
    of_own, of_given = predictions(own), predictions(given)
    points = [point("held out", one.row, one.split, one.predicted_s) for one in held]
    for kind, found in (("serving", served), ("own", of_own), ("given", of_given)):
        points += [point(kind, one.row, one.numbers, one.predicted_s) for one in found]
    tables = {
        "error": targets_table(held),
        "error_by_length": accuracy_table(held),
        "serving": serving_table(served),
        "own": serving_table(of_own),
        "given": serving_table(of_given),
        "dataset": datasets_table(),
        "calibration": differences(held),
        "trust": trust,
        "stated": stated_table(served),
        "hypothetical": transfers,
        "undetermined": undetermined(),
        "noise": noise_table(),
        "assumed": assumed_table([*{id(one.row): one.row for one in held}.values(), *own, *given]),
    }
    return Report(points, tables, aiconfigurator.missing())


def assumed_table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the conditions that measured rows leave open, and the assumptions: ``source, rows, assumed``."""
    counts = Counter((row.case.source, "; ".join(row.assumed)) for row in rows if row.assumed)
    return [{"source": source, "rows": count, "assumed": text} for (source, text), count in sorted(counts.items())]


SEED = 1
"""Seed of a sample other than the one that the widths of trust rest on."""


def stated_table(served: Sequence[Served]) -> list[dict[str, Any]]:
    """Return the coverage of the stated intervals: ``level, rows, coverage, mean_error, width_over_error``."""
    table = []
    for level in LEVELS:
        members = [one for one in served if one.trust.level == level]
        if members:
            errors = np.log([one.row.measured_s / one.predicted_s for one in members])
            low, high = (np.log([getattr(one.trust, end) for one in members]) for end in ("low", "high"))
            size = float(np.abs(errors).mean())
            table.append(
                {
                    "level": level,
                    "rows": len(members),
                    "coverage": round(float(((low <= errors) & (errors <= high)).mean()), 4),
                    "mean_error": round(size, 4),
                    "width_over_error": round(float(np.median(high - low) / 2 / size), 3),
                }
            )
    return table


def predictions(rows: Sequence[Row]) -> list[Served]:
    """Predict measured rows as a user's question."""
    chosen = [choose(row.record, row.gpu) for row in rows]
    times = predict_all([(row, found.numbers) for row, found in zip(rows, chosen, strict=True)])
    return [
        Served(row, found.whose, time, assess(row.workload, row.gpu, found, row.record, assumed=row.assumed))
        for row, found, time in zip(rows, chosen, times, strict=True)
    ]


def serving_table(served: Sequence[Served]) -> list[dict[str, Any]]:
    """Return errors as ``gpu, implementation, pass, numbers, rows, mean, median, p90, over``."""

    def cell(one: Served) -> tuple[str, ...]:
        return one.row.case.gpu, one.row.record.name, hypothetical.pass_of(one.row), one.numbers

    def summary(some: Sequence[Served]) -> dict[str, Any]:
        ratios = [one.predicted_s / one.row.measured_s for one in some]
        errors = error_summary(abs(ratio - 1) for ratio in ratios)
        return {"rows": len(ratios)} | errors | {"over": round(float(np.exp(np.log(ratios).mean())), 4)}

    return tabled(served, ("gpu", "implementation", "pass", "numbers"), cell, summary)


def datasets_table() -> list[dict[str, Any]]:
    """Return counts of the large tables: ``gpu, rows, used, rejected, not_covered``; empty without their package."""
    if not aiconfigurator.available():
        return []
    counts: dict[str, Counter[str]] = {}
    for table in aiconfigurator.tables():
        if table.gpu:
            of = counts.setdefault(table.gpu, Counter())
            of["rows"] += table.rows
            of["used"] += table.kept
            of["rejected"] += sum(table.rejected.values())
            of["not_covered"] += sum(table.uncovered.values())
    return [{"gpu": gpu, **of} for gpu, of in sorted(counts.items())]


NOISE_SAMPLE = 400
"""Number of rows whose twins are looked up."""

COMPUTE_BOUND = 2048
"""Prompts from this length on hardly use the memory, in which H100 and H200 differ."""


def noise_table() -> list[dict[str, Any]]:
    """Return the noise of the data: ``what, pairs, mean, median, p90`` of the log of one measured time over another.

    Pairs are repeated questions on one GPU, and equal questions on H100 and H200 that do not use the memory, their only
    difference. Empty without the package of the large tables.
    """
    if not aiconfigurator.available():
        return []
    seen: dict[tuple[object, ...], float] = {}
    repeats = []
    for row in aiconfigurator.rows(gpu="a100-sxm4-80gb", implementation="vllm.flash-attn-2", passes="fwd"):
        question = hypothetical.question(row)
        if question in seen:
            repeats.append(row.measured_s / seen[question])
        seen[question] = row.measured_s
    table = [_noise("repeats: vLLM prefill on A100", repeats)]
    for name, what in (("vllm.flash-attn-3", "vLLM"), ("sglang.fa3", "SGLang")):
        there = hypothetical.twins("h100-sxm5-80gb", name, "fwd")
        some = aiconfigurator.rows(gpu="h200-sxm-141gb", implementation=name, passes="fwd", sample=NOISE_SAMPLE)
        pairs = [(row, there.get(hypothetical.question(row))) for row in some if row.case.seq_q >= COMPUTE_BOUND]
        ratios = [row.measured_s / twin.measured_s for row, twin in pairs if twin is not None]
        table.append(_noise(f"twins: {what} prefill on H100 and H200", ratios))
    return table


def _noise(what: str, ratios: Sequence[float]) -> dict[str, Any]:
    return {"what": what, "pairs": len(ratios), **error_summary(np.abs(np.log(ratios)))}
