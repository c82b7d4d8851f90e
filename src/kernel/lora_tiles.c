// SPDX-License-Identifier: Apache-2.0
#include "kernel/lora_tiles.h"

#include <string.h>

int32_t msgl__lora_tile_rows(int32_t rows)
{
    enum { FEW_ROWS = 256 };
    return rows <= FEW_ROWS ? MSGL_LORA_LEAST_TILE : MSGL_LORA_MOST_TILE;
}

int32_t msgl__lora_tiles_room(int32_t rows, int32_t adapters)
{
    return rows / msgl__lora_tile_rows(rows) + (rows < adapters ? rows : adapters);
}

int32_t msgl__lora_tiles_fill(const msgl_lora_span *spans, int32_t num, int32_t slots,
                              int32_t tile_rows, int32_t *starts, int32_t *order,
                              msgl_lora_tile *tiles, int32_t room)
{
    int32_t n = 0;
    memset(starts, 0, ((size_t)slots + 1) * sizeof *starts);
    for (int32_t i = 0; i < num; i++) starts[spans[i].slot + 1] += spans[i].rows;
    for (int32_t s = 0; s < slots; s++) starts[s + 1] += starts[s];
    for (int32_t s = 0; s < slots; s++) {
        for (int32_t at = starts[s]; at < starts[s + 1]; at += tile_rows) {
            const int32_t left = starts[s + 1] - at;
            if (n == room) return -1;
            tiles[n++] = (msgl_lora_tile){
                .slot = s, .first = at, .rows = left < tile_rows ? left : tile_rows};
        }
    }
    for (int32_t i = 0; i < num; i++) { // starts becomes where a slot's next row goes
        for (int32_t r = 0; r < spans[i].rows; r++) {
            order[starts[spans[i].slot]++] = spans[i].row + r;
        }
    }
    return n;
}
