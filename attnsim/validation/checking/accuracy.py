"""Held-out accuracy: errors of predictions on rows that the fit did not see, as tables and samples; and all constants.

All rows are some thousand predictions and take more than a minute. The rows of one GPU, implementation or source
(`select`) take seconds. A picture takes seconds too: it has a few rows of every line, chosen without regard to errors
(`sampled`). Constants are those that a fit has found, and those that are declared as chosen by hand
(:mod:`attnsim.by_hand`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

import attnsim
from attnsim.errors import InputError, nearest, shown
from attnsim.models.calibrations.calibration import calibrations
from attnsim.models.calibrations.choose import choose
from attnsim.models.calibrations.numbers import IMPLEMENTATION_NUMBERS, Numbers
from attnsim.models.hardware.files import builtin_gpu_ids
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mechanisms import ALGORITHMS, MECHANISMS
from attnsim.models.mechanisms.linear import GATED
from attnsim.models.mechanisms.mechanism import Group
from attnsim.validation.fitting.held_out import NEVER, HeldOut, held_out_predictions, unseen_folds
from attnsim.validation.measured.datasets import (
    Row,
    error_summary,
    errors_of,
    grouped,
    published_cases,
    published_rows,
    row_of,
    tabled,
)
from attnsim.validation.measured.groups import SHORTEST, usable
from attnsim.validation.measured.own_runs import own_rows
from attnsim.wording import share_text


@dataclass(frozen=True, slots=True)
class Chosen:
    """A constant: its module in `attnsim`, its name, value and meaning."""

    module: str
    name: str
    value: object
    meaning: str

    @property
    def shown(self) -> bool | int | float | str:
        """The value; as text if it is no number, and as the number of entries if it is long."""
        if isinstance(self.value, bool | int | float):
            return self.value
        return str(self.value) if len(str(self.value)) <= 48 else f"{len(cast(Sized, self.value))} entries"


def chosen() -> Iterator[Chosen]:
    """Yield the declarations, file by file; only modules with declarations are imported."""
    root = Path(attnsim.__file__).parent
    for path in sorted(root.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if " = by_hand(" not in source:
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(source).body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(name)], value=ast.Call(ast.Name("by_hand"), [_, ast.Constant(str(meaning))])
                ) | ast.AnnAssign(ast.Name(name), value=ast.Call(ast.Name("by_hand"), [_, ast.Constant(str(meaning))])):
                    yield Chosen(module, name, getattr(import_module(f"attnsim.{module}"), name), meaning)


DENSE = "dense"
PASSES = {"decode": "decode", "fwd": "forward"}
"""Names of passes in lines; all others are training."""


NAMED: dict[str, Callable[[Row], str]] = {
    "gpu": lambda row: row.gpu.base_id,
    "implementation": lambda row: row.record.name,
    "source": lambda row: row.case.source,
}
"""Properties by which rows can be selected."""

Wanted = Mapping[str, Sequence[str]]
"""Wanted names, or prefixes of names, by property of `NAMED`; without any, all rows."""


def every_row() -> list[Row]:
    """Return every row that has an error: rows of fits, our own runs, and the sparse and linear chapters."""
    found = (*published_rows(), *own_rows(), *family_rows("sparse"), *family_rows("linear"))
    return list({(row.case, row.record.name): row for row in found}.values())


def check_wanted(wanted: Wanted) -> None:
    """Raise InputError for a name that no row has, and for names that no row has together."""
    if not any(wanted.values()):
        return
    every = every_row()
    for kind, words in wanted.items():
        names = sorted({NAMED[kind](row) for row in every})
        for word in words:
            if not any(_begins(kind, name, word) for name in names):
                raise InputError(f"--{kind} {shown(word)} is of no measured row; {nearest(word, names)}")
    if not select(every, wanted):
        flags = " ".join(f"--{kind} {','.join(words)}" for kind, words in wanted.items() if words)
        raise InputError(f"no measured row is of {flags} at once; leave one out")


def select(rows: Iterable[Row], wanted: Wanted) -> list[Row]:
    """Return the rows that match, for each property, one of the wanted names or prefixes."""
    asked = [(kind, words) for kind, words in wanted.items() if words]
    return [
        row
        for row in rows
        if all(any(_begins(kind, NAMED[kind](row), word) for word in words) for kind, words in asked)
    ]


def _begins(kind: str, name: str, word: str) -> bool:
    """True if a name begins with a word; for GPUs, with a whole word ("a10" does not match an a100)."""
    return name.startswith(word) and not (kind == "gpu" and name[len(word) : len(word) + 1].isalnum())


def evidence(wanted: Wanted) -> tuple[list[HeldOut], dict[str, list[dict[str, Any]]]]:
    """Return held-out rows with their predictions, and every table of their errors by kind.

    The constants are those of all owners; if rows are selected, those of their implementations.
    """
    held = held_out_predictions(select((*published_rows(), *own_rows()), wanted))
    runs = {one.calibration for one in held}
    return held, {
        "summary": targets_table(held),
        "sparse": family_table("sparse", wanted),
        "linear": family_table("linear", wanted),
        "error": accuracy_table(held),
        "constant": constants(runs if any(wanted.values()) else None),
    }


def group_of(implementation: str) -> str:
    """Return the kind of attention that an implementation runs: "dense", "sparse", "linear" or "sharing"."""
    runs = IMPLEMENTATIONS[implementation].runs
    return ALGORITHMS[runs].group if runs in ALGORITHMS else DENSE


def line_of(row: Row) -> str:
    """Return the line of a row: library, kind unless dense, and pass: "vllm linear, decode"."""
    group = group_of(row.record.name)
    kind = "" if group == DENSE else f" {group}"
    return f"{row.record.library}{kind}, {PASSES.get(row.case.passes, 'training')}"


def sampled(each: int) -> list[HeldOut]:
    """Return at most `each` rows per line, published ones and our own, predicted by every fold that did not see them.

    The rows of a line are sorted by measured time and cut into `each` equal parts; the middle row of each part is
    taken.
    """
    lines = grouped((*published_rows(), *own_rows()), line_of)
    return held_out_predictions([row for rows in lines.values() for row in _spaced(rows, each)])


def _spaced(rows: Sequence[Row], each: int) -> Iterable[Row]:
    ordered = sorted(rows, key=lambda row: row.measured_s)
    if len(ordered) <= each:
        return ordered
    ends = np.linspace(0, len(ordered), each + 1)
    return [ordered[int((begin + end) / 2)] for begin, end in pairwise(ends)]


UNSEEN, LEFT_OUT = "no row of this GPU or table fitted", "a GPU left out"


def family_rows(group: Group) -> list[Row]:
    """Return the published rows of a chapter's mechanisms, of every role, without rows that time launches."""
    cases = published_cases("fit", "choose", "test")
    rows = [
        row_of(case) for case in cases if case.algorithm in MECHANISMS and MECHANISMS[case.algorithm].group == group
    ]
    return [row for row in rows if usable(row)]


