// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/lt.cuh"

#include <stdio.h>
#include <string.h>

#include "cuda/device_api.h"
#include "cuda/gemm/table.cuh"
#include "cuda/ranks/ranks.h"

enum { WORKSPACE = 64 << 20 };

static_assert(sizeof(((cublasLtMatmulAlgo_t *)0)->data) == MSGL_ALGO_WORDS * sizeof(uint64_t),
              "what a choice keeps of an algorithm");

static void blas_fault(msgl_exec *x, cublasStatus_t status, const msgl_gemm_product *p)
{
    msgl_device *d = x->device;
    x->status = MSGL_EDEVICE;
    if (d->fault.code != 0) return;
    d->fault.code = MSGL_EDEVICE;
    snprintf(d->fault.text, sizeof d->fault.text, "cuBLASLt: product m %d, n %d, k %d: %s", p->m,
             p->w->n, p->w->k, cublasLtGetStatusString(status));
}

int msgl__cuda_blas_create(msgl_cuda_device *d, const char *gpu, const char *cache_dir,
                           msgl_err *err)
{
    msgl_cuda_blas *b = (msgl_cuda_blas *)msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "cuBLASLt: out of memory");
    d->blas = b;
    const cublasStatus_t status = cublasLtCreate(&b->lt);
    if (status != CUBLAS_STATUS_SUCCESS) {
        return msgl__err_set(err, MSGL_EDEVICE, "cuBLASLt: %s", cublasLtGetStatusString(status));
    }
    b->workspace_bytes = WORKSPACE;
    if (!msgl__choices_create(&b->choices))
        return msgl__err_set(err, MSGL_ENOMEM, "cuBLASLt: out of memory");
    const size_t flags = MSGL_GEMM_FLAGS * sizeof *b->flags;
    if (cudaMalloc(&b->workspace, b->workspace_bytes) != cudaSuccess ||
        cudaMalloc((void **)&b->flags, flags) != cudaSuccess) {
        (void)cudaGetLastError();
        return msgl__err_set(err, MSGL_ENOMEM, "cuBLASLt: no %d MiB of device memory for its work",
                             WORKSPACE >> 20);
    }
    const cudaError_t cleared = cudaMemsetAsync(b->flags, 0, flags, d->stream);
    if (cleared != cudaSuccess) {
        return msgl__err_set(err, MSGL_EDEVICE, "cuBLASLt: %s", cudaGetErrorString(cleared));
    }
    snprintf(b->gpu, sizeof b->gpu, "%.100s", gpu);
    if (cache_dir == NULL) return 0;
    const size_t size = strlen(cache_dir) + sizeof b->gpu + 64;
    b->cache_path = (char *)msgl__malloc(size);
    if (b->cache_path == NULL) return msgl__err_set(err, MSGL_ENOMEM, "cuBLASLt: out of memory");
    for (char *c = b->gpu; *c != '\0'; c++) {
        const bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                           (*c >= '0' && *c <= '9') || *c == '.';
        if (!plain) *c = '-';
    }
    snprintf(b->cache_path, size, "%s/gemm-%s-cublasLt-%zu.txt", cache_dir, b->gpu,
             cublasLtGetVersion());
    msgl__choices_load(&b->choices, b->cache_path, b->gpu, cublasLtGetVersion(),
                       msgl__cuda_product_names());
    return 0;
}

void msgl__cuda_blas_destroy(msgl_cuda_device *d)
{
    msgl_cuda_blas *b = d->blas;
    if (b == NULL) return;
    if (b->lt != NULL) (void)cublasLtDestroy(b->lt);
    (void)cudaFree(b->workspace);
    (void)cudaFree(b->flags);
    for (int i = 0; i < MSGL_GEMM_STAGES; i++) {
        if (b->staging.memory[i] != NULL) (void)cudaFreeHost(b->staging.memory[i]);
        if (b->staging.taken[i] != NULL) (void)cudaEventDestroy(b->staging.taken[i]);
    }
    msgl__choices_destroy(&b->choices);
    msgl__free(b->cache_path);
    msgl__free(b);
    d->blas = NULL;
}

