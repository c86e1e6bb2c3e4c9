"""Write the real output of every documented command back into the documents that show it.

`python benchmarks/refresh_readme.py` rewrites README.md, CONTRIBUTING.md, DEVIATIONS.md and docs/**/*.md in place,
several documents at a time. With `--check` it changes nothing and fails if anything would change; `--no-accuracy`
leaves the tables of errors as they are; `--slow` also runs what takes longer, the benchmarks that a document quotes,
and the table of GPUs as if they did not exist (with the extra `datasets`), and dates what it has run.

In a ```console block a line `$ attnsim ...` is run, and what follows it replaced; `| head -N`, `tail -N` and `grep`
cut it. A line `$ cat FILE` makes FILE of what follows it, a ```yaml block that begins with `# NAME.yaml` makes that
file. Lines with a comment `# needs a GPU` or `# takes ...`, and scripts of this folder, are left alone without
`--slow`; where they show an output, the comment ends with the date on which it was taken. A ```python block followed
by a ```text block has its output there; it sees the names of the blocks above it. Generated tables stand between
`<!-- NAME:begin -->` and `<!-- NAME:end -->`: `summary` and `accuracy` (errors on held-out measurements),
`hypothetical`, `deviations` (the known gaps), `peers` (of `benchmarks/peers.py`, where every tool is there).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblib.externals.loky import get_reusable_executor

if TYPE_CHECKING:
    from attnsim.validation.fitting.held_out import HeldOut

REPOSITORY = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(<!-- (\w+):begin -->\n).*?(<!-- \2:end -->)", re.DOTALL)
DATE = re.compile(r"\d{4}-\d\d-\d\d")

SUMMARY = (
    (
        "FlashAttention-2 and -3 on H100, tables of their papers",
        ("fa2_fig7", "fa3_fig5"),
        ("flash-attn.2", "flash-attn.3"),
    ),
    ("vLLM on A100, prefill and decode", ("aic_attention_vllm_0.14.0",), ()),
    ("vLLM on H100, prefill and decode", ("aic_attention_vllm_0.24.0_h100",), ("vllm.flash-attn-3",)),
    ("vLLM on B200, closed kernels", ("aic_attention_vllm_0.24.0_b200",), ("vllm.trtllm-gen",)),
    ("vLLM on L40S, prefill and decode", ("aic_attention_vllm_0.24.0_l40s",), ()),
)
"""Lines of the README's table of errors: words, sources, and their names of the implementation where not all count."""


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
    def is_ours(self) -> bool:
        """Whether it is a command of attnsim, or a script of this folder."""
        return self.words[0] == "attnsim" or (self.words[:1] == ["python"] and self.words[1].startswith("benchmarks/"))

    @property
    def is_run(self) -> bool:
        """Whether it is a command of attnsim that a laptop answers at once."""
        return self.words[0] == "attnsim" and not re.search(r"#\s*(needs a GPU|takes )", self.line)

    @property
    def is_slow(self) -> bool:
        """Whether it shows an output that is not compared: it takes longer, or says how fast something is."""
        return self.is_ours and not self.is_run and "needs a GPU" not in self.line and bool(self.shown.strip())

    def cut(self, output: str) -> str:
        """What the pipe leaves of the output: `head -N`, `tail -N` or `grep PATTERN`."""
        lines = [line.rstrip() for line in output.strip("\n").splitlines()]
        found = re.search(r"\|\s*(head|tail) -(\d+)", self.line)
        if found:
            lines = lines[: int(found[2])] if found[1] == "head" else lines[-int(found[2]) :]
        found = re.search(r"""\|\s*grep ["']([^"']+)["']""", self.line)
        if found:
            lines = [line for line in lines if re.search(found[1].replace(r"\|", "|"), line)]
        return "".join(f"{line}\n" for line in lines)


def documents() -> list[Path]:
    """The documents with examples."""
    return [
        *(REPOSITORY / f"{name}.md" for name in ("README", "CONTRIBUTING", "DEVIATIONS")),
        *sorted((REPOSITORY / "docs").glob("*.md")),
        *(
            path
            for part in ("cli", "design", "extending", "tasks")
            for path in sorted((REPOSITORY / "docs" / part).glob("*.md"))
        ),
    ]


def name_of(path: Path) -> str:
    """A document as it is called here: its path in the repository."""
    return str(path.relative_to(REPOSITORY))


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of every fenced block, in order."""
    for match in FENCE.finditer(text):
        yield match[1], match[2]


def write_files(text: str, folder: Path) -> list[Path]:
    """Write the GPU files of a document, its ```yaml blocks that begin with `# NAME.yaml`, beside our own examples."""
    for name in ("examples", "tests"):
        (folder / name).symlink_to(REPOSITORY / name)
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


def answer(arguments: Sequence[str]) -> str:
    """What a command of attnsim prints, stderr last, run in this process; SystemExit where it fails."""
    from attnsim.cli import main as attnsim

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = attnsim(list(arguments))
    if code:
        raise SystemExit(f"attnsim {shlex.join(arguments)}: exit code {code}: {err.getvalue()}")
    return out.getvalue() + err.getvalue()


