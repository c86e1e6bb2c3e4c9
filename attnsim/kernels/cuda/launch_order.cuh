// Which row tile of which head a block works on, by its number in launch order.
#pragma once

// Row tile and head of a block. With section 0 the row tiles ascend, head by head. Otherwise the longest come first:
// within sections of so many heads, whose K and V share the L2, heads change fastest and row tiles descend.
struct Position {
    int head, row_tile;

    __device__ __forceinline__ Position(int block, int row_tiles, int heads, int section) {
        if (section == 0) {
            head = block / row_tiles;
            row_tile = block % row_tiles;
            return;
        }
        const int first = block / (row_tiles * section) * section;
        const int here = min(section, heads - first), place = block - first * row_tiles;
        head = first + place % here;
        row_tile = row_tiles - 1 - place / here;
    }
};