void msgl__cuda_gemm_save(const msgl_cuda_device *d)
{
    const msgl_cuda_blas *b = d->blas;
    if (b->cache_path == NULL) return;
    msgl__choices_save(&b->choices, b->cache_path, b->gpu, cublasLtGetVersion(),
                       msgl__cuda_product_names());
}

extern "C" int msgl__cuda_gemm_broadcast(msgl_device *base, const msgl_device_ranks *ranks,
                                         msgl_err *err)
{
    msgl_gemm_choices *t = &((msgl_cuda_device *)base)->blas->choices;
    int32_t own = (int32_t)t->capacity, sizes[64];
    if (!ranks->exchange(ranks->ctx, &own, sizeof own, sizes)) {
        return msgl__err_set(err, MSGL_EPEER, "another rank ended");
    }
    const size_t slots = (size_t)sizes[0], bytes = slots * sizeof *t->slots;
    char *memory = (char *)msgl__calloc((size_t)ranks->size + 1, bytes);
    if (memory == NULL) return msgl__err_set(err, MSGL_ENOMEM, "choices of kernels: no memory");
    if (ranks->rank == 0) memcpy(memory, t->slots, bytes);
    bool ok = ranks->exchange(ranks->ctx, memory, bytes, memory + bytes);
    int code = ok ? 0 : msgl__err_set(err, MSGL_EPEER, "another rank ended");
    const msgl_gemm_choice *first = (const msgl_gemm_choice *)(memory + bytes);
    if (code == 0 && ranks->rank > 0) {
        // Nothing of its own stays: products that add ranks' parts must be chosen alike.
        msgl__choices_destroy(t);
        if (!msgl__choices_create(t)) {
            code = msgl__err_set(err, MSGL_ENOMEM, "choices of kernels: no memory");
        }
    }
    for (size_t i = 0; i < slots && code == 0 && ranks->rank > 0; i++) {
        if (first[i].source == MSGL_GEMM_MEASURED && !msgl__choices_put(t, &first[i])) {
            code = msgl__err_set(err, MSGL_ENOMEM, "choices of kernels: no memory");
        }
    }
    msgl__free(memory);
    return code;
}

// --- choices -----------------------------------------------------------------------------------

uint8_t msgl__cuda_alignment(const void *p, size_t ld, size_t element)
{
    const uintptr_t bits = (uintptr_t)p | (ld * element) | 16;
    return (uint8_t)(bits & (~bits + 1));
}

msgl_gemm_key msgl__cuda_gemm_key(const msgl_cuda_device *d, const msgl_gemm_product *p)
{
    msgl_gemm_key key;
    memset(&key, 0, sizeof key);
    key.n = p->w->n;
    key.k = p->w->k;
    key.bucket = d->deterministic ? 0 : msgl__gemm_bucket(p->m);
    const bool coded = p->scaling != MSGL_GEMM_UNSCALED;
    key.in_type = (uint8_t)(coded ? MSGL_WFORMATS + p->scaling : p->w->format->id);
    key.out_type = (uint8_t)p->out_type;
    key.bias = p->bias != NULL;
    key.accumulate = p->accumulate;
    key.align_in =
        msgl__cuda_alignment(p->in, p->ld_in, coded ? 1 : msgl__dtype_size(p->w->format->dtype));
    key.align_out = msgl__cuda_alignment(p->out, p->ld_out, msgl__dtype_size(p->out_type));
    return key;
}

// --- the library -------------------------------------------------------------------------------

