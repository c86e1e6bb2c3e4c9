"""Which attention is fastest from 4 k to 1 M tokens, in prefill and in decode, on H100 and B200.

    python benchmarks/regimes.py

Writes the table of docs/regimes.csv, the picture beside it and the tables of docs/regimes.md, in one to two minutes.
With `--page` it only writes the page from the table that is there.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.api.answer import Answer, Outcome
from attnsim.api.answering import predict
from attnsim.api.comparing.ratios import BORROWED, Ratio
from attnsim.errors import InputError
from attnsim.models.calibrations.components import WITHIN, widths
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import MECHANISMS
from attnsim.models.question.selection import Selection
from attnsim.models.question.workload import Latent, Workload
from attnsim.plots.series import engineering, length_text
from attnsim.plots.sheet import Panel, Picture, heading, plain_axes
from attnsim.plots.styles import DASHES, Style
from attnsim.wording import interval_text, time_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).resolve().parents[1] / "docs"
TABLE, PICTURE, PAGE = DOCS / "regimes.csv", DOCS / "regimes.png", DOCS / "regimes.md"
BEGIN, END = "<!-- written by benchmarks/regimes.py: {} -->", "<!-- end -->"

GPUS = ("h100-sxm5-80gb", "b200-sxm-180gb")
TOKENS = tuple(2**n for n in range(12, 21))
PASSES = {"fwd": 1, "decode": 8}
"""Passes, and how many sequences a call has."""
CHUNK = 8192
"""Queries of a call in prefill over a latent: DSA's scores of all pairs at once fit no memory, and serving cuts prompts
so."""
WINDOW = 4096
NAMES = {
    "full": "flash", "window": "sliding-window", "NSA": "nsa", "DSA": "dsa", "linear": "linear", "GDN": "gdn",
    "MLA": "mla",
}  # fmt: skip
"""Mechanisms by what the page calls them."""
DENSE = (*MECHANISMS["flash"].implementations, "nvidia.cudnn")
GROUPS = {
    "all": ("full", "window", "NSA", "DSA", "linear", "GDN"),
    "timed": ("full", "window", "NSA", "DSA", "GDN"),
    "keeping": ("full", "NSA", "DSA"),
    "latent": ("MLA", "DSA"),
}
"""Which are held against one another: the six; those whose kernels were timed; those that can attend to any key of the
past, where the others forget it or sum it up; and those of the same heads over the same latent."""
GUESSED = BORROWED | {"pass"}
"""Components of a time that no measurement of that kernel in that pass stands behind."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell; times of a prompt or of one step, ratios over the fastest of each group."""

    gpu: str
    passes: str
    tokens: int
    name: str
    implementation: str
    time_s: float | None
    time_low_s: float | None
    time_high_s: float | None
    over_all: Ratio | None
    over_timed: Ratio | None
    over_keeping: Ratio | None
    over_latent: Ratio | None
    error: float | None
    trust: str


def question(name: str, passes: str, tokens: int) -> Workload:
    """Llama's and Mistral 7B's heads; DSA has DeepSeek-V3.2's."""
    batch, queries = PASSES[passes], tokens if passes == "fwd" else 1
    w = Workload(batch, 32, queries, 128, heads_kv=8, seq_kv=tokens, passes=passes, mask=Mask.causal())
    if name == "window":
        return replace(w, mask=Mask.sliding_window(WINDOW, causal=True))
    if name in GROUPS["latent"]:
        w = replace(w, heads_q=128, heads_kv=128, head_dim=192, latent=Latent(512, 64))
    selection = MECHANISMS[NAMES[name]].selection
    return replace(w, selection=Selection.parse(selection)) if selection else w


@cache
def asked(w: Workload, gpu: str, name: str, implementation: str) -> Outcome:
    """From a CUDA graph, nothing in L2: between two calls a model does other things."""
    return predict(
        w, gpu, NAMES[name], implementation=implementation, launch="graph", cache="cold", baseline=False
    )  # fmt: skip


def in_chunks(name: str, tokens: int, gpu: str, implementation: str) -> Outcome:
    """A prompt in calls of `CHUNK` queries, each over all keys so far; trust is the last one's."""
    ends = range(min(CHUNK, tokens), tokens + 1, CHUNK)
    calls = [
        asked(replace(question(name, "fwd", end), seq_q=min(CHUNK, end)), gpu, name, implementation) for end in ends
    ]
    last, total = calls[-1], sum(one.time_s or 0.0 for one in calls)
    return replace(last, correction=total / last.run.replay.time_s) if isinstance(last, Answer) else last


