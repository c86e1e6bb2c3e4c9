"""`attnsim demo`: GPT-2 medium on an A100 and Llama-3-8B on an H100 that exists and on one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attnsim.cli import options, outputs, show
from attnsim.cli.heading import caption, heading
from attnsim.cli.options import flag
from attnsim.models.llm import asked

if TYPE_CHECKING:
    from attnsim.api import Prediction

ALGORITHMS = ("naive", "flash", "sliding-window")
DRAWN = ("naive", "flash")
"""What the roofline shows, so that it is read at a glance."""
HYPOTHETICAL = ["sm.count=1.25x", "hbm.bandwidth=6TB/s"]
"""More SMs help attention that is bound by what each of them does, more bandwidth what passes through memory."""


def demo(
    out: Annotated[Path, flag("DIR", "Folder for the picture and its CSV.")] = Path("demo"),
    json: options.Json = False,
) -> None:
    """Predict naive, flash and sliding-window for two models on three GPUs; draw the roofline of two of them."""
    from attnsim.api import compare
    from attnsim.api.baselines import UNCHANGED, UNFUSED, ratios_over, ratios_over_unchanged
    from attnsim.models.hardware.files import load_gpu
    from attnsim.plots.roofline import roofline

    outputs.make_folder(out)
    a100, h100 = load_gpu("a100-sxm4-80gb"), load_gpu("h100-sxm5-80gb")
    larger = options.changed(h100, HYPOTHETICAL)
    gpt2 = asked.workload(batch=8, heads=16, seq=1024, head_dim=64, dtype="fp16", causal=True, window=256)
    llama = asked.workload(batch=1, heads=32, kv_heads=8, seq=8192, head_dim=128, causal=True, window=1024)
    on_a100 = compare(gpt2, a100, ALGORITHMS)
    on_h100 = compare(llama, h100, ALGORITHMS)
    shipped = compare(llama, larger, ALGORITHMS)
    told = "; ".join(map(str, larger.changes))
    tables: list[tuple[str, list[Prediction], list[Prediction]]] = [
        (f"GPT-2 medium, {heading(gpt2)}, on {a100.id}", on_a100, []),
        (f"Llama-3-8B prefill, {heading(llama)}, on {h100.id}", on_h100, []),
        (f"The same on a hypothetical {h100.id} with {told}: shipped tiles", shipped, on_h100),
    ]
    everything = [item for _, predictions, _ in tables for item in predictions]
    drawn = [item for item in (*on_h100, *shipped) if item.algorithm in DRAWN]
    written = roofline(drawn, [h100, larger]).write(out / "roofline.png")
    if json:
        show.print_json(item.to_dict() for item in everything)
        return
    console = show.console()
    for title, predictions, unchanged in tables:
        over = ratios_over_unchanged(predictions, unchanged) if unchanged else ratios_over(predictions)
        show.print_predictions(console, title, predictions, [over])
        show.print_why(console, predictions)
        show.print_trust(console, predictions)
        console.print("")
    console.print(caption(llama, (UNFUSED, UNCHANGED)))
    console.print(f"written: {', '.join(map(str, written))}")
