// SPDX-License-Identifier: Apache-2.0
//
// Rows of E4M3 for more than 16 query rows: where they lie in shared memory, and the loading side.
// codes_consumer.cuh multiplies by them.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_CODES_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_CODES_CUH

#include "cuda/attn/mla_sm90/config.cuh"
#include "cuda/attn/mla_sm90/producer.cuh"

enum {
    MSGL_MLA_PROB = 2 * MSGL_MLA_TILE * MSGL_MLA_TILE, // bytes of a tile's
    MSGL_MLA_CODES_LOADER_REGISTERS = 24,
    MSGL_MLA_CODES_COMPUTE_REGISTERS = 240,
};

// In the place of two tiles of bf16.
struct msgl_mla_codes_smem {
    unsigned char tiles[MSGL_MLA_CODES_STAGES][MSGL_MLA_CODES_TILE];
    alignas(1024) unsigned char prob[2][MSGL_MLA_PROB]; // of even and odd tiles: [key][row]
    float base[MSGL_MLA_TILE];                          // of each row, as an exponent of 2
    float peak[MSGL_MLA_TILE];                          // the same as a raw score
    float scale[2][MSGL_MLA_TILE]; // what the last even, odd tile's new base multiplies results by
    float most[2][4][MSGL_MLA_TILE];    // of a tile's scores, by each warp
    float sums[2][2][4][MSGL_MLA_TILE]; // of both warpgroups' warps; items take turns
    float2 to[2][MSGL_MLA_TILE];        // by each warpgroup: msgl_mla_codes_consumer::store
    int32_t ends[MSGL_MLA_TILE];        // msgl_mla_sight::end of each row
    bool changed[2];                    // some base, by the last even, odd tile
};
static_assert(sizeof(msgl_mla_codes_smem) <= 2 * MSGL_MLA_TILE_BYTES, "where bf16's tiles are");

static __device__ __forceinline__ msgl_mla_codes_smem &msgl__mla_codes(msgl_mla_smem &s)
{
    return *(msgl_mla_codes_smem *)s.kv;
}

// The ring, from either side: the place of the next tile.
struct msgl_mla_codes_ring {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void next()
    {
        if (++stage == MSGL_MLA_CODES_STAGES) stage = 0, parity ^= 1;
    }
};

template <msgl_mla_mode MODE> struct msgl_mla_codes_producer : msgl_mla_producer<MODE, true> {
    using base = msgl_mla_producer<MODE, true>;
    msgl_mla_codes_ring ring;

    __device__ __forceinline__ msgl_mla_codes_producer(const msgl_mla_params &params,
                                                       msgl_mla_smem &smem, int tile)
        : base(params, smem, tile)
    {
    }

    // As msgl_mla_producer::load.
    __device__ __forceinline__ void load(const msgl_mla_item &it, bool first)
    {
        this->row = this->p.table + (size_t)it.unit.table_row * this->p.table_stride;
        this->len = it.unit.len;
        auto now = this->look_up(it.begin), next = this->look_up(it.begin + 1);
        bool wait = first, has_q = false;
        for (int t = it.begin; t < it.end; t++) {
            const bool old = (t + 1) * MSGL_MLA_TILE <= it.unit.old;
            // A stage is free again once q is there.
            if (wait && (!old || t == it.begin + MSGL_MLA_CODES_STAGES))
                msgl__pdl_wait(), wait = false;
            if (!wait && !has_q) this->load_q(it), has_q = true;
            const auto after = this->look_up(t + 2);
            msgl__mla_wait(&this->s.empty[ring.stage][this->quarter], ring.parity ^ 1);
            unsigned char *tile = msgl__mla_codes(this->s).tiles[ring.stage];
            this->load_quarter(msgl__shared_address(tile + this->chunk * MSGL_MLA_CODES),
                               MSGL_MLA_CODES,
                               msgl__shared_address(&this->s.full[ring.stage][this->quarter]), now);
            ring.next();
            now = next, next = after;
        }
        if (wait) msgl__pdl_wait();
        if (!has_q) this->load_q(it);
    }
};

#endif