def family_table(group: Group, wanted: Wanted) -> list[dict[str, Any]]:
    """Return errors of a chapter by mechanism, implementation, pass, and what was left out of the fit.

    Returns
    -------
    list of dict
        ``mechanism, implementation, pass, left_out, gpus, rows, mean, median, p90, worst``; errors are fractions of the
        measured time. `left_out` is one of:

        - a band of lengths, or a head_dim, of the fit's own rows;
        - `LEFT_OUT`: the numbers are those for a GPU that does not exist;
        - `UNSEEN`: nothing was fitted on the row's table.
    """
    tasks = [
        (row, split, numbers) for row in select(family_rows(group), wanted) for split, numbers in numbers_without(row)
    ]
    found = [
        ((row.case.algorithm, row.record.name, row.case.passes, split), row.gpu.base_id, error)
        for (row, split, _), error in zip(tasks, errors_of([(row, numbers) for row, _, numbers in tasks]), strict=True)
    ]
    return tabled(
        found,
        ("mechanism", "implementation", "pass", "left_out"),
        lambda one: one[0],
        lambda some: {"gpus": len({gpu for _, gpu, _ in some})} | _summary([error for _, _, error in some]),
    )


def numbers_without(row: Row) -> list[tuple[str, Numbers]]:
    """Return pairs of what was left out, and the numbers that were fitted without it."""
    own = calibrations().get((row.record.name, row.gpu.architecture))
    if own is None or row.case.source not in own.sources:
        return [(UNSEEN, choose(row.record, row.gpu).numbers)]
    found = [(split, numbers) for (split, _), numbers in unseen_folds(row, own.folds)]
    others = set(builtin_gpu_ids()) - {row.gpu.base_id}
    elsewhere = choose(row.record, row.gpu, others)
    return [*found, (LEFT_OUT, elsewhere.numbers)] if elsewhere.calibration is not None else found


