// SPDX-License-Identifier: Apache-2.0
//
// What the emulated kernels of adapters are linked with besides them: of f16 the norm in front is a
// kernel of another family, which is stood in for on the host.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "cuda/device.cuh"
#include "cuda/ops/ops.h"

alignas(1024) thread_local char smem[227 << 10]; // as the kernels declare it

void msgl__cuda_rms_norm(msgl_exec *, const void *in, size_t ld_in, const float *weight, float eps,
                         void *out, size_t ld_out, int m, int n)
{
    emulator_queue([=] {
        for (int i = 0; i < m; i++) {
            const __half *x = (const __half *)in + (size_t)i * ld_in;
            __half *y = (__half *)out + (size_t)i * ld_out;
            double squares = 0;
            for (int j = 0; j < n; j++) squares += (double)(float)x[j] * (float)x[j];
            const double factor = 1 / sqrt(squares / n + eps);
            for (int j = 0; j < n; j++) y[j] = __half((float)((float)x[j] * factor * weight[j]));
        }
    });
}

void msgl__cuda_fault(msgl_device *d, cudaError_t, const char *what, const char *, int)
{
    d->fault.code = MSGL_EDEVICE;
    snprintf(d->fault.text, sizeof d->fault.text, "%s", what);
}
