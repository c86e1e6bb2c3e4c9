"""The cases in which the default mode is held against the exact mode, drawn with seeds of their own.

`small`: sixty calls drawn by family. `large`: twelve with more than 6,000 thread blocks. `kernels`: single kernels of
every mechanism and implementation, ragged lengths among them, their sizes spread evenly in the logarithm. `questions`:
whole calls out of the sets that speed is measured on (benchmarks/questions.py).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.mask.mask import Mask
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.occupancy import occupancy
from attnsim.models.schedule.schedule import Kernel
from attnsim.simulator.players import executions
from attnsim.simulator.program import Cache
from benchmarks.questions import A100, ADA, B200, H100, SETS, Question, answerable, at_length, lines

SMALL, KERNELS = 60, 480
SMALL_EXECUTIONS = 60_000
"""Segment executions that a small case may have."""
KERNEL_EXECUTIONS = (4_500, 40_000_000)
"""Segment executions of the kernels drawn."""
QUESTION_EXECUTIONS = 20_000_000
"""Segment executions that a whole question may have."""
QUESTIONS = {"grid": 200, "mechanisms": 260, "serving": 180, "sweep": 120}
"""Questions drawn of each set, before those that are too long to be played whole are left out."""
QUICK = 8
"""One in so many of the kernels and of the questions is asked in a quick run."""
QUICK_EXECUTIONS = 2_000_000
"""Segment executions that a case of a quick run may have."""
V100 = "v100-sxm2-32gb"
FULL, CAUSAL = Mask.full(), Mask.causal()


FAMILIES: dict[str, tuple[tuple[str, str], ...]] = {
    "naive": (("torch.baddbmm", A100), ("torch.baddbmm", H100), ("transformers.eager", A100)),
    "naive backward": (("torch.baddbmm", A100), ("ideal.unfused", H100)),
    "flash-1": (("flash-attn.1", A100),),
    "flash-1 backward": (("flash-attn.1", A100),),
    "flash-2": (("flash-attn.2", A100), ("flash-attn.2", H100), ("flash-attn.2", ADA)),
    "split-KV": (("flash-attn.2", A100), ("flash-attn.3", H100), ("flash-attn.2", H100)),
    "flash-3": (("flash-attn.3", H100),),
    "flash-4": (("flash-attn.4", B200),),
    "staged": (("triton.tutorial", A100), ("triton.tutorial", H100)),
    "sliding-window": (("flash-attn.2", A100), ("flash-attn.3", H100)),
    "serving": (("vllm.flash-attn-2", A100), ("sglang.fa3-sm80", A100), ("vllm.flash-attn-3", H100)),
    "serving decode": (("vllm.flash-attn-2", A100), ("sglang.fa3-sm80", A100), ("vllm.flash-attn-3", H100)),
    "flash backward": (("flash-attn.2", A100), ("flash-attn.3", H100), ("flash-attn.2", ADA)),
    "xformers": (("xformers.cutlass", A100), ("xformers.cutlass", V100)),
    "cudnn": (("nvidia.cudnn", A100), ("nvidia.cudnn", H100)),
}


def workload(family: str, draw: random.Random) -> Workload:
    """A random shape for a family."""
    decoding = family in ("split-KV", "serving decode")
    unfused = family.startswith("naive")
    both = "backward" in family
    seq = draw.choice([128, 256, 384] if unfused else [128, 333, 512, 1024, 2048, 3000])
    heads_kv = draw.choice([1, 2, 4, 8])
    mask = draw.choice([FULL, CAUSAL])
    if family == "sliding-window":
        mask = draw.choice([Mask.sliding_window(256), Mask.sliding_window(700), Mask.sliding_window(512, causal=False)])
    return Workload(
        batch=draw.choice([1, 2, 4]),
        heads_q=heads_kv * draw.choice([1, 1, 4, 8]),
        seq_q=1 if decoding else seq,
        head_dim=draw.choice([64, 128]),
        heads_kv=heads_kv,
        seq_kv=draw.choice([1024, 4096, 10_000, 32_768]) if decoding else seq,
        dtype="fp16",
        passes="decode" if decoding else "fwd+bwd" if both else "fwd",
        mask=FULL if decoding else mask,
    )


def small() -> Iterator[Question]:
    """The sixty small cases."""
    draw = random.Random(20)
    for family in itertools.islice(itertools.cycle(FAMILIES), SMALL):
        while True:
            implementation, gpu = draw.choice(FAMILIES[family])
            cache: Cache = draw.choice(["warm", "cold"])
            case = Question(family, implementation, load_gpu(gpu), workload(family, draw), cache)
            if case.executions() <= SMALL_EXECUTIONS:
                yield case
                break


def large() -> Iterator[Question]:
    """The twelve large cases: causal and full, few steps a block, and a million tokens at one head."""
    million = Workload(1, 1, 1 << 20, 128, mask=Mask.sliding_window(1024))
    for family, implementation, gpu, w in (
        ("flash-2, full", "flash-attn.2", A100, Workload(64, 16, 1024, 64, dtype="fp16")),
        ("flash-2, causal", "flash-attn.2", A100, Workload(64, 16, 1024, 64, dtype="fp16", mask=CAUSAL)),
        ("flash-2, causal", "flash-attn.2", H100, Workload(16, 32, 2048, 128, mask=CAUSAL)),
        ("flash-2, causal", "flash-attn.2", ADA, Workload(32, 32, 1024, 128, 8, mask=CAUSAL)),
        ("flash-3, full", "flash-attn.3", H100, Workload(64, 16, 1024, 128)),
        ("flash-3, causal", "flash-attn.3", H100, Workload(64, 16, 1024, 128, 4, mask=CAUSAL)),
        ("staged, causal", "triton.tutorial", A100, Workload(32, 32, 1024, 64, mask=CAUSAL)),
        ("flash-1, full", "flash-attn.1", A100, Workload(64, 128, 256, 64, dtype="fp16")),
        ("serving, causal", "vllm.flash-attn-2", A100, Workload(32, 32, 512, 128, 8, mask=CAUSAL)),
        ("naive, causal", "torch.baddbmm", A100, Workload(8, 16, 256, 64, dtype="fp16", mask=CAUSAL)),
        ("sliding window, a million tokens", "flash-attn.2", A100, million),
        ("sliding window, a million tokens", "flash-attn.3", H100, million),
    ):
        yield Question(family, implementation, load_gpu(gpu), w)


def kernels(
    count: int = KERNELS, least: int = KERNEL_EXECUTIONS[0], most: int = KERNEL_EXECUTIONS[1], seed: int = 15
) -> Iterator[Question]:
    """Single kernels: every line of the mechanisms in turn, as many of each octave of executions."""
    draw = random.Random(seed)
    turns = lines()
    draw.shuffle(turns)
    octaves = math.ceil(math.log2(most / least))
    room = Counter(number * octaves // count for number in range(count))
    for mechanism, record in itertools.cycle(turns):
        if not room:
            return
        for _ in range(4):
            n = round(2 ** draw.uniform(7, 17))
            w = at_length(mechanism, n if draw.random() < 0.5 else 128 * max(1, n // 128))
            w = replace(w, batch=2 ** draw.randrange(7))
            gpu = load_gpu(draw.choice((A100, H100, ADA, B200)))
            if not answerable(record, w, gpu):
                continue
            try:
                case = Question(mechanism.name, record.name, gpu, w)
                found = fitting(case)
            except InputError:  # a tile that does not fit this GPU
                continue
            number = draw.randrange(len(found))
            size = executions(found[number])
            octave = int(octaves * math.log(size / least) / math.log(most / least)) if size > least else -1
            if room[octave] > 0:
                room[octave] -= 1
                room = +room  # without octaves that are full
                yield replace(case, kernel=number)
                break


def fitting(case: Question) -> tuple[Kernel, ...]:
    """The kernels of a case, whose blocks fit an SM of its GPU.

    Raises
    ------
    InputError
        Where they do not.
    """
    kernels = case.schedule().kernels
    for kernel in kernels:
        occupancy(kernel, case.gpu)
    return kernels


def questions(every: int = 1, most: int = QUESTION_EXECUTIONS, seed: int = 16) -> Iterator[tuple[str, Question]]:
    """Whole questions drawn from each set, with the set's name; none twice under the names of two mechanisms."""
    draw = random.Random(seed)
    seen = set()
    for name, asked in SETS.items():
        everything = asked()
        for question in draw.sample(everything, min(QUESTIONS[name], len(everything)))[::every]:
            unnamed = replace(question, family="")
            with suppress(InputError):  # its blocks do not fit an SM of this GPU
                if unnamed not in seen and sum(map(executions, fitting(question))) <= most:
                    seen.add(unnamed)
                    yield name, question


def cases(quick: bool = False) -> Iterator[tuple[str, Question]]:
    """Every case with its kind."""
    yield from (("small", case) for case in small())
    if quick:
        drawn, whole = kernels(KERNELS // QUICK, most=QUICK_EXECUTIONS), questions(QUICK, QUICK_EXECUTIONS)
    else:
        yield from (("large", case) for case in large())
        drawn, whole = kernels(), questions()
    yield from (("kernel", case) for case in drawn)
    yield from whole
