// SPDX-License-Identifier: Apache-2.0
//
// Large blocks of device memory at addresses that stay: they are reserved, and memory is mapped to
// them, which can be given back and taken again while captured graphs and tensor maps go on naming
// them (CUDA driver API, "Virtual Memory Management").
#ifndef MSGL_CUDA_MEMORY_CUH
#define MSGL_CUDA_MEMORY_CUH

#include "cuda/device.cuh"

enum { MSGL_CUDA_MAX_MAPPED = 64 };

// Of a device; zero: none.
typedef struct msgl_cuda_mapped {
    struct {
        void *at;     // NULL: free
        size_t bytes; // whole pages of the driver
        unsigned long long memory;
        bool there; // memory is mapped
    } blocks[MSGL_CUDA_MAX_MAPPED];
} msgl_cuda_mapped;

// A block of at least `bytes` on the GPU `ordinal`, mapped and not zeroed; NULL: there is no
// memory, or the driver cannot.
void *msgl__cuda_mapped_alloc(msgl_cuda_mapped *m, int ordinal, size_t bytes);
// False: p is none of the blocks.
bool msgl__cuda_mapped_free(msgl_cuda_mapped *m, void *p);
// What is none of the blocks stays as it is. restore: not zeroed; false: there is no memory.
void msgl__cuda_mapped_discard(msgl_cuda_mapped *m, void *p);
bool msgl__cuda_mapped_restore(msgl_cuda_mapped *m, int ordinal, void *p);

#endif
