// SPDX-License-Identifier: Apache-2.0
//
// The plug-in's table.
#include "kernel/cuda/device_api.h"
#include "kernel/kernel.h"

static const msgl_cuda_attn ATTN = {
    .prefill = NULL,
    .decode = NULL,
    .reference = NULL,
};

static void fill_kernels(msgl_kernels *k)
{
    (void)k;
}

static const msgl_cuda_api API = {
    .abi = MSGL_CUDA_ABI,
    .build = MSGL_CUDA_BUILD,
    .device_count = msgl__cuda_device_count,
    .props = msgl__cuda_props,
    .open = msgl__cuda_device_open,
    .stream = msgl__cuda_device_stream,
    .kernels = fill_kernels,
    .attn = &ATTN,
};

__attribute__((visibility("default"))) const msgl_cuda_api *msgl_cuda_plugin(void);
const msgl_cuda_api *msgl_cuda_plugin(void)
{
    return &API;
}
