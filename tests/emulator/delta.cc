// SPDX-License-Identifier: Apache-2.0
//
// What the emulated family delta is linked with: kernels that want Hopper are stood in for by that
// of answers with drafts, which computes any request token by token.
#include <cuda_runtime.h>

#include "cuda/delta/delta.h"
#include "cuda/device.cuh"

void msgl__cuda_delta_decode(msgl_exec *x, const msgl_delta_call *c, int)
{
    msgl__cuda_delta_rows(x, c);
}
void msgl__cuda_delta_prefill(msgl_exec *x, const msgl_delta_call *c, int)
{
    msgl__cuda_delta_rows(x, c);
}
size_t msgl__cuda_delta_scratch(const msgl_delta_call *)
{
    return 0;
}

void msgl__cuda_fault(msgl_device *d, cudaError_t, const char *what, const char *, int)
{
    d->fault.code = MSGL_EDEVICE;
    snprintf(d->fault.text, sizeof d->fault.text, "%s", what);
}

// The family asks for a GPU of Hopper's.
static const int hopper = emulator_major = 9;
