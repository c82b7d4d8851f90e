// SPDX-License-Identifier: Apache-2.0
//
// Where kernels run. On the CPU a kernel call computes before it returns, on the pool's threads; on
// a GPU it only queues work on the device's stream. Callers therefore never read a kernel's result
// on the host except after the step's completion, and pass device pointers that they do not
// dereference.
#ifndef MSGL_KERNEL_EXEC_H
#define MSGL_KERNEL_EXEC_H

#include <stdbool.h>

#include "core/dtype.h"
#include "core/mem.h"
#include "utils/threadpool.h"

typedef struct msgl_device msgl_device; // kernel/device.h

typedef struct msgl_exec {
    msgl_device *device; // NULL in programs that only use CPU kernels
    msgl_dtype act;      // of activations: f32 on the CPU
    msgl_pool *pool;     // CPU
    msgl_arena *scratch; // device memory for temporaries of kernels; the step resets it
    // Rows are of prompts, never one by one as an answer's are: products may be made in a way that
    // costs few rows time. It changes last bits, so it is the same for all calls of a model.
    bool prompts_only;
    int status; // first failure since the step began (0: none); kernels themselves return void
} msgl_exec;

#endif
