// SPDX-License-Identifier: Apache-2.0
//
// GPUs as the plug-in's host code in plain C sees them: its table (plugin.c) and the host halves of
// its attention backends (backends/).
#ifndef MSGL_CUDA_HOST_H
#define MSGL_CUDA_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/err.h"
#include "kernel/device.h"

typedef struct msgl_cuda_props {
    char name[128];
    int32_t capability; // x 10
    int32_t sm_count;
    size_t total_bytes, free_bytes, l2_bytes;
    int32_t driver, runtime; // CUDA versions, 13000 for 13.0
} msgl_cuda_props;

// device.cu
// Number of GPUs; 0 with a reason when there are none or no driver.
int msgl__cuda_device_count(msgl_err *reason);
int msgl__cuda_props(int ordinal, msgl_cuda_props *out, msgl_err *err);
// Opens a GPU: context, stream, libraries. cache_dir: where chosen algorithms are kept, or NULL.
// props: NULL, or takes what it was before anything of it was taken.
int msgl__cuda_device_open(int ordinal, bool deterministic, const char *cache_dir,
                           msgl_device **out, msgl_cuda_props *props, msgl_err *err);
void *msgl__cuda_device_stream(msgl_device *d); // a cudaStream_t
size_t msgl__cuda_device_l2_bytes(const msgl_device *d);

#ifdef __cplusplus
}
#endif

#endif
