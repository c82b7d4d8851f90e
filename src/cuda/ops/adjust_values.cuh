// SPDX-License-Identifier: Apache-2.0
//
// What bias and penalties make of one logit, and of which tokens (kernel/ref/adjust.h).
#ifndef MSGL_CUDA_OPS_ADJUST_VALUES_CUH
#define MSGL_CUDA_OPS_ADJUST_VALUES_CUH

#include <stdint.h>

#include "kernel/calls.h"

#define COUNTER_BITS 0x7fc00000u

struct adjust_range { // of positions
    int first, answer, end;
};

static __device__ __forceinline__ adjust_range adjust_places(const msgl_sample_row &p)
{
    const int answer = max(p.prompt_len, p.position - MSGL_MAX_COUNTED);
    const bool counts = p.frequency != 0 || p.presence != 0;
    return adjust_range{p.repetition != 1 ? 0 : counts ? answer : p.position, answer, p.position};
}

static __device__ __forceinline__ float adjust_repeated(const msgl_sample_row &p, float l)
{
    return l > 0 ? __fdiv_rn(l, p.repetition) : __fmul_rn(l, p.repetition);
}

static __device__ __forceinline__ float adjust_answered(const msgl_sample_row &p, float l,
                                                        uint32_t count)
{
    l = __fsub_rn(adjust_repeated(p, l), __fmul_rn(p.frequency, (float)count));
    return __fsub_rn(l, p.presence);
}

#endif
