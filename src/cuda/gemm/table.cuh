// SPDX-License-Identifier: Apache-2.0
//
// The kernels that do a msgl_linear_call, in one table, and which of them does a given call: the
// one that was measured to be fastest (tune.cu), or, without a measurement, the first of the table
// that a call of so many rows is for.
#ifndef MSGL_CUDA_GEMM_TABLE_CUH
#define MSGL_CUDA_GEMM_TABLE_CUH

#include "cuda/gemm/lt.cuh"

typedef struct msgl_product_kernel {
    const char *name; // also in the file of choices
    // What it is able to do, never what is faster. rope: the call is a projection to q, K and V,
    // with the rope kernel behind it; else NULL.
    bool (*can)(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope);
    // All of a call that it can do. Temporaries in x->scratch, which the caller takes back. False,
    // and at most a norm queued: after all it cannot (this GPU's shared memory, a large shape).
    bool (*run)(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope);
    bool fuses_norm; // takes norm_stats where they are there, and leaves them where they are wanted
    bool sums;       // adds ranks' parts (msgl_linear_call.sum)
    // The calls that it gets where nothing was measured: rows, bytes of weights, which do not
    // count where it adds ranks' parts.
    int32_t least_rows, most_rows;
    size_t most_weights;
} msgl_product_kernel;

// In the order in which they are asked where nothing was measured.
enum { MSGL_PRODUCT_KERNELS = 9 };
extern const msgl_product_kernel msgl__cuda_product_kernels[MSGL_PRODUCT_KERNELS];
msgl_kernel_names msgl__cuda_product_names(void);
int msgl__cuda_library_kernel(void); // its place in the table

// Not for deterministic devices, which always take the library.
msgl_gemm_key msgl__cuda_call_key(const msgl_exec *x, const msgl_linear_call *c,
                                  const msgl_rope_call *rope);
// The first kernel from `from` on that the call is for, measurements aside. There always is one.
int msgl__cuda_default_product(const msgl_exec *x, const msgl_linear_call *c,
                               const msgl_rope_call *rope, int from);
int msgl__cuda_choose_product(const msgl_exec *x, const msgl_linear_call *c,
                              const msgl_rope_call *rope);
// The call by a kernel that can do it; false: after all it cannot (see run).
bool msgl__cuda_run_product(msgl_exec *x, int kernel, const msgl_linear_call *c,
                            const msgl_rope_call *rope);

// linear.cu. The call with its input normed, in scratch; false, and x->status set, without memory.
bool msgl__cuda_norm_first(msgl_exec *x, const msgl_linear_call *c, msgl_linear_call *out);
// The gate of a gated call, whose product is dense [m, n], to its output.
void msgl__cuda_gate_product(msgl_exec *x, const msgl_linear_call *c, const void *product);
// A bias as the library wants it, of the output's type, in scratch; NULL without one, or memory.
const void *msgl__cuda_bias_as(msgl_exec *x, const float *bias, int n, msgl_dtype type);
// The library's part of a call, whose pointers need not be there yet.
msgl_gemm_product msgl__cuda_library_product(const msgl_exec *x, const msgl_linear_call *c);
// fp8.cu. Makes the library's part of a call that of FP8, with its input quantised into scratch,
// or, describe, as a key needs it; false: it is no call of FP8 for the library.
bool msgl__cuda_fp8_product(msgl_exec *x, const msgl_linear_call *c, bool describe,
                            msgl_gemm_product *p);
// Norm, library, silu; of any weight that is plain or can be expanded.
void msgl__cuda_linear_library(msgl_exec *x, const msgl_linear_call *c);

#endif
