"""Draw docs/gallery: every picture of the product from its command, in light and dark, for a page and for a column.

`python benchmarks/gallery.py` draws those that differ from what is there and writes docs/gallery.md; with `--check` it
draws nothing and fails if a picture is missing, or one is there that no command draws, or the page is out of date.
Names after the flags choose pictures. What the pictures hold is tested by tests/unit/test_gallery.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.cli import main as attnsim
from attnsim.plots.sheet import Picture
from attnsim.plots.styles import Style, applied, find_style

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER, PAGE = DOCS / "gallery", DOCS / "gallery.md"
STYLES, WIDTHS = ("light", "dark"), ("page", "column")
DPI = {"page": 146, "column": 180}
"""Dots per inch; these and the few colours of a style keep the folder small."""
SHADES = 6
"""Of each colour between the page's and its own, at the edges of letters."""

SHAPE = "--gpu h100-sxm5-80gb --heads 16 --seq 4096 --head-dim 128 --dtype fp16"
LLAMA = "--gpu h100-sxm5-80gb --heads 32 --kv-heads 8 --seq 8192 --head-dim 128 --causal"
MEASURED = "docs/gallery/measured.csv"


@dataclass(frozen=True)
class Drawn:
    """A picture of the gallery: its command, and what it says."""

    command: str
    text: str
    out: str = "--out"


GALLERY = {
    "roofline": Drawn(f"roofline {SHAPE} --algorithm naive,flash-2,flash-3", "Where three algorithms stand."),
    "roofline-set": Drawn(
        f"roofline {LLAMA} --algorithm naive,flash --set hbm.bandwidth=6TB/s --set l2.bandwidth=2x",
        "A GPU that does not exist beside the one that it was made of.",
    ),
    "roofline-levels": Drawn(
        f"roofline {SHAPE} --algorithm naive,flash-2,flash-3 --levels hbm,l2,smem --ceilings exp,mma_sync",
        "All levels of memory, and roofs of further units.",
    ),
    "roofline-gpus": Drawn(
        "roofline --gpu a100-sxm4-80gb,h100-sxm5-80gb --heads 32 --seq 8192 --head-dim 128 --causal "
        "--algorithm naive,flash",
        "Two GPUs.",
    ),
    "roofline-measured": Drawn(
        f"roofline --gpu h100-sxm5-80gb --measured {MEASURED}",
        "Measured calls (of the paper on FlashAttention-3, figure 5) and their predictions.",
    ),
    "scaling": Drawn(
        "plot scaling --gpu h100-sxm5-80gb --heads 16 --head-dim 128 --dtype fp16 --causal --seq 512:65536 "
        "--algorithm naive,flash,linear",
        "Time over the length, crossings, and where the memory ends a line.",
    ),
    "scaling-set": Drawn(
        "plot scaling --gpu h100-sxm5-80gb --heads 16 --head-dim 128 --causal --seq 8192:65536 --algorithm naive,flash "
        "--set l2.bandwidth=2x",
        "What a change brings over the length, with the range of the ratio.",
    ),
    "units": Drawn(f"plot units {SHAPE} --algorithm flash-1,flash-2,flash-3", "What is hidden under what."),
    "units-set": Drawn(
        f"plot units {LLAMA} --algorithm flash --set l2.bandwidth=2x", "Both GPUs on one axis, unit by unit."
    ),
    "traffic": Drawn(f"plot traffic {SHAPE} --algorithm naive,flash-2,flash-3", "Bytes by tensor and level."),
    "waves": Drawn(
        "plot waves --gpu a100-sxm4-80gb --heads 16 --head-dim 128 --seq 1024:6144:128 --algorithm flash-2 "
        "--set sm.count=132",
        "Waves of thread blocks, and what the last one costs.",
    ),
    "tornado": Drawn(f"plot tornado {SHAPE} --algorithm naive,flash-2,flash-3", "Which figure moves the time."),
    "split": Drawn(
        f"plot split {LLAMA} --set l2.bandwidth=2x --set sm.exp_rate=1.5x --set hbm.bandwidth=6TB/s",
        "What each of several changes brings.",
    ),
    "whatif": Drawn(
        "whatif --gpu h100-sxm5-80gb --model llama-3-8b --case seq=8k --case 'pass=decode, batch=16, seq=8k' "
        "--set hbm.bandwidth=6TB/s --set sm.exp_rate=1.5x --limit 'area<=1.05x'",
        "What changes bring to several cases, with ranges, watts and die.", "--plot",
    ),
    "step": Drawn(
        "predict --layer --model llama-3-70b --lengths '1:4096 x 63, 512:2560' --tp 4 --gpu h100-sxm5-80gb",
        "A step of a model in the batch of a server.", "--plot",
    ),
    "timeline": Drawn(
        f"trace {SHAPE} --algorithm flash-1,flash-2,flash-3", "The first turns of an SM.", "--picture"
    ),
    "timeline-set": Drawn(
        f"trace {LLAMA} --algorithm flash --set tensor.bf16=2x", "The same on a GPU that does not exist.", "--picture"
    ),
    "breakeven": Drawn(
        "breakeven --gpu h100-sxm5-80gb --heads 32 --kv-heads 8 --head-dim 128 --causal --seq 4096,16384",
        "The density below which block-sparse attention pays.", "--plot",
    ),
    "density": Drawn(
        "plot density --gpu a100-sxm4-80gb,h100-sxm5-80gb --heads 16 --head-dim 128 --seq 16384 --causal",
        "Dense, block-sparse and gathered attention under masks of growing density.",
    ),
    "density-set": Drawn(
        "plot density --gpu h100-sxm5-80gb --heads 16 --head-dim 128 --seq 16384 --causal --set l2.bandwidth=2x",
        "The same on a GPU that does not exist.",
    ),
    "pareto": Drawn(
        f"search hardware {LLAMA} --vary l2.bandwidth=8TB/s:20TB/s:4TB/s --vary hbm.bandwidth=3TB/s:6TB/s:1TB/s "
        "--minimise time,power",
        "Machines of a search, and the front of two objectives.", "--plot",
    ),
    "check": Drawn("check examples/mine.csv", "A table of timings against their predictions.", "--plot"),
    "accuracy": Drawn("accuracy --rows 4", "Errors on rows that no fit has seen, some of every library.", "--plot"),
}  # fmt: skip
"""Every picture that a command draws; that of `attnsim validate`, of all measured rows, takes minutes."""


