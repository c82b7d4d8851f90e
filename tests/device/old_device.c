// SPDX-License-Identifier: Apache-2.0
//
// minisgl-old.so: a plug-in of a build long ago.
#include "kernel/plugin.h"

const msgl_plugin *msgl_device_plugin(void);

__attribute__((visibility("default"))) const msgl_plugin *msgl_device_plugin(void)
{
    static const msgl_plugin PLUGIN = {.abi = 1, .name = "old"};
    return &PLUGIN;
}
