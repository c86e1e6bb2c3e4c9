"""A state as others would ask it, as a command and in Python, how to cite it, and the files that the page saves."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory

import attnsim
from attnsim.errors import InputError, nearest, shown
from attnsim.explore.pictures import LENGTHS, Shown, compared_kernels, limits, shown_as, varied
from attnsim.explore.state import State
from attnsim.models.question.lengths import lengths_text
from attnsim.models.question.workload import Workload
from attnsim.plots.sheet import Picture
from attnsim.studies.folder import calibration
from attnsim.tables import csv_text

IMPORTED = {"replace": "dataclasses", "Case": "attnsim.studies.hardware_case", "step": "attnsim.api.step"}
"""Names that the Python code calls, and the modules that hold them."""


def said(name: object, state: State) -> dict[str, object]:
    """The command that gives the same numbers, the same in Python, and an entry for BibTeX."""
    if not isinstance(name, str) or name not in COMMANDS:
        raise InputError(f"picture {shown(name)} is not known; {nearest(str(name), COMMANDS)}")
    return {**cited(["attnsim", *COMMANDS[name](state)]), "python": python(name, state)}


def cited(words: Sequence[str]) -> dict[str, object]:
    """A command, and an entry for BibTeX that has it."""
    command = shlex.join(words)
    note = f"Version {attnsim.__version__}, calibration {calibration()}: {command}"
    note = note.replace("\\", r"\textbackslash ").translate({ord(one): f"\\{one}" for one in "&%$#_{}"})
    entry = (
        f"@software{{attnsim,\n  title = {{attnsim: how attention runs on a GPU}},\n  author = {{{{The attnsim "
        f"authors}}}},\n  version = {{{attnsim.__version__}}},\n  note = {{{note}}}\n}}\n"
    )
    return {"command": command, "bibtex": entry}


def _question(state: State, *without: str) -> list[str]:
    """The flags of the question."""
    found: list[str] = []
    for name, value in state.flags.items():
        flag = "--pass" if name == "passes" else f"--{name.replace('_', '-')}"
        if name in without or value in (None, False):
            continue
        found += [flag] if value is True else [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]
    return found


def _asked(state: State, *without: str) -> list[str]:
    """The flags of machine, kernel and question."""
    named = [] if "algorithm" in without else ["--algorithm", state.algorithm]
    kernel = [part for one in state.implementations for part in ("--implementation", one)]
    turned = [part for path, value in state.changes.items() for part in ("--set", f"{path}={value}")]
    return ["--gpu", state.base.id, *named, *kernel, *_question(state, *without), *turned, *_cache(state)]


def _cache(state: State) -> list[str]:
    return ["--cache", state.get("cache")] if state.get("cache") else []


def _predict(state: State) -> list[str]:
    return ["predict", *_asked(state), "--tiles", state.get("tiles")]


def _explain(state: State) -> list[str]:
    return ["explain", state.algorithm, *_asked(state, "algorithm")]


def _curve(state: State) -> list[str]:
    if state.get("vary") == "density":
        return ["plot", "density", *_asked(state, "algorithm", "passes"), "--out", "curve.svg"]
    seq = ["--seq", f"{LENGTHS[0]}:{LENGTHS[-1]}"]
    return ["plot", "scaling", *_asked(state, "seq"), *seq, "--out", "curve.svg"]


def _compare(state: State) -> list[str]:
    algorithms, names = compared_kernels(state)
    turned = [part for path, value in state.changes.items() for part in ("--set", f"{path}={value}")]
    asked = ["--gpu", state.base.id, "--algorithm", ",".join(algorithms), "--implementation", ",".join(names)]
    return ["predict", *asked, *_question(state), *turned, *_cache(state), "--tiles", "shipped"]


def _budget(state: State) -> list[str]:
    vary = [part for one in varied(state) for part in ("--vary", one)]
    kept = [part for one in limits(state) for part in ("--limit", one)]
    kept += [part for one in state.case_texts for part in ("--case", one)]
    end = ["--minimise", state.get("minimise"), "--plot", "budget.svg"]
    return ["search", "hardware", *_asked(state.unturned), *vary, *kept, *end]


COMMANDS: Mapping[str, Callable[[State], list[str]]] = {
    "headline": _predict,
    "roofline": lambda state: ["roofline", *_asked(state), "--levels", "hbm,l2,smem", "--out", "roofline.svg"],
    "units": lambda state: ["plot", "units", *_asked(state), "--out", "units.svg"],
    "levers": _explain,
    "split": lambda state: ["plot", "split", *_asked(state), "--out", "split.svg"],
    "curve": _curve,
    "timeline": lambda state: ["trace", *_asked(state), "--picture", "timeline.svg"],
    "compare": _compare,
    "budget": _budget,
    "why": _explain,
    "layer": lambda state: ["predict", "--layer", *_asked(state, *["batch"] * ("lengths" in state.flags))],
}
"""The command of each picture."""


def python(name: str, state: State) -> str:
    """The state and a picture of it in Python."""
    changes = f".replace({state.changes!r})" if state.changes else ""
    kernel = f", implementation={state.get('kernel')!r}" if state.get("kernel") else ""
    kernel += _l2(state.cache)
    lines = [
        f"base = attnsim.load_gpu({state.base.id!r})",
        f"gpu = base{changes}",
        f"question = {_workload(state.question)}",
        *_drawn(name, state, kernel),
    ]
    used = [name for name in IMPORTED if any(f"{name}(" in line for line in lines)]
    imports = [f"from {IMPORTED[name]} import {name}" for name in used]
    return "\n".join(["import attnsim", *imports, "", *lines]) + "\n"


def _l2(cache: str) -> str:
    return f", cache={cache!r}" if cache != "warm" else ""


def _workload(w: Workload) -> str:
    """A question as Python makes it."""
    given = {}
    for field in fields(w):
        value = getattr(w, field.name)
        if value in (None, (), 0, False, "") or (field.name == "dropout" and w.operations):
            continue
        given[field.name] = repr(value if isinstance(value, (int, str)) else str(value))
    if w.lengths:
        given = {key: value for key, value in given.items() if key not in ("batch", "seq_q", "seq_kv")}
        given["lengths"] = repr(lengths_text(w.lengths))
    return f"attnsim.Workload({', '.join(f'{key}={value}' for key, value in given.items())})"


def _layer(state: State, kernel: str) -> list[str]:
    """A layer of the model, or with lengths a step of it."""
    f, call = state.flags, f"algorithm={state.algorithm!r}{kernel.partition(', cache=')[0]}"
    kept = "".join(f", {name}={f[name]!r}" for name in ("tp", "dtype") if name in f)
    kept += f", cache={state.get('cache')!r}" if state.get("cache") else ""
    if "lengths" in f:
        return [f"print(step({f['model']!r}, gpu, {f['lengths']!r}, {call}{kept}).to_dict())"]
    asked = "".join(f", {name}={f[name]!r}" for name in ("batch", "seq", "seq_kv", "passes") if name in f)
    return [f"print(attnsim.layer({f['model']!r}, gpu, {call}{asked}{kept}).to_dict())"]


def _drawn(name: str, state: State, kernel: str) -> list[str]:  # noqa: PLR0911 a picture each
    machines = "[base, gpu]" if state.gpu.changes else "[base]"
    call = f"[{state.algorithm!r}]{kernel}"
    plots = {
        "roofline": (f"attnsim.compare(question, {machines}, {call})", f", {machines}, levels=['hbm', 'l2', 'smem']"),
        "units": (f"attnsim.compare(question, {machines}, {call})", ""),
        "split": (f"[attnsim.split(question, gpu, {state.algorithm!r}{kernel})]", ""),
        "timeline": (
            f"[attnsim.trace(question, one, {state.algorithm!r}{kernel}) for one in {machines}]",
            ", [one.id + '*' * bool(one.changes) for one in " + machines + "]",
        ),
    }
    if name in plots:
        found, more = plots[name]
        return [f"found = {found}", f"attnsim.plot.{name}(found{more}).savefig('{name}.svg')"]
    if name in ("levers", "why"):
        return [f"print(attnsim.explain(question, gpu, {state.algorithm!r}{kernel}).to_dict())"]
    if name == "layer":
        return _layer(state, kernel)
    if name == "budget":
        space = f"attnsim.Space.read(base, {varied(state)!r}, {limits(state)!r})"
        minimise = [one.strip() for one in state.get("minimise").split(",")]
        cases = [
            f"    Case({_workload(one.workload)}, {one.weight!r}, {one.name!r}{_l2(one.cache)})," for one in state.cases
        ]
        asked = "cases" if state.case_texts else "question"
        return [
            *(["cases = [", *cases, "]"] if state.case_texts else []),
            f"space = {space}",
            f"found = attnsim.search_hardware({asked}, space, {state.algorithm!r}{kernel}, objectives={minimise!r})",
            "print([machine.figures for machine in found.front])",
        ]
    if name == "compare":
        algorithms, names = compared_kernels(state)
        kernels = f"{algorithms!r}, implementation={names!r}{_l2(state.cache)}"
        return [f"print(attnsim.compare(question, {machines}, {kernels}).to_frame())"]
    if name == "curve":
        if state.get("vary") == "density":
            sparse = f", sparse={state.implementations!r}" if state.implementations else ""
            found = f"attnsim.densities(question, {machines}{sparse})"
            return [f"attnsim.plot.density({found}).savefig('curve.svg')"]
        keys = "seq_q=1, seq_kv=n" if state.question.passes == "decode" else "seq_q=n, seq_kv=n"
        return [
            f"asked = [replace(question, {keys}) for n in {LENGTHS!r}]",
            f"found = [one for w in asked for one in attnsim.compare(w, {machines}, {call})]",
            "attnsim.plot.scaling(found).savefig('curve.svg')",
        ]
    tiles = f", tiles={state.get('tiles')!r}" if state.get("tiles") != "shipped" else ""
    return [f"print(attnsim.compare(question, gpu, {call}{tiles})[0])"]


DRAWN = {"svg": "image/svg+xml", "pdf": "application/pdf", "png": "image/png", "csv": "text/csv"}
"""Formats of a saved picture."""
PRINTED = {"json": "application/json", "csv": "text/csv"}
"""Formats of a saved table that the command line prints: its ``--json``, and the rows on the page."""


@dataclass(frozen=True)
class File:
    """A file for the page to save."""

    name: str
    kind: str
    data: bytes


def export(name: object, state: State, form: object, style: object = "light") -> File:
    """A picture, or the table behind it, as the command writes it."""
    found = shown_as(str(name), state)
    if found.picture:
        return drawn(str(name), found.picture, form, style)
    kind = _kind(form, PRINTED)
    data = _printed(str(name), state) if form == "json" else _rows(found)
    return File(f"{name}.{form}", kind, data)


def drawn(name: str, picture: Picture, form: object, style: object) -> File:
    """A picture of a command, or the table that the command writes beside it."""
    kind = _kind(form, DRAWN)
    if form == "csv":
        return File(f"{name}.csv", kind, csv_text(picture.columns, list(picture.rows)).encode())
    with TemporaryDirectory() as folder:
        out = Path(folder) / f"{name}.{form}"
        picture.write(out, str(style))
        return File(out.name, kind, out.read_bytes())


def _kind(form: object, kinds: dict[str, str]) -> str:
    if not isinstance(form, str) or form not in kinds:
        raise InputError(f"format is {shown(form)}; allowed: {', '.join(kinds)}")
    return kinds[form]


def _rows(found: Shown) -> bytes:
    return csv_text(found.columns, [*found.base, *found.rows]).encode()


def _printed(name: str, state: State) -> bytes:
    """Output of the command, which is run."""
    command = [sys.executable, "-m", "attnsim", *COMMANDS[name](state), "--json"]
    ran = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if ran.returncode:
        raise InputError(ran.stderr.decode(errors="replace").strip().rpartition("\n")[2].removeprefix("error: "))
    return ran.stdout
