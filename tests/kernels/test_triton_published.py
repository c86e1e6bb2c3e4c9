"""The Triton kernels that published times are of, as their releases compiled them: right, and lifted with waits."""

from __future__ import annotations

import json
import lzma
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnsim.kernels.lift.kinds import kinds_of
from attnsim.kernels.lift.lifting import PtxLaunch, Resources, lift
from attnsim.kernels.lift.machine import WAITS, meet, waits_of
from attnsim.models.mask.mask import Mask
from attnsim.models.references.softmax import attention, attention_backward
from attnsim.models.schedule.instructions import MMA_FLOPS
from attnsim.ptx.faults import Race
from attnsim.ptx.foreign.run import run_ptx
from attnsim.ptx.machine_code import kernels_in
from attnsim.ptx.outcome import TOLERANCE
from attnsim.ptx.parse import parse

FOLDER = Path(__file__).parents[1] / "data" / "triton" / "published"
INDEX = {one["name"]: one for one in json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))["kernels"]}
HEAD_DIM, SEQ, TILE = 64, 256, 128
SCALE = 1 / math.sqrt(HEAD_DIM)
MASK = Mask.causal()


def read(name: str, kind: str) -> bytes:
    return lzma.decompress((FOLDER / f"{name}.{kind}.xz").read_bytes())


def inputs() -> dict[str, Any]:
    """One head, and the numbers that the kernels take beside the arrays."""
    random, shape = np.random.default_rng(0), (1, SEQ, HEAD_DIM)
    found: dict[str, Any] = {name: random.standard_normal(shape).astype(np.float16) for name in ("Q", "K", "V", "DO")}
    found |= {name: np.zeros(shape, np.float16) for name in ("O", "Out", "DK", "DV")}
    found |= {name: np.zeros((1, SEQ), np.float32) for name in ("L", "Delta")}
    found |= {"D": found["Delta"], "DQ": np.zeros(shape, np.float32)}
    sizes = {f"stride_{one}{axis}": SEQ * HEAD_DIM for one in "qkvo" for axis in "zh"} | {"stride_dqa": SEQ * HEAD_DIM}
    sizes |= dict.fromkeys(("stride_qm", "stride_kn", "stride_vk", "stride_om"), HEAD_DIM)
    sizes |= {"Z": 1, "H": 1, "N_CTX": SEQ, "N": SEQ}
    numbers = {"scale_log2": np.float32(SCALE / math.log(2)), "sm_scale": np.float32(SCALE)}
    return found | numbers | {name: np.int32(size) for name, size in sizes.items()}


def run(name: str, grid: tuple[int, int], given: dict[str, Any]) -> None:
    told = INDEX[name]
    arguments = {one: given[one] for one in told["arguments"]}
    shared = told["shared_memory_bytes"]
    ptx = read(name, "ptx").decode()
    run_ptx(ptx, told["entry"], grid=grid, block=told["threads"], arguments=arguments, shared_memory_bytes=shared)


def off(found: Any, expected: Any) -> float:
    """The largest difference over the largest value."""
    return float(np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max())


def test_each_kernel_has_its_ptx_and_its_machine_code() -> None:
    """And no file is left over."""
    files = {f"{name}.{kind}.xz" for name in INDEX for kind in ("ptx", "cubin")}
    assert {path.name for path in FOLDER.glob("*.xz")} == files


def test_forward_of_ops() -> None:
    given = inputs()
    run("ops_forward_d64_causal", (SEQ // TILE, 1), given)
    check_forward(given, "Out", 1e-3)  # it scales Q in fp16


def test_forward_of_the_tutorial() -> None:
    """Triton 3.0 has no fence between the copies of a tile and the tensor core that reads it; the result is right."""
    given = inputs()
    with pytest.raises(Race, match=r"read by wgmma .* not passed on by fence\.proxy\.async"):
        run("tutorial_128x32_d64_causal", (SEQ // TILE, 1), given)
    check_forward(given, "O", 1e-6)


def check_forward(given: dict[str, Any], out: str, of_sums: float) -> None:
    expected, lse = attention(given["Q"][None], given["K"][None], given["V"][None], MASK)
    assert off(given[out], expected[0]) <= TOLERANCE["fp16"]
    assert off(given["L"], lse[0] / math.log(2)) <= of_sums


@pytest.mark.parametrize("parts", [False, True])
def test_backward_of_ops(parts: bool) -> None:
    """A block for each head, or a dQ for each tile of keys, whose rows two warps compute and both write."""
    given = inputs()
    run("ops_forward_d64_causal", (SEQ // TILE, 1), given)
    run("ops_dots_d64", (SEQ // TILE, 1), given)
    if parts:
        given["DQ"] = np.zeros((SEQ // TILE, *given["Q"].shape), np.float16)
        with pytest.raises(Race, match=r"store of 4 bytes at shared address .* by warp 0, written by warp 4"):
            run("ops_backward_parts_d64_causal", (1, SEQ // TILE), given)
        given["DQ"] = given["DQ"].astype(np.float64).sum(axis=0)
    else:
        run("ops_backward_turns_d64_causal", (1, 1), given)
    q, k, v, do = (given[one][None] for one in ("Q", "K", "V", "DO"))
    wanted = attention_backward(q, k, v, do, MASK)
    for name, want in zip(("DQ", "DK", "DV"), wanted, strict=True):
        assert off(given[name], want[0]) <= TOLERANCE["fp16"], name


@pytest.mark.parametrize("name", ["tutorial_128x64_d64_full", "ops_forward_d64_full"])
def test_what_warps_wait_for_is_a_delay_of_its_own(name: str) -> None:
    """Behind each vector operation by its instructions, of mma.sync behind each product too; all else stays."""
    told, given, shared = INDEX[name], inputs(), INDEX[name]["shared_memory_bytes"]
    code = kernels_in(read(name, "cubin"))[told["entry"]]
    launch = PtxLaunch(
        parse(read(name, "ptx").decode())[told["entry"]],
        (SEQ // TILE, 1, 1),
        (told["threads"], 1, 1),
        {one: given[one] for one in told["arguments"]},
        shared,
    )
    taken = Resources(told["registers"], shared, "ptxas")
    without, with_them = (lift(launch, taken, code=code, foreign=one)[0] for one in (False, True))
    ops = [op for segment in with_them.segments for op in segment.ops]
    assert [op for op in ops if op.tensor != WAITS] == [op for one in without.segments for op in one.ops]
    by_mma = name.startswith("ops")
    step = code.step(128 if by_mma else 16) or []
    product, other = waits_of(code, step, 1)
    assert other > 0 and (product > 0) == by_mma
    wanted = [
        round((product * op.flops / MMA_FLOPS if op.kind == "mma" else other * op.issues) / 4)
        for op in ops
        if op.kind in ("mma", "vector")
    ]
    assert any(wanted) and [op.clks for op in ops if op.tensor == WAITS] == [one for one in wanted if one]


def test_warps_meet_in_each_step_where_a_barrier_of_the_whole_block_stands_in_it() -> None:
    """The loops over tiles have one, in either of a causal kernel's two; a kernel without products has no step."""
    for name in INDEX:
        function = parse(read(name, "ptx").decode())[INDEX[name]["entry"]]
        assert meet(function, kinds_of(function)) == ("dots" not in name)
        free = tuple(replace(one, kind="work") if one.kind == "barrier" else one for one in kinds_of(function))
        assert not meet(function, free)
