// SPDX-License-Identifier: Apache-2.0
#include "cuda/attn/decode/launch.cuh"

cudaError_t msgl__fa_decode_bf16(const msgl_decode_args *a, int head_dim, const msgl_decode_gpu *g)
{
    return msgl_decode_launch_dim<__nv_bfloat16>(*a, head_dim, *g);
}
