// SPDX-License-Identifier: Apache-2.0
#include "kernel/x86/amx.h"
#include "kernel/x86/init.h"

double msgl__limits_bf16_amx(long loops)
{
    msgl__amx_configure((const uint8_t[8]){16, 16, 16, 16, 16, 16, 16, 16});
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
