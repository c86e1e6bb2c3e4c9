"""Compiled register arithmetic: plays a list of instructions in order, each over all its lanes.

A family is a set of operations with the same operand types. The opcodes that `tape` lists are implemented only here;
`tests/ptx/reference_arithmetic.py` has the same in NumPy, equal bit for bit. As in `compiled`, all constants are in
this file.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.jit import jit

in_place = partial(jit, allocates=False)

ADD, SUB, MUL, MIN, MAX, NEG, ABS, AND, OR, XOR, NOT, MOV = range(12)
EQ, NE, LT, LE, GT, GE = range(6)
LEFT, RIGHT = range(2)
F16, BF16 = range(2)

(
    F32, U32, S32, U64, S64, FUSED, MAD_U32, MAD_U64, LOGIC_32, LOGIC_64, SHIFT_U32, SHIFT_S32, SHIFT_U64, SHIFT_S64,
    COMPARE_F32, COMPARE_U32, COMPARE_S32, COMPARE_U64, COMPARE_S64, PREDICATES, SELECT_32, SELECT_64,
    WIDEN_U, WIDEN_S, MUL_WIDE_U, MUL_WIDE_S, MAD_WIDE_U, MAD_WIDE_S, NARROW, PACK,
) = range(30)  # fmt: skip

SMALLEST_NORMAL = np.float32(2.0**-126)
WIDE, ONE, AGREED = 0, 1, 2
"""States of a row of the register file; see `registers`."""
TARGET, FIRST_SOURCE, COLUMNS = 2, 5, 14
"""Layout of an instruction: family, operation, then number, row and width of its target and of three sources."""


@in_place
def play(code, spans, full, state, u1, u4, s4, f4, u8, s8):
    """Play instructions ``[instructions, columns]`` over spans of lanes ``[spans, 2]``, on the register files."""
    for i in range(len(code)):
        one = code[i]
        agree = full
        for source in range(FIRST_SOURCE, COLUMNS, 3):
            agree = agree and state[one[source]] != WIDE
        if agree:
            execute(one, 0, 1, u1, u4, s4, f4, u8, s8)
            state[one[TARGET]] = ONE
            continue
        for operand in range(FIRST_SOURCE if full else TARGET, COLUMNS, 3):
            number, row, size = one[operand], one[operand + 1], one[operand + 2]
            if state[number] == ONE:
                if size == 1:
                    u1[row] = u1[row, 0]
                elif size == 4:
                    u4[row] = u4[row, 0]
                else:
                    u8[row] = u8[row, 0]
                state[number] = AGREED
        state[one[TARGET]] = WIDE
        for span in range(len(spans)):
            execute(one, spans[span, 0], spans[span, 1], u1, u4, s4, f4, u8, s8)


@in_place
def spread(state, numbers, rows, file):
    """Broadcast rows that hold one value in their first place to all their places."""
    for i in range(len(numbers)):
        if state[numbers[i]] == ONE:
            row = file[rows[i]]
            for lane in range(1, len(row)):
                row[lane] = row[0]
            state[numbers[i]] = AGREED


@in_place
def execute(one, begin, end, u1, u4, s4, f4, u8, s8):
    """Play one instruction over lanes `begin` to ``end - 1``."""
    family, op, d, a, b, c, lanes = one[0], one[1], one[3], one[6], one[9], one[12], slice(begin, end)
    if family == F32:
        numbers(op, f4[d, lanes], f4[a, lanes], f4[b, lanes])
    elif family == U32:
        numbers(op, u4[d, lanes], u4[a, lanes], u4[b, lanes])
    elif family == S32:
        numbers(op, s4[d, lanes], s4[a, lanes], s4[b, lanes])
    elif family == U64:
        numbers(op, u8[d, lanes], u8[a, lanes], u8[b, lanes])
    elif family == S64:
        numbers(op, s8[d, lanes], s8[a, lanes], s8[b, lanes])
    elif family == FUSED:
        fused(f4[d, lanes], f4[a, lanes], f4[b, lanes], f4[c, lanes])
    elif family == MAD_U32:
        multiply_add(u4[d, lanes], u4[a, lanes], u4[b, lanes], u4[c, lanes])
    elif family == MAD_U64:
        multiply_add(u8[d, lanes], u8[a, lanes], u8[b, lanes], u8[c, lanes])
    elif family == LOGIC_32:
        logic(op, u4[d, lanes], u4[a, lanes], u4[b, lanes])
    elif family == LOGIC_64:
        logic(op, u8[d, lanes], u8[a, lanes], u8[b, lanes])
    elif family == SHIFT_U32:
        shift(op, u4[d, lanes], u4[a, lanes], u4[b, lanes], 32)
    elif family == SHIFT_S32:
        shift_signed(s4[d, lanes], s4[a, lanes], u4[b, lanes], 32)
    elif family == SHIFT_U64:
        shift(op, u8[d, lanes], u8[a, lanes], u4[b, lanes], 64)
    elif family == SHIFT_S64:
        shift_signed(s8[d, lanes], s8[a, lanes], u4[b, lanes], 64)
    elif family == COMPARE_F32:
        compare(op, u1[d, lanes], f4[a, lanes], f4[b, lanes])
    elif family == COMPARE_U32:
        compare(op, u1[d, lanes], u4[a, lanes], u4[b, lanes])
    elif family == COMPARE_S32:
        compare(op, u1[d, lanes], s4[a, lanes], s4[b, lanes])
    elif family == COMPARE_U64:
        compare(op, u1[d, lanes], u8[a, lanes], u8[b, lanes])
    elif family == COMPARE_S64:
        compare(op, u1[d, lanes], s8[a, lanes], s8[b, lanes])
    elif family == PREDICATES:
        predicates(op, u1[d, lanes], u1[a, lanes], u1[b, lanes])
    elif family == SELECT_32:
        select(u4[d, lanes], u4[a, lanes], u4[b, lanes], u1[c, lanes])
    elif family == SELECT_64:
        select(u8[d, lanes], u8[a, lanes], u8[b, lanes], u1[c, lanes])
    elif family == WIDEN_U:
        copy(u8[d, lanes], u4[a, lanes])
    elif family == WIDEN_S:
        copy(s8[d, lanes], s4[a, lanes])
    elif family == MUL_WIDE_U:
        multiply(u8[d, lanes], u4[a, lanes], u4[b, lanes])
    elif family == MUL_WIDE_S:
        multiply(s8[d, lanes], s4[a, lanes], s4[b, lanes])
    elif family == MAD_WIDE_U:
        multiply_add(u8[d, lanes], u4[a, lanes], u4[b, lanes], u8[c, lanes])
    elif family == MAD_WIDE_S:
        multiply_add(s8[d, lanes], s4[a, lanes], s4[b, lanes], s8[c, lanes])
    elif family == NARROW:
        copy(u4[d, lanes], u8[a, lanes])
    elif op == F16:
        pack_halves(u4[d, lanes], u4[a, lanes], f4[a, lanes], u4[b, lanes], f4[b, lanes])
    else:
        pack_bf16(u4[d, lanes], u4[a, lanes], u4[b, lanes])


@in_place
def numbers(op, d, a, b):
    """Arithmetic of floats and wrapping integers; minimum and maximum of a NaN and a number return the number."""
    for i in range(len(d)):
        if op == ADD:
            d[i] = a[i] + b[i]
        elif op == SUB:
            d[i] = a[i] - b[i]
        elif op == MUL:
            d[i] = a[i] * b[i]
        elif op == MIN:
            d[i] = a[i] if a[i] < b[i] or b[i] != b[i] else b[i]
        elif op == MAX:
            d[i] = a[i] if a[i] > b[i] or b[i] != b[i] else b[i]
        elif op == NEG:
            d[i] = -a[i]
        else:
            d[i] = abs(a[i])


@in_place
def fused(d, a, b, c):
    """Fused multiply-add of float32, rounded once from float64."""
    for i in range(len(d)):
        d[i] = np.float32(np.float64(a[i]) * np.float64(b[i]) + np.float64(c[i]))


@in_place
def flush(values, found):
    """Flush subnormal float32 to zero."""
    for i in range(len(values)):
        found[i] = values[i] * np.float32(0) if abs(values[i]) < SMALLEST_NORMAL else values[i]


@in_place
def logic(op, d, a, b):
    """Bitwise logic of integers."""
    for i in range(len(d)):
        if op == AND:
            d[i] = a[i] & b[i]
        elif op == OR:
            d[i] = a[i] | b[i]
        elif op == XOR:
            d[i] = a[i] ^ b[i]
        elif op == NOT:
            d[i] = ~a[i]
        else:
            d[i] = a[i]


@in_place
def shift(op, d, a, amount, bits):
    """Logical shifts."""
    for i in range(len(d)):
        if amount[i] >= bits:
            d[i] = 0
        elif op == LEFT:
            d[i] = a[i] << amount[i]
        else:
            d[i] = a[i] >> amount[i]


@in_place
def shift_signed(d, a, amount, bits):
    """Arithmetic shift to the right."""
    for i in range(len(d)):
        d[i] = a[i] >> np.int64(min(amount[i], np.uint32(bits - 1)))


@in_place
def compare(op, d, a, b):
    """Ordered comparisons, false if an operand is NaN."""
    for i in range(len(d)):
        if op == EQ:
            d[i] = a[i] == b[i]
        elif op == NE:
            d[i] = (a[i] < b[i]) | (a[i] > b[i])
        elif op == LT:
            d[i] = a[i] < b[i]
        elif op == LE:
            d[i] = a[i] <= b[i]
        elif op == GT:
            d[i] = a[i] > b[i]
        else:
            d[i] = a[i] >= b[i]


@in_place
def predicates(op, d, a, b):
    """Logic of predicates."""
    for i in range(len(d)):
        x, y = a[i] != 0, b[i] != 0
        if op == AND:
            d[i] = x & y
        elif op == OR:
            d[i] = x | y
        elif op == XOR:
            d[i] = x ^ y
        elif op == NOT:
            d[i] = not x
        else:
            d[i] = x


@in_place
def select(d, a, b, chosen):
    """Select `a` where `chosen` is set, else `b`."""
    for i in range(len(d)):
        d[i] = a[i] if chosen[i] != 0 else b[i]


@in_place
def copy(d, a):
    """Convert to the width of `d`."""
    for i in range(len(d)):
        d[i] = a[i]


@in_place
def multiply(d, a, b):
    """Multiply to the full width of `d`."""
    for i in range(len(d)):
        d[i] = d.dtype.type(a[i]) * d.dtype.type(b[i])


@in_place
def multiply_add(d, a, b, c):
    """Multiply to the full width of `d`, and add `c`."""
    for i in range(len(d)):
        d[i] = d.dtype.type(a[i]) * d.dtype.type(b[i]) + c[i]


@in_place
def pack_halves(d, high, high_value, low, low_value):
    """Two float32 as float16."""
    for i in range(len(d)):
        d[i] = (half(high[i], high_value[i]) << np.uint32(16)) | half(low[i], low_value[i])


@in_place
def half(bits, value):
    """Bits of the nearest float16, ties to even; a NaN keeps what fits of it."""
    magnitude, sign = bits & np.uint32(0x7FFF_FFFF), (bits >> np.uint32(16)) & np.uint32(0x8000)
    odd = (magnitude >> np.uint32(13)) & np.uint32(1)
    found = (magnitude - np.uint32(0x3800_0000) + np.uint32(0xFFF) + odd) >> np.uint32(13)
    # Below 2^-14 steps are 2^-24; adding 1.5 * 2^23 rounds to whole ones.
    scaled = abs(value) * np.float32(2.0**24) + np.float32(12582912.0)
    small = np.uint32(min(scaled, np.float32(12583936.0)) - np.float32(12582912.0))
    nan = max(np.uint32(0x7C00) | ((magnitude >> np.uint32(13)) & np.uint32(0x3FF)), np.uint32(0x7C01))
    found = small if magnitude < np.uint32(0x3880_0000) else found
    found = np.uint32(0x7C00) if magnitude >= np.uint32(0x4780_0000) else found
    found = nan if magnitude > np.uint32(0x7F80_0000) else found
    return sign | found


@in_place
def pack_bf16(d, high, low):
    """Two float32 as bf16."""
    for i in range(len(d)):
        d[i] = (nearest_bf16(high[i]) << np.uint32(16)) | nearest_bf16(low[i])


@in_place
def nearest_bf16(bits):
    """Bits of the nearest bf16, ties to even; NaN becomes 0x7fff."""
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    found = (bits + up) >> np.uint32(16)
    return np.uint32(0x7FFF) if bits & np.uint32(0x7FFF_FFFF) > np.uint32(0x7F80_0000) else found
