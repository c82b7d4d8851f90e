// SPDX-License-Identifier: Apache-2.0
//
// Expanded latent attention by the prefill kernel: host side and instantiation.
#include "cuda/attn/expanded.h"
#include "cuda/attn/prefill_sm90/inst.cuh"
#include "cuda/tensor_map.cuh"

enum { HEAD = MSGL_EXPANDED_NOPE + MSGL_EXPANDED_V }; // of c->kv

// Of [rows, heads, columns] in boxes of 64 columns of one head, box_rows rows; elements from head
// to head and from row to row.
static bool encode(CUtensorMap *map, const void *at, int columns, int heads, int64_t rows,
                   size_t head, size_t ld, int box_rows)
{
    const cuuint64_t dims[3] = {(cuuint64_t)columns, (cuuint64_t)heads, (cuuint64_t)rows};
    const cuuint64_t strides[2] = {head * 2, ld * 2};
    const cuuint32_t box[3] = {64, 1, (cuuint32_t)box_rows};
    return msgl__tensor_map_encode(map, MSGL_BF16, at, 3, dims, strides, box);
}

static bool encode_maps(const msgl_expanded_call *c, msgl_fa_prefill_params *p)
{
    typedef msgl_fa_expanded_config C;
    const __nv_bfloat16 *kv = (const __nv_bfloat16 *)c->kv;
    const size_t ld = (size_t)c->heads * HEAD;
    return encode(&p->q_map, c->q, C::HD, c->heads, c->tokens, C::HD, c->ld_q, C::M) &&
           encode(&p->k_map, kv, MSGL_EXPANDED_NOPE, c->heads, c->keys, HEAD, ld, C::N) &&
           encode(&p->v_map, kv + MSGL_EXPANDED_NOPE, C::HD_V, c->heads, c->keys, HEAD, ld, C::N) &&
           encode(&p->rotary_map, c->rotary_keys, MSGL_EXPANDED_ROTARY, 1, c->keys,
                  MSGL_EXPANDED_ROTARY, MSGL_EXPANDED_ROTARY, C::N);
}

extern "C" int msgl__cuda_expanded(const msgl_expanded_call *c, void *stream)
{
    typedef msgl_fa_expanded_config C;
    const float log2_e = 1.4426950408889634f;
    if (c->nope != MSGL_EXPANDED_NOPE || c->rotary != MSGL_EXPANDED_ROTARY ||
        c->v_dim != MSGL_EXPANDED_V || !(c->scale > 0)) {
        return cudaErrorNotSupported;
    }
    if (((uintptr_t)c->out | (uintptr_t)c->partial_out) % 16) return cudaErrorInvalidValue;
    if (c->num_reqs == 0) return cudaSuccess;
    msgl_fa_prefill_params p = {};
    if (!encode_maps(c, &p)) return cudaErrorInvalidValue;
    p.out = c->merges ? c->partial_out : c->out;
    p.lse = c->merges ? c->partial_lse : c->lse;
    p.plan = (msgl_fa_prefill_plan *)c->plan;
    p.ld_out = (int64_t)c->heads * C::HD_V;
    p.num_q_heads = c->heads;
    p.head_dim = C::HD_V;
    p.pack = 1;
    p.pack_inverse = 65536 + 1;
    p.heads_per_kv = 1;
    p.num_slots = c->keys;
    p.box_rows = C::N;
    p.window = -1;
    p.log2_scale = c->scale * log2_e;
    p.ln_scale = c->scale;
    p.out_scale = 1;
    msgl_gpu gpu;
    cudaError_t code = msgl__current_gpu(&gpu);
    if (code != cudaSuccess) return code;
    const int64_t most = (int64_t)(c->tokens / C::M + c->num_reqs) * c->heads;
    const int grid = most < gpu.sms ? (int)most : gpu.sms;
    code = msgl__fa_prefill_start<C>(p, grid, (cudaStream_t)stream);
    if (code != cudaSuccess || !c->merges) return code;
    return msgl__cuda_expanded_merge(c, stream);
}
