// SPDX-License-Identifier: Apache-2.0
//
// A batch of attn_world through the plug-in minisgl-attn-fi.so: what the backend does, step by
// step.
#ifndef MSGL_TESTS_CUDA_FI_CASE_CUH
#define MSGL_TESTS_CUDA_FI_CASE_CUH

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <unistd.h>

#include "tests/cuda/attn_world.cuh"

extern "C" {
#include "core/err.h"
#include "cuda/fi/api.h"
}

// A plug-in's table, from $MINISGL_PLUGIN_DIR or beside the program.
static inline const void *open_plugin(const char *name, const char *symbol)
{
    char path[PATH_MAX] = "", file[PATH_MAX + 64];
    const char *dir = getenv("MINISGL_PLUGIN_DIR");
    if (dir == NULL) {
        if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) path[0] = '\0';
        dir = dirname(path);
    }
    snprintf(file, sizeof file, "%s/%s", dir, name);
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    const void *(*fn)(void) = NULL;
    if (handle != NULL) *(void **)&fn = dlsym(handle, symbol);
    if (fn == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return fn();
}

typedef struct fi_case {
    const msgl_fi_api *api;
    attn_world *w;
    msgl_fi_shape shape;
    int32_t *page_indptr, *last_len; // host
    int32_t *page_indptr_dev, *last_dev, *pages_dev;
    int32_t max_pages;
    size_t staging_bytes, float_bytes;
    char *staging, *plan_dev, *float_dev;
    msgl_fi_planned plan;
    bool whole;
} fi_case;

// The lengths lens [batch] in pages.
static inline void fi_case_lengths(fi_case *f, const int32_t *lens)
{
    const int n = f->w->call.batch, page = f->shape.page_size;
    for (int i = 0; i < n; i++) {
        const int32_t pages = (lens[i] + page - 1) / page;
        f->page_indptr[i + 1] = f->page_indptr[i] + pages;
        f->last_len[i] = lens[i] - (pages - 1) * page;
        if (pages > f->max_pages) f->max_pages = pages;
    }
    device_write(f->page_indptr_dev, f->page_indptr, ((size_t)n + 1) * 4);
    device_write(f->last_dev, f->last_len, (size_t)n * 4);
}

static inline void fi_case_make(fi_case *f, const msgl_fi_api *api, attn_world *w)
{
    memset(f, 0, sizeof *f);
    const msgl_cuda_attn_call *c = &w->call;
    f->api = api;
    f->w = w;
    f->shape.dtype = c->e4m3 ? MSGL_E4M3 : c->dtype;
    f->shape.num_q_heads = c->num_q_heads;
    f->shape.num_kv_heads = c->num_kv_heads;
    f->shape.head_dim = f->shape.v_dim = c->head_dim;
    f->shape.page_size = c->page_size;
    const size_t n = (size_t)c->batch;
    f->page_indptr = (int32_t *)calloc(n + 1, 4);
    f->last_len = (int32_t *)calloc(n, 4);
    f->page_indptr_dev = (int32_t *)device_copy(NULL, (n + 1) * 4);
    f->last_dev = (int32_t *)device_copy(NULL, n * 4);
    fi_case_lengths(f, w->k_lens);
    const size_t total = n * (size_t)f->max_pages;
    f->pages_dev = (int32_t *)device_copy(NULL, total * 4 + 4);
    CUDA_OK(cudaMemset(f->pages_dev, 0x7f, total * 4 + 4)); // far outside the pool
    api->sizes(&f->shape, c->batch, c->total_q, &f->staging_bytes, &f->float_bytes);
    f->staging = (char *)aligned_alloc(64, (f->staging_bytes + 63) & ~(size_t)63);
    f->plan_dev = (char *)device_copy(NULL, f->staging_bytes);
    f->float_dev = (char *)device_copy(NULL, f->float_bytes);
    CUDA_OK(cudaMemset(f->float_dev, 0xff, f->float_bytes)); // NaN
}

static inline void fi_case_free(fi_case *f)
{
    free(f->page_indptr), free(f->last_len), free(f->staging);
    cudaFree(f->page_indptr_dev), cudaFree(f->last_dev), cudaFree(f->pages_dev);
    cudaFree(f->plan_dev), cudaFree(f->float_dev);
}

// Plans for key lengths lens into poisoned staging memory and copies the plan to the device.
static inline int fi_case_plan(fi_case *f, const int32_t *lens, msgl_fi_kernel kernel, bool graph,
                               bool fixed)
{
    msgl_fi_plan_call p;
    memset(&p, 0, sizeof p);
    p.shape = f->shape;
    p.kernel = kernel;
    p.batch = f->w->call.batch;
    p.qo_indptr = f->w->cu_q;
    p.page_indptr = f->page_indptr;
    p.kv_len = lens;
    p.window = f->w->call.window;
    p.graph = graph;
    p.fixed = fixed;
    p.whole = f->whole;
    p.float_bytes = f->float_bytes;
    p.staging = f->staging;
    p.staging_bytes = f->staging_bytes;
    fi_case_lengths(f, lens);
    memset(f->staging, 0x7f, f->staging_bytes);
    msgl_err err;
    const int rc = f->api->plan(&p, &f->plan, &err);
    if (rc != 0) {
        fprintf(stderr, "plan: %s\n", err.text);
        return rc;
    }
    device_write(f->plan_dev, f->staging, f->plan.bytes);
    return 0;
}

static inline void fi_case_pages(const fi_case *f, cudaStream_t stream)
{
    const msgl_cuda_attn_call *c = &f->w->call;
    msgl_fi_pages_call p;
    memset(&p, 0, sizeof p);
    p.batch = c->batch;
    p.table = c->table;
    p.table_stride = c->table_stride / (size_t)c->page_size;
    p.table_rows = c->table_rows;
    p.page_indptr = f->page_indptr_dev;
    p.max_pages = f->max_pages;
    p.pages = f->pages_dev;
    CUDA_OK(f->api->pages(&p, stream));
}

static inline void fi_case_run(const fi_case *f, cudaStream_t stream)
{
    const msgl_cuda_attn_call *c = &f->w->call;
    msgl_fi_run_call r;
    memset(&r, 0, sizeof r);
    r.shape = f->shape;
    r.plan = &f->plan;
    r.batch = c->batch;
    r.total_q = c->total_q;
    r.q = c->q;
    r.ld_q = c->ld_q;
    r.k = c->k;
    r.v = c->v;
    r.out = c->out;
    r.lse = c->lse;
    r.scale = c->scale;
    r.softcap = c->softcap;
    r.out_scale = c->out_scale;
    r.window = c->window;
    r.qo_indptr = c->cu_seqlens_q;
    r.page_indptr = f->page_indptr_dev;
    r.last_page_len = f->last_dev;
    r.pages = f->pages_dev;
    r.plan_arrays = f->plan_dev;
    r.float_workspace = f->float_dev;
    CUDA_OK(f->api->run(&r, stream));
}

#endif
