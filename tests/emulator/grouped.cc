// SPDX-License-Identifier: Apache-2.0
//
// What emulated products of experts are linked with besides them.
#include <cuda_runtime.h>

#include "cuda/device.cuh"
#include "cuda/gemm/grouped_fp8_sm90.cuh"
#include "cuda/gemm/grouped_sm90.cuh"

enum { BYTES = 227 * 1024 };

// Dynamic shared memory: an array for each name that kernels declare it by.
alignas(128) thread_local unsigned char shared[BYTES];
alignas(128) thread_local unsigned char few_shared[BYTES];
alignas(128) thread_local unsigned char coded_shared[BYTES];
alignas(16) thread_local int32_t first[BYTES / sizeof(int32_t)];
alignas(16) thread_local int32_t at[BYTES / sizeof(int32_t)];
alignas(16) thread_local int32_t count[BYTES / sizeof(int32_t)];

// Hopper's kernels are not emulated.
bool msgl__cuda_grouped_sm90_takes(const msgl_exec *, const msgl_grouped_args *, bool, msgl_dtype)
{
    return false;
}
bool msgl__cuda_grouped_sm90_dense(const msgl_grouped_args *, int32_t)
{
    return false;
}
void msgl__cuda_grouped_sm90(msgl_exec *, const msgl_grouped_args *, int32_t, bool, msgl_dtype)
{
}
bool msgl__cuda_grouped_fp8_takes(const msgl_exec *, const msgl_grouped_call *, codes_matrix *)
{
    return false;
}
void msgl__cuda_grouped_fp8(msgl_exec *, const msgl_grouped_call *, const msgl_grouped_args *,
                            const codes_matrix *, bool)
{
}
size_t msgl__cuda_grouped_fp8_scratch(const msgl_grouped_call *)
{
    return 0;
}

void msgl__cuda_fault(msgl_device *d, cudaError_t, const char *what, const char *, int)
{
    d->fault.code = MSGL_EDEVICE;
    snprintf(d->fault.text, sizeof d->fault.text, "%s", what);
}