cudaDataType_t msgl__cuda_gemm_type(msgl_dtype t)
{
    return t == MSGL_F32 ? CUDA_R_32F : t == MSGL_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

// Sums stay exact: without FAST_ACCUM, which is off unless it is asked for, the library adds those
// of 128 columns in f32.
static cublasStatus_t describe_scales(const msgl_gemm_product *p, cublasLtMatmulDescOpaque_t *op)
{
    const bool by_row = p->scaling == MSGL_GEMM_ROWS;
    const cublasLtMatmulMatrixScale_t in = by_row ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                  : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    const cublasLtMatmulMatrixScale_t w = by_row ? in : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const struct {
        cublasLtMatmulDescAttributes_t attr;
        const void *value;
        size_t size;
    } set[] = {
        {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w, sizeof w},
        {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &in, sizeof in},
        {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->w_scales, sizeof p->w_scales},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->in_scales, sizeof p->in_scales},
    };
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof set / sizeof set[0] && s == CUBLAS_STATUS_SUCCESS; i++) {
        s = cublasLtMatmulDescSetAttribute(op, set[i].attr, set[i].value, set[i].size);
    }
    return s;
}

cublasStatus_t msgl__cuda_gemm_describe(const msgl_gemm_product *p, msgl_gemm_desc *desc)
{
    const bool coded = p->scaling != MSGL_GEMM_UNSCALED;
    const cudaDataType_t in = coded ? CUDA_R_8F_E4M3 : msgl__cuda_gemm_type(p->w->format->dtype),
                         out = msgl__cuda_gemm_type(p->out_type);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const uint64_t n = (uint64_t)p->w->n, k = (uint64_t)p->w->k, m = (uint64_t)p->m;
    cublasStatus_t s = cublasLtMatmulDescInit(&desc->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = cublasLtMatmulDescSetAttribute(&desc->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof transposed);
    }
    if (s == CUBLAS_STATUS_SUCCESS && coded) s = describe_scales(p, &desc->op);
    if (s == CUBLAS_STATUS_SUCCESS && p->bias != NULL) {
        const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
        s = cublasLtMatmulDescSetAttribute(&desc->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias,
                                           sizeof bias);
        if (s == CUBLAS_STATUS_SUCCESS) {
            s = cublasLtMatmulDescSetAttribute(&desc->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                               &p->bias, sizeof p->bias);
        }
        if (s == CUBLAS_STATUS_SUCCESS) {
            s = cublasLtMatmulDescSetAttribute(&desc->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &out,
                                               sizeof out);
        }
    }
    if (s == CUBLAS_STATUS_SUCCESS) s = cublasLtMatrixLayoutInit(&desc->w, in, k, n, (int64_t)k);
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = cublasLtMatrixLayoutInit(&desc->in, in, k, m, (int64_t)p->ld_in);
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = cublasLtMatrixLayoutInit(&desc->out, out, n, m, (int64_t)p->ld_out);
    }
    return s;
}

bool msgl__cuda_gemm_batch(cublasLtMatrixLayoutOpaque_t *layout, int32_t heads, size_t stride)
{
    const int64_t offset = (int64_t)stride;
    return cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &heads,
                                            sizeof heads) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                            &offset, sizeof offset) == CUBLAS_STATUS_SUCCESS;
}

int msgl__cuda_gemm_propose(const msgl_cuda_device *d, const msgl_gemm_key *key,
                            msgl_gemm_desc *desc, int max, cublasLtMatmulHeuristicResult_t *out)
{
    cublasLtMatmulPreferenceOpaque_t pref;
    if (cublasLtMatmulPreferenceInit(&pref) != CUBLAS_STATUS_SUCCESS) return 0;
    // Sums of a split k stay f32; deterministic: k is never split.
    const uint32_t reduction =
        key->bucket == 0 ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint64_t workspace = key->bucket == 0 ? 0 : d->blas->workspace_bytes;
    const uint32_t align_w = 16, align_in = key->align_in, align_out = key->align_out;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attr;
        const void *value;
        size_t size;
    } set[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_w, sizeof align_w},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_in, sizeof align_in},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_out, sizeof align_out},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_out, sizeof align_out},
    };
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) {
        if (cublasLtMatmulPreferenceSetAttribute(&pref, set[i].attr, set[i].value, set[i].size) !=
            CUBLAS_STATUS_SUCCESS) {
            return 0;
        }
    }
    int found = 0;
    if (cublasLtMatmulAlgoGetHeuristic(d->blas->lt, &desc->op, &desc->w, &desc->in, &desc->out,
                                       &desc->out, &pref, max, out,
                                       &found) != CUBLAS_STATUS_SUCCESS) {
        return 0;
    }
    int kept = 0;
    for (int i = 0; i < found; i++) {
        if (out[i].state == CUBLAS_STATUS_SUCCESS) out[kept++] = out[i];
    }
    return kept;
}