def script(arguments: Sequence[str]) -> str:
    """What a script of this folder prints, whether or not it meets its targets."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    return done.stdout + done.stderr


def refreshed_console(block: str, slow: bool) -> str:
    """A console block with present output; run in the folder of the document's files."""
    out = ""
    for command in commands(block):
        line, shown, words = command.line, command.shown, command.words
        if words[0] == "cat":
            Path(words[1]).write_text(shown, encoding="utf-8")
        elif command.is_run:
            shown = command.cut(answer(words[1:]))
        elif command.is_slow and slow:
            shown = command.cut(answer(words[1:]) if words[0] == "attnsim" else script(words[1:]))
            if shown != command.shown:
                line = DATE.sub(datetime.date.today().isoformat(), line)
        out += f"$ {line}\n{shown}"
    return out


def refreshed(text: str, slow: bool = False) -> str:
    """A document with present output in its console blocks and below its Python blocks."""
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files(text, Path(folder))
        out, end, printed = "", 0, ""
        for match in FENCE.finditer(text):
            language, content = match[1], match[2]
            if language == "console":
                content = refreshed_console(content, slow)
            elif language == "text" and printed and not text[end : match.start()].strip():
                content = printed
            printed = ""
            if language == "python":
                printed = _printed(content, names)
            out += f"{text[end : match.start()]}```{language}\n{content}```"
            end = match.end()
    return out + text[end:]


def _printed(code: str, names: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, names)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def summary_markdown(held: Sequence[HeldOut]) -> str:
    """The README's table: errors of rows whose band of lengths and heads, or kernel, no fit has seen."""
    import numpy as np

    lines = ["| measured | rows | mean error | 9 in 10 below |", "|---|---:|---:|---:|"]
    for words, sources, names in SUMMARY:
        errors = [
            one.error
            for one in held
            if one.split != "head_dim"
            and one.row.case.source in sources
            and (not names or one.row.record.name in names)
        ]
        if not errors:
            raise LookupError(f"no row of {', '.join(sources)} is of {', '.join(names)}: mend SUMMARY")
        cells = (words, str(len(errors)), _percent(float(np.mean(errors))), _percent(float(np.quantile(errors, 0.9))))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


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


def _percent(error: float) -> str:
    return f"{100 * error:.1f} %"


def error_tables(held: Sequence[HeldOut]) -> dict[str, str]:
    """The tables of errors on held-out measurements by name."""
    from attnsim.validation.checking.accuracy import accuracy_table

    return {"accuracy": accuracy_markdown(accuracy_table(held)), "summary": summary_markdown(held)}


def tables(errors: bool = True, slow: bool = False) -> dict[str, str]:
    """The generated tables by name."""
    from attnsim.validation.checking.deviations import markdown
    from attnsim.validation.checking.hypothetical import errors as hypothetical
    from attnsim.validation.fitting.held_out import held_out_predictions
    from attnsim.validation.measured import aiconfigurator
    from benchmarks import peers

    found = {"deviations": markdown()}
    if errors:
        found |= error_tables(held_out_predictions())
    if slow and aiconfigurator.available():
        today = datetime.date.today().isoformat()
        note = f"Taken on {today} with `python benchmarks/refresh_readme.py --slow` and the extra `datasets`.\n\n"
        found["hypothetical"] = note + hypothetical_markdown(hypothetical())
        found |= peers.block()
    return found


def in_place(text: str, made: Mapping[str, str]) -> str:
    """A document with the generated tables in their places."""
    return TABLE.sub(lambda match: f"{match[1]}{made[match[2]]}{match[3]}" if match[2] in made else match[0], text)


def renewed(path: Path, slow: bool) -> str:
    """A document as it should be but for the generated tables."""
    try:
        return refreshed(path.read_text(encoding="utf-8"), slow)
    except (Exception, SystemExit) as error:
        raise RuntimeError(f"{name_of(path)}: {error}") from error
    finally:
        # A process of a pool waits at its end for joblib's own, which idle for five minutes.
        get_reusable_executor().shutdown(wait=True, kill_workers=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of paths, such as docs/cli; without any, every document")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something is out of date")
    parser.add_argument("--no-accuracy", action="store_true", help="leave the tables of errors as they are")
    parser.add_argument("--slow", action="store_true", help="run what takes longer, and the benchmarks, too")
    options = parser.parse_args()
    paths = [path for path in documents() if name_of(path).startswith(tuple(options.names) or "")]
    stale = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(partial(renewed, slow=options.slow), paths)
        made = tables(not options.no_accuracy, options.slow)
        for path, text in zip(paths, texts, strict=True):
            new = in_place(text, made)
            if new != path.read_text(encoding="utf-8"):
                stale.append(path)
                if not options.check:
                    path.write_text(new, encoding="utf-8")
    for path in stale:
        print(f"{name_of(path)} {'is out of date' if options.check else 'refreshed'}")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
