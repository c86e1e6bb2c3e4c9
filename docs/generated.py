"""Pages and pictures of the documentation that are made anew whenever it is built."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
OUTSIDE = {"DEVIATIONS.md": "deviations", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
"""Documents beside the README, and their pages here."""
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")

ALGORITHMS = "flash-1,flash-2,flash-3"
THREE = "naive,flash-2,flash-3"
SHAPE = ("--gpu", "h100-sxm5-80gb", "--heads", "16", "--seq", "4096", "--head-dim", "128", "--dtype", "fp16")


def write_generated(folder: Path) -> None:
    """Options of every command, the error tables, and the pictures that pages show.

    Parameters
    ----------
    folder : Path
        Made where it is missing.
    """
    folder.mkdir(exist_ok=True)
    (folder / "options.md").write_text(options_page(), encoding="utf-8")
    (folder / "errors.md").write_text(errors_page(), encoding="utf-8")
    (folder / "ratios.md").write_text(ratios_page(), encoding="utf-8")
    for name, page in OUTSIDE.items():
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        (folder / f"{page}.md").write_text(moved(text), encoding="utf-8")
    _run("trace", *SHAPE, "--algorithm", ALGORITHMS, "--picture", str(folder / "turns.png"))
    _run("roofline", *SHAPE, "--algorithm", THREE, "--out", str(folder / "roofline.png"))
    lengths = ("--seq", "512:65536", "--causal", "--algorithm", "naive,flash,linear")
    _run("plot", "scaling", *SHAPE[:4], *SHAPE[6:], *lengths, "--out", str(folder / "scaling.png"))
    _run("plot", "units", *SHAPE, "--algorithm", ALGORITHMS, "--out", str(folder / "units.png"))
    _run("plot", "traffic", *SHAPE, "--algorithm", THREE, "--out", str(folder / "traffic.png"))
    _run("plot", "tornado", *SHAPE, "--algorithm", THREE, "--out", str(folder / "tornado.png"))
    changes = ("--set", "l2.bandwidth=2x", "--set", "sm.exp_rate=1.5x", "--set", "hbm.bandwidth=6TB/s")
    llama = ("--model", "llama-3-70b", "--seq", "8192")
    _run("plot", "split", *SHAPE[:2], *llama, *changes, "--out", str(folder / "split.png"))
    waves = ("--gpu", "a100-sxm4-80gb", "--heads", "16", "--head-dim", "128", "--seq", "1024:6144:128")
    more = ("--algorithm", "flash-2", "--set", "sm.count=132", "--out", str(folder / "waves.png"))
    _run("plot", "waves", *waves, *more)


def moved(text: str) -> str:
    """A document of the repository's top folder as a page here: links lead to pages, files are named."""

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found[1], found[2], found[3] or ""
        if target in OUTSIDE:
            return f"[{words}]({OUTSIDE[target]}.md{anchor})"
        if target.startswith("docs/"):
            return f"[{words}](../{target.removeprefix('docs/')}{anchor})"
        return words if words.strip("`") == target else f"{words} (`{target}`)"

    return LINK.sub(link, text)


def options_page() -> str:
    """`--help` of every command, one section each."""
    from typer.main import get_command

    from attnsim.cli.app import app

    group = get_command(app)
    parts = ["# All options", "", "What `--help` prints, command by command.", ""]
    for words in _commands(group):
        parts += [f"## {' '.join(words)}", "", "```text", _run(*words[1:], "--help").strip(), "```", ""]
    return "\n".join(parts)


def _commands(group: object, before: tuple[str, ...] = ("attnsim",)) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    commands: dict[str, object] = getattr(group, "commands", {})
    for name, command in commands.items():
        words = (*before, name)
        found.append(words)
        found += _commands(command, words)
    return found


def errors_page() -> str:
    """Errors on held-out measurements, by source and implementation, as the README shows them."""
    from attnsim.validation.checking.accuracy import accuracy_table
    from attnsim.validation.fitting.held_out import held_out_predictions

    found: dict[str, list[dict[str, object]]] = {}
    for row in accuracy_table(held_out_predictions()):
        found.setdefault(str(row.pop("source")), []).append(row)
    lines = ["# Errors by source, implementation, pass and length", ""]
    lines += ["Computed when this page was built, on rows that the numbers had not seen; a table a source.", ""]
    for source, rows in sorted(found.items()):
        lines += [f"## {source}", "", *_table(rows), ""]
    return "\n".join(lines)


def ratios_page() -> str:
    """What the ranges of ratios hold, as the last `attnsim fit --record` found."""
    import yaml

    text = (REPOSITORY / "attnsim/models/calibrations/trust.yaml").read_text(encoding="utf-8")
    found = yaml.safe_load(text)["ratios"]
    components = [{"component": name} | row for name, row in found["components"].items()]
    pairs = [row | {"ratio": f"{row['ratio']:.2f}x"} for row in found["pairs"]]
    return "\n".join(
        (
            "# Ranges of ratios, pair by pair",
            "",
            "One kernel timed on two GPUs: the median predicted speedup, the median error of it (log of measured over "
            "predicted), the median half-width that is stated, and the share of the steps inside. Widths are set "
            "without the pair. *own*: each GPU with its own numbers; *carried*: the older one's, on the newer one's "
            "datasheet. Written by `attnsim fit --record`; `attnsim accuracy --sources` computes it anew.",
            "",
            *_table(pairs),
            "",
            f"Components; the half-width is {found['factor']:.2f} times the root of the sum of their squares:",
            "",
            *_table(components),
            "",
            f"Two kernels on one GPU: {found['two_kernels']['steps']} ratios, of which "
            f"{_cell(found['two_kernels']['held'])} lie inside the stated range, with the laboratory left out of the "
            "components.",
            "",
        )
    )


def _table(rows: list[dict[str, object]]) -> list[str]:
    columns = list(rows[0])
    lines = [f"| {' | '.join(name.replace('_', ' ') for name in columns)} |", f"|{'---|' * len(columns)}"]
    return lines + [f"| {' | '.join(_cell(row[name]) for name in columns)} |" for row in rows]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if isinstance(value, float) else str(value)


def _run(*arguments: str) -> str:
    from attnsim.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(arguments))
    if code:
        raise RuntimeError(f"attnsim {' '.join(arguments)} ended with {code}")
    return out.getvalue()
