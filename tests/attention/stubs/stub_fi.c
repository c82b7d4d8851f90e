// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "attention/stubs/stub.h"
#include "core/err.h"

extern stub_fi stub;
const msgl_fi_api *msgl_fi_plugin(void);

static bool has(const msgl_fi_shape *shape, msgl_fi_kernel kernel, int32_t capability)
{
    return (stub.kernels & 1u << kernel) != 0 && stub_fi_has(shape, kernel, capability);
}

static void sizes(const msgl_fi_shape *shape, int32_t max_batch, int32_t max_tokens,
                  size_t *staging_bytes, size_t *float_bytes)
{
    (void)shape, (void)max_batch, (void)max_tokens;
    *staging_bytes = STUB_PLAN_BYTES;
    *float_bytes = 64;
}

static int plan(const msgl_fi_plan_call *c, msgl_fi_planned *out, msgl_err *err)
{
    (void)err;
    const stub_plan p = {.number = ++stub.num_plans % 127,
                         .kernel = (int32_t)c->kernel,
                         .window = c->window,
                         .batch = c->batch};
    memset(c->staging, p.number, c->staging_bytes);
    memcpy(c->staging, &p, sizeof p);
    *out = (msgl_fi_planned){.kernel = c->kernel, .fixed = c->fixed, .bytes = c->staging_bytes};
    return 0;
}

static int run(const msgl_fi_run_call *c, void *stream)
{
    (void)stream;
    if (stub.num_runs < STUB_MAX_RUNS) stub.runs[stub.num_runs] = *c;
    stub.num_runs++;
    return 0;
}

// The fake GPU's memory is the host's, so the list can be made here.
static int pages(const msgl_fi_pages_call *c, void *stream)
{
    (void)stream;
    for (int32_t i = 0; i < c->batch; i++) {
        const int32_t *row = c->table + (size_t)c->table_rows[i] * c->table_stride;
        for (int32_t j = 0; j < c->page_indptr[i + 1] - c->page_indptr[i]; j++) {
            c->pages[c->page_indptr[i] + j] = row[j];
        }
    }
    return 0;
}

static int rows(const msgl_fi_rows_call *c, void *stream)
{
    (void)stream;
    stub.rows = *c;
    stub.num_rows++;
    return 0;
}

static int merge(const msgl_fi_merge_call *c, void *stream)
{
    (void)stream;
    stub.merge = *c;
    stub.num_merges++;
    return 0;
}

__attribute__((visibility("default"))) stub_fi stub = {
    .api = {MSGL_FI_ABI, "stub", has, sizes, plan, run, pages, rows, merge},
    .kernels = (1u << MSGL_FI_NUM_KERNELS) - 1,
};

__attribute__((visibility("default"))) const msgl_fi_api *msgl_fi_plugin(void)
{
    return &stub.api;
}
