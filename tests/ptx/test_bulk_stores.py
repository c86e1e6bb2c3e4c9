"""Bulk stores by the copy engine: what arrives, what is counted, and each way to use them wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnsim.errors import InputError
from attnsim.ptx import faults
from attnsim.ptx.run import run
from attnsim.ptx.shared import TensorMap

RNG = np.random.default_rng(7)
ROWS, COLUMNS = 16, 64
WORDS = ROWS * COLUMNS // 2

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"
FENCE = "fence.proxy.async.shared::cta;"
COMMIT = "cp.async.bulk.commit_group;"
WAIT = "cp.async.bulk.wait_group.read 0;"
SYNC = "bar.sync 0;"


def kernel(store: str, *, after: str = COMMIT + WAIT, fence: str = FENCE, end: str = SYNC, shift: int = 0) -> str:
    """Threads copy words to shared memory, then the first of them lets the copy engine store them."""
    return f"""{HEAD}
.visible .entry kernel(.param .align 128 .b8 map[128], .param .u64 words, .param .u64 out)
{{
.shared .align 1024 .b8 memory[8192];
.reg .b32 %t, %to, %w, %from;
.reg .b64 %words, %out, %map, %a;
.reg .pred %first;
mov.b64 %map, map;
cvta.param.u64 %map, %map;
ld.param.u64 %words, [words];
ld.param.u64 %out, [out];
mov.u32 %t, %tid.x;
mov.u32 %to, memory;
add.u32 %from, %to, {shift};
mad.lo.u32 %to, %t, 4, %to;
mad.wide.u32 %a, %t, 4, %words;
ld.global.u32 %w, [%a];
st.shared.u32 [%to], %w;
{fence}
{SYNC}
setp.eq.u32 %first, %t, 0;
@!%first bra done;
{store}
{after}
done:
{end}
ret;
}}
"""


TENSOR = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%map, {{{x}, {y}}}], [%from];"
PLAIN = "cp.async.bulk.global.shared::cta.bulk_group [%out], [%from], 2048;"
REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{kind} [%out], [%from], 2048;"
REDUCE_TENSOR = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group [%map, {{0, 0}}], [%from];"


def launch(text: str, words: Any, out: Any, tensor: Any, swizzle: int = 128, box: Any = (ROWS, COLUMNS)) -> Any:
    arguments = {"map": TensorMap(tensor, box, swizzle), "words": words, "out": out}
    return run(text, "kernel", 1, WORDS, arguments)


def values() -> Any:
    return RNG.standard_normal((ROWS, COLUMNS)).astype(np.float16)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("corner", [(0, 0), (8, 4), (-8, -3), (56, 30)], ids=str)
def test_a_box_arrives_where_it_lies_inside(swizzle: int, corner: tuple[int, int]) -> None:
    """Sixteen bytes of row r lie where the swizzle puts them, and what sticks out is not stored."""
    x, y = corner
    columns = swizzle // 2 or COLUMNS
    content, words = values()[:, :columns], np.zeros((WORDS * 4 // 16, 8), np.float16)
    for row in range(ROWS):
        for piece in range(columns // 8):
            address = row * columns * 2 + piece * 16
            address ^= ((address >> 7) % max(swizzle // 16, 1)) << 4
            words[address // 16] = content[row, piece * 8 : piece * 8 + 8]
    tensor, want = np.zeros((40, 80), np.float16), np.zeros((40, 80), np.float16)
    for row in range(ROWS):
        for column in range(columns):
            if 0 <= y + row < 40 and 0 <= x + column < 80:
                want[y + row, x + column] = content[row, column]
    text = kernel(TENSOR.format(x=x, y=y))
    counters = launch(text, words, np.zeros(1, np.uint32), tensor, swizzle, (ROWS, columns))
    np.testing.assert_array_equal(tensor, want)
    inside = (min(x + columns, 80) - max(x, 0)) * (min(y + ROWS, 40) - max(y, 0)) * 2
    assert counters.stores["map"] == inside
    assert inside <= 32 * counters.sectors_stored <= inside + 64 * ROWS
    assert counters.shared_bytes_loaded == ROWS * columns * 2


def test_bytes_arrive() -> None:
    words, out = values(), np.zeros((ROWS, COLUMNS), np.float16)
    counters = launch(kernel(PLAIN), words, out, np.zeros((ROWS, COLUMNS), np.float16))
    np.testing.assert_array_equal(out, words)
    assert counters.stores == {"out": 2048} and counters.sectors_stored == 64


@pytest.mark.parametrize(
    ("kind", "dtype"), [("f32", np.float32), ("u32", np.uint32), ("s32", np.int32), ("noftz.f16", np.float16)]
)
def test_bytes_are_added(kind: str, dtype: Any) -> None:
    words = RNG.integers(0, 100, 2048 // np.dtype(dtype).itemsize).astype(dtype)
    out = np.arange(len(words)).astype(dtype)
    want = out + words
    launch(kernel(REDUCE.format(kind=kind)), words, out, np.zeros((ROWS, COLUMNS), np.float16))
    np.testing.assert_array_equal(out, want)


def test_bf16_is_added_and_rounded() -> None:
    """Of 1 + 1/256 bf16 keeps 1, of 1 + 3/256 it keeps 1 + 4/256."""
    words = np.full(1024, 0x3F80, np.uint16)
    out = np.array([0x3B80, 0x3C40] * 512, np.uint16)
    launch(kernel(REDUCE.format(kind="noftz.bf16")), words, out, np.zeros((ROWS, COLUMNS), np.float16))
    np.testing.assert_array_equal(out, [0x3F80, 0x3F82] * 512)


@pytest.mark.parametrize(("op", "join"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)])
def test_a_box_is_joined_to_what_is_there(op: str, join: Any) -> None:
    words, tensor = (
        RNG.integers(-9, 9, (ROWS, 32)).astype(np.float32),
        RNG.integers(-9, 9, (ROWS, 32)).astype(np.float32),
    )
    want = join(tensor, words)
    launch(kernel(REDUCE_TENSOR.format(op=op)), words, np.zeros(1, np.uint32), tensor, 0, (ROWS, 32))
    np.testing.assert_array_equal(tensor, want)


def test_a_second_store_adds_to_the_first() -> None:
    words, out = np.ones(512, np.uint32), np.zeros(512, np.uint32)
    text = kernel(REDUCE.format(kind="u32") * 2, after=COMMIT + "cp.async.bulk.wait_group 0;")
    launch(text, words, out, np.zeros((ROWS, COLUMNS), np.float16))
    np.testing.assert_array_equal(out, 2)


OVERWRITE = "st.shared.u32 [%from], 0;"
AGAIN = "ld.global.u32 %w, [%out];\nst.global.u32 [%words], %w;"


def test_global_memory_has_the_values_only_after_a_wait_without_read() -> None:
    for wait, seen in ((WAIT, 5), (WAIT + "cp.async.bulk.wait_group 0;", 1)):
        words, out = np.ones(512, np.uint32), np.full(512, 5, np.uint32)
        launch(kernel(PLAIN, after=COMMIT + wait + AGAIN), words, out, np.zeros((ROWS, COLUMNS), np.float16))
        assert words[0] == seen and (out == 1).all()


WRONG: dict[str, tuple[type[faults.Fault], dict[str, Any], str]] = {
    "no fence": (faults.Race, {"fence": ""}, "not passed on by fence.proxy.async"),
    "never waited for": (faults.CopyInFlight, {"after": COMMIT}, "may still read shared memory"),
    "never committed": (faults.CopyInFlight, {"after": WAIT}, "may still read shared memory"),
    "overwritten before": (faults.Race, {"after": COMMIT + OVERWRITE + WAIT}, "read by a bulk store of warp 0"),
    "overwritten too early by one": (
        faults.Race,
        {"after": COMMIT + "cp.async.bulk.wait_group.read 1;" + OVERWRITE + WAIT},
        r"no cp\.async\.bulk\.wait_group\.read between",
    ),
    "overwritten by others": (
        faults.Race,
        {"after": "bra done;", "end": "setp.eq.u32 %first, %t, 64;\n@%first " + OVERWRITE},
        "warp 2, read by a bulk store of warp 0",
    ),
    "unaligned": (faults.Misaligned, {"shift": 8}, "shared address 0x8 is not a multiple of 16"),
}


@pytest.mark.parametrize("name", WRONG)
def test_misuse_is_found(name: str) -> None:
    fault, changes, message = WRONG[name]
    with pytest.raises(fault, match=message):
        launch(kernel(PLAIN, **changes), values(), values(), np.zeros((ROWS, COLUMNS), np.float16))


def test_memory_may_be_written_again_once_it_has_been_read() -> None:
    words, out = values(), np.zeros((ROWS, COLUMNS), np.float16)
    launch(kernel(PLAIN, after=COMMIT + WAIT + OVERWRITE), words, out, np.zeros((ROWS, COLUMNS), np.float16))
    np.testing.assert_array_equal(out, words)


@pytest.mark.parametrize(("swizzle", "shift"), [(128, 512), (64, 256), (32, 128), (0, 64)])
def test_a_box_begins_where_its_swizzle_does(swizzle: int, shift: int) -> None:
    """Refused at half of 1,024, 512, 256 and 128 bytes, with the line."""
    columns = swizzle // 2 or COLUMNS
    text = kernel(TENSOR.format(x=0, y=0), shift=shift)
    line = 1 + text[: text.index("cp.async.bulk.tensor")].count("\n")
    message = rf"line {line} of the PTX.*shared address {shift:#x}, not a multiple of {2 * shift}"
    with pytest.raises(faults.Misaligned, match=message):
        launch(text, values(), values(), np.zeros((ROWS, columns), np.float16), swizzle, (8, columns))
    launch(
        kernel(TENSOR.format(x=0, y=0)),
        values(),
        values(),
        np.zeros((ROWS, columns), np.float16),
        swizzle,
        (8, columns),
    )


def test_what_no_map_may_be() -> None:
    for array, box, swizzle, message in (
        (np.zeros((4, 64), np.float16), (4, 64), 64, "32 in the last"),
        (np.zeros((4, 64), np.float16), (4, 64), 96, "a swizzle of 96 bytes"),
        (np.zeros((4, 64), np.float32), (4, 6), 128, "multiples of 4"),
        (np.zeros((4, 64), np.complex128), (4, 64), 128, "elements of 1 to 8 bytes"),
    ):
        with pytest.raises(InputError, match=message):
            TensorMap(array, box, swizzle)


@pytest.mark.parametrize(
    "line",
    [
        "cp.async.bulk.tensor.2d.global.shared::cta.im2col_no_offs.bulk_group [%map, {0, 0}], [%from];",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.inc.u32 [%out], [%from], 16;",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%from], [%from], 16, [%from];",
    ],
)
def test_other_forms_are_named_with_their_line(line: str) -> None:
    text = kernel(line)
    number = 1 + text[: text.index(line)].count("\n")
    with pytest.raises(faults.UnsupportedInstruction, match=rf"\(line {number} of the PTX\).*is not known"):
        launch(text, values(), values(), np.zeros((ROWS, COLUMNS), np.float16))
