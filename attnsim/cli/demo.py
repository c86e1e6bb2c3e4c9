"""`attnsim demo`: one change of a GPU that helps, one that does not, why, and a picture of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from attnsim import wording
from attnsim.api import predict
from attnsim.api.answer import Outcome
from attnsim.api.cells import cells
from attnsim.api.comparing.ratios import Ratio
from attnsim.cli import options, outputs, question_flags, show
from attnsim.cli.options import flag
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.units import UNITS, unit_text
from attnsim.models.llm.files import load_model
from attnsim.models.question.workload import Workload
from attnsim.plots.roofline import roofline
from attnsim.reports.predictions import heading, trusted
from attnsim.tables import Block, Table, Unfolded, written

GPU, MODEL, CHANGES = "h100-sxm5-80gb", "llama-3-8b", ("hbm.bandwidth=6TB/s", "tensor.bf16=2x")
"""Decode reads K and V of every sequence once: faster memory helps it, faster tensor cores do not."""

NEXT = """Next:
  attnsim predict --gpu h100 --model llama-3-8b --seq 8k --set hbm.bandwidth=6TB/s
  attnsim predict --gpu h100,h200 --model llama-3-8b --seq 8k
  attnsim explain flash --gpu h100 --model llama-3-8b --seq 8k"""


def demo(
    out: Annotated[Path, flag("DIR", "Folder for the picture and its CSV.")] = Path("demo"),
    verbose: options.Details = False,
    json: options.Json = False,
) -> None:
    """Change an H100 in two ways for decode of a model: one helps, the other does not; draw why."""
    outputs.make_folder(out)
    question = load_model(MODEL).workload(batch=16, seq=8192, passes="decode", dtype="bf16")
    base = load_gpu(GPU)
    machines = [base, *(question_flags.changed(base, [change]) for change in CHANGES)]
    before, *after = (predict(question, gpu, "flash", cache="cold") for gpu in machines)
    files = roofline([before, after[0]], machines[:2]).write(out / "roofline.png")
    blocks = _blocks(question, [before, *after], files, verbose)
    show.give(json, (one.to_dict() for one in (before, *after)), blocks, verbose)


def _blocks(question: Workload, found: Sequence[Outcome], files: Sequence[Path], verbose: bool) -> Iterator[Block]:
    yield f"{MODEL} writes the next token of 16 texts (decode): {heading(question)}; cold L2\n"
    ratios = [one.speedup_over(found[0]) for one in found]
    rows = [
        {"GPU": name, **cells(one, "time", "90 % range"), "speedup": str(ratio), **cells(one, "HBM GB", "busiest")}
        for name, one, ratio in zip(("as it is", *CHANGES), found, ratios, strict=True)
    ]
    yield Table(f"flash on {GPU}, as it is and changed", rows, right=("time", "90 % range", "speedup"))
    for change, one, ratio in zip(CHANGES, found[1:], ratios[1:], strict=True):
        yield f"{change} {_reason(found[0], one, ratio)}"
    yield ""
    yield from trusted(found, verbose)
    yield (
        f"\nThe picture shows the call under the rooflines of both GPUs: with {CHANGES[0]} the memory's roof "
        "rises, and the call's point with it."
    )
    yield from written(files)
    yield Unfolded(f"\n{NEXT}")


def _reason(before: Outcome, after: Outcome, ratio: Ratio | None) -> str:
    """Why a change helps or does not: how busy the unit of its figure was before."""
    change = after.changes[0]
    unit = next(name for name, one in UNITS.items() if one.figure_for(before.workload.dtype) == change.key)
    busy = wording.share_text(before.units_s[unit] / (before.time_s or 1.0), 0)
    helps = ratio is not None and ratio.low > 1
    verdict = "helps" if helps else "does not help"
    return f"{verdict}, {ratio}: on the GPU as it is, {unit_text(unit)} worked {busy} of the time."
