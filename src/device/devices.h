// SPDX-License-Identifier: Apache-2.0
//
// Kinds of devices by their names (kernel/plugin.h): the CPU, which is built in, and those that a
// plug-in brings. The core asks for them here and nowhere else.
#ifndef MSGL_DEVICE_DEVICES_H
#define MSGL_DEVICE_DEVICES_H

#include "kernel/kernel.h"
#include "kernel/plugin.h"

extern const msgl_plugin msgl__cpu_plugin; // cpu.c

// The plug-in of a kind, its version checked: "cpu", or what minisgl-NAME.so brings. NULL sets
// *err.
const msgl_plugin *msgl__plugin_of(const char *name, msgl_err *err);

// The kinds that `auto` and `minisgl info` look for, fastest first, NULL-terminated; the CPU is not
// among them.
extern const char *const msgl__device_kinds[];

// Whether the machine has what drives such devices, its own or that of the Windows around it: then
// it is news that none is used.
bool msgl__device_has_driver(const char *name);

// What --device asks for.
typedef struct msgl_device_choice {
    const msgl_plugin *plugin;
    int ordinal;    // of the device
    int sharing;    // ranks that use it, this one included
    char note[256]; // "auto" fell back to the CPU: why, one line; else ""
} msgl_device_choice;

// For process `rank` of `ranks` that each want a device. spec: "auto" (or NULL: the first kind of
// which there are any, else the CPU), "cpu", "NAME" (device 0 of that kind for rank 0, and so on),
// or "NAME:A,B" with a device for each rank, which may be the same for several. Errors name what is
// missing, or what is allowed.
int msgl__device_choose(const char *spec, int rank, int ranks, msgl_device_choice *out,
                        msgl_err *err);

#endif
