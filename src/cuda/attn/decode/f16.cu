// SPDX-License-Identifier: Apache-2.0
#include "cuda/attn/decode/launch.cuh"

cudaError_t msgl__fa_decode_f16(const msgl_decode_args *a, int head_dim, const msgl_decode_gpu *g)
{
    return msgl_decode_launch_dim<__half>(*a, head_dim, *g);
}
