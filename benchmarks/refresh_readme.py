"""Write the real output of every documented command back into the documents that show it.

`python benchmarks/refresh_readme.py` rewrites README.md, CONTRIBUTING.md and docs/*.md in place; `--check` changes
nothing and fails if anything would change; `--no-accuracy` leaves the table of errors as it is.

In a ```console block a line `$ attnsim ...` is run (`| head -N` keeps N lines) and what follows it is replaced; a line
`$ cat FILE` makes FILE of what follows it, as a ```yaml block that begins with `# NAME.yaml` makes that one; other commands, and those with a comment `# needs a GPU` or `# takes ...`,
are left alone. A ```python block followed by a ```text block has its output there. The accuracy table goes between
the markers `<!-- accuracy:begin -->` and `<!-- accuracy:end -->`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_ALONE = re.compile(r"#\s*(needs a GPU|takes )")
ACCURACY = re.compile(r"(<!-- accuracy:begin -->\n).*?(<!-- accuracy:end -->)", re.DOTALL)
COLUMNS = (
    "source",
    "implementation",
    "gpu",
    "pass",
    "split",
    "band",
    "rows",
    "mean",
    "median",
    "p90",
    "worst",
)
ERRORS = ("mean", "median", "p90", "worst")


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
    def head(self) -> int | None:
        """Lines kept by `| head -N`."""
        found = re.search(r"\|\s*head -(\d+)", self.line)
        return int(found[1]) if found else None

    @property
    def is_run(self) -> bool:
        """Whether it is a command of attnsim that a laptop answers at once."""
        return self.words[0] == "attnsim" and not LEFT_ALONE.search(self.line)


def documents() -> list[Path]:
    """The documents with examples."""
    return [
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
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


def run(code: Sequence[str], folder: Path) -> str:
    """Output of a Python process in `folder`, blanks at line ends removed."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, *code], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    if done.returncode:
        sys.exit(f"{' '.join(code[-4:])}\nexit code {done.returncode}: {done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in (done.stdout + done.stderr).splitlines())


def refreshed_console(block: str, folder: Path) -> str:
    """A console block with present output."""
    out = ""
    for command in commands(block):
        shown = command.shown
        if command.words[0] == "cat" and len(command.words) > 1:
            (folder / command.words[1]).write_text(shown, encoding="utf-8")
        elif command.is_run:
            main = "import sys; from attnsim.cli import main; sys.exit(main())"
            shown = run(["-c", main, *command.words[1:]], folder).strip("\n") + "\n"
            if command.head is not None:
                shown = "".join(shown.splitlines(keepends=True)[: command.head])
        out += f"$ {command.line}\n{shown}"
    return out


def refreshed(text: str, folder: Path) -> str:
    """A document with present output in its console blocks and below its Python blocks."""
    write_files(text, folder)
    out, end, code, printed = "", 0, "", ""
    for match in FENCE.finditer(text):
        language, content = match[1], match[2]
        adjacent = not text[end : match.start()].strip()
        if language == "console":
            content = refreshed_console(content, folder)
        elif language == "python":
            earlier = f"import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    exec({code!r}, globals())\n"
            printed = run(["-c", earlier + content], folder) if _has_output(text, match.end()) else ""
            code += content
        elif language == "text" and adjacent and printed:
            content = printed
        out += f"{text[end : match.start()]}```{language}\n{content}```"
        end = match.end()
        if language != "python":
            printed = ""
    return out + text[end:]


def _has_output(text: str, end: int) -> bool:
    return text[end:].lstrip().startswith("```text")


def accuracy_markdown(rows: Sequence[Mapping[str, object]]) -> str:
    """The error table of `attnsim accuracy` as Markdown."""
    names = [name for name in COLUMNS if any(row.get(name) not in (None, "") for row in rows)]
    right = {"rows", *ERRORS}
    lines = [
        "| " + " | ".join(names) + " |",
        "|" + "|".join("---:" if name in right else "---" for name in names) + "|",
    ]
    lines += ["| " + " | ".join(_cell(name, row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if name in ERRORS and isinstance(value, float):
        return f"{100 * value:.1f} %"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something is out of date")
    parser.add_argument("--no-accuracy", action="store_true", help="leave the table of errors as it is")
    options = parser.parse_args()
    table = ""
    if not options.no_accuracy:
        sys.path.insert(0, str(REPOSITORY))
        from attnsim.validation.accuracy import accuracy_table

        table = accuracy_markdown(accuracy_table())
    stale = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            new = refreshed(text, Path(folder))
        if table:
            new = ACCURACY.sub(lambda match: f"{match[1]}{table}{match[2]}", new)
        if new != text:
            stale.append(path.relative_to(REPOSITORY))
            if not options.check:
                path.write_text(new, encoding="utf-8")
    for name in stale:
        print(f"{name} {'is out of date' if options.check else 'refreshed'}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