cublasStatus_t msgl__cuda_gemm_launch(const msgl_cuda_device *d, const msgl_gemm_product *p,
                                      msgl_gemm_desc *desc, const cublasLtMatmulAlgo_t *algo)
{
    const float one = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    const msgl_cuda_blas *b = d->blas;
    return cublasLtMatmul(b->lt, &desc->op, &one, p->w->data, &desc->w, p->in, &desc->in, &beta,
                          p->out, &desc->out, p->out, &desc->out, algo, b->workspace,
                          b->workspace_bytes, d->stream);
}

// The library's first proposal. It depends on the key only, not on which product came first.
static bool propose_first(const msgl_cuda_device *d, const msgl_gemm_product *p,
                          const msgl_gemm_key *key, msgl_gemm_choice *c)
{
    enum { FIXED_M = 256 };
    msgl_gemm_product q = *p;
    q.m = key->bucket > 0 ? key->bucket : FIXED_M;
    msgl_gemm_desc desc;
    cublasLtMatmulHeuristicResult_t first;
    if (msgl__cuda_gemm_describe(&q, &desc) != CUBLAS_STATUS_SUCCESS) return false;
    if (msgl__cuda_gemm_propose(d, key, &desc, 1, &first) < 1) return false;
    memcpy(c->algo, first.algo.data, sizeof c->algo);
    return true;
}

static cublasStatus_t run_choice(const msgl_cuda_device *d, const msgl_gemm_product *p,
                                 const msgl_gemm_choice *c)
{
    cublasLtMatmulAlgo_t algo;
    msgl_gemm_desc desc;
    memcpy(algo.data, c->algo, sizeof algo.data);
    const cublasStatus_t s = msgl__cuda_gemm_describe(p, &desc);
    return s == CUBLAS_STATUS_SUCCESS ? msgl__cuda_gemm_launch(d, p, &desc, &algo) : s;
}

void msgl__cuda_gemm_run(msgl_exec *x, const msgl_gemm_product *p)
{
    msgl_cuda_device *d = msgl__cuda_device(x);
    msgl_gemm_choices *choices = &d->blas->choices;
    const msgl_gemm_key key = msgl__cuda_gemm_key(d, p);
    const msgl_gemm_choice *known = msgl__choices_find(choices, &key);
    bool keep = known == NULL;
    if (known == NULL) known = msgl__choices_nearest(choices, &key);
    msgl_gemm_choice c = {};
    if (known != NULL) c = *known;
    cublasStatus_t s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (known != NULL || propose_first(d, p, &key, &c)) s = run_choice(d, p, &c);
    // One read from disk may not suit this very product.
    if (s != CUBLAS_STATUS_SUCCESS && c.source == MSGL_GEMM_MEASURED &&
        propose_first(d, p, &key, &c)) {
        keep = true;
        s = run_choice(d, p, &c);
    }
    if (s != CUBLAS_STATUS_SUCCESS) blas_fault(x, s, p);
    if (s != CUBLAS_STATUS_SUCCESS || !keep) return;
    c.key = key;
    c.source = MSGL_GEMM_PROPOSED;
    if (!msgl__choices_put(choices, &c)) x->status = MSGL_ENOMEM;
}