LONGEST = 1 << 40
LENGTHS = ((0, 511), (512, 1023), (1024, 4095), (4096, LONGEST))
"""Length bands of the table, by the larger of seq_q and seq_kv."""

_SERVING = {"vllm": "vLLM", "sglang": "SGLang"}
"""Libraries whose errors before Blackwell are summarised by framework, GPU and call, from `SHORTEST` tokens on."""


def accuracy_table(found: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Return held-out errors by source, implementation, GPU, pass, split and length band.

    Returns
    -------
    list of dict
        ``source, implementation, gpu, pass, split, band, rows, mean, median, p90, worst``; errors are fractions of
        the measured time, ``|predicted / measured - 1|``. `split` is what was left out of the fit: a "band" of lengths
        and heads, a whole "head_dim", or "never fitted" for implementations without a calibration of their own, which
        borrow the nearest one. `band` "all" is the total over bands.
    """

    def cell(one: HeldOut) -> tuple[str, ...]:
        return one.row.case.source, one.row.record.name, one.row.case.gpu, one.row.case.passes, one.split

    bands = {f"{low}+" if high == LONGEST else f"{low}-{high}": (low, high) for low, high in LENGTHS}
    table = []
    for key, members in sorted(grouped(found, cell).items()):
        names: dict[str, Any] = dict(zip(("source", "implementation", "gpu", "pass", "split"), key, strict=True))
        for band, (low, high) in (bands | {"all": (0, LONGEST)}).items():
            if errors := [one.error for one in members if low <= max(one.row.case.seq_q, one.row.case.seq_kv) <= high]:
                table.append(names | {"band": band} | _summary(errors))
    return table


def overview(found: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Return the errors in about ten lines: all rows, by pass, and by architecture."""
    once = _once(found)
    lines = {"all": once}
    for key in (lambda one: PASSES.get(one.row.case.passes, "training"), lambda one: one.row.gpu.architecture):
        lines |= dict(sorted(grouped(once, key).items()))
    return [{"measured": name} | _errors(members) for name, members in lines.items() if members]


def _once(found: Sequence[HeldOut]) -> list[HeldOut]:
    """Return each row once, preferably with its band of lengths left out."""
    return list({id(one.row): one for one in sorted(found, key=lambda one: one.split != "head_dim")}.values())


NAMED_AT_MOST = 3
"""GPUs or implementations that the sentence to cite names; of more it has the number."""


def sentence(found: Sequence[HeldOut]) -> str:
    """Return a sentence to cite: the rows, the size of errors, and of how many rows the fit used the table."""
    once = _once(found)
    gpus, implementations, tables = (sorted({name(one.row) for one in once}) for name in NAMED.values())
    whose = f"{_named('GPU', gpus)}, {_named('implementation', implementations)}, tables: {len(tables)}"
    errors, worst = error_summary(one.error for one in once), share_text(max(one.error for one in once))
    of_tables, never = [one for one in once if one.split != NEVER], [one.error for one in once if one.split == NEVER]
    told = []
    if of_tables:
        told.append(f"{len(of_tables):,} are of tables whose other lengths, heads or head_dims the fit used")
    if never:
        mean = f", mean {share_text(error_summary(never)['mean'])}" if of_tables else ""
        told.append(f"{len(never):,} are of tables that the fit of their implementation did not use{mean}")
    return (
        f"on {len(once):,} measurements that its fitted numbers had not seen ({whose}) the mean of |predicted / "
        f"measured - 1| is {share_text(errors['mean'])}, the median {share_text(errors['median'])}, nine in ten are "
        f"below {share_text(errors['p90'])}, and the largest is {worst}; {', and '.join(told)}"
    )


def _named(kind: str, names: Sequence[str]) -> str:
    """Return "GPU: h100-sxm5-80gb", "GPUs: a, b", or their number."""
    told = ", ".join(names) if len(names) <= NAMED_AT_MOST else len(names)
    return f"{kind}{'s' if len(names) > 1 else ''}: {told}"


def targets_table(found: Sequence[HeldOut]) -> list[dict[str, Any]]:
    """Return the errors by what a user asks for: one line per kind of prediction and split."""
    kinds = [one for one in found if kind_of(one.row)]
    return tabled(kinds, ("what", "split"), lambda one: (kind_of(one.row), one.split), _errors)


_PAPERS = {
    "flash-attn.2": ("FlashAttention-2", "papers' tables"),
    "flash-attn.3": ("FlashAttention-3", "paper's table"),
}
"""Names of implementations that their papers measured, and of those papers' tables."""


def kind_of(row: Row) -> str:
    """Return a user's name for the kind of a row, "" for rows that no line covers."""
    case, record, length = row.case, row.record, max(row.case.seq_q, row.case.seq_kv)
    if record.name in _PAPERS and case.source.startswith("fa"):
        title, tables = _PAPERS[record.name]
        return f"{title}, {row.gpu.architecture}, {tables}"
    if record.runs in (one.name for one in GATED):
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


def _errors(some: Sequence[HeldOut]) -> dict[str, Any]:
    return _summary([one.error for one in some])


def _summary(errors: Sequence[float]) -> dict[str, Any]:
    return {"rows": len(errors), **error_summary(errors), "worst": round(max(errors), 4)}


def constants(of: Collection[tuple[str, str]] | None = None) -> list[dict[str, Any]]:
    """Return every constant that is neither a datasheet figure nor a fact of public code: fitted, or chosen by hand.

    Parameters
    ----------
    of : collection of (str, str), optional
        Implementations and architectures: return only their fitted constants.

    Returns
    -------
    list of dict
        ``owner, number, value, low, high, fitted, unit, meaning``; `low` and `high` are the 95 % confidence interval.
        `fitted` is "yes", "open" (the number is at its prior because the rows do not determine it), or "by hand".
    """
    out = []
    for (owner, architecture), calibration in calibrations().items():
        if of is not None and (owner, architecture) not in of:
            continue
        for name in (*calibration.fitted, *calibration.undetermined):
            value, interval = getattr(calibration.numbers, name), calibration.ranges.get(name)
            out.append(_constant(f"{owner}, {architecture}", name, value, interval))
    unfitted = {"low": None, "high": None, "fitted": "by hand", "unit": ""}
    for one in chosen() if of is None else ():
        out.append({"owner": one.module, "number": one.name, "value": one.shown} | unfitted | {"meaning": one.meaning})
    return out


def _constant(owner: str, name: str, value: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    number = IMPLEMENTATION_NUMBERS[name]
    low, high = interval or (None, None)
    known = "yes" if interval else "open"
    row = {"owner": owner, "number": name, "value": value, "low": low, "high": high, "fitted": known}
    return row | {"unit": number.unit, "meaning": number.meaning}