def best(name: str, passes: str, tokens: int, gpu: str) -> Outcome | None:
    """The fastest kernel of a mechanism that was measured in that pass, or, where none was, of all; None: no kernel."""
    found: list[Outcome] = []
    kernels = DENSE if name in ("full", "window") else MECHANISMS[NAMES[name]].implementations
    for implementation in kernels:
        try:
            if name in GROUPS["latent"] and passes == "fwd":
                found.append(in_chunks(name, tokens, gpu, implementation))
            else:
                found.append(asked(question(name, passes, tokens), gpu, name, implementation))
        except InputError:  # not on that GPU, or not in that pass
            continue
    measured = [one for one in found if not GUESSED & one.trust.components.keys()]
    return min(measured or found, key=lambda one: one.time_s or float("inf"), default=None)


def ratios(found: dict[str, Outcome], among: Sequence[str]) -> dict[str, Ratio]:
    """How many times longer each takes than the fastest."""
    timed = {name: one for name, one in found.items() if name in among and one.time_s}
    if not timed:
        return {}
    first = min(timed.values(), key=lambda one: one.time_s or 0.0)
    return {name: ratio for name, one in timed.items() if (ratio := first.speedup_over(one)) is not None}


def played(gpus: Sequence[str] = GPUS, lengths: Sequence[int] = TOKENS) -> Iterator[Row]:
    """All cells."""
    for gpu in gpus:
        for passes in PASSES:
            for tokens in lengths:
                every = {name: best(name, passes, tokens, gpu) for name in NAMES}
                found = {name: one for name, one in every.items() if one is not None}
                over = [ratios(found, among) for among in GROUPS.values()]
                for name, one in found.items():
                    t, guessed = one.trust, GUESSED & one.trust.components.keys()
                    yield Row(
                        gpu, passes, tokens, name, one.implementation, one.time_s, one.time_low_s, one.time_high_s,
                        *(ratio.get(name) for ratio in over),
                        None if guessed else t.components[WITHIN] / widths().within,
                        ", ".join(sorted(guessed | ({"window"} & t.components.keys()))) or "measured",
                    )  # fmt: skip


def verdict(rows: Sequence[Row], group: str = "all") -> str:
    """The fastest where the range of its ratio stays above 1 against every other; else all that it may be."""
    found: dict[str, Ratio | None] = {row.name: getattr(row, f"over_{group}") for row in rows}
    rivals = [name for name, ratio in sorted(found.items(), key=lambda x: x[1].value if x[1] else 0.0)
              if ratio is not None and ratio.low <= 1]  # fmt: skip
    if sum(ratio is not None for ratio in found.values()) < 2:
        return f"only {rivals[0]}" if rivals else "-"
    return f"**{rivals[0]}**" if len(rivals) == 1 else f"cannot tell: {', '.join(rivals)}"


def columns() -> tuple[str, ...]:
    """Of the table."""
    return tuple(
        each for one in fields(Row)
        for each in ((one.name, f"{one.name}_low", f"{one.name}_high") if one.name.startswith("over") else (one.name,))
    )  # fmt: skip


def to_dict(row: Row) -> dict[str, object]:
    """A line of the table."""
    line: dict[str, object] = {one.name: getattr(row, one.name) for one in fields(Row)}
    for name in map("over_{}".format, GROUPS):
        ratio = getattr(row, name)
        line |= {name: ratio and ratio.value, f"{name}_low": ratio and ratio.low, f"{name}_high": ratio and ratio.high}
    return line


def read() -> list[Row]:
    """The rows of docs/regimes.csv."""

    def number(text: str) -> float | None:
        return float(text) if text else None

    def ratio(line: dict[str, str], name: str) -> Ratio | None:
        ends = [number(line[f"{name}{end}"]) for end in ("", "_low", "_high")]
        return None if ends[0] is None else Ratio(*(one or 0.0 for one in ends))

    with TABLE.open(newline="", encoding="utf-8") as file:
        return [
            Row(
                line["gpu"], line["passes"], int(line["tokens"]), line["name"], line["implementation"],
                number(line["time_s"]), number(line["time_low_s"]), number(line["time_high_s"]),
                *(ratio(line, f"over_{group}") for group in GROUPS), number(line["error"]), line["trust"],
            )
            for line in csv.DictReader(file)
        ]  # fmt: skip


def cells(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, str, int], list[Row]]]:
    """Rows by GPU, pass and length."""
    for at, some in groupby(rows, key=lambda row: (row.gpu, row.passes, row.tokens)):
        yield at, list(some)


def answers(rows: Sequence[Row]) -> str:
    """The table of answers."""
    lines = [
        "| GPU, pass, tokens | of all six | without linear | every key kept | DeepSeek's heads |",
        f"|---|{'---|' * len(GROUPS)}",
    ]
    for at, some in cells(rows):
        lines.append(f"| {place(*at)} | {' | '.join(verdict(some, group) for group in GROUPS)} |")
    return "\n".join(lines)


