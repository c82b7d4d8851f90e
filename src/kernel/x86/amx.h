// SPDX-License-Identifier: Apache-2.0
//
// Tile configuration. GCC 12's tile intrinsics are assembly that does not tell the compiler what
// memory it reads, hence the barriers.
#ifndef MSGL_KERNEL_X86_AMX_H
#define MSGL_KERNEL_X86_AMX_H

#include <immintrin.h>
#include <stdint.h>

#include "core/attributes.h"

// Makes stores before it visible to tile loads after it.
#define MSGL_AMX_BARRIER(p) __asm__ volatile("" : : "r"(p) : "memory")

// Operand of ldtilecfg (Intel SDM, volume 1, "Intel AMX programming"): palette 1 has 8 tiles of up
// to 16 rows of 64 bytes.
typedef struct msgl_amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
} msgl_amx_config;

// All tiles 64 bytes wide; tile i with rows[i] rows. The tiles are zeroed.
MSGL_INLINE void msgl__amx_configure(const uint8_t rows[8])
{
    msgl_amx_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.colsb[i] = 64;
        c.rows[i] = rows[i];
    }
    MSGL_AMX_BARRIER(&c);
    _tile_loadconfig(&c);
}

#endif
