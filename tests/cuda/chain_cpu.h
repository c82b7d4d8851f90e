// SPDX-License-Identifier: Apache-2.0
//
// The CPU's kernels for a test of a GPU's: kernel/kernel.h is C11 that C++ cannot include.
#ifndef MSGL_TESTS_CUDA_CHAIN_CPU_H
#define MSGL_TESTS_CUDA_CHAIN_CPU_H

#include "kernel/calls.h"

// msgl_sample_kernels.chain of the CPU; the exec's status.
int chain_on_cpu(const msgl_sample_call *c);

#endif
