"""Timings for people: beside predictions, after a correction, and what a GPU's units reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from attnsim import wording
from attnsim.api.adapting.adapt import Adapted
from attnsim.api.answer import Outcome
from attnsim.api.checking import Accuracy, Check
from attnsim.api.tables import AnsweredRow
from attnsim.errors import some
from attnsim.models.hardware.gpu import Gpu
from attnsim.models.hardware.sections import FIELDS
from attnsim.tables import Block, Table, Unfolded, texts, written
from attnsim.validation.measuring.probe_file import (
    Measured,
    Probed,
)


def check_tables(found: Check, fits: Callable[[Table], bool]) -> Iterator[Block]:
    """Columns as they were read, each row beside its prediction, and bias and coverage of all."""
    heads = {"column": "column", "read_as": "read as", "unit": "unit"}
    yield Table("Columns", texts(found.columns.table(), {}, heads), whole=("column",))
    same, questions = found.question
    shared = [f"{name} {cell}" for name, cell in same.items() if cell]
    if shared:
        yield f"all rows: {', '.join(shared)}\n"
    lines: list[dict[str, object]] = [{found.line_name: str(line)} for line, _ in found.lines]
    answers = [_answer(row) for row in found.answered]
    names = {one.theirs for one in found.columns.columns if one.is_name} | {"inside", "trust"}

    def table(*parts: Sequence[Mapping[str, object]]) -> Table:
        rows = [dict(chain.from_iterable(one.items() for one in row)) for row in zip(lines, *parts, strict=True)]
        return Table("", rows, right=rows[0].keys() - names, whole=rows[0])

    asked = table(questions, answers)  # what was answered stands in the first part where there are several
    yield asked if fits(asked) else table(answers, questions)
    if found.accuracy:
        several = any(one.gpu for one in found.accuracy)
        parts = [_accuracy(one, several) for one in found.accuracy]
        yield Table("Predicted against measured", parts, right=_NUMBERS)
    if found.doubt:
        yield found.doubt
    yield from found.audit.lines
    if found.taken:
        yield f"names: {', '.join(f'{given} is {name}' for given, name in found.taken)}"
    for lines_of, of_them in sorted(found.assumed.items(), key=lambda item: len(item[0])):
        of_lines = f"{found.line_name} {some(map(str, lines_of), 'trust in --json')} " if lines_of else ""
        yield f"{of_lines}left open: {'; '.join(of_them)}"
    for reason, where in (found.impossible | found.far).items():
        yield f"{found.line_name} {', '.join(dict.fromkeys(map(str, where)))}, in no mean: {reason}"
    for reason, where in found.failed.items():
        yield f"{found.line_name} {', '.join(dict.fromkeys(map(str, where)))} without an answer: {reason}"


def _answer(row: AnsweredRow) -> dict[str, object]:
    return {
        "measured": wording.time_text(row.measured_s),
        "predicted": wording.time_text(row.predicted_s),
        "90 % range": wording.interval_text(row.low_s, row.high_s, row.predicted_s),
        "error": wording.error_text(row.ratio),
        "inside": {True: "yes", False: "NO", None: wording.NOTHING}[row.in_range],
        "trust": row.level,
    }


_NUMBERS = ("rows", "mean |error|", "median", "median |error|", "bias", "inside", "inside the 90 % range")


def _accuracy(one: Accuracy, with_gpu: bool) -> dict[str, object]:
    inside = f"{one.inside} of {one.rows}"
    head: dict[str, object] = {"implementation": one.implementation}
    if with_gpu:  # 80 columns hold no long heads then
        head |= {"GPU": one.gpu, "rows": one.rows, "mean |error|": wording.share_text(one.mean)}
        head |= {"median": wording.share_text(one.median), "bias": wording.share_text(one.bias, signed=True)}
        return head | {"inside": inside}
    return head | {
        "rows": one.rows,
        "mean |error|": wording.share_text(one.mean),
        "median |error|": wording.share_text(one.median),
        "bias": wording.share_text(one.bias, signed=True),
        "inside the 90 % range": f"{inside} ({wording.share_text(one.coverage, 0)})",
    }


def adapted_tables(found: Adapted, out: Path | None) -> Iterator[Block]:
    """Timings, what the model says, and what the other timings say."""
    line = found.check.line_name
    rows = [
        {
            line: ", ".join(map(str, row["rows"])),
            "measured": wording.time_text(row["measured_s"]),
            "model": wording.time_text(row["predicted_s"]),
            "error": wording.error_text(row["predicted_s"] / row["measured_s"]),
            "by the others": wording.time_text(row["by_the_others_s"]),
            "their error": wording.error_text(row["by_the_others_s"] and row["by_the_others_s"] / row["measured_s"]),
            "kernel": f"{row['implementation']}, {row['pass']}",
            "question": row["question"],
        }
        for row in found.rows
    ]
    yield Table(f"Timings on {found.own.gpu}", rows, right=rows[0].keys() - {"kernel", "question"})
    yield from found.notes
    for reason, where in found.left_out.items():
        yield f"{line} {', '.join(map(str, where))} not used: {reason}"
    if out is not None:
        yield f"written: {out}; give it to a question as --calibration {out}"


def measured_calls(found: Sequence[Outcome], times: Sequence[float], files: Sequence[Path]) -> Iterator[Block]:
    """Measured calls beside predictions."""
    lines = [
        {
            "": str(number),
            "gpu": one.gpu,
            "implementation": one.implementation,
            "workload": str(one.workload),
            "measured": wording.time_text(time_s),
            "predicted": wording.time_text(one.time_s),
            "error": wording.error_text(one.time_s and one.time_s / time_s),
        }
        for number, (one, time_s) in enumerate(zip(found, times, strict=True), 1)
    ]
    yield Table("Measured calls", lines)
    yield from written(files)


def timed_row(row: dict[str, Any]) -> dict[str, Any]:
    """A timed kernel, rates in TFLOP/s and TB/s."""
    return {
        "kernel": row["operation"],
        "points": row["points"],
        "failed": row["failed"],
        "samples": row["samples"],
        "throttled": row["throttled"],
        "spread": None if row["spread"] is None else f"{row['spread']:.1%}",
        "MHz": row["clock_mhz"],
        "TFLOP/s": None if row["flops_per_s"] is None else round(row["flops_per_s"] / 1e12, 1),
        "TB/s": None if row["bytes_per_s"] is None else round(row["bytes_per_s"] / 1e12, 2),
    }


def probed_record(one: Measured, gpu: Gpu) -> dict[str, Any]:
    """A measured figure of a GPU as plain types."""
    return {
        "name": one.name,
        "value": one.value,
        "unit": one.unit,
        "limit": one.limit,
        "limit_source": one.limit_source or None,
        "spread": one.spread,
        "samples": one.samples,
        "throttled": one.throttled,
        "sm_mhz": one.sm_mhz,
        "key": one.key or None,
        "written": gpu.get(one.key) if one.key else None,
        "note": one.note or None,
    }


def probed_tables(out: Path, probed: Probed, measured: list[Measured], gpu: Gpu) -> Iterator[Block]:
    """The figures of a GPU that were measured, beside what the vendor states."""
    yield f"{probed.base.name}, driver {probed.driver or 'unknown'}, {probed.date}\n"
    rows = []
    for one in measured:
        written = one.key or wording.NOTHING
        if one.key and FIELDS[one.key].unit != one.unit:  # a share of what the vendor states
            written += f" = {FIELDS[one.key].show(gpu.get(one.key))}"
        rows.append(
            {
                "measured": one.name,
                "value": one.shown(one.value),
                "of": None if one.limit is None else one.shown(one.limit),
                "share": None if one.limit is None else f"{one.value / one.limit:.1%}",
                "spread": f"{one.spread:.1%}" if one.samples else None,
                "written as": written,
            }
        )
    yield Table("", rows, ("value", "of", "share", "spread"), ("measured", "value", "of", "written as"))
    throttled = sum(one.throttled for one in measured)
    if throttled:
        yield f"{throttled} samples were throttled and dropped"
    yield from (f"{one.name}: {one.note}" for one in measured if one.note and not one.note.startswith("at "))
    yield Unfolded(f"written: {out}; use it with --gpu, see it with attnsim gpus show")
