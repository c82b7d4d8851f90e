// SPDX-License-Identifier: Apache-2.0
//
// The plug-in's table: finds the kernel of a call, turns FlashInfer's exceptions into errors.
#include <stdio.h>
#include <string.h>

#include <exception>

#include "cuda/fi/plan.cuh"
#include "cuda/fi/rows.cuh"

extern "C" {
#include "core/err.h"
}

enum { PAGES_BLOCK = 256, PAGES_SPLITS = 16 };

static __global__ void fi_pages(const msgl_fi_pages_call c)
{
    const int32_t i = blockIdx.x, begin = c.page_indptr[i];
    const int32_t n = c.page_indptr[i + 1] - begin;
    const int32_t *row = c.table + (size_t)c.table_rows[i] * c.table_stride;
    for (int32_t j = blockIdx.y * PAGES_BLOCK + threadIdx.x; j < n; j += gridDim.y * PAGES_BLOCK) {
        c.pages[begin + j] = row[j];
    }
}

static int plugin_pages(const msgl_fi_pages_call *c, void *stream)
{
    const int32_t blocks = (c->max_pages + PAGES_BLOCK - 1) / PAGES_BLOCK;
    const dim3 grid(c->batch, blocks < PAGES_SPLITS ? blocks : PAGES_SPLITS);
    fi_pages<<<grid, PAGES_BLOCK, 0, (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

// The plain kernel where it will do and is compiled.
static const msgl_fi_entry *find(const msgl_fi_shape *s, msgl_fi_kernel kernel, bool general)
{
    const msgl_fi_entry *other = NULL;
    for (int i = 0; i < msgl__fi_num_entries; i++) {
        const msgl_fi_entry *e = &msgl__fi_entries[i];
        if (e->kernel != kernel || e->dtype != s->dtype || e->head_dim != s->head_dim) continue;
        if (e->general == general) return e;
        other = e;
    }
    return other != NULL && other->general ? other : NULL;
}

static bool is_latent(msgl_fi_kernel kernel)
{
    return kernel == MSGL_FI_LATENT || kernel == MSGL_FI_LATENT_HOPPER;
}

static bool is_hopper(msgl_fi_kernel kernel)
{
    return kernel == MSGL_FI_HOPPER || kernel == MSGL_FI_RAGGED_HOPPER ||
           kernel == MSGL_FI_PREFIX_HOPPER;
}

static bool plugin_has(const msgl_fi_shape *s, msgl_fi_kernel kernel, int32_t capability)
{
    const bool wgmma = is_hopper(kernel) || kernel == MSGL_FI_LATENT_HOPPER;
    if (wgmma && capability != 90) return false;
    if (is_latent(kernel) && s->v_dim != MSGL_FI_LATENT_DIM) return false;
    if (kernel == MSGL_FI_CUDA_CORES) {
        const int32_t group = s->num_q_heads / s->num_kv_heads;
        if (group != 1 && group != 2 && group != 3 && group != 4 && group != 8) return false;
    }
    return find(s, kernel, false) != NULL;
}

static int fail(msgl_err *err, int code, const char *what)
{
    if (err != NULL) {
        err->code = code;
        snprintf(err->text, sizeof err->text, "FlashInfer: %.200s", what);
    }
    return code;
}

static int plugin_plan(const msgl_fi_plan_call *c, msgl_fi_planned *out, msgl_err *err)
{
    const msgl_fi_entry *e = find(&c->shape, c->kernel, false);
    if (e == NULL) return fail(err, MSGL_EUNSUPPORTED, "no kernel for this shape");
    int code;
    memset(out, 0, sizeof *out);
    out->kernel = c->kernel;
    out->fixed = c->fixed;
    try {
        if (c->kernel == MSGL_FI_CUDA_CORES) {
            code = e->plan(c, out);
        } else if (is_hopper(c->kernel)) {
            code = msgl__fi_plan_hopper(c, out);
        } else if (is_latent(c->kernel)) {
            code = msgl__fi_plan_latent(c, out);
        } else {
            code = msgl__fi_plan_tensor_cores(c, out);
        }
    } catch (const std::exception &x) {
        return fail(err, MSGL_EDEVICE, x.what());
    }
    out->bytes = msgl__fi_plan_bytes;
    if (code == cudaErrorNotSupported) return fail(err, MSGL_EUNSUPPORTED, "too many tiles");
    if (code != cudaSuccess) return fail(err, MSGL_EDEVICE, cudaGetErrorString((cudaError_t)code));
    return 0;
}

static int plugin_run(const msgl_fi_run_call *c, void *stream)
{
    const msgl_fi_kernel kernel = c->plan->kernel;
    const bool fixed = c->plan->fixed && !is_latent(kernel);
    const msgl_fi_entry *e = find(&c->shape, kernel, c->window >= 0 || c->softcap > 0 || fixed);
    if (e == NULL) return cudaErrorNotSupported;
    try {
        return e->run(c, (cudaStream_t)stream);
    } catch (const std::exception &x) {
        (void)x;
        return cudaErrorInvalidConfiguration;
    }
}

static const msgl_fi_api API = {
    MSGL_FI_ABI, MSGL_FI_BUILD, plugin_has,    msgl__fi_sizes, plugin_plan,
    plugin_run,  plugin_pages,  msgl__fi_rows, msgl__fi_merge,
};

extern "C" __attribute__((visibility("default"))) const msgl_fi_api *msgl_fi_plugin(void)
{
    return &API;
}
