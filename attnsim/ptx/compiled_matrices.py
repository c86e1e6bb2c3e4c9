"""Compiled matrix fragments: registers and shared memory to float32 and back, and matrix products.

The product of two 16-bit floats is exact in float32. Sums run along k from 0 and are then added to the accumulator, in
float32; a GPU sums in another order. `floats` is a table of all 16-bit values by their bits. As in `compiled`, all
other constants are in this file.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attnsim.jit import jit

in_place = partial(jit, allocates=False)

WARP = 32
ROWS, COLUMNS = 16, 8
"""Shape of the product of one mma; a warp has twice as many rows in one of wgmma."""
GROUP, GROUP_ROWS, DEPTH = 128, 64, 16
"""Threads of a warpgroup, and rows and k of its wgmma."""


@in_place
def columns_of(bits, registers, lane0, floats, found):
    """Load B of a warp from registers ``[matrices, steps]``: each two matrices become a tile ``[16 k, 16 columns]``.

    Even columns of a matrix come first, so that a register of the product covers four neighbours in each row.
    """
    for matrix in range(len(registers)):
        for step in range(registers.shape[1]):
            register = bits[registers[matrix, step]][lane0 : lane0 + WARP]
            at = matrix // 2 * 256 + step * 128 + matrix % 2 * COLUMNS
            for pair in range(4):
                to = found[at + 32 * pair : at + 32 * pair + 24]
                for odd in range(2):
                    for half in range(4):
                        both, column = register[8 * half + 4 * odd + pair], 4 * odd + half
                        to[column] = floats[both & np.uint32(0xFFFF)]
                        to[column + 16] = floats[both >> np.uint32(16)]


@in_place
def rows_of(bits, registers, lane0, floats, found):
    """Load A of a warp: register after register, each an 8 x 8 matrix by rows."""
    for part in range(len(registers)):
        register, first = bits[registers[part]], 64 * part
        for lane in range(WARP):
            both = register[lane0 + lane]
            found[first + 2 * lane] = floats[both & np.uint32(0xFFFF)]
            found[first + 2 * lane + 1] = floats[both >> np.uint32(16)]


@in_place
def multiply(left, right, sums):
    """Add the product of A (as `rows_of` lays it out) and a tile of B to a tile of sums ``[16, 16]``."""
    for row in range(ROWS):
        first = row // 8 * 64 + row % 8 * 8
        for column in range(16):
            found = np.float32(0)
            for k in range(DEPTH):
                found += left[first + k // 8 * 128 + k % 8] * right[16 * k + column]
            sums[16 * row + column] += found


@in_place
def move(file, registers, lane0, sums, back):
    """Copy registers of C ``[rows, columns, 4]`` into tiles of sums; with `back`, tiles into registers of D."""
    for row in range(registers.shape[0]):
        for column in range(registers.shape[1]):
            for part in range(4):
                at = column % 2 * COLUMNS + part // 2 * 128 + part % 2 * 4
                tile = sums[row, column // 2][at : at + 116]
                register = file[registers[row, column, part]][lane0 : lane0 + WARP]
                for i in range(8):
                    for j in range(4):
                        if back:
                            register[4 * i + j] = tile[16 * i + j]
                        else:
                            tile[16 * i + j] = register[4 * i + j]


@in_place
def products(bits, file, left, right, before, after, warps, floats, a, b, sums):
    """Play chains of mma on 16-bit floats; each mma takes the result of the one before as its C.

    Registers of A are ``[rows, length, 2 steps]``, those of B ``[length, columns, steps]``, the first C and the last D
    in f32 ``[rows, columns, 4]``. The last three arguments are zeros, room for matrices and tiles of products.
    """
    for warp in warps:
        lane0 = np.int64(np.uint32(warp)) * WARP  # which says that it is not negative
        move(file, before, lane0, sums, False)
        for link in range(len(right)):
            columns_of(bits, right[link], lane0, floats, b)
            for row in range(len(left)):
                rows_of(bits, left[row, link], lane0, floats, a)
                for tile in range(sums.shape[1]):
                    multiply(a, b[256 * tile : 256 * tile + 256], sums[row, tile])
        move(file, after, lane0, sums, True)


@in_place
def load_matrices(words, places, count, transposed, warps, targets, bits):
    """ldmatrix: rows of 8 x 8 matrices at places ``[instructions, warps, matrices, 8]`` to 32-bit registers.

    Shared memory is ``[pieces, 4]`` words of 32 bits.
    """
    place = 0
    for first in range(0, len(targets), count):
        for warp in warps:
            lane0 = np.int64(np.uint32(warp)) * WARP
            for target in targets[first : first + count]:
                register = bits[target]
                if transposed:
                    for column in range(4):
                        low, high = words[places[place + 2 * column]], words[places[place + 2 * column + 1]]
                        for pair in range(4):
                            one, other, lane = low[pair], high[pair], lane0 + 8 * pair + column
                            register[lane] = one & np.uint32(0xFFFF) | other << np.uint32(16)
                            register[lane + 4] = one >> np.uint32(16) | other & np.uint32(0xFFFF_0000)
                else:
                    for row in range(8):
                        of, to = words[places[place + row]], register[lane0 + 4 * row : lane0 + 4 * row + 4]
                        to[0], to[1], to[2], to[3] = of[0], of[1], of[2], of[3]
                place += 8


@in_place
def pieces_to_floats(pieces, places, transposed, floats, found):
    """Decode 16-byte pieces of shared memory at ``[matrices, rows, 2]`` to float32 ``[matrices, rows, 16]``.

    Transposed, they lie at ``[matrices, 16, rows / 8]``.
    """
    for matrix in range(places.shape[0]):
        for i in range(places.shape[1]):
            for j in range(places.shape[2]):
                piece = pieces[places[matrix, i, j]]
                for element in range(8):
                    value = floats[piece[element]]
                    if transposed:
                        found[matrix, j * 8 + element, i] = value
                    else:
                        found[matrix, i, j * 8 + element] = value


@in_place
def agreed(file, state, numbers, rows, groups, found):
    """Return the first warpgroup whose threads disagree on a register, else -1.

    Writes the common values to `found` ``[registers, warpgroups]``; see `registers` for the state of a register.
    """
    for i in range(len(rows)):
        values = file[rows[i]]
        for j in range(len(groups)):
            if state[numbers[i]]:
                found[i, j] = values[0]
                continue
            first = values[groups[j] * GROUP]
            for lane in range(groups[j] * GROUP, (groups[j] + 1) * GROUP):
                if values[lane] != first:
                    return groups[j]
            found[i, j] = first
    return -1


@in_place
def group_rows(bits, registers, groups, floats, found):
    """Load A of wgmma from registers, ``[products * warpgroups, 64, 16]``; each warp has 16 rows, as in mma."""
    for product in range(len(registers)):
        for i in range(len(groups)):
            of = found[product * len(groups) + i]
            for part in range(registers.shape[1]):
                register = bits[registers[product, part]]
                for lane in range(GROUP):
                    both = register[groups[i] * GROUP + lane]
                    row, column = lane // WARP * ROWS + part % 2 * 8 + lane % WARP // 4, part // 2 * 8 + lane % 4 * 2
                    of[row, column] = floats[both & np.uint32(0xFFFF)]
                    of[row, column + 1] = floats[both >> np.uint32(16)]


@in_place
def accumulate(values, groups, keep, flying, file, registers, sign, products):
    """Add products ``[products, warpgroups, 64, n]`` to accumulators ``[warpgroups, 64, n]``, one after another.

    An accumulator starts from the sum in flight, from the registers, or (without `keep`) from zero. Sets `flying`.
    """
    for product in range(len(products)):
        for i in range(len(groups)):
            of, kept = values[groups[i]], keep[product, i]
            if kept and not flying[i]:
                registers_to_accumulator(file, registers, groups[i], of)
            flying[i] = True
            for row in range(GROUP_ROWS):
                for column in range(of.shape[1]):
                    before = of[row, column] if kept else np.float32(0)
                    of[row, column] = before + sign * products[product, i, row, column]


@in_place
def registers_to_accumulator(file, registers, group, found):
    """Copy the registers ``[n / 2]`` of a warpgroup to its accumulator ``[64, n]``.

    PTX ISA 9.0, "Register Fragments for wgmma.mma_async.m64nNk16": warp w has rows 16 w to 16 w + 15, as mma has them.
    """
    for part in range(len(registers)):
        half, column = part % 4 // 2, part // 4 * 8 + part % 2
        for lane in range(GROUP):
            row = lane // WARP * ROWS + half * 8 + lane % WARP // 4
            found[row, column + lane % 4 * 2] = file[registers[part], group * GROUP + lane]


@in_place
def accumulators_to_registers(values, groups, file, registers):
    """Copy accumulators ``[warpgroups, 64, n]`` of these warpgroups to their registers."""
    for group in groups:
        for part in range(len(registers)):
            half, column = part % 4 // 2, part // 4 * 8 + part % 2
            for lane in range(GROUP):
                row = lane // WARP * ROWS + half * 8 + lane % WARP // 4
                file[registers[part], group * GROUP + lane] = values[group, row, column + lane % 4 * 2]
