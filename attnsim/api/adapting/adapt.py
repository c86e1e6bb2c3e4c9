"""Timings of one's own made into a calibration, and which shapes to time next."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnsim.api.adapting.own import (
    FORMAT,
    ROBUST_FROM,
    OwnTimings,
    Points,
    Timing,
    coordinates,
    model_digest,
    most_telling,
    near_of,
    prior_of,
)
from attnsim.api.answer import Outcome
from attnsim.api.answering import answer
from attnsim.api.asking import Question
from attnsim.api.checking import Check, check
from attnsim.api.tables import predict_rows, question_of, read
from attnsim.errors import InputError
from attnsim.models.digest import version
from attnsim.models.question.columns import Naming, given_cells
from attnsim.models.question.workload import LARGEST
from attnsim.wording import share_text, time_text

if TYPE_CHECKING:
    import pandas as pd

NEIGHBOURS = (0.25, 0.5, 2.0, 4.0)
"""Times the lengths or the batch of a question: what is timed beside it, where a table has few questions."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """A table of timings, and the calibration that they make.

    Parameters
    ----------
    own : OwnTimings
        What `calibration=` of a question takes, and `write` keeps.
    check : Check
        How the table was read, and the model's own answers.
    left_out : dict of str to list
        Lines of the rows that were not used, by the reason: no answer, a time below the floor of their question,
        or one that is far off its prediction (not with `as_stated`).
    """

    own: OwnTimings
    check: Check
    left_out: dict[str, list[object]]

    def write(self, path: str | Path) -> None:
        """Write the file that ``--calibration`` takes.

        Raises
        ------
        InputError
            When the file cannot be written.
        """
        self.own.write(path)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Each question that was timed, with the model's own time and what the other timings make of it."""
        return [
            {
                "rows": list(one.rows),
                "implementation": one.implementation,
                "pass": one.passes,
                "question": one.question,
                "measured_s": one.time_s,
                "predicted_s": one.predicted_s,
                "by_the_others_s": None if others is None else one.predicted_s * float(np.exp(others)),
            }
            for mine in self._kernels()
            for one, others in zip(mine, near_of(mine).left_out if len(mine) > 1 else [None], strict=True)
        ]

    @property
    def notes(self) -> list[str]:
        """Remarks on the timings, a line each."""
        said, line = [], self.check.line_name
        for one in self.own.timings:
            if one.spread > 0:
                text = f"{line}s {', '.join(map(str, one.rows))} are one question, {share_text(one.spread)} apart"
                said.append(f"{text}: their geometric mean is taken")
        for mine in self._kernels():
            what = f"{mine[0].implementation}, {mine[0].passes}"
            if len(mine) < ROBUST_FROM:
                count = "one question was" if len(mine) == 1 else f"{len(mine)} questions were"
                said.append(f"{what}: {count} timed; from {ROBUST_FROM} on they are held against each other")
            elif not near_of(mine).agree:
                said.append(f"{what}: timings do not predict each other, so that less of the correction is taken")
        return said

    def _kernels(self) -> Iterator[tuple[Timing, ...]]:
        for name, passes in dict.fromkeys((one.implementation, one.passes) for one in self.own.timings):
            yield self.own.of(name, passes)


