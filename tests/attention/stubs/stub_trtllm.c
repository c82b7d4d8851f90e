// SPDX-License-Identifier: Apache-2.0
#include "attention/stubs/stub.h"

extern stub_trtllm stub;
const msgl_trtllm_api *msgl_trtllm_plugin(void);

static int prepare(const msgl_xqa_shape *shape, msgl_xqa_device *out)
{
    *out = (msgl_xqa_device){.shared_bytes = 1024, .sm_count = 132};
    return stub_xqa_page(shape) != 0 ? 0 : 801; // cudaErrorNotSupported
}

static size_t scratch_bytes(const msgl_xqa_shape *shape, const msgl_xqa_device *device,
                            int32_t max_batch)
{
    (void)shape, (void)device;
    return 64 * (size_t)max_batch;
}

static int decode(const msgl_xqa_call *c, void *stream)
{
    (void)c, (void)stream;
    return 0;
}

static int pages(const msgl_xqa_pages_call *c, void *stream)
{
    (void)c, (void)stream;
    return 0;
}

__attribute__((visibility("default"))) stub_trtllm stub = {
    .api = {MSGL_TRTLLM_ABI, "stub", stub_xqa_page, prepare, scratch_bytes, decode, pages},
};

__attribute__((visibility("default"))) const msgl_trtllm_api *msgl_trtllm_plugin(void)
{
    return &stub.api;
}
