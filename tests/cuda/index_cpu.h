// SPDX-License-Identifier: Apache-2.0
//
// The CPU's choice of blocks and lists for a test of a GPU's: kernel/kernel.h is C11 that C++
// cannot include.
#ifndef MSGL_TESTS_CUDA_INDEX_CPU_H
#define MSGL_TESTS_CUDA_INDEX_CPU_H

#include "kernel/index.h"

// msgl_index_kernels.choose_blocks in plain C; the exec's status.
int blocks_on_cpu(const msgl_index_blocks_call *c);
int means_on_cpu(const msgl_index_blocks_call *c); // choose_means
int list_on_cpu(const msgl_index_list_call *c);    // list

#endif
