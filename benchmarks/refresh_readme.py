"""Write the real output of every documented command back into the documents that show it.

`python benchmarks/refresh_readme.py` rewrites README.md, CONTRIBUTING.md, DEVIATIONS.md and docs/*.md in place. With
`--check` it changes nothing and fails if anything would change; `--no-accuracy` leaves the tables of errors as they
are; `--benchmarks` also runs the benchmarks that a document quotes.

In a ```console block a line `$ attnsim ...` is run, and what follows it replaced; `| head -N` keeps N lines. A line
`$ cat FILE` makes FILE of what follows it, a ```yaml block that begins with `# NAME.yaml` makes that file. Other
commands, and those with a comment `# needs a GPU` or `# takes ...`, are left alone. A ```python block followed by a
```text block has its output there; it sees the names of the blocks above it. Tables go between comments: that of errors
between `<!-- accuracy:begin -->` and `<!-- accuracy:end -->`, that of GPUs as if they did not exist between those of
`hypothetical` (where the extra `datasets` is installed), the list of known gaps between those of `deviations`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_ALONE = re.compile(r"#\s*(needs a GPU|takes )")
ACCURACY = re.compile(r"(<!-- accuracy:begin -->\n).*?(<!-- accuracy:end -->)", re.DOTALL)
HYPOTHETICAL = re.compile(r"(<!-- hypothetical:begin -->\n).*?(<!-- hypothetical:end -->)", re.DOTALL)
DEVIATIONS = re.compile(r"(<!-- deviations:begin -->\n).*?(<!-- deviations:end -->)", re.DOTALL)
COMMAND_LINE = "import sys; from attnsim.cli import main; sys.exit(main())"
SILENTLY = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    exec({!r}, globals())\n"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block and the output shown below it."""

    line: str
    shown: str

    @property
    def words(self) -> list[str]:
        """The command without its comment and pipe."""
        return shlex.split(self.line.partition("|")[0], comments=True)

    @property
    def is_run(self) -> bool:
        """Whether it is a command of attnsim that a laptop answers at once."""
        return self.words[0] == "attnsim" and not LEFT_ALONE.search(self.line)

    @property
    def is_benchmark(self) -> bool:
        """Whether it runs a script of this folder."""
        return self.words[0] == "python" and self.words[1].startswith("benchmarks/")

    def cut(self, output: str) -> str:
        """What the pipe leaves of the output: `head -N` or `tail -N`."""
        lines = [line.rstrip() for line in output.strip("\n").splitlines()]
        found = re.search(r"\|\s*(head|tail) -(\d+)", self.line)
        if found:
            lines = lines[: int(found[2])] if found[1] == "head" else lines[-int(found[2]) :]
        return "".join(f"{line}\n" for line in lines)


def documents() -> list[Path]:
    """The documents with examples."""
    return [
        *(REPOSITORY / f"{name}.md" for name in ("README", "CONTRIBUTING", "DEVIATIONS")),
        *sorted((REPOSITORY / "docs").glob("*.md")),
    ]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of every fenced block, in order."""
    for match in FENCE.finditer(text):
        yield match[1], match[2]


def write_files(text: str, folder: Path) -> list[Path]:
    """Write the GPU files of a document: its ```yaml blocks that begin with `# NAME.yaml`."""
    found = []
    for language, content in blocks(text):
        name = re.match(r"# (\S+\.yaml)\n", content)
        if language == "yaml" and name:
            path = folder / name[1]
            path.write_text(content, encoding="utf-8")
            found.append(path)
    return found


def commands(block: str) -> list[Command]:
    """The commands of a console block, each with the output below it."""
    found: list[Command] = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        found.append(Command(line, shown))
    return found


