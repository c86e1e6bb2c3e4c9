"""Shuffles, votes, matches and reductions across a warp, against loops over lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from attnsim.ptx.counters import Counters
from attnsim.ptx.faults import InactiveLane

Launch = Callable[..., Counters]

RNG = np.random.default_rng(6)
X = RNG.integers(0, 2**31, 64).astype(np.uint32)


def shuffled(mode: str, offset: int, width: int) -> NDArray[np.uint32]:
    """What ``__shfl_*_sync`` returns, by the CUDA C++ Programming Guide."""
    out = np.empty_like(X)
    for thread in range(64):
        warp, lane = thread // 32 * 32, thread % 32
        segment, place = lane // width * width, lane % width
        source = {"idx": offset % width, "up": place - offset, "down": place + offset, "xor": place ^ offset}[mode]
        inside = source >= 0 and (source < width or mode == "xor")
        out[thread] = X[warp + segment + source] if inside and segment + source < 32 else X[thread]
    return out


@pytest.mark.parametrize("width", [32, 8])
@pytest.mark.parametrize(("mode", "offset"), [("idx", 5), ("up", 3), ("down", 3), ("xor", 1), ("xor", 4)])
def test_shuffle(launch: Launch, mode: str, offset: int, width: int) -> None:
    call = "__shfl_sync" if mode == "idx" else f"__shfl_{mode}_sync"
    for by in (str(offset), "offset"):  # a constant, and a value
        source = f"""KERNEL(const uint32* in, uint32* out, int offset) {{
            out[threadIdx.x] = {call}(kAllLanes, in[threadIdx.x], {by}, {width}); }}"""
        out = np.zeros_like(X)
        counters = launch(source, {"in": X, "out": out, "offset": np.int32(offset)}, block=64)
        np.testing.assert_array_equal(out, shuffled(mode, offset, width))
        assert counters.shuffles == 64


def test_shuffle_by_lane_and_its_predicate(launch: Launch) -> None:
    source = """KERNEL(const uint32* in, uint32* out, uint32* valid) {
        uint32 x, inside;
        asm volatile("{ .reg .pred p; shfl.sync.down.b32 %0|p, %2, 5, 0x1f, 0xffffffff; selp.u32 %1, 1, 0, p; }"
            : "=r"(x), "=r"(inside) : "r"(in[threadIdx.x]));
        valid[threadIdx.x] = inside;
        out[threadIdx.x] = __shfl_sync(kAllLanes, x, 31 - threadIdx.x % 32);
    }"""
    out, valid = np.zeros_like(X), np.zeros_like(X)
    launch(source, {"in": X, "out": out, "valid": valid}, block=64)
    lane = np.arange(64) % 32
    np.testing.assert_array_equal(valid, lane + 5 < 32)
    np.testing.assert_array_equal(out, shuffled("down", 5, 32).reshape(2, 32)[:, ::-1].reshape(-1))


def test_half_warps_shuffle_apart(launch: Launch) -> None:
    """Each half of the warp with its own member mask."""
    source = """KERNEL(const uint32* in, uint32* out) {
        uint32 x = in[threadIdx.x];
        if (threadIdx.x < 16) x = __shfl_xor_sync(0x0000ffffu, x, 1);
        else x = __shfl_xor_sync(0xffff0000u, x, 2);
        out[threadIdx.x] = x;
    }"""
    out = np.zeros(32, np.uint32)
    launch(source, {"in": X[:32], "out": out})
    lane = np.arange(32)
    np.testing.assert_array_equal(out, X[np.where(lane < 16, lane ^ 1, lane ^ 2)])


def test_lane_outside_its_member_mask(launch: Launch) -> None:
    source = "KERNEL(uint32* out) { out[threadIdx.x] = __shfl_sync(0xffffu, threadIdx.x, 0); }"
    with pytest.raises(InactiveLane, match="shfl by lane 16, which is not in its member mask 0x0000ffff"):
        launch(source, {"out": np.zeros(32, np.uint32)})


def test_votes(launch: Launch) -> None:
    source = """KERNEL(const uint32* in, uint32* out) {
        const bool low = in[threadIdx.x] < 0x20000000u;
        const int base = threadIdx.x / 32 * 4;
        uint32 members;
        const uint32 ballot = __ballot_sync(kAllLanes, low);
        const uint32 any = __any_sync(kAllLanes, low), all = __all_sync(kAllLanes, low);
        if (low) {
            members = __activemask();
            if (members == ballot) out[base + 3] = members;
        }
        out[base] = ballot;
        out[base + 1] = any;
        out[base + 2] = all;
    }"""
    values = X.copy()
    values[32:] &= np.uint32(0xFFFF)
    out = np.zeros(8, np.uint32)
    launch(source, {"in": values, "out": out}, block=64)
    low = (values < 0x20000000).reshape(2, 32)
    ballots = (low * (1 << np.arange(32))).sum(axis=1)
    want = np.stack([ballots, low.any(1), low.all(1), ballots], axis=1)
    np.testing.assert_array_equal(out.reshape(2, 4), want)


def test_match_and_redux(launch: Launch) -> None:
    source = """KERNEL(const uint32* in, uint32* out) {
        const uint32 x = in[threadIdx.x] & 7;
        int same;
        uint32* mine = out + threadIdx.x * 6;
        mine[0] = __match_any_sync(kAllLanes, x);
        mine[1] = __match_all_sync(kAllLanes, x >> 3, &same);
        mine[2] = same;
        mine[3] = __reduce_add_sync(kAllLanes, x);
        mine[4] = __reduce_max_sync(kAllLanes, int(x) - 4);
        mine[5] = __reduce_xor_sync(kAllLanes, in[threadIdx.x]);
    }"""
    out = np.zeros((64, 6), np.uint32)
    launch(source, {"in": X, "out": out}, block=64)
    x = (X & 7).reshape(2, 32)
    equal = (x[:, :, None] == x[:, None, :]) @ (1 << np.arange(32))
    np.testing.assert_array_equal(out[:, 0], equal.reshape(-1))
    assert (out[:, 1] == 0xFFFFFFFF).all()
    assert (out[:, 2] == 1).all()
    np.testing.assert_array_equal(out[:, 3], np.repeat(x.sum(1), 32))
    np.testing.assert_array_equal(out[:, 4].view(np.int32), np.repeat(x.max(1).astype(int) - 4, 32))
    np.testing.assert_array_equal(out[:, 5], np.repeat(np.bitwise_xor.reduce(X.reshape(2, 32), axis=1), 32))
