// SPDX-License-Identifier: Apache-2.0
#include "kernel/gemm_int8.h"

size_t msgl__int8_packed_size(const msgl_wformat *f, int n, int k)
{
    (void)f;
    if (k < 1 || k > INT32_MAX - MSGL_INT8_GROUP) return 0;
    return msgl__gemm_panels_size(n, (size_t)msgl__int8_groups(k) * MSGL_INT8_PANEL_GROUP);
}

typedef struct gathering {
    const msgl_weight *w;
    const int32_t *ids;
    float *out;
} gathering;

static void gather_task(void *arg, int task, int worker)
{
    (void)worker;
    const gathering *g = arg;
    const msgl_weight *w = g->w;
    const int lane = g->ids[task] % MSGL_GEMM_LANES;
    const size_t panel = (size_t)(g->ids[task] / MSGL_GEMM_LANES);
    const char *group = (const char *)w->data + panel * msgl__gemm_panel_bytes(w);
    float *out = g->out + (size_t)task * (size_t)w->k;
    for (int at = 0; at < w->k; at += MSGL_INT8_GROUP, group += MSGL_INT8_PANEL_GROUP) {
        float scale;
        memcpy(&scale, group + MSGL_INT8_VALUES + (size_t)lane * sizeof scale, sizeof scale);
        for (int i = 0; i < MSGL_INT8_GROUP && at + i < w->k; i++) {
            out[at + i] = scale * (float)(((const uint8_t *)group)[msgl__int8_at(lane, i)] - 128);
        }
    }
}

void msgl__int8_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out)
{
    gathering g = {w, ids, out};
    msgl__pool_run(x->pool, rows, gather_task, &g);
}