def adapt(
    table: pd.DataFrame | str | Path,
    *,
    maps: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    gpu: str | None = None,
    implementation: str | None = None,
    cells: Mapping[str, str] | None = None,
    as_stated: bool = False,
) -> Adapted:
    """Make a calibration of a few timings of one's own: answers near them are corrected, their ranges narrower.

    Parameters
    ----------
    table, maps, time_unit, gpu, implementation, cells
        As for `attnsim.check`.
    as_stated : bool
        Adapt although `attnsim.check` names a reason why the table may not state what was run, and to rows that are far
        off their prediction.

    Raises
    ------
    InputError
        As `attnsim.check`; and where no row can be used, where rows are of several GPUs, or where `attnsim.check`
        names a reason.

    Examples
    --------
    >>> import attnsim, pandas
    >>> mine = pandas.DataFrame({"batch": 2, "heads": 16, "seq": [2048, 4096, 8192], "d": 128, "ms": [0.36, 1.3, 5.0]})
    >>> found = attnsim.adapt(mine, gpu="a100", implementation="flash-attn.2")
    >>> question = attnsim.Workload(batch=2, heads=16, seq=6144, head_dim=128)
    >>> plain, corrected = (attnsim.predict(question, "a100", calibration=one) for one in (None, found.own))
    >>> corrected.time_s > plain.time_s, corrected.trust.high < plain.trust.high
    (True, True)
    """
    name = str(table) if isinstance(table, (str, Path)) else "the table"
    found = check(table, maps=maps, time_unit=time_unit, gpu=gpu, implementation=implementation, cells=cells)
    timed: dict[Question, list[tuple[int, float]]] = {}
    gpus, left_out = set[str](), found.failed | ({} if as_stated else found.far)
    for line, row in found.lines:
        used = row.far is None or as_stated
        if row.case is not None and row.ratio is not None and row.measured_s is not None and used:
            question = replace(question_of(row.case), assumed=())
            gpus.add(question.gpu.base_id)
            if reason := _below_floor(row.measured_s, answer(question)):
                left_out.setdefault(reason, []).append(line)
            else:
                timed.setdefault(question, []).append((int(str(line)), row.measured_s))
    if len(gpus) > 1:
        raise InputError(
            f"{name} has rows of {len(gpus)} GPUs, {', '.join(sorted(gpus))}; a calibration is of one: split the table"
        )
    if not as_stated and (reason := next((one.text for one in found.audit.findings if one.text), "")):
        mend = (
            f"attnsim check {name} --apply mended.csv"
            if isinstance(table, (str, Path))
            else "check(...).audit.mended()"
        )
        raise InputError(f"{name}: {reason} {mend} mends the table, --as-stated adapts to it as it is")
    if not timed:
        raise InputError(f"{name}: no row can be used: {next(iter(left_out), '')}")
    timings = [_timing(question, answer(question), rows) for question, rows in timed.items()]
    timings.sort(key=lambda one: (one.implementation, one.passes, one.shape, one.question, one.predicted_s))
    return Adapted(OwnTimings(FORMAT, version(), model_digest(), gpus.pop(), name, tuple(timings)), found, left_out)


def _below_floor(measured_s: float, found: Outcome) -> str:
    """Why a time says nothing of its question, which no GPU can answer as fast; else empty."""
    if found.floor_s is None or measured_s >= found.floor_s:
        return ""
    floor = f"the floor of its question, {time_text(found.floor_s)}"
    return f"{time_text(measured_s)} lies below {floor}: check its unit and shape"


def _timing(question: Question, found: Outcome, rows: list[tuple[int, float]]) -> Timing:
    lines, times = zip(*rows, strict=True)
    assert found.time_s is not None
    w = question.w
    prior = prior_of(w, question.gpu, question.record, found.calibration, found.trust)
    return Timing(
        lines,
        found.implementation,
        w.passes,
        str(w),
        coordinates(w),
        statistics.geometric_mean(times),
        max(times) / min(times) - 1,
        found.time_s,
        prior.sd,
    )


def suggest(
    table: pd.DataFrame | str | Path,
    count: int = 5,
    *,
    maps: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    gpu: str | None = None,
    implementation: str | None = None,
    cells: Mapping[str, str] | None = None,
) -> list[Question]:
    """Which questions to time, of each kernel and pass: those that leave least variance over the questions of a table.

    Parameters
    ----------
    table : pandas.DataFrame, str or Path
        Questions that matter, a call a line; those with a time have been timed. Where it has fewer than are asked
        for, shorter and longer calls and other batches are suggested too.
    count : int
    maps, time_unit, gpu, implementation, cells
        As for `attnsim.check`.

    Raises
    ------
    InputError
        Where the table cannot be read, or no row has an answer.
    """
    frame, columns = read(table, Naming(maps or {}, time_unit, gpu, implementation, given_cells(cells or {})))
    rows = predict_rows(frame, columns)
    known = {replace(question_of(row.case), assumed=()): row.measured_s for row in rows if row.case and row.predicted_s}
    if not known:
        reason = next((str(row.answer.get("error")) for row in rows), "it has no rows")
        raise InputError(f"no question of the table has an answer: {reason}")
    chosen = []
    for kernel in dict.fromkeys((one.record.name, one.w.passes) for one in known):
        mine = [one for one in known if (one.record.name, one.w.passes) == kernel]
        enough = sum(known[one] is None for one in mine) >= count
        targets = mine if enough else list(dict.fromkeys([*mine, *_neighbours(mine)]))
        points = {one: point for one in targets if (point := _point(one)) is not None}
        timed = [points[one] for one in mine if known[one] is not None]
        left = [one for one in points if known.get(one) is None]
        every, free = (Points.of([points[one] for one in these]) for these in (points, left))
        chosen += [left[row] for row in most_telling(every, free, Points.of(timed), count)]
    return chosen