def run(arguments: list[str], folder: Path, *, may_fail: bool = False) -> str:
    """Output of a Python process in `folder`, stderr last, blanks at line ends removed."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    if done.returncode and not may_fail:
        sys.exit(f"{' '.join(arguments[-3:])}\nexit code {done.returncode}: {done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in (done.stdout + done.stderr).splitlines())


def refreshed_console(block: str, folder: Path, benchmarks: bool) -> str:
    """A console block with present output."""
    out = ""
    for command in commands(block):
        shown, words = command.shown, command.words
        if words[0] == "cat":
            (folder / words[1]).write_text(shown, encoding="utf-8")
        elif command.is_run:
            shown = command.cut(run(["-c", COMMAND_LINE, *words[1:]], folder))
        elif command.is_benchmark and benchmarks:
            shown = command.cut(run([str(REPOSITORY / words[1]), *words[2:]], folder, may_fail=True))
        out += f"$ {command.line}\n{shown}"
    return out


def refreshed(text: str, folder: Path, benchmarks: bool = False) -> str:
    """A document with present output in its console blocks and below its Python blocks."""
    write_files(text, folder)
    out, end, code, printed = "", 0, "", ""
    for match in FENCE.finditer(text):
        language, content = match[1], match[2]
        if language == "console":
            content = refreshed_console(content, folder, benchmarks)
        elif language == "text" and printed and not text[end : match.start()].strip():
            content = printed
        printed = ""
        if language == "python":
            if text[match.end() :].lstrip().startswith("```text"):
                printed = run(["-c", SILENTLY.format(code) + content], folder)
            code += content
        out += f"{text[end : match.start()]}```{language}\n{content}```"
        end = match.end()
    return out + text[end:]


def accuracy_markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """The errors of `attnsim accuracy` over all lengths, one line a case and one column a split."""
    cases: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["band"] == "all":
            key = tuple(str(row[name]) for name in ("source", "implementation", "gpu", "pass"))
            cases.setdefault(key, {})[row["split"]] = row
    splits = sorted({split for found in cases.values() for split in found})
    heads = [
        "source",
        "implementation",
        "GPU",
        "pass",
        "rows",
        *(f"{s}: mean (median)" for s in splits),
        "p90",
        "worst",
    ]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * 4}{'---:|' * (len(heads) - 4)}"]
    for key, found in cases.items():
        cells = [*key, str(max(row["rows"] for row in found.values()))]
        for split in splits:
            row = found.get(split)
            cells.append(f"{_percent(row['mean'])} ({_percent(row['median'])})" if row else "")
        cells += [_percent(max(row[name] for row in found.values())) for name in ("p90", "worst")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def hypothetical_markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """The errors of `attnsim validate --hypothetical` from the datasheet, without sliding windows."""
    names = (
        "from",
        "to",
        "implementation",
        "numbers of",
        "pass",
        "rows",
        "mean",
        "median",
        "p90",
        "bias",
        "step",
        "at home",
    )
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * 5}{'---:|' * (len(names) - 5)}"]
    for row in rows:
        if row["view"] == "datasheet" and "window" not in row["pass"]:
            shares = ["" if row[name] is None else _percent(row[name]) for name in ("step", "at_home")]
            cells = [row["older"], row["newer"], row["implementation"], row["numbers"], row["pass"], str(row["rows"])]
            cells += [_percent(row[name]) for name in ("mean", "median", "p90")] + [f"{row['bias']:.2f}", *shares]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _hypothetical() -> str:
    """The table, "" where the package with the serving rows is not installed."""
    from attnsim.validation.checking.hypothetical import errors
    from attnsim.validation.measured import aiconfigurator

    return hypothetical_markdown(errors()) if aiconfigurator.available() else ""


def _deviations() -> str:
    sys.path.insert(0, str(REPOSITORY))
    from attnsim.validation.checking.deviations import markdown

    return markdown()


def _percent(error: float) -> str:
    return f"{100 * error:.1f} %"


def _accuracy() -> str:
    sys.path.insert(0, str(REPOSITORY))
    from attnsim.validation.checking.accuracy import accuracy_table

    return accuracy_markdown(accuracy_table())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something is out of date")
    parser.add_argument("--no-accuracy", action="store_true", help="leave the tables of errors as they are")
    parser.add_argument("--benchmarks", action="store_true", help="run the benchmarks that a document quotes too")
    options = parser.parse_args()
    table = "" if options.no_accuracy else _accuracy()
    transfers = "" if options.no_accuracy else _hypothetical()
    known = _deviations()
    stale = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            new = refreshed(text, Path(folder), options.benchmarks)
        if table:
            new = ACCURACY.sub(lambda match: f"{match[1]}{table}{match[2]}", new)
        new = DEVIATIONS.sub(lambda match: f"{match[1]}{known}{match[2]}", new)
        if transfers:
            new = HYPOTHETICAL.sub(lambda match: f"{match[1]}{transfers}{match[2]}", new)
        if new != text:
            stale.append(path.relative_to(REPOSITORY))
            if not options.check:
                path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"{name} {'is out of date' if options.check else 'refreshed'}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