def place(gpu: str, passes: str, tokens: int) -> str:
    """A cell's row as the page says it."""
    return f"{gpu.partition('-')[0].upper()}, {word(passes)}, {length(tokens)}"


def word(passes: str) -> str:
    """A pass as the page says it."""
    return {"fwd": "prefill"}.get(passes, passes)


def length(tokens: int) -> str:
    """A length as the page says it."""
    return "1M" if tokens == 2**20 else length_text(tokens)


def times(rows: Sequence[Row]) -> str:
    """The table of times with their ranges."""
    lines = [f"| GPU, pass, tokens | {' | '.join(NAMES)} |", f"|---|{'---:|' * len(NAMES)}"]
    for at, some in cells(rows):
        by_name = {row.name: row for row in some}
        texts = [cell(by_name.get(name)) for name in NAMES]
        lines.append(f"| {place(*at)} | {' | '.join(texts)} |")
    return "\n".join(lines)


def cell(row: Row | None) -> str:
    """A time with its range."""
    if row is None:
        return "-"
    if row.time_s is None:
        return "too large"
    return f"{time_text(row.time_s)} ({interval_text(row.time_low_s, row.time_high_s, row.time_s)})"


def trusts(rows: Sequence[Row]) -> str:
    """Whose kernels were taken, and what stands behind their times."""
    lines = ["| | GPU, pass | kernel | numbers |", "|---|---|---|---|"]
    seen = dict.fromkeys((row.name, row.gpu, row.passes, row.implementation, row.error, row.trust) for row in
                         sorted(rows, key=lambda row: tuple(NAMES).index(row.name)))  # fmt: skip
    for name, gpu, passes, implementation, error, trust in seen:
        where = f"{gpu.partition('-')[0].upper()}, {word(passes)}"
        said = f"borrowed ({trust})" if error is None else f"measured, mean error {100 * error:.1f} %"
        more = "; a window was never timed" if error is not None and trust != "measured" else ""
        lines.append(f"| {name} | {where} | `{implementation}` | {said}{more} |")
    return "\n".join(lines)


def page(text: str, rows: Sequence[Row]) -> str:
    """The page with its tables written anew."""
    for name, table in (("answers", answers(rows)), ("times", times(rows)), ("trust", trusts(rows))):
        begin = BEGIN.format(name)
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n\n{table}\n\n{END}{rest.partition(END)[2]}"
    return text


def picture(rows: Sequence[Row]) -> Picture:
    """Time over the length, a panel for each GPU and pass."""
    panels = [list(some) for _, some in groupby(rows, key=lambda row: (row.gpu, row.passes))]
    return Picture(
        "Time of attention from 4 k to 1 M tokens",
        "32 query heads, 8 key heads of 128; DSA and MLA have 128 heads over a latent of 512 and 64. Bands: 90 % "
        "ranges. Lines end where a call does not fit the memory.",
        tuple(Panel(partial(_draw, rows=some, last=some is panels[-1]), 2.2) for some in panels),
        tuple(map(to_dict, rows)),
        left=("100 ms",),
        subtitle="prefill of one prompt; decode of 8 sequences, a token each; bf16, nothing in L2, from a CUDA graph",
    )  # fmt: skip


def _draw(axes: Axes, look: Style, *, rows: Sequence[Row], last: bool) -> None:
    for place, name in enumerate(NAMES):
        points = [row for row in rows if row.name == name and row.time_s]
        across = [row.tokens for row in points]
        colour, dash = look.colour(place), DASHES[place % len(DASHES)]
        low, middle, high = ([getattr(row, end) for row in points] for end in ("time_low_s", "time_s", "time_high_s"))
        axes.fill_between(across, low, high, color=colour, alpha=0.16, linewidth=0, zorder=2)
        if points:
            axes.plot(across, middle, color=colour, linestyle=dash, linewidth=0.19 * look.size, label=name, zorder=3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_ticks(TOKENS, [length(tokens) for tokens in TOKENS])
    axes.yaxis.set_major_formatter(lambda value, _: engineering(value, "s"))
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    plain_axes(axes, look)
    axes.legend(frameon=False, fontsize=look.size, loc="upper left", borderpad=0.2, ncols=2)
    heading(axes, f"{rows[0].gpu}, {word(rows[0].passes)}: predicted time; band: 90 % range", look)
    if last:
        axes.set_xlabel("tokens", fontsize=look.size)


def main() -> None:
    """Write table, picture and page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", action="store_true", help="write the page from the table that is there")
    if not parser.parse_args().page:
        picture(list(played())).write(PICTURE)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")


if __name__ == "__main__":
    main()
