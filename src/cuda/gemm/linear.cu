// SPDX-License-Identifier: Apache-2.0
//
// A call by norm kernel, library and gate kernel, each where the call has it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/gemm/expand.h"
#include "cuda/gemm/fp8.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/table.cuh"
#include "cuda/ops/ops.h"

template <typename T> __global__ void convert_bias(const float *in, T *out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = T(in[i]);
}

const void *msgl__cuda_bias_as(msgl_exec *x, const float *bias, int n, msgl_dtype type)
{
    if (type == MSGL_F32 || bias == NULL) return bias;
    void *out = msgl__arena_alloc(x->scratch, (size_t)n * msgl__dtype_size(type));
    if (out == NULL) return NULL;
    const int blocks = (n + 255) / 256;
    cudaStream_t stream = msgl__cuda_stream(x);
    if (type == MSGL_F16) {
        convert_bias<<<blocks, 256, 0, stream>>>(bias, (__half *)out, n);
    } else {
        convert_bias<<<blocks, 256, 0, stream>>>(bias, (__nv_bfloat16 *)out, n);
    }
    MSGL_CUDA_LAUNCHED(x);
    return out;
}

bool msgl__cuda_norm_first(msgl_exec *x, const msgl_linear_call *c, msgl_linear_call *out)
{
    const size_t k = (size_t)c->w->k;
    *out = *c;
    if (c->norm == NULL) return true;
    void *normed = msgl__arena_alloc(x->scratch, (size_t)c->m * k * msgl__dtype_size(x->act));
    if (normed == NULL) {
        x->status = MSGL_ENOMEM;
        return false;
    }
    msgl__cuda_rms_norm(x, c->in, c->ld_in, c->norm, c->norm_eps, normed, k, c->m, c->w->k);
    out->in = normed;
    out->ld_in = k;
    out->norm = NULL;
    return true;
}

void msgl__cuda_gate_product(msgl_exec *x, const msgl_linear_call *c, const void *product)
{
    const int n = c->w->n;
    const size_t element = msgl__dtype_size(x->act);
    if (c->ld_out == (size_t)n / 2) {
        msgl__cuda_gate(x, c->activation, product, c->out, c->m, n / 2);
        return;
    }
    for (int32_t row = 0; row < c->m; row++) { // its rows are dense
        msgl__cuda_gate(x, c->activation, (const char *)product + (size_t)row * n * element,
                        (char *)c->out + row * c->ld_out * element, 1, n / 2);
    }
}

msgl_gemm_product msgl__cuda_library_product(const msgl_exec *x, const msgl_linear_call *c)
{
    msgl_gemm_product p = {};
    p.w = c->w;
    p.in = c->in;
    p.ld_in = c->ld_in;
    p.out = c->out;
    p.ld_out = c->gated ? (size_t)c->w->n : c->ld_out;
    p.m = c->m;
    p.out_type = c->f32_out ? MSGL_F32 : x->act;
    p.accumulate = c->accumulate;
    return p;
}

// Of a weight that is not plain some rows at a time become values, and columns of the output their
// product.
static void multiply(msgl_exec *x, const msgl_gemm_product *p)
{
    const msgl_weight *w = p->w;
    if (msgl__weight_is(w, x->act)) {
        msgl__cuda_gemm_run(x, p);
        return;
    }
    const size_t out = msgl__dtype_size(p->out_type), used = x->scratch->used;
    const int most = msgl__cuda_slab_rows(w->k, x->act), all = w->n < most ? w->n : most;
    msgl_weight slab = {&msgl__cuda_formats[x->act], 0, w->k, NULL};
    slab.data =
        msgl__arena_alloc(x->scratch, (size_t)all * (size_t)w->k * msgl__dtype_size(x->act));
    if (slab.data == NULL) x->status = MSGL_ENOMEM;
    for (int row = 0; row < w->n && x->status == 0; row += slab.n) {
        slab.n = w->n - row < most ? w->n - row : most;
        const msgl_expand_call rows = {.w = w,
                                       .num = 1,
                                       .row = row,
                                       .rows = slab.n,
                                       .offsets = NULL,
                                       .out = slab.data,
                                       .out_stride = 0};
        msgl_gemm_product q = *p;
        q.w = &slab;
        q.out = (char *)p->out + (size_t)row * out;
        if (p->bias != NULL) q.bias = (const char *)p->bias + (size_t)row * out;
        msgl__cuda_expand(x, &rows);
        if (x->status == 0) msgl__cuda_gemm_run(x, &q);
    }
    x->scratch->used = used;
}

void msgl__cuda_linear_library(msgl_exec *x, const msgl_linear_call *c)
{
    const int n = c->w->n;
    const size_t element = msgl__dtype_size(x->act);
    msgl_linear_call normed;
    if (!msgl__cuda_norm_first(x, c, &normed)) return;
    msgl_gemm_product p = msgl__cuda_library_product(x, &normed);
    if (c->gated) p.out = msgl__arena_alloc(x->scratch, (size_t)c->m * n * element);
    if (c->bias != NULL) p.bias = msgl__cuda_bias_as(x, c->bias, n, p.out_type);
    if (p.out == NULL || (c->bias != NULL && p.bias == NULL)) {
        x->status = MSGL_ENOMEM;
        return;
    }
    multiply(x, &p);
    if (c->gated) msgl__cuda_gate_product(x, c, p.out);
}

static bool has_fp8(const msgl_weight *w)
{
    msgl_codes_row l;
    return msgl__fp8_weight(w->num_parts > 0 ? w->parts : w, &l);
}

size_t msgl__cuda_linear_scratch(const msgl_linear_call *c, msgl_dtype act)
{
    enum { ALIGN = 64, PIECES = 3 };
    const size_t element = msgl__dtype_size(act);
    size_t bytes = PIECES * ALIGN;
    if (c->w->num_parts > 0 || c->w->format->id == MSGL_W_CODES) {
        bytes += msgl__cuda_slab_bytes((size_t)c->w->n, c->w->k, act);
    }
    if (c->norm != NULL) bytes += (size_t)c->m * c->w->k * element;
    if (has_fp8(c->w)) bytes += msgl__cuda_fp8_scratch(c);
    if (c->gated) bytes += (size_t)c->m * c->w->n * element;
    if (c->bias != NULL) bytes += (size_t)c->w->n * element;
    return bytes;
}
