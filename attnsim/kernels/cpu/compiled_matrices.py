"""Matrices of the tensor cores, compiled: from registers and shared memory to float32 and back, and their products.

Products of two 16-bit floats are exact in float32; sums run along k from its beginning and are then added to what is
there, in float32. That order is this file's, and no GPU's. As in `compiled`, all numbers stand in this file.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.models.jit import jit

in_place = partial(jit, allocates=False)

WARP = 32
ROWS, COLUMNS = 16, 8
"""Of the product of one mma, and half of the rows of each warp in one of wgmma."""
GROUP, GROUP_ROWS, DEPTH = 128, 64, 16
"""Threads of a warpgroup, and rows and k of its wgmma."""


@in_place
def to_float(bits, bf16):
    """A 16-bit float as float32."""
    wide = np.uint32(bits)
    if bf16:
        return np.uint32(wide << np.uint32(16)).view(np.float32)
    magnitude = (wide & np.uint32(0x7FFF)) << np.uint32(13)
    # Exponent and mantissa in float32's places, and the exponents' difference as a factor.
    value = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
    if magnitude >= np.uint32(0x0F80_0000):  # infinities and NaN
        value = magnitude | np.uint32(0x7F80_0000)
    return np.uint32(value | (wide & np.uint32(0x8000)) << np.uint32(16)).view(np.float32)


@in_place
def unpack(register, bf16, low, high):
    """Both halves of each lane's register."""
    for lane in range(WARP):
        low[lane] = to_float(register[lane] & np.uint32(0xFFFF), bf16)
        high[lane] = to_float(register[lane] >> np.uint32(16), bf16)


@in_place
def multiply(left, right, first, columns, found):
    """Rows ``[rows, k]`` times some columns of ``[k, all]``; sums run along k from its beginning."""
    for row in range(left.shape[0]):
        sums = found[row]
        for j in range(columns):
            sums[j] = 0
        for k in range(left.shape[1]):
            factor, terms = left[row, k], right[k, first : first + columns]
            for j in range(columns):
                sums[j] += factor * terms[j]


@in_place
def add(one, other, found):
    """A sum, lane by lane."""
    for lane in range(WARP):
        found[lane] = one[lane] + other[lane]


@in_place
def columns_of(bits, registers, lane0, bf16, halves, found):
    """B of all matrices ``[matrices, steps]`` of a warp side by side, ``[k, matrices * 8]``.

    Even columns come first: then a register of the product is contiguous in each row.
    """
    low, high = halves[0], halves[1]
    for matrix in range(len(registers)):
        for step in range(registers.shape[1]):
            unpack(bits[registers[matrix, step], lane0 : lane0 + WARP], bf16, low, high)
            for quad in range(4):
                for column in range(COLUMNS):
                    place = COLUMNS * matrix + column % 2 * 4 + column // 2
                    found[8 * step + 2 * quad, place] = low[4 * column + quad]
                    found[8 * step + 2 * quad + 1, place] = high[4 * column + quad]


@in_place
def rows_of(bits, registers, lane0, bf16, halves, found, first):
    """A of a warp, from the row `first` on: registers down the rows first, then along k."""
    low, high = halves[0], halves[1]
    for part in range(len(registers)):
        unpack(bits[registers[part], lane0 : lane0 + WARP], bf16, low, high)
        row0, k0 = first + part % 2 * 8, part // 2 * 8
        for row in range(8):
            for quad in range(4):
                found[row0 + row, k0 + 2 * quad] = low[4 * row + quad]
                found[row0 + row, k0 + 2 * quad + 1] = high[4 * row + quad]


@in_place
def products(bits, file, left, right, runs, before, after, warps, bf16, a, b, found, halves):
    """mma of 16-bit floats: registers of A ``[matrices, 2 steps]`` and of B ``[matrices, steps]``, C and D in f32.

    A run is a matrix of A, the first of B, how many of B one after another, and the first of its products. The last
    four arguments are room for matrices, products and a register.
    """
    for warp in warps:
        lane0, last, low = warp * WARP, -1, halves[0]
        columns_of(bits, right, lane0, bf16, halves, b)
        for run in range(len(runs)):
            matrix, first, count, product = runs[run, 0], runs[run, 1], runs[run, 2], runs[run, 3]
            if matrix != last:
                last = matrix
                rows_of(bits, left[matrix], lane0, bf16, halves, a, 0)
            multiply(a, b, COLUMNS * first, COLUMNS * count, found)
            for part in range(4 * count):
                half, at = part % 4 // 2, part // 4 * COLUMNS + part % 2 * 4
                for row in range(8):
                    for quad in range(4):
                        low[4 * row + quad] = found[8 * half + row, at + quad]
                c, d = before[4 * product + part], after[4 * product + part]
                add(file[c, lane0 : lane0 + WARP], low, file[d, lane0 : lane0 + WARP])


