// SPDX-License-Identifier: Apache-2.0
//
// minisgl-cuda.so with one GPU, of the compute capability (x 10) in STUB_CAPABILITY, that can be
// looked at and not opened; its backends are the real ones, without kernels.
#include <stdio.h>
#include <stdlib.h>

#include "cuda/backends/registry.h"
#include "kernel/plugin.h"

const msgl_plugin *msgl_device_plugin(void);

static int count(msgl_err *reason)
{
    (void)reason;
    return 1;
}

static int props(int ordinal, msgl_device_props *out, msgl_err *err)
{
    (void)ordinal, (void)err;
    const char *text = getenv("STUB_CAPABILITY");
    const int32_t capability = text != NULL ? (int32_t)strtol(text, NULL, 10) : 90;
    *out = (msgl_device_props){.name = "stub", .driver = "no driver", .capability = capability};
    snprintf(out->details, sizeof out->details, "compute capability %d.%d", (int)capability / 10,
             (int)capability % 10);
    return 0;
}

__attribute__((visibility("default"))) const msgl_plugin *msgl_device_plugin(void)
{
    static const msgl_plugin PLUGIN = {.abi = MSGL_PLUGIN_ABI,
                                       .name = "cuda",
                                       .build = "stub",
                                       .count = count,
                                       .props = props,
                                       .backends = &msgl__attn_cuda};
    return &PLUGIN;
}
