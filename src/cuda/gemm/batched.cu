// SPDX-License-Identifier: Apache-2.0
//
// torch_native's products (attn/native.h), by cuBLASLt. The library is column-major, so it computes
// out^T = op(b) a^T. Its first proposal for a shape is kept: to ask takes the host tens of
// microseconds, and the layers of a step have the same shapes, as have the next steps until a
// request has MSGL_NATIVE_KEYS more tokens. What is kept shows in no result: the library proposes
// the same for the same shape.
//
// Deterministic: the proposal is for one shape in place of all that differ in rows or in length
// only, and never splits the sum, which so has the same order wherever a row is. (Trailing keys
// have probability 0, and sums begin at multiples of MSGL_NATIVE_KEYS.)
#include <stdio.h>
#include <string.h>

#include "cuda/attn/native.h"
#include "cuda/gemm/lt.cuh"

// The shape that all shapes have when deterministic.
enum { FIXED_ROWS = 256, FIXED_LEN = 1024 };

static void fault(msgl_exec *x, cublasStatus_t status, const msgl_native_product *p)
{
    msgl_device *d = x->device;
    x->status = MSGL_EDEVICE;
    if (d->fault.code != 0) return;
    d->fault.code = MSGL_EDEVICE;
    snprintf(d->fault.text, sizeof d->fault.text, "cuBLASLt: %d products m %d, n %d, k %d: %s",
             p->heads, p->m, p->n, p->k, cublasLtGetStatusString(status));
}

static cublasStatus_t layout(cublasLtMatrixLayoutOpaque_t *l, msgl_dtype type, int32_t rows,
                             int32_t columns, size_t ld, int32_t heads, size_t stride)
{
    const cublasStatus_t s = cublasLtMatrixLayoutInit(
        l, msgl__cuda_gemm_type(type), (uint64_t)columns, (uint64_t)rows, (int64_t)ld);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    return msgl__cuda_gemm_batch(l, heads, stride) ? CUBLAS_STATUS_SUCCESS
                                                   : CUBLAS_STATUS_INVALID_VALUE;
}

static cublasStatus_t describe(const msgl_native_product *p, msgl_gemm_desc *d)
{
    const cublasOperation_t op = p->transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s = cublasLtMatmulDescInit(&d->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = cublasLtMatmulDescSetAttribute(&d->op, CUBLASLT_MATMUL_DESC_TRANSA, &op, sizeof op);
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = layout(&d->w, p->in_type, p->transposed ? p->n : p->k, p->transposed ? p->k : p->n,
                   p->ld_b, p->heads, p->head_b);
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = layout(&d->in, p->in_type, p->m, p->k, p->ld_a, p->heads, p->head_a);
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = layout(&d->out, p->out_type, p->m, p->n, p->ld_out, p->heads, p->head_out);
    }
    return s;
}

// What the algorithm is asked for.
static msgl_native_product asked(const msgl_native_product *p, bool deterministic)
{
    msgl_native_product q = *p;
    if (!deterministic) return q;
    q.m = FIXED_ROWS;
    *(p->transposed ? &q.n : &q.k) = FIXED_LEN;
    q.ld_a = (size_t)q.k;
    q.head_a = (size_t)q.m * q.ld_a;
    q.ld_out = (size_t)q.n;
    q.head_out = (size_t)q.m * q.ld_out;
    return q;
}

static uint64_t hash(const int64_t *key)
{
    uint64_t h = 0;
    for (int i = 0; i < MSGL_BATCHED_KEY; i++) {
        h = (h ^ (uint64_t)key[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

static const cublasLtMatmulAlgo_t *choose(msgl_cuda_device *d, const msgl_native_product *p)
{
    const int64_t key[MSGL_BATCHED_KEY] = {p->heads,
                                           p->m,
                                           p->n,
                                           p->k,
                                           p->in_type,
                                           p->out_type,
                                           p->transposed,
                                           (int64_t)p->ld_a,
                                           (int64_t)p->ld_b,
                                           (int64_t)p->ld_out,
                                           (int64_t)p->head_a,
                                           (int64_t)p->head_b,
                                           (int64_t)p->head_out};
    msgl_batched_choice *c = &d->blas->batched[hash(key) % MSGL_BATCHED_CHOICES];
    if (memcmp(c->key, key, sizeof key) == 0) return &c->algo;
    msgl_gemm_key how = {};
    how.bucket = d->deterministic ? 0 : 1;
    how.align_in = how.align_out = 16;
    msgl_gemm_desc desc;
    cublasLtMatmulHeuristicResult_t first;
    if (describe(p, &desc) != CUBLAS_STATUS_SUCCESS) return NULL;
    if (msgl__cuda_gemm_propose(d, &how, &desc, 1, &first) < 1) return NULL;
    memcpy(c->key, key, sizeof key);
    c->algo = first.algo;
    return &c->algo;
}

extern "C" void msgl__cuda_native_product(msgl_exec *x, const msgl_native_product *p)
{
    msgl_cuda_device *d = msgl__cuda_device(x);
    const msgl_cuda_blas *b = d->blas;
    const msgl_native_product q = asked(p, d->deterministic);
    const float zero = 0.f;
    msgl_gemm_desc desc;
    const cublasLtMatmulAlgo_t *algo = choose(d, &q);
    cublasStatus_t s = algo != NULL ? describe(p, &desc) : CUBLAS_STATUS_NOT_SUPPORTED;
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = cublasLtMatmul(b->lt, &desc.op, &p->scale, p->b, &desc.w, p->a, &desc.in, &zero, p->out,
                           &desc.out, p->out, &desc.out, algo, b->workspace, b->workspace_bytes,
                           d->stream);
    }
    if (s != CUBLAS_STATUS_SUCCESS) fault(x, s, p);
}
