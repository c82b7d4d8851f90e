// SPDX-License-Identifier: Apache-2.0
//
// Opening plug-ins. A plug-in is a shared object with one exported function that returns a const
// table; it stays open until the process ends. They are looked for in $MINISGL_PLUGIN_DIR, if that
// is set, else in the folder of the program or library that this code is in, then in
// ../lib/minisgl beside that.
#ifndef MSGL_KERNEL_CUDA_LOADER_H
#define MSGL_KERNEL_CUDA_LOADER_H

#include "core/err.h"
#include "kernel/cuda/plugin.h"

// The address of `symbol` in plug-in `name` ("minisgl-cuda.so"); with symbol NULL, something that
// is not NULL if it opens at all. NULL sets *err: MSGL_ENOENT when there is no such file (says
// where it was looked for), MSGL_EUNSUPPORTED when it cannot be opened.
void *msgl__plugin_open(const char *name, const char *symbol, msgl_err *err);

// Whether this machine has an NVIDIA driver, its own or that of the Windows around it.
bool msgl__cuda_has_driver(void);

// minisgl-cuda.so's table, its version checked. NULL sets *err.
const msgl_cuda_api *msgl__cuda_api_open(msgl_err *err);

// What --device asks for.
typedef struct msgl_device_choice {
    msgl_device_kind kind;
    int ordinal;              // of the GPU
    int sharing;              // ranks that use it, this one included
    const msgl_cuda_api *api; // NULL on the CPU
    char note[256];           // "auto" fell back to the CPU: why, one line; else ""
} msgl_device_choice;

// For process `rank` of `ranks` that each want a GPU. spec: "auto" (or NULL: GPUs if there are any,
// else the CPU), "cpu", "cuda" (GPU 0 for rank 0, and so on), or "cuda:A,B" with a GPU for each
// rank, which may be the same for several. Errors name what is missing, or what is allowed.
int msgl__device_choose(const char *spec, int rank, int ranks, msgl_device_choice *out,
                        msgl_err *err);

#endif
