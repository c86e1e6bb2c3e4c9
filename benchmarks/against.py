"""The same questions put to two commits by turns: `python benchmarks/speed.py --against COMMIT`.

Each commit answers in a process of its own; this file, run as a program, is that process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[1]
Sizes = dict[str, int]


class Commit:
    """A process that answers questions with the package in `folder`."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, line: str) -> list[str]:
        """What it says to a line."""
        assert self.process.stdin and self.process.stdout
        print(line, file=self.process.stdin, flush=True)
        if not (said := self.process.stdout.readline()):
            raise SystemExit("benchmark: the other commit cannot be asked these questions; what it said is above")
        return said.split()


@contextlib.contextmanager
def commits(commit: str) -> Iterator[list[Commit]]:
    """Processes of `commit` and of this working tree."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["git", "-C", str(REPOSITORY), "archive", commit, "attnsim"]
        packed = subprocess.run(command, capture_output=True, check=False)
        if packed.returncode:
            raise SystemExit(f"benchmark: {commit!r} is no commit of this repository; give one, such as HEAD~1")
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        both = [Commit(Path(folder)), Commit(REPOSITORY)]
        try:
            yield both
        finally:
            for one in both:
                one.process.terminate()
                one.process.wait()


def compare(commit: str, every: int = 4) -> str:
    """Milliseconds a question of each set, by `commit` and by this working tree; one question in `every`."""
    lines = [f"{'ms':12} questions  then: median   mean    p99  worst   now: median   mean    p99  worst   now / then"]
    with commits(commit) as (then, now):
        counts = dict(pair.split("=") for pair in now.ask("sets"))
        if dict(pair.split("=") for pair in then.ask("sets")) != counts:
            raise SystemExit(f"benchmark: {commit} cannot answer the same questions; name a later commit")
        for name, count in counts.items():
            times = np.array(
                [[float(one.ask(f"{name} {i}")[0]) for one in (then, now)] for i in range(0, int(count), every)]
            ).T
            shown = [f"{np.median(t):6.2f} {t.mean():6.2f} {np.percentile(t, 99):6.2f} {t.max():6.2f}" for t in times]
            ratio = np.exp(np.log(times[1] / times[0]).mean())
            lines.append(f"{name:12} {times.shape[1]:9}         {shown[0]}        {shown[1]}   {ratio:10.2f}")
    return "\n".join([*lines, "now / then: geometric mean over the questions"])


def serve() -> None:
    """Answer the lines of the other process: how many questions there are, or how long one takes."""
    from benchmarks.questions import SETS
    from benchmarks.speed import built, milliseconds

    asked = {name: built(questions()) for name, questions in SETS.items()}
    for name in asked:
        for question in asked[name][:: max(1, len(asked[name]) // 10)]:
            milliseconds(question, 1)  # imports, files and compiled code
    for line in sys.stdin:
        if line.strip() == "sets":
            print(*(f"{name}={len(found)}" for name, found in asked.items()), flush=True)
        else:
            name, number = line.split()
            print(milliseconds(asked[name][int(number)], 2), flush=True)


if __name__ == "__main__":
    serve()
