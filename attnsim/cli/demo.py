"""`attnsim demo`: one change of a GPU that helps, one that does not, why, and a picture of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attnsim import wording
from attnsim.api import predict
from attnsim.api.answer import Outcome
from attnsim.api.comparing.ratios import Ratio
from attnsim.cli import options, outputs, predictions, question_flags, show
from attnsim.cli.options import flag
from attnsim.cli.predictions import heading
from attnsim.models.hardware.files import load_gpu
from attnsim.models.hardware.units import UNITS, bound_text, unit_text
from attnsim.models.llm.files import load_model
from attnsim.plots.roofline import roofline

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
    ratios = [one.speedup_over(before) for one in after]
    written = roofline([before, after[0]], machines[:2]).write(out / "roofline.png")
    if json:
        show.print_json(one.to_dict() for one in (before, *after))
        return
    console = show.console()
    console.print(f"{MODEL} writes the next token of 16 texts (decode): {heading(question)}; cold L2\n")
    rows = [_row("as it is", before, None), *map(_row, CHANGES, after, ratios)]
    show.print_rows(console, f"flash on {GPU}, as it is and changed", rows, right=("time", "90 % range", "speedup"))
    for change, one, ratio in zip(CHANGES, after, ratios, strict=True):
        console.print(f"{change} {_reason(before, one, ratio)}")
    console.print("")
    predictions.print_trust(console, [before, *after], verbose)
    console.print(
        f"\nThe picture shows the call under the rooflines of both GPUs: with {CHANGES[0]} the memory's roof "
        "rises, and the call's point with it."
    )
    console.print(f"written: {', '.join(map(str, written))}\n\n{NEXT}", soft_wrap=True)


def _row(name: str, one: Outcome, ratio: Ratio | None) -> dict[str, object]:
    return {
        "GPU": name,
        "time": wording.time_text(one.time_s),
        "90 % range": wording.interval_text(one.time_low_s, one.time_high_s, one.time_s),
        "speedup": str(ratio or "1.00x"),
        "HBM GB": wording.number((one.hbm_bytes or 0) / 1e9),
        "busiest": bound_text(one.busiest),
    }


def _reason(before: Outcome, after: Outcome, ratio: Ratio | None) -> str:
    """Why a change helps or does not: how busy the unit of its figure was before."""
    change = after.changes[0]
    unit = next(name for name, one in UNITS.items() if one.figure_for(before.workload.dtype) == change.key)
    busy = wording.share_text(before.units_s[unit] / (before.time_s or 1.0), 0)
    helps = ratio is not None and ratio.low > 1
    verdict = "helps" if helps else "does not help"
    return f"{verdict}, {ratio}: on the GPU as it is, {unit_text(unit)} worked {busy} of the time."