@in_place
def load_matrices(pieces, places, count, transposed, warps, targets, bits):
    """ldmatrix: rows of 8 x 8 matrices at ``[instructions, warps, matrices, 8]`` to registers of 32 bits."""
    place = 0
    for first in range(0, len(targets), count):
        for warp in warps:
            for target in targets[first : first + count]:
                for lane in range(WARP):
                    row, column = lane // 4, lane % 4 * 2
                    if transposed:
                        low, high = pieces[places[place + column], row], pieces[places[place + column + 1], row]
                    else:
                        low, high = pieces[places[place + row], column], pieces[places[place + row], column + 1]
                    bits[target, warp * WARP + lane] = np.uint32(low) | np.uint32(high) << np.uint32(16)
                place += 8


@in_place
def pieces_to_floats(pieces, places, transposed, bf16, found):
    """Pieces of shared memory at ``[matrices, rows, 2]`` as float32 ``[matrices, rows, 16]``.

    Transposed, they lie at ``[matrices, 16, rows / 8]``.
    """
    for matrix in range(places.shape[0]):
        for i in range(places.shape[1]):
            for j in range(places.shape[2]):
                piece = pieces[places[matrix, i, j]]
                for element in range(8):
                    value = to_float(piece[element], bf16)
                    if transposed:
                        found[matrix, j * 8 + element, i] = value
                    else:
                        found[matrix, i, j * 8 + element] = value


@in_place
def agreed(values, groups, found):
    """The value that all threads of each warpgroup share; returned is the first warpgroup where they do not, or -1."""
    for i in range(len(groups)):
        first = values[groups[i] * GROUP]
        for lane in range(groups[i] * GROUP, (groups[i] + 1) * GROUP):
            if values[lane] != first:
                return groups[i]
        found[i] = first
    return -1


@in_place
def group_rows(bits, registers, groups, bf16, halves, found):
    """A of wgmma ``[warpgroups, 64, 16]``: each warp has 16 rows, as in mma."""
    for i in range(len(groups)):
        for warp in range(4):
            rows_of(bits, registers, groups[i] * GROUP + warp * WARP, bf16, halves, found[i], ROWS * warp)


@in_place
def accumulate(values, groups, keep, flying, file, registers, sign, products):
    """Add products to accumulators ``[warpgroups, 64, n]``: what flies, what registers hold, or zero if not kept."""
    for i in range(len(groups)):
        of = values[groups[i]]
        if keep[i] and not flying[i]:
            registers_to_accumulator(file, registers, groups[i], of)
        for row in range(GROUP_ROWS):
            for column in range(of.shape[1]):
                before = of[row, column] if keep[i] else np.float32(0)
                of[row, column] = before + sign * products[i, row, column]


@in_place
def registers_to_accumulator(file, registers, group, found):
    """Registers ``[n / 2]`` of a warpgroup as ``[64, n]``.

    PTX ISA 9.0, "Register Fragments for wgmma.mma_async.m64nNk16": warp w has rows 16 w to 16 w + 15, as mma has them.
    """
    for part in range(len(registers)):
        half, column = part % 4 // 2, part // 4 * 8 + part % 2
        for lane in range(GROUP):
            row = lane // WARP * ROWS + half * 8 + lane % WARP // 4
            found[row, column + lane % 4 * 2] = file[registers[part], group * GROUP + lane]


@in_place
def accumulators_to_registers(values, groups, file, registers):
    """The reverse, of some warpgroups' accumulators ``[warpgroups, 64, n]``."""
    for group in groups:
        for part in range(len(registers)):
            half, column = part % 4 // 2, part // 4 * 8 + part % 2
            for lane in range(GROUP):
                row = lane // WARP * ROWS + half * 8 + lane % WARP // 4
                file[registers[part], group * GROUP + lane] = values[group, row, column + lane % 4 * 2]
