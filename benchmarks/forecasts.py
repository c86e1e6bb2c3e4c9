"""Fix today's forecasts at the present commit: `python benchmarks/forecasts.py [--write] [CHIP ...]`.

Predicts what `attnsim.validation.checking.forecasts` names, in some minutes. `--write` adds the table of today's date,
its commit, its hash in tests/data/forecasts.csv and docs/forecasts.md, in one go; it refuses to touch a table that is
there, and to fix what is not committed. `--page` writes the page anew from the tables. CHIP is an id, or a GPU file:
its forecasts are printed and not fixed.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import io
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attnsim.errors import InputError
from attnsim.models.hardware.files import builtin_gpu_ids, load_gpu
from attnsim.validation.checking.forecasts import (
    COLUMNS,
    FOLDER,
    RELEASES,
    TRAINED,
    Forecast,
    fixed,
    forecasts,
    releases,
    unseen,
)
from attnsim.validation.measured.datasets import grouped
from attnsim.wording import interval_text, ratio_text, time_text

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "forecasts.md"
HASHES = REPOSITORY / "tests" / "data" / "forecasts.csv"
SHOWN = {
    "prefill": ("fwd", TRAINED[2], 128, 1, TRAINED[0]),
    "backward": ("bwd", TRAINED[2], 128, 1, TRAINED[0]),
    "decode": ("decode", 1, 128, 0, 64),
}
"""Calls that the page shows: pass, queries, head_dim, causal, batch."""


HEADING = """# Forecasts before measuring

Times, 90 % ranges and ratios that were fixed at a commit, of chips and kernels of which no measured row was at hand:
none entered a fit or a choice. They are never rewritten, and a test holds their hashes. Whoever times such a call
scores them with `attnsim accuracy --forecasts rows.csv` ([accuracy](cli/accuracy.md)). `python benchmarks/forecasts.py
--write` fixes those of a day. Below are some of each release; all stand in `attnsim/validation/measurements/forecasts`.

A call is timed in a stream with a cold L2, as `triton.testing.do_bench` does it. Prefill and backward have batch
{batch}, {heads} heads of {dim}, {seq} tokens and a causal mask; decode has batch 64, 32 query heads on 8 of 128 and
8192 keys. The ratio says how many times faster the prefill is than the same kernel's on the chip that is named."""


def text_of(found: Iterable[Forecast]) -> str:
    """The table of a release; figures have four digits."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in found:
        cells = asdict(one)
        writer.writerow({name: f"{cell:.4g}" if isinstance(cell, float) else cell for name, cell in cells.items()})
    return out.getvalue()


def add(date: str, commit: str, text: str) -> None:
    """Put a release beside the others.

    Raises
    ------
    InputError
        Where one of its date is there: a forecast is never written again.
    """
    path = FOLDER / f"{date}.csv"
    if path.exists() or date in releases():
        raise InputError(f"the forecasts of {date} are fixed; a release has a date of its own")
    FOLDER.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    append(RELEASES, {"date": date, "commit": commit})
    append(HASHES, {"date": date, "sha256": hash_of(path)})
    PAGE.write_text(page(), encoding="utf-8")


def append(path: Path, row: dict[str, str]) -> None:
    """A row at the end of a table, which is made with it."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def page() -> str:
    """docs/forecasts.md."""
    out = [HEADING.format(**dict(zip(("batch", "heads", "seq", "dim"), TRAINED, strict=True)))]
    every = releases()
    if not every:
        out += ["", "No forecast is fixed yet."]
    for date, commit in reversed(every.items()):
        found = fixed(date)
        out += ["", f"## {date}", "", f"{len(found)} calls, at commit `{commit}`."]
        heads = ["chip", "kernel", *SHOWN, "ratio of the prefill"]
        out += ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
        for (chip, kernel), calls in grouped(found, lambda one: (one.gpu, one.implementation)).items():
            by = {(one.passes, one.seq_q, one.head_dim, one.causal, one.batch): one for one in calls}
            cells = [_cell(by.get(key)) for key in SHOWN.values()]
            one = by.get(SHOWN["prefill"])
            ratio = f"{ratio_text(one.ratio, one.ratio_low, one.ratio_high)} {one.over}" if one and one.over else ""
            out.append(f"| {' | '.join([chip, kernel, *cells, ratio])} |")
    return "\n".join(out) + "\n"


def _cell(one: Forecast | None) -> str:
    return f"{time_text(one.time_s)} ({interval_text(one.low_s, one.high_s, one.time_s)})" if one else ""


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("chips", nargs="*", metavar="CHIP", help="these chips alone")
    parser.add_argument("--write", action="store_true", help="fix them under today's date")
    parser.add_argument("--page", action="store_true", help="only write docs/forecasts.md anew")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    try:
        chips = [load_gpu(name) for name in options.chips]  # one with missing figures is refused here
        if options.write and (other := {gpu.id for gpu in chips} - {*builtin_gpu_ids()}):
            raise InputError(f"{', '.join(other)} is no chip of attnsim; forecasts of a file are printed, not fixed")
        if options.write and git("status", "--porcelain", "attnsim").strip():
            raise InputError("attnsim has changes that are not committed; commit them, forecasts are fixed at a commit")
        if not (pairs := unseen(chips)):
            raise InputError(f"{', '.join(options.chips)}: every kernel has been measured; nothing is left to forecast")
        text = text_of(one for gpu, record in pairs for one in forecasts(gpu, record))
        if options.write:
            add(datetime.date.today().isoformat(), git("rev-parse", "--short=12", "HEAD").strip(), text)
        else:
            print(text, end="")
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
