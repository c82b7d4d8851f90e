// SPDX-License-Identifier: Apache-2.0
//
// Products by cuBLASLt: out[m, n] = in[m, k] W[n, k]^T (+ bias) (+ out). The library is
// column-major, so it computes out^T[n, m] = W in^T with W transposed. One algorithm is kept per
// shape and bucket of m: the library's first proposal until tuning has measured a better one.
#ifndef MSGL_KERNEL_CUDA_GEMM_LT_CUH
#define MSGL_KERNEL_CUDA_GEMM_LT_CUH

#include <cublasLt.h>

#include "kernel/cuda/device.cuh"

extern "C" {
#include "core/err.h"
#include "kernel/calls.h"
}

// What an algorithm was chosen for. No padding, so that keys compare by memcmp.
typedef struct msgl_gemm_key {
    int32_t n, k;
    int32_t bucket; // largest m that it serves; 0: every m (deterministic)
    uint8_t in_type, out_type;
    uint8_t bias, accumulate;
    uint8_t align_in, align_out; // bytes, up to 16, of every row's first element
    uint8_t unused[2];
} msgl_gemm_key;

typedef enum msgl_gemm_source {
    MSGL_GEMM_NONE,     // free slot of the table
    MSGL_GEMM_PROPOSED, // the library's first proposal
    MSGL_GEMM_MEASURED,
} msgl_gemm_source;

typedef struct msgl_gemm_choice {
    msgl_gemm_key key;
    cublasLtMatmulAlgo_t algo;
    float us; // when measured
    msgl_gemm_source source;
} msgl_gemm_choice;

// One product. bias is of out's type.
typedef struct msgl_gemm_product {
    const msgl_weight *w;
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

struct msgl_cuda_blas {
    cublasLtHandle_t lt;
    void *workspace;
    size_t workspace_bytes;
    int32_t *flags;          // [MSGL_GEMM_FLAGS] of stream_sm90, zero between kernels
    msgl_gemm_choice *table; // open addressing, capacity a power of two
    size_t capacity, count;
    char *cache_path; // NULL: choices are not kept
    char gpu[128];
    bool warm; // something has been measured
    msgl_gemm_staging staging;
};

msgl_gemm_key msgl__cuda_gemm_key(const msgl_cuda_device *d, const msgl_gemm_product *p);
cublasStatus_t msgl__cuda_gemm_describe(const msgl_gemm_product *p, msgl_gemm_desc *desc);
// Up to `max` proposals of the library, best guess first; returns how many.
int msgl__cuda_gemm_propose(const msgl_cuda_device *d, const msgl_gemm_key *key,
                            msgl_gemm_desc *desc, int max, cublasLtMatmulHeuristicResult_t *out);
cublasStatus_t msgl__cuda_gemm_launch(const msgl_cuda_device *d, const msgl_gemm_product *p,
                                      msgl_gemm_desc *desc, const cublasLtMatmulAlgo_t *algo);
// The table's slot of key, taken if it was free; NULL when memory ran out.
msgl_gemm_choice *msgl__cuda_gemm_slot(msgl_cuda_blas *b, const msgl_gemm_key *key);
// Runs a product by its choice, or by the library's first proposal, which becomes the choice.
void msgl__cuda_gemm_run(msgl_exec *x, const msgl_gemm_product *p);

// linear.cu: norm first, then a kernel for many rows that takes the call (wide_sm90, stream_sm90),
// or the library and silu. Leaves its temporaries in x->scratch.
void msgl__cuda_linear_library(msgl_exec *x, const msgl_linear_call *c);

// cache.cu: reads b->cache_path into the table. Lines that are not whole, not of this GPU, library
// and format, or whose check sum is wrong are left out.
void msgl__cuda_gemm_cache_load(msgl_cuda_blas *b);
// Writes the measured choices in place of the file.
void msgl__cuda_gemm_cache_save(const msgl_cuda_blas *b);

#endif
