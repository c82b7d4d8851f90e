// SPDX-License-Identifier: Apache-2.0
//
// The CPU as a kind of device. Ranks on it share nothing that a device would have of its own, so
// the engine connects them by the host's means.
#include <stdio.h>

#include "attention/attention.h"
#include "device/devices.h"

static int cpu_count(msgl_err *reason)
{
    (void)reason;
    return 1;
}

static int cpu_props(int ordinal, msgl_device_props *out, msgl_err *err)
{
    (void)ordinal, (void)err;
    *out = (msgl_device_props){.name = "CPU"};
    return 0;
}

static int cpu_open(const msgl_device_options *o, msgl_device **out, msgl_device_props *props,
                    msgl_err *err)
{
    if (props != NULL) (void)cpu_props(o->ordinal, props, err);
    return msgl__device_cpu_create(out, err);
}

static int cpu_kernels(const msgl_device_options *o, msgl_kernels *k, msgl_err *err)
{
    msgl_cpu_level level;
    const int code = msgl__cpu_level_select(o->cpu_level, &level, err);
    if (code == 0) msgl__kernels_init_cpu(k, level);
    return code;
}

const msgl_plugin msgl__cpu_plugin = {
    .abi = MSGL_PLUGIN_ABI,
    .name = "cpu",
    .build = "built in",
    .count = cpu_count,
    .props = cpu_props,
    .open = cpu_open,
    .kernels = cpu_kernels,
    .backends = &msgl__attn_cpu,
};
