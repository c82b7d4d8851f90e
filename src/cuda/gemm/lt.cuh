// SPDX-License-Identifier: Apache-2.0
//
// Products by cuBLASLt: out[m, n] = in[m, k] W[n, k]^T (+ bias) (+ out). The library is
// column-major, so it computes out^T[n, m] = W in^T with W transposed. One algorithm is kept per
// shape and bucket of m: the library's first proposal until tuning has measured a better one.
#ifndef MSGL_CUDA_GEMM_LT_CUH
#define MSGL_CUDA_GEMM_LT_CUH

#include <cublasLt.h>

#include "cuda/device.cuh"

extern "C" {
#include "core/err.h"
#include "cuda/gemm/choices.h"
#include "kernel/calls.h"
}

// How the operands of a product of E4M3 are scaled, in f32: by blocks, the input by 128 columns of
// a row ([k / 128, m], m a multiple of 4) and the weight by 128 x 128 ([n / 128 rounded up, pitch],
// the pitch being k / 128 filled up to a multiple of 4); or both by row ([m], [n]).
typedef enum msgl_gemm_scaling {
    MSGL_GEMM_UNSCALED, // operands of the weight's dtype
    MSGL_GEMM_BLOCKS,
    MSGL_GEMM_ROWS,
} msgl_gemm_scaling;

// One product. bias is of out's type.
typedef struct msgl_gemm_product {
    const msgl_weight *w;
    msgl_gemm_scaling scaling;
    const float *w_scales, *in_scales; // of E4M3
    const void *in, *bias;
    void *out;
    size_t ld_in, ld_out;
    int32_t m;
    msgl_dtype out_type;
    bool accumulate;
} msgl_gemm_product;

// The library's description of a product, on the stack.
typedef struct msgl_gemm_desc {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, in, out;
} msgl_gemm_desc;

// Pinned memory that weights pass through (pack.cu); allocated by the first of them.
enum { MSGL_GEMM_STAGES = 4, MSGL_GEMM_STAGE_BYTES = 8 << 20 };

typedef struct msgl_gemm_staging {
    void *memory[MSGL_GEMM_STAGES];
    cudaEvent_t taken[MSGL_GEMM_STAGES]; // the device has read it
    unsigned next;
} msgl_gemm_staging;

enum { MSGL_GEMM_FLAGS = 4096 };

// An algorithm of a product with a batch (batched.cu), for the product that the key spells out.
enum { MSGL_BATCHED_KEY = 13, MSGL_BATCHED_CHOICES = 512 };

typedef struct msgl_batched_choice {
    int64_t key[MSGL_BATCHED_KEY]; // all 0: free
    cublasLtMatmulAlgo_t algo;
} msgl_batched_choice;

// What tune has measured of one call; kernels by their place in the table (table.cuh).
typedef struct msgl_tune_result {
    msgl_gemm_key key;
    int32_t m;
    const float *us; // 0: cannot do the call
    bool pair;       // with the product behind it
    int first, best; // without a measurement; with it
} msgl_tune_result;

typedef void (*msgl_tune_report)(void *ctx, const msgl_tune_result *r);

struct msgl_cuda_blas {
    cublasLtHandle_t lt;
    void *workspace;
    size_t workspace_bytes;
    int32_t *flags; // [MSGL_GEMM_FLAGS] of stream_sm90, zero between kernels
    msgl_gemm_choices choices;
    char *cache_path; // NULL: choices are not kept
    char gpu[128];
    bool warm;               // something has been measured
    msgl_tune_report report; // NULL but in benchmarks
    void *report_ctx;
    msgl_gemm_staging staging;
    msgl_batched_choice batched[MSGL_BATCHED_CHOICES]; // by a hash of the key, the last one stays
};

// Of every row's first element, up to 16 bytes.
uint8_t msgl__cuda_alignment(const void *p, size_t ld, size_t element);
msgl_gemm_key msgl__cuda_gemm_key(const msgl_cuda_device *d, const msgl_gemm_product *p);
cudaDataType_t msgl__cuda_gemm_type(msgl_dtype t);
cublasStatus_t msgl__cuda_gemm_describe(const msgl_gemm_product *p, msgl_gemm_desc *desc);
// Makes a matrix of `heads` of them, `stride` elements apart.
bool msgl__cuda_gemm_batch(cublasLtMatrixLayoutOpaque_t *layout, int32_t heads, size_t stride);
// Up to `max` proposals of the library, best guess first; returns how many.
int msgl__cuda_gemm_propose(const msgl_cuda_device *d, const msgl_gemm_key *key,
                            msgl_gemm_desc *desc, int max, cublasLtMatmulHeuristicResult_t *out);
cublasStatus_t msgl__cuda_gemm_launch(const msgl_cuda_device *d, const msgl_gemm_product *p,
                                      msgl_gemm_desc *desc, const cublasLtMatmulAlgo_t *algo);
// Runs a product by its choice, or by the library's first proposal, which becomes the choice.
void msgl__cuda_gemm_run(msgl_exec *x, const msgl_gemm_product *p);
// Keeps the measured choices in the device's cache folder, if it has one.
void msgl__cuda_gemm_save(const msgl_cuda_device *d);

#endif
