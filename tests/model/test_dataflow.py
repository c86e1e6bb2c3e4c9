"""What a kernel reads is an input or was written before it, and what a kernel writes is read after it or an output.

`dataflow.toml` says which inputs and outputs each implementation has beside those of every attention: lists that the
host prepares, gates, states and caches. A pass that is left out shows as a tensor that nobody wrote or nobody reads.
"""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from attnsim.errors import InputError
from attnsim.models.hardware.files import load_gpu
from attnsim.models.implementations.choose import IMPLEMENTATIONS
from attnsim.models.mask.mask import Mask
from attnsim.models.mechanisms import ALGORITHMS
from attnsim.models.question.lengths import Length
from attnsim.models.question.workload import Workload
from attnsim.models.schedule.schedule import Kernel, Schedule

KNOWN = tomllib.loads(Path(__file__).with_name("dataflow.toml").read_text(encoding="utf-8"))
GPUS = tuple(map(load_gpu, ("h100-sxm5-80gb", "a100-sxm4-80gb", "b200-sxm-180gb", "v100-sxm2-32gb", "rtx-4090")))
FORWARD = {"O", "LSE"}
CLEARING = ("zeros", "fill", "clear")
"""How kernels are called that only set what others then write a part of, or add to."""
QUESTIONS = (
    Workload(2, 8, 600, 128, 4, mask=Mask.causal()),
    Workload(2, 8, 600, 128, passes="fwd+bwd", mask=Mask.causal()),
    Workload(2, 8, 512, 64, 4, dtype="fp16", passes="fwd+bwd", dropout=True),
    Workload(1, 8, 600, 64, 2, passes="bwd", mask=Mask.sliding_window(100)),
    Workload(2, 16, 1, 128, 2, 5000, passes="decode", mask=Mask.causal()),
    Workload(1, 4, 2, 64, 2, 9000, dtype="fp16", passes="decode"),
    Workload(heads_q=8, head_dim=128, heads_kv=4, mask=Mask.causal(), lengths=(Length(300, 300), Length(77, 500))),
    Workload(2, 8, 600, 128, 4, page_size=16, mask=Mask.causal()),
    Workload(2, 8, 768, 128, mask=Mask.parse("random 2x384")),
    Workload(2, 16, 4, 128, 16, 5000, passes="decode", mask=Mask.causal()),
    Workload(heads_q=16, head_dim=128, heads_kv=2, mask=Mask.causal(), lengths=(Length(512, 2048), Length(1, 3000))),
    Workload(4, 16, 1, 128, 2, 5000, passes="decode", page_size=16, prefix=2048),
)


def asked(name: str) -> Iterator[Workload]:
    """Questions of attention, and what the mechanisms that an implementation runs make of their own examples."""
    yield from QUESTIONS
    for item in ALGORITHMS.values():
        if item.run_by(IMPLEMENTATIONS[name]):
            yield item.example
            yield replace(item.example, batch=3)
            yield replace(item.example, seq_q=1, passes="decode")
            yield from (item.question(w) for w in QUESTIONS[:6:2])


@cache
def schedules(name: str) -> tuple[tuple[Workload, Schedule], ...]:
    """What an implementation launches for each question that it answers, on the first GPU that it has kernels for."""
    found = []
    for w in (w for w in asked(name) if w.passes in IMPLEMENTATIONS[name].passes):
        for gpu in GPUS:
            try:
                found.append((w, IMPLEMENTATIONS[name].build(w, gpu, None)))
            except (InputError, ValueError):
                continue
            break
    return tuple(found)


def known(name: str, what: str) -> set[str]:
    return {one for group in KNOWN["kernels"] if name in group["names"] for one in group.get(what, ())}


def complaints(kernels: Sequence[Kernel], inputs: set[str], outputs: set[str], parts: set[str]) -> set[str]:
    """Tensors read before they are written, or written and never read; of `parts` each kernel writes a part."""
    written, unread, found = set(inputs), dict[str, str](), set[str]()
    for kernel in kernels:
        loads, stores = (
            {t for (kind, t), n in kernel.requested().items() if kind == one and n} for one in ("load", "store")
        )
        reads = {use.tensor: use.in_place for use in kernel.uses if not use.written}
        own = {t for t in loads & stores if not reads[t]}  # written and read back by the same kernel
        shared = (use for use in kernel.uses if use.written and use.fetched(1) > 1)
        adds = {use.tensor for use in shared if kernel.requested().get(("store", use.tensor), 0) > use.unique_bytes}
        loads, stores = (loads - own) | adds, stores - (own - outputs)
        found |= {f"reads {t}, which nobody wrote" for t in loads - written}
        unread = {t: by for t, by in unread.items() if t not in loads}
        over = {t for t in stores & unread.keys() if t not in parts and not unread[t].startswith(CLEARING)}
        found |= {f"writes {t} over what {unread[t]} wrote" for t in over}
        unread |= dict.fromkeys(stores, kernel.name)
        written |= stores
    return found | {f"writes {t}, which nobody reads" for t in unread if t not in outputs}


def flow(name: str, w: Workload, kernels: Sequence[Kernel]) -> set[str]:
    inputs, outputs = {"Q", "K", "V"} | known(name, "inputs"), known(name, "outputs")
    if "bwd" in w.directions:
        inputs |= {"dO"} if "fwd" in w.directions else {"dO"} | FORWARD | known(name, "saved")
        outputs |= {"dQ", "dK", "dV"}
    if "fwd" in w.directions:
        outputs |= FORWARD | known(name, "saved")
    return complaints(kernels, inputs, outputs, known(name, "parts"))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_tensor_read_is_written_before_and_every_one_written_is_read(name: str) -> None:
    assert schedules(name), "answers none of the questions"
    for w, schedule in schedules(name):
        assert not flow(name, w, schedule.kernels), str(w)


@pytest.mark.parametrize("name", [name for name in IMPLEMENTATIONS if not IMPLEMENTATIONS[name].launches])
def test_a_kernel_that_is_left_out_is_missed(name: str) -> None:
    """Each kernel of the longest schedule is deleted; `unseen` change a tensor in place, or serve the host alone."""
    w, schedule = max(schedules(name), key=lambda one: len(one[1].kernels))
    kernels = schedule.kernels
    left_out = (kernels[:number] + kernels[number + 1 :] for number in range(len(kernels)))
    unseen = {kernel.name for kernel, left in zip(kernels, left_out, strict=True) if left and not flow(name, w, left)}
    assert unseen == known(name, "unseen")
