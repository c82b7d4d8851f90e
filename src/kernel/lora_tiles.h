// SPDX-License-Identifier: Apache-2.0
//
// Which rows of a step have which adapter, for devices that compute adapters by tiles
// (msgl_lora_tiles_call): rows by slot, cut into tiles of one slot each.
#ifndef MSGL_KERNEL_LORA_TILES_H
#define MSGL_KERNEL_LORA_TILES_H

#include "kernel/calls.h"

enum { MSGL_LORA_MOST_TILE = 64, MSGL_LORA_LEAST_TILE = 8 };

// Rows of a tile in steps of so many rows: in small ones adapters have few rows each.
int32_t msgl__lora_tile_rows(int32_t rows);
// Most tiles that `rows` rows of at most `adapters` different adapters can have: with 64 rows and 8
// adapters 12, 4 that are full and one that is not of each adapter.
int32_t msgl__lora_tiles_room(int32_t rows, int32_t adapters);

// Rows [row, row + rows) of a step have the adapter in this slot.
typedef struct msgl_lora_span {
    int32_t row, rows, slot;
} msgl_lora_span;

// Writes the rows of spans [num], which ascend, to order, by slot < slots, and their tiles of at
// most tile_rows; starts [slots + 1] is overwritten. order has room for all of the spans' rows and
// tiles for `room`. Returns how many tiles there are, or -1: more than that.
int32_t msgl__lora_tiles_fill(const msgl_lora_span *spans, int32_t num, int32_t slots,
                              int32_t tile_rows, int32_t *starts, int32_t *order,
                              msgl_lora_tile *tiles, int32_t room);

#endif
