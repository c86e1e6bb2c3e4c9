"""What raggedness costs: batches of unequal lengths against balanced ones of as many tokens, by scheduler and GPU.

    python benchmarks/raggedness.py

Prints the table of docs/batches.md: time of the unequal batch over that of the balanced one, divided by the ratio of
their work (visible pairs), so that 1.00 is no loss to scheduling.
"""

from __future__ import annotations

from attnsim.api.asking import ask, read_conditions
from attnsim.api.playing import play
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import find_implementation, runs_on
from attnsim.models.question.length_sources import read_lengths
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload

GPUS = ("a100-sxm4-80gb", "h100-sxm5-80gb", "h20")
RUN_BY = (
    "flash-attn.2", "vllm.flash-attn-2", "flashinfer.fa2", "flash-attn.3", "vllm.flash-attn-3", "sglang.fa3",
    "flashinfer.fa3", "nvidia.cudnn", "tensorrt-llm.attention",
)  # fmt: skip
HEADS = {"heads_q": 32, "heads_kv": 8, "head_dim": 128, "causal": True}
BATCHES = {
    "decode, 64 sequences": ("1:4096 x 64", "lognormal 64 median 2500 sigma 1", "1:2048 x 63, 1:133120"),
    "prefill, 16 prompts": ("2048 x 16", "lognormal 16 median 1200 sigma 1", "1024 x 15, 17408"),
}
"""Kind of batch: balanced, unequal, with one long sequence; of about as many tokens."""


def workload(text: str, kind: str) -> Workload:
    """The batch; decode where its kind says so, all tokens scaled to those of the balanced one."""
    decode = kind.startswith("decode")
    lengths = read_lengths(text, decode)
    balanced = read_lengths(BATCHES[kind][0], decode)
    if text.startswith("lognormal"):
        scale = sum(one.keys * one.times for one in balanced) / sum(one.keys * one.times for one in lengths)
        keys = [max(1, round(one.keys * scale)) for one in lengths]
        lengths = tuple(Length(1 if decode else n, n) for n in keys)
    return Workload(lengths=lengths, passes="decode" if decode else "fwd", **HEADS)


def time_s(w: Workload, name: str, gpu: str) -> float:
    """Time of a batch, kernels alone."""
    played = play(ask(w, gpu, "flash", name, read_conditions(launch="kernel", budget=200_000))).replay
    assert played is not None
    return played.time_s


def main() -> None:
    """Print the table."""
    print(
        "| scheduler | GPU | "
        + " | ".join(f"{kind}: {what}" for kind in BATCHES for what in ("unequal", "one long"))
        + " |"
    )
    print("|---|---|" + "---:|" * 2 * len(BATCHES))
    for name in RUN_BY:
        for gpu in GPUS:
            if not runs_on(find_implementation(name), load_gpu(gpu)):
                continue
            cells = []
            for kind, texts in BATCHES.items():
                balanced, *others = (workload(text, kind) for text in texts)
                base = time_s(balanced, name, gpu)
                for w in others:
                    work = w.visible_pairs / balanced.visible_pairs
                    cells.append(f"{time_s(w, name, gpu) / base / work:.2f}x")
            print(f"| `{name}` | {gpu} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
