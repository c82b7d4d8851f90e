// SPDX-License-Identifier: Apache-2.0
#include "kernel/limits_impl.h"

#include <immintrin.h>
#include <stdint.h>

double msgl__limits_bf16_amx(long loops)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t colsb[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.colsb[t] = 64;
        config.rows[t] = 16;
    }
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
    for (long n = 0; n < loops; n++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_release();
    return 6.0 * 16 * 16 * 32 * 2;
}
