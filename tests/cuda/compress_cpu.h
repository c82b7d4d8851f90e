// SPDX-License-Identifier: Apache-2.0
//
// The CPU's kernels of families compress and hyper for tests of a GPU's: kernel/kernel.h is C11
// that C++ cannot include. In plain C; all return the exec's status.
#ifndef MSGL_TESTS_CUDA_COMPRESS_CPU_H
#define MSGL_TESTS_CUDA_COMPRESS_CPU_H

#include "kernel/compress.h"
#include "kernel/hyper.h"

int rotate_on_cpu(const msgl_pair_rope_call *c);
int store_rows_on_cpu(const msgl_store_rows_call *c);
int compress_on_cpu(const msgl_compress_call *c);

// mix NULL: head, which has no result; else open.
int hyper_on_cpu(const msgl_hyper *h, const float *in, int32_t rows, float *mix, float *out,
                 float *result);
int hyper_close_on_cpu(const msgl_hyper *h, const float *mix, const float *block, int32_t rows,
                       float *streams);

#endif