@contextlib.contextmanager
def _kept(found: list[Picture]) -> Iterator[None]:
    """Pictures kept instead of written."""

    def keep(self: Picture, out: Path, *_: object, **__: object) -> list[Path]:
        found.append(self)
        return [out]

    with patch.object(Picture, "write", keep):
        yield


def picture_of(name: str) -> Picture:
    """The picture that a command of the gallery draws, before it is drawn."""
    found: list[Picture] = []
    with tempfile.TemporaryDirectory() as folder, _kept(found), contextlib.redirect_stdout(io.StringIO()):
        one = GALLERY[name]
        code = attnsim([*shlex.split(one.command), one.out, str(Path(folder) / f"{name}.png")])
    if code or len(found) != 1:
        raise RuntimeError(f"attnsim {GALLERY[name].command} ended with {code} and {len(found)} pictures")
    return found[0]


def variants() -> list[tuple[str, str]]:
    """Styles and widths of every picture."""
    return [(style, width) for style in STYLES for width in WIDTHS]


def files() -> set[str]:
    """Names of all pictures of the folder."""
    return {f"{name}-{style}-{width}.png" for name in GALLERY for style, width in variants()}


def _palette(look: Style) -> Any:
    """The colours of a style in shades, as a picture."""
    from matplotlib.colors import to_rgb
    from PIL import Image

    page, found = np.array(to_rgb(look.page)), [np.array(to_rgb(look.grid))]
    for colour in (*look.colours, look.text, look.faint, look.middle):
        found += [page + (np.array(to_rgb(colour)) - page) * shade / SHADES for shade in range(1, SHADES + 1)]
    kept = Image.new("P", (1, 1))
    kept.putpalette([round(255 * part) for colour in (page, *found) for part in colour])
    return kept


def draw(name: str) -> list[Path]:
    """Draw a picture in its styles and widths where it differs from the file that is there."""
    from PIL import Image

    picture, written = picture_of(name), []
    for style, width in variants():
        look, drawn, out = find_style(style, width), io.BytesIO(), io.BytesIO()
        with applied(look):
            picture.figure(style, width).savefig(drawn, format="png", dpi=DPI[width])
        image = Image.open(drawn).convert("RGB")
        image.quantize(palette=_palette(look), dither=Image.Dither.NONE).save(out, format="png", optimize=True)
        path = FOLDER / f"{name}-{style}-{width}.png"
        if not path.exists() or path.read_bytes() != out.getvalue():
            path.write_bytes(out.getvalue())
            written.append(path)
    return written


def page() -> str:
    """The gallery as a page: each picture below its command."""
    lines = [
        "# Gallery",
        "",
        "Every picture that a command draws, as it is without further flags and below that for a column of a paper",
        "(`--width column`), light and with `--style dark`. The styles `print` and `latex`, PDF, SVG and PGF, and",
        "captions for LaTeX are on [Draw pictures for a report](pictures.md). Written by",
        "`python benchmarks/gallery.py`.",
        "",
    ]
    for name, one in GALLERY.items():
        lines += [f"## {name}", "", one.text, "", "```text", f"$ attnsim {one.command} {one.out} {name}.png", "```", ""]
        lines += [f"| {' | '.join(STYLES)} |", f"|{'---|' * len(STYLES)}"]
        for width in WIDTHS:
            cells = (f"![{one.text} ({style}, {width})](gallery/{name}-{style}-{width}.png)" for style in STYLES)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def stale() -> list[str]:
    """What is missing, not drawn by any command, or a page that is out of date."""
    there = {path.name for path in FOLDER.glob("*.png")}
    found = sorted(there ^ files())
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        found.append(PAGE.name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="draw nothing, fail if something is missing")
    parser.add_argument("names", nargs="*", help="pictures to draw; default: all")
    given = parser.parse_args()
    if given.check:
        for name in stale():
            print(f"{name} is out of date, missing or drawn by no command")
        return int(bool(stale()))
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.png"):
        if path.name not in files():
            path.unlink()
    for name in given.names or GALLERY:
        for path in draw(name):
            print(f"docs/gallery/{path.name} drawn")
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
