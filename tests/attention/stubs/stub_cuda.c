// SPDX-License-Identifier: Apache-2.0
//
// minisgl-cuda.so with one GPU, of the compute capability (x 10) in STUB_CAPABILITY, that can be
// looked at and not opened.
#include <stdlib.h>

#include "kernel/cuda/plugin.h"

const msgl_cuda_api *msgl_cuda_plugin(void);

static int device_count(msgl_err *reason)
{
    (void)reason;
    return 1;
}

static int props(int ordinal, msgl_cuda_props *out, msgl_err *err)
{
    (void)ordinal, (void)err;
    const char *text = getenv("STUB_CAPABILITY");
    *out = (msgl_cuda_props){.name = "stub",
                             .capability = text != NULL ? (int32_t)strtol(text, NULL, 10) : 90};
    return 0;
}

__attribute__((visibility("default"))) const msgl_cuda_api *msgl_cuda_plugin(void)
{
    static const msgl_cuda_api API = {
        .abi = MSGL_CUDA_ABI, .build = "stub", .device_count = device_count, .props = props};
    return &API;
}
