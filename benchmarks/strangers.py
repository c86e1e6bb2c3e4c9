"""Inputs as strangers write them, and their answers: `python benchmarks/strangers.py [ID ...] [--kind K] [--json]`.

`benchmarks/inputs/KIND.yaml` holds inputs of a kind (names, GPUs, tables, models, traces ...) drawn from public
sources, with a reference for each answer (:class:`Input`, :class:`Expected`). Each is put to the command line, in this
process and in a temporary folder. An input is right, refused for the right reason, wrong but said so (it is refused, or
a row has an error), or silently wrong, and then the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from attnsim.cli import main as command_line
from attnsim.errors import InputError
from attnsim.files import read_typed

FOLDER = Path(__file__).with_name("inputs")
RIGHT, REFUSED, SAID, SILENT = "right", "refused rightly", "wrong but said", "silently wrong"
OUTCOMES = (RIGHT, REFUSED, SAID, SILENT)
TIMES = ("time_s", "predicted_s")
QUESTION = ("gpu", "algorithm", "passes", "dtype", "mask", "flops_useful", "hbm_read_bytes", "hbm_write_bytes")
"""Fields of an answer by which two questions are one."""
OF_ROWS = ("predicted_s", "measured_s", "used_implementation", "hbm_read_bytes", "hbm_write_bytes")
"""The same of a table, whose rows keep the words of their columns beside the answer."""

Word = StrictStr | StrictInt
"""A word of a command; 2.10 must stand in quotes, because YAML would make 2.1 of it."""
Command = Annotated[list[Word], Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Near(Strict):
    """A number within a share of another: `{near: 12.3, within: 0.1}` is 11.07 to 13.53."""

    near: float
    within: Annotated[float, Field(gt=0, lt=1)]

    def misses(self, value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return not number or abs(value - self.near) > self.within * abs(self.near)


class Like(Strict):
    """Text in which a regular expression is found."""

    like: str

    def misses(self, value: Any) -> bool:
        return not isinstance(value, str) or re.search(self.like, value) is None


class Expected(Strict):
    """What must hold, all of it.

    `exit` may list several codes. `json` has a value for each path into the document that `--json` prints: keys and
    indices with points between, and `key=value` for the first item of a list that has it
    ("line=3.used_implementation"). `same_as` is a command with the same times and questions, `differs_from` one
    with another time. Spaces and line ends are one space to `says`.
    """

    exit: StrictInt | list[StrictInt] = 0
    says: list[StrictStr] = []
    not_says: list[StrictStr] = []
    json_: Annotated[
        dict[StrictStr, Near | Like | StrictStr | StrictInt | StrictFloat | StrictBool | None], Field(alias="json")
    ] = {}
    same_as: Command | None = None
    differs_from: Command | None = None

    @model_validator(mode="after")
    def _something(self) -> Expected:
        likes = [one.like for one in self.json_.values() if isinstance(one, Like)]
        for pattern in (*self.says, *self.not_says, *likes):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        if not (self.says or self.json_ or self.same_as or self.differs_from):
            raise ValueError("says nothing of the answer; give says, json, same_as or differs_from")
        return self


class Input(Strict):
    """An input, where it was seen, and why its answer is right; of several commands in `run` the last is judged."""

    id: StrictStr
    source: Annotated[StrictStr, Field(min_length=8)]
    files: dict[StrictStr, StrictStr] = {}
    run: Annotated[list[Command], Field(min_length=1)]
    expect: Expected
    because: Annotated[StrictStr, Field(min_length=8)]

    @model_validator(mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        run = given.get("run") if isinstance(given, dict) else None
        return {**given, "run": [run]} if isinstance(run, list) and run and not isinstance(run[0], list) else given

    @model_validator(mode="after")
    def _inside(self) -> Input:
        if any(PurePosixPath(name).is_absolute() or ".." in name for name in self.files):
            raise ValueError("files are written into the folder; give them relative names")
        return self


@dataclass(frozen=True)
class Outcome:
    """How an input went: one of OUTCOMES, and what did not hold."""

    kind: str
    id: str
    outcome: str
    why: str


def main() -> int:
    """Print the outcomes; 1 where one is silently wrong."""
    parser = argparse.ArgumentParser(description="Inputs as strangers write them, put to the command line.")
    parser.add_argument("ids", nargs="*", metavar="ID", help="these inputs alone")
    parser.add_argument("--kind", action="append", help="this file of benchmarks/strangers alone, without .yaml")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        inputs = [(kind, one) for kind, one in read(given.kind) if not given.ids or one.id in given.ids]
    except InputError as error:
        parser.error(str(error))
    if missing := set(given.ids) - {one.id for _, one in inputs}:
        parser.error(f"no input is named {', '.join(sorted(missing))}")
    outcomes = [judge(kind, one) for kind, one in inputs]
    print(json.dumps([asdict(one) for one in outcomes], indent=2) if given.json else table(outcomes))
    return int(any(one.outcome == SILENT for one in outcomes))


def read(kinds: Sequence[str] | None = None, folder: Path = FOLDER) -> list[tuple[str, Input]]:
    """The inputs of these kinds, or of all; an InputError where a file is not as it should be."""
    paths = [folder / f"{kind}.yaml" for kind in kinds] if kinds else sorted(folder.glob("*.yaml"))
    found = [(path.stem, one) for path in paths for one in read_typed(path, "strangers", list[Input])]
    twice = [name for name, count in Counter(one.id for _, one in found).items() if count > 1]
    if twice:
        raise InputError(f"two inputs are named {', '.join(twice)}; an id names one")
    return found


def judge(kind: str, one: Input) -> Outcome:
    """Run an input's commands and compare what they say with what is right."""
    with _folder(one.files):
        *before, last = one.run
        first = [ask(command) for command in before]
        code, text, document = ask(last, with_json=_wants_json(one.expect))
        broken = [f"a command before it: {said.strip()[:200]}" for failed, said, _ in first if failed]
        broken += _broken(one.expect, code, "".join(said for _, said, _ in first) + text, document)
    if not broken:
        outcome = REFUSED if one.expect.exit == 2 else RIGHT
    else:
        refused = code == 2 or any(failed for failed, _, _ in first)
        outcome = (
            SAID if refused or (any(_values(document, "error")) and not _misread(one.expect, document)) else SILENT
        )
    return Outcome(kind, one.id, outcome, "; ".join(broken))


