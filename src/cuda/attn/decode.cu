// SPDX-License-Identifier: Apache-2.0
//
// Host side of the decode kernel: what a call becomes, and the parameters of its launch.
#include "cuda/attn/decode/launch.cuh"

enum {
    UNITS_PER_REQUEST = 5, // what a request costs besides its tiles, measured in tiles
    MIN_UNITS = 24,        // per CTA; fewer are not worth another split
};

// What the kernel can do of a rope call. The projection's rows are the call's queries.
static bool rope_fits(const msgl_cuda_attn_call *c)
{
    const msgl_rope_call *r = c->rope;
    const uintptr_t bits = (uintptr_t)r->qkv | (uintptr_t)r->q_weight | (uintptr_t)r->k_weight |
                           (uintptr_t)r->cos_sin | (uintptr_t)r->k_pool | (uintptr_t)r->v_pool |
                           r->ld * 2;
    return r->kv_dtype == (c->e4m3 ? MSGL_E4M3 : c->dtype) && r->half % 8 == 0 &&
           2 * r->half <= c->head_dim && r->tokens == c->total_q && r->tokens == c->batch &&
           bits % 16 == 0;
}

static msgl_decode_rope rope_args(const msgl_rope_call *r)
{
    msgl_decode_rope a;
    a.on = true;
    a.half = r->half;
    a.q_weight = r->q_weight;
    a.k_weight = r->k_weight;
    a.cos_sin = r->cos_sin;
    a.eps = r->eps;
    a.k_pool = r->k_pool;
    a.v_pool = r->v_pool;
    a.k_inverse = r->kv_dtype == MSGL_E4M3 ? 1 / r->k_scale : 1;
    a.v_inverse = r->kv_dtype == MSGL_E4M3 ? 1 / r->v_scale : 1;
    a.slots = r->slots;
    return a;
}

extern "C" int msgl__cuda_fa_decode_tuned(const msgl_cuda_attn_call *c,
                                          const msgl_fa_decode_tune *t, void *stream)
{
    if (!msgl__fa_decode_fits(c->dtype, c->head_dim)) return cudaErrorNotSupported;
    if (c->e4m3 && c->dtype != MSGL_BF16) return cudaErrorNotSupported;
    if (c->rope != NULL && !rope_fits(c)) return cudaErrorNotSupported;
    if (c->batch == 0) return cudaSuccess;
    const int32_t group = c->num_q_heads / c->num_kv_heads;
    msgl_decode_args a = {};
    a.q = c->q;
    a.k = c->k;
    a.v = c->v;
    a.out = c->out;
    a.lse = c->lse;
    a.seqlens = c->seqlens_k;
    a.table = c->table;
    a.table_rows = c->table_rows;
    a.ld_q = c->ld_q;
    a.ld_out = c->ld_out;
    a.table_stride = (int32_t)c->table_stride;
    a.paging = c->paging;
    a.slot_bytes = (uint32_t)c->num_kv_heads * (uint32_t)c->head_dim * (c->e4m3 ? 1 : 2);
    a.q_heads = c->num_q_heads;
    a.group = group;
    a.row_blocks = (group + MSGL_FA_MAX_CTA_ROWS - 1) / MSGL_FA_MAX_CTA_ROWS;

    a.rows = a.row_blocks > 1 ? MSGL_FA_MAX_CTA_ROWS : group;
    a.min_units = t->min_units;
    const float log2e = 1.4426950408889634f;
    a.cap_log2 = c->softcap * log2e;
    a.scale_log2 = c->softcap > 0.f ? c->scale / c->softcap : c->scale * log2e;
    a.out_scale = c->out_scale;
    a.sinks = c->sinks;
    a.split.batch = c->batch;
    a.split.window = c->window;
    a.split.overhead = UNITS_PER_REQUEST;
    a.split.heads = c->num_kv_heads * a.row_blocks;
    a.deterministic = c->deterministic;
    a.first = c->first;
    if (c->rope != NULL) a.rope = rope_args(c->rope);
    const msgl_fa_decode_region r =
        msgl__fa_decode_region(c->num_q_heads, c->num_kv_heads, c->head_dim, c->deterministic);
    a.request_stride = c->deterministic ? r.bytes : 0;
    a.counters = (int32_t *)c->workspace;
    a.partial_ml = (float2 *)((char *)c->workspace + r.partial_ml);
    a.partial_o = (float *)((char *)c->workspace + r.partial_o);

    msgl_gpu gpu;
    cudaError_t e = msgl__current_gpu(&gpu);
    if (e != cudaSuccess) return e;
    msgl_decode_gpu g = {gpu.sms, t->ctas, gpu.major == 9 || gpu.major == 10, (cudaStream_t)stream};
    if (c->e4m3) return msgl__fa_decode_e4m3(&a, c->head_dim, &g);
    const bool is_short = c->max_seqlen_k <= MSGL_FA_FEW_LEN;
    if (is_short && msgl__fa_decode_few(&a, c->dtype, c->head_dim, &g, &e)) return e;
    return c->dtype == MSGL_BF16 ? msgl__fa_decode_bf16(&a, c->head_dim, &g)
                                 : msgl__fa_decode_f16(&a, c->head_dim, &g);
}

extern "C" int msgl__cuda_fa_decode(const msgl_cuda_attn_call *c, void *stream)
{
    const msgl_fa_decode_tune t = {MIN_UNITS, 0};
    return msgl__cuda_fa_decode_tuned(c, &t, stream);
}