def _point(question: Question) -> tuple[tuple[float, ...], float, float] | None:
    try:
        found = answer(question)
    except InputError:  # a neighbour that the kernel does not run
        return None
    if found.time_s is None:
        return None
    prior = prior_of(question.w, question.gpu, question.record, found.calibration, found.trust)
    return coordinates(question.w), prior.sd, found.time_s


def _neighbours(questions: list[Question]) -> Iterator[Question]:
    for one in questions:
        w = one.w
        for times in NEIGHBOURS if not (w.lengths or w.tree or w.prefix) else ():
            seq_q, seq_kv, batch = (max(1, round(size * times)) for size in (w.seq_q, w.seq_kv, w.batch))
            longer: dict[str, Any] = {"seq_q": w.seq_q if w.passes == "decode" else seq_q, "seq_kv": seq_kv}
            for changed in (longer, {"batch": batch}):
                if all(value <= LARGEST.get(name, LARGEST["seq_q"]) for name, value in changed.items()):
                    yield replace(one, w=replace(w, **changed))


def script(questions: Sequence[Question]) -> str:
    """PyTorch that times questions and prints them as a table for `adapt`; its call is to be that of one's kernel."""
    names = "implementation,pass,dtype,batch,heads_q,heads_kv,seq_q,seq_kv,head_dim,causal"
    shapes, others = [], []
    for one in questions:
        w = one.w
        if w.mask.is_windowed or not w.mask.is_band or w.lengths or w.selection or w.head_dim_v != w.head_dim:
            others.append(f"# {one.record.name}: {w}\n")
            continue
        sizes = (w.batch, w.heads_q, w.heads_kv, w.seq_q, w.seq_kv, w.head_dim)
        shapes.append(f"    {(one.record.name, w.passes, _TORCH[w.dtype], *sizes, w.mask.is_causal)},\n")
    apart = ["# These say more than PyTorch's call does; time them with your kernel:\n", *others] if others else []
    return f"""\
{"".join(apart)}import torch
from torch.nn.functional import scaled_dot_product_attention as attention  # or the kernel that you run

shapes = [  # {names.replace(",", ", ")}
{"".join(shapes)}]
print("gpu,{names},time_s")
for name, way, kind, b, h, hk, n, m, d, causal in shapes:
    make = lambda heads, length: torch.randn(b, heads, length, d, device="cuda", dtype=getattr(torch, kind))
    q, k, v = (make(heads, length).requires_grad_("bwd" in way) for heads, length in ((h, n), (hk, m), (hk, m)))
    call = lambda: attention(q, k, v, is_causal=causal and n > 1, enable_gqa=h != hk)
    out, back = call(), lambda o: torch.autograd.grad(o, (q, k, v), torch.ones_like(o), retain_graph=True)
    run = {{"bwd": lambda: back(out), "fwd+bwd": lambda: back(call())}}.get(way, call)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for times in (5, 20):  # the first to warm up
        begin.record(); [run() for _ in range(times)]; end.record(); torch.cuda.synchronize()
    cells = (name, way, kind, b, h, hk, n, m, d, int(causal), begin.elapsed_time(end) / 20e3)
    print(",".join(map(str, (torch.cuda.get_device_name(), *cells))))
"""


_TORCH = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp8": "float8_e4m3fn"}