def ask(command: Sequence[Word], with_json: bool = False) -> tuple[int, str, Any]:
    """Exit code, all that was printed, and the JSON document, None where there is none."""
    out, err = io.StringIO(), io.StringIO()
    words = [*map(str, command), *(["--json"] if with_json and "--json" not in command else [])]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command_line(words)
    document = None
    with contextlib.suppress(ValueError):
        document = json.loads(out.getvalue())
    return code, out.getvalue() + err.getvalue(), document


def _wants_json(expect: Expected) -> bool:
    return bool(expect.json_ or expect.same_as or expect.differs_from)


def _broken(expect: Expected, code: int, text: str, document: Any) -> list[str]:
    broken = [f"exit code {code}: {text.strip()[-300:]}"] if not _as_expected(code, expect) else []
    flat = " ".join(text.split())
    told = [pattern for pattern in expect.says if not re.search(pattern, flat)]
    broken += [f"does not say {pattern!r}" for pattern in told]
    broken += [f"says {pattern!r}" for pattern in expect.not_says if re.search(pattern, flat)]
    if told and _as_expected(code, expect):
        broken.append(f"it says: {flat[-300:]}")
    missed = {path: at(document, path) for path, wanted in expect.json_.items() if _misses(wanted, at(document, path))}
    broken += [f"{path} is {value!r}, not {expect.json_[path]!r}" for path, value in missed.items()]
    if expect.same_as:
        _, said, other = ask(expect.same_as, with_json=True)
        keys = OF_ROWS if any(_values(other, "predicted_s")) else (*TIMES, *QUESTION)
        mine, its = _answer(document, keys), _answer(other, keys)
        if not any(_values(other, *TIMES)):
            broken.append(f"what it should equal has no time: {said.strip()[-200:]}")
        broken += [f"{key} is {mine.get(key)}, not {its[key]}" for key in its if mine.get(key) != its[key]]
    if expect.differs_from:
        _, said, other = ask(expect.differs_from, with_json=True)
        times = list(_values(document, *TIMES)), list(_values(other, *TIMES))
        if times[0] == times[1] or not all(map(any, times)):
            broken.append(
                f"the time {times[0]} is no other than {times[1]}: {said.strip()[-200:] if not times[1] else ''}"
            )
    return broken


def _misses(wanted: Any, value: Any) -> bool:
    return wanted.misses(value) if isinstance(wanted, Near | Like) else bool(value != wanted)


def _misread(expect: Expected, document: Any) -> bool:
    """Whether an item that has no error is not as expected: the error of another says nothing of it."""
    missed = [path.rpartition(".")[0] for path, wanted in expect.json_.items() if _misses(wanted, at(document, path))]
    return any(not any(_values(at(document, place), "error")) for place in missed if place)


def _as_expected(code: int, expect: Expected) -> bool:
    return code in (expect.exit if isinstance(expect.exit, list) else [expect.exit])


def _answer(document: Any, keys: Sequence[str]) -> dict[str, list[Any]]:
    found = {key: [_rounded(value) for value in _values(document, key)] for key in keys}
    return {key: values for key, values in found.items() if values}


def _rounded(value: Any) -> Any:
    """A number without what its unit adds in the last places: 0.78 ms and 780 us are one."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _values(document: Any, *keys: str) -> Iterator[Any]:
    """The values of these keys anywhere in a document."""
    inner = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    if isinstance(document, dict):
        yield from (document[key] for key in keys if key in document)
    for item in inner:
        yield from _values(item, *keys)


def at(document: Any, path: str) -> Any:
    """What stands at a path; None where nothing does."""
    for part in path.split("."):
        key, equals, value = part.partition("=")
        if isinstance(document, list) and equals:
            document = next((one for one in document if isinstance(one, dict) and str(one.get(key)) == value), None)
        elif isinstance(document, list):
            document = (
                document[int(part)]
                if part.lstrip("-").isdigit() and -len(document) <= int(part) < len(document)
                else None
            )
        else:
            document = document.get(part) if isinstance(document, dict) else None
    return document


@contextlib.contextmanager
def _folder(files: dict[str, str]) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content, encoding="utf-8")
        yield


def table(outcomes: Sequence[Outcome]) -> str:
    """Counts of each kind, and a line for each input that is wrong."""
    lines = [f"{'kind':14}{'inputs':>8}" + "".join(f"{name:>17}" for name in OUTCOMES)]
    for kind in [*dict.fromkeys(one.kind for one in outcomes), "all"]:
        counts = Counter(one.outcome for one in outcomes if kind in (one.kind, "all"))
        lines.append(f"{kind:14}{counts.total():8}" + "".join(f"{counts[name]:17}" for name in OUTCOMES))
    wrong = [one for one in outcomes if one.outcome in (SAID, SILENT)]
    return "\n".join(lines + [f"{one.outcome}: {one.kind}/{one.id}: {one.why}" for one in wrong])


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(main())
