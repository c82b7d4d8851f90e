// SPDX-License-Identifier: Apache-2.0
//
// Host side of the prefill kernel: checks, tensor maps and the choice of the instantiation.
#include <math.h>

#include "cuda/attn/prefill_sm90/launch.cuh"
#include "cuda/launch.cuh"
#include "cuda/tensor_map.cuh"

static const float log2_e = 1.4426950408889634f;

// Map of [rows, heads, dim] with boxes of 64 columns x box_heads x box_rows; ld: elements of a row.
static bool encode(CUtensorMap *map, msgl_dtype dtype, const void *at, int dim, int heads,
                   int64_t rows, size_t ld, int box_heads, int box_rows)
{
    const cuuint64_t dims[3] = {(cuuint64_t)dim, (cuuint64_t)heads, (cuuint64_t)rows};
    const cuuint64_t strides[2] = {(cuuint64_t)dim * 2, (cuuint64_t)ld * 2};
    const cuuint32_t box[3] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_rows};
    return msgl__tensor_map_encode(map, dtype, at, 3, dims, strides, box);
}

static cudaError_t encode_maps(const msgl_cuda_attn_call *c, msgl_fa_prefill_params *p)
{
    const size_t ld_kv = (size_t)p->kv_row_bytes / 2;
    if (!encode(&p->q_map, c->dtype, c->q, c->head_dim, c->num_q_heads, c->total_q, c->ld_q,
                p->pack, MSGL_FA_PREFILL_ROWS / p->pack)) {
        return cudaErrorInvalidValue;
    }
    if (c->e4m3) return cudaSuccess; // K and V go through registers
    const bool done = encode(&p->k_map, c->dtype, c->k, c->head_dim, c->num_kv_heads, c->num_slots,
                             ld_kv, 1, p->box_rows) &&
                      encode(&p->v_map, c->dtype, c->v, c->head_dim, c->num_kv_heads, c->num_slots,
                             ld_kv, 1, p->box_rows);
    return done ? cudaSuccess : cudaErrorInvalidValue;
}

// Rows that TMA can take at once: the largest power of two up to a tile that divides the page.
static int box_rows(int page_size, int tile)
{
    int rows = tile;
    while (page_size % rows) rows /= 2;
    return rows;
}

// Of the plan, which is in device memory: every request may have a tile that is not full.
static int64_t most_items(const msgl_cuda_attn_call *c, int pack)
{
    const int tokens = MSGL_FA_PREFILL_ROWS / pack;
    return (int64_t)(c->total_q / tokens + c->batch) * (c->num_q_heads / pack);
}

template <class T>
static cudaError_t launch(const msgl_fa_prefill_params &p, bool cap, bool gather, int grid,
                          cudaStream_t stream)
{
    if (p.head_dim <= 64)
        return cap ? msgl__fa_prefill_launch<T, 64, true>(p, gather, grid, stream)
                   : msgl__fa_prefill_launch<T, 64, false>(p, gather, grid, stream);
    if (p.head_dim <= 128)
        return cap ? msgl__fa_prefill_launch<T, 128, true>(p, gather, grid, stream)
                   : msgl__fa_prefill_launch<T, 128, false>(p, gather, grid, stream);
    return cap ? msgl__fa_prefill_launch<T, 256, true>(p, gather, grid, stream)
               : msgl__fa_prefill_launch<T, 256, false>(p, gather, grid, stream);
}

int msgl__cuda_fa_prefill_sm90(const msgl_cuda_attn_call *c, void *stream)
{
    if (c->dtype == MSGL_F32 || c->head_dim > 256 || c->head_dim % 8 || !(c->scale > 0))
        return cudaErrorNotSupported;
    if (c->e4m3 && !msgl__fa_prefill_takes_e4m3(c)) return cudaErrorNotSupported;
    if (((uintptr_t)c->out | c->ld_out * 2) % 16) return cudaErrorInvalidValue; // of q, k, v: TMA's
    if (c->total_q <= 0) return cudaSuccess;
    const bool cap = c->softcap > 0;
    const int tile = c->head_dim > 128 ? 64 : 128;

    msgl_fa_prefill_params p = {};
    p.k = c->k;
    p.v = c->v;
    p.out = c->out;
    p.lse = c->lse;
    p.plan = (msgl_fa_prefill_plan *)c->plan;
    p.table = c->table;
    p.table_stride = (int64_t)c->table_stride;
    p.paging = c->paging;
    p.ld_out = (int64_t)c->ld_out;
    p.kv_row_bytes = c->num_kv_heads * c->head_dim * (c->e4m3 ? 1 : 2);
    p.num_q_heads = c->num_q_heads;
    p.head_dim = c->head_dim;
    p.pack = msgl__fa_prefill_pack(c->num_q_heads, c->num_kv_heads);
    p.pack_inverse = 65536 / p.pack + 1;
    p.heads_per_kv = c->num_q_heads / c->num_kv_heads / p.pack;
    p.num_slots = (int32_t)c->num_slots;
    p.box_rows = box_rows(c->page_size, tile);
    p.window = c->window;
    p.log2_scale = (cap ? c->softcap : c->scale) * log2_e;
    p.cap_scale = cap ? 2 * log2_e * c->scale / c->softcap : 0;
    p.ln_scale = cap ? c->softcap : c->scale;
    p.out_scale = c->out_scale;
    p.sinks = c->sinks;
    p.second = c->second;

    const bool gather = p.box_rows < 16;
    if (gather) p.box_rows = tile / 4; // what a warp loads at once where slots follow one another
    cudaError_t code = encode_maps(c, &p);
    if (code != cudaSuccess) return code;
    msgl_gpu gpu;
    code = msgl__current_gpu(&gpu);
    if (code != cudaSuccess) return code;
    const int64_t most = most_items(c, p.pack);
    const int grid = most < gpu.sms ? (int)most : gpu.sms;
    if (c->e4m3) {
        return p.head_dim <= 64 ? msgl__fa_prefill_launch_e4m3<64>(p, grid, (cudaStream_t)stream)
                                : msgl__fa_prefill_launch_e4m3<128>(p, grid, (cudaStream_t)stream);
    }
    return c->dtype == MSGL_BF16 ? launch<__nv_bfloat16>(p, cap, gather, grid, (cudaStream_t)stream)
                                 : launch<__half>(p, cap, gather, grid, (cudaStream_t)stream);
}
