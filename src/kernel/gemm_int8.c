// SPDX-License-Identifier: Apache-2.0
#include "kernel/gemm_int8.h"

size_t msgl__int8_packed_size(const msgl_wformat *f, int n, int k)
{
    (void)f;
    if (k < 1 || k > INT32_MAX - MSGL_INT8_GROUP) return 0;
    return msgl__gemm_panels_size(n, (size_t)msgl__int8_groups(k) * MSGL_INT8_PANEL_GROUP);
}

size_t msgl__int8_row_bytes_8(int kpad)
{
    return msgl__int8_row_bytes(kpad, 1);
}
size_t msgl__int8_row_bytes_16(int kpad)
{
    return msgl__int8_row_bytes(kpad, 2);
}

void msgl__int8_lane(const msgl_wformat *f, const char *panel, int lane, int k, float *out)
{
    (void)f;
    for (int at = 0; at < k; at += MSGL_INT8_GROUP, panel += MSGL_INT8_PANEL_GROUP) {
        float scale;
        memcpy(&scale, panel + MSGL_INT8_VALUES + (size_t)lane * sizeof scale, sizeof scale);
        for (int i = 0; i < MSGL_INT8_GROUP && at + i < k; i++) {
            out[at + i] = scale * (float)(((const uint8_t *)panel)[msgl__int8_at(lane, i)] - 128);
        }
    }
}
