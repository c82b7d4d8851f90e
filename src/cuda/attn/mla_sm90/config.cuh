// SPDX-License-Identifier: Apache-2.0
//
// Parameters of the MLA kernel, its work, and its shared memory.
//
// A unit is query rows of a request and the keys that they see: all of its rows, or, in ragged
// calls, up to 64 or 128 of them. The keys of a step's units are cut into KV ranges, each for every
// tile of a unit's rows: block range * row_tiles + tile. A range is everything between two places,
// each a unit and a tile of its keys. What it has of a unit is an item: all of it, or a split of
// it.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_CONFIG_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_CONFIG_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/attn/mla.h"
#include "cuda/attn/page_row.cuh"
#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/shared.cuh"

enum {
    MSGL_MLA_CHUNKS = MSGL_MLA_ROW / 64, // of 64 columns: 128 bytes
    MSGL_MLA_CHUNK = MSGL_MLA_TILE * 128,
    MSGL_MLA_TILE_BYTES = MSGL_MLA_CHUNKS * MSGL_MLA_CHUNK,
    MSGL_MLA_CODES = MSGL_MLA_TILE * 64, // bytes of a chunk as E4M3
    MSGL_MLA_QUARTERS = 4, // of a loaded tile's columns: two chunks each, the last one three
    MSGL_MLA_HALF_SUMS = MSGL_MLA_LATENT / 4,
    MSGL_MLA_PAIRS_PAGE = 16,  // least page of pairs
    MSGL_MLA_GATHER_ROWS = 32, // of a tile, for a loading warp
    MSGL_MLA_THREADS = 384,
    MSGL_MLA_LOADER_REGISTERS = 56,
    MSGL_MLA_COMPUTE_REGISTERS = 224,
    MSGL_MLA_FEW_RANGES = 16,    // of few.cuh, at most
    MSGL_MLA_FEW_ROWS = 16,      // query rows of a request there, at most
    MSGL_MLA_WAIT_NS = 10000000, // that a thread may sleep at a time until a barrier's phase ends
};

// Named barriers.
enum {
    MSGL_MLA_BAR_FIRST = 1,  // the even tile's probabilities are there
    MSGL_MLA_BAR_SECOND = 2, // the odd tile's
    MSGL_MLA_BAR_BOTH = 3,   // both computing warpgroups
    MSGL_MLA_BAR_GROUP = 4,  // + warpgroup
};

// How rows arrive. BOXES: of large pages, by TMA. GATHER: of small ones, whose slots are looked up
// row by row. PAIRS: boxes; the blocks of two tiles of query rows are a cluster, and each loads
// half for both.
enum msgl_mla_mode { MSGL_MLA_BOXES, MSGL_MLA_GATHER, MSGL_MLA_PAIRS };

// What is multiplied: of E4M3 f16, which has every value of it and takes the fewest instructions.
template <bool E4M3> using msgl_mla_product = std::conditional_t<E4M3, __half, __nv_bfloat16>;

// What the plan says of a unit.
struct alignas(16) msgl_mla_unit {
    int32_t len, table_row; // keys that its last row sees
    // Where its first partial lies: 2 * range, + 1 unless it is the range's first unit. Its partial
    // in each later range is that one's first: of a unit that begins inside range 3 and ends in
    // range 5, the partials lie at 7, 8 and 10.
    int32_t first_slot, last_range;
    int32_t first_row, rows; // of q as [tokens * heads, 576]
    int32_t seen, old;       // keys that its first row sees; keys older than the step
};

struct msgl_mla_bound {
    int32_t unit, tile; // place before tile `tile` of units[unit]
};

// A KV range has the tiles of the step's units from one bound up to another one: with units of 3, 5
// and 2 tiles, {1, 2} to {2, 1} are tiles 2, 3 and 4 of unit 1 and tile 0 of unit 2.
struct alignas(16) msgl_mla_kv_range {
    msgl_mla_bound from, to;
    msgl_mla_unit first; // units[from.unit]
};

struct msgl_mla_plan {
    msgl_mla_kv_range ranges[MSGL_MLA_MAX_CTAS];
    // behind it: msgl_mla_unit[], what msgl_mla_plan_args says of sums and starts
};

struct msgl_mla_params {
    CUtensorMap kv_map, q_map;
    const __nv_bfloat16 *q;
    __nv_bfloat16 *out;
    float *lse;
    const char *kv;
    const msgl_mla_plan *plan;
    const msgl_mla_unit *units;
    const int32_t *table;
    const uint64_t *tree; // or NULL
    size_t ld_q, ld_out, table_stride;
    msgl_paging paging;
    int32_t *counters;  // 2 of each (range, row tile): msgl_mla_open
    float2 *partial_ml; // maximum and sum of each row of each partial
    float4 *partial_o;
    int32_t heads, rows; // rows: most of a unit
    int32_t row_tiles, row_groups;
    // Of q_map; q_box_rows 0: a tile's rows are of several tokens, copied row by row.
    int32_t q_box_rows, q_box_heads;
    int32_t box_rows, box_shift, num_slots; // box_rows = 1 << box_shift
    float log2_scale;                       // of a raw score to the exponent of 2
    float ln_scale;                         // of a raw score to the natural exponent
    float out_scale;
    bool codes_in_q; // E4M3: query rows from MSGL_MLA_TILE / 2 on are none; codes land there
    bool rows16;     // E4M3: by rows16.cuh
};

struct msgl_mla_smem {
    alignas(1024) unsigned char q[MSGL_MLA_TILE_BYTES];
    alignas(1024) unsigned char kv[2][MSGL_MLA_TILE_BYTES]; // even and odd tiles
    uint4 prob[4 * 128];         // probabilities for the other warpgroup, in the order of registers
    float max[2][MSGL_MLA_TILE]; // behind the even and the odd tile
    float sum[2][2][MSGL_MLA_TILE]; // of both warpgroups' tiles; items take turns
    uint64_t q_full, q_empty;
    uint64_t left, merge; // this block's partials are in memory, all blocks' are
    uint64_t full[2][MSGL_MLA_QUARTERS], empty[2][MSGL_MLA_QUARTERS]; // [stage]
    uint64_t codes[2][MSGL_MLA_QUARTERS]; // E4M3: have landed, and are not yet what is multiplied
};

// What a range has of a unit: tiles [begin, end) of its keys.
struct msgl_mla_item {
    msgl_mla_unit unit;
    int32_t index; // of the unit
    int32_t begin, end;
};

// A range's items, in order.
struct msgl_mla_walk {
    const msgl_mla_unit *units;
    msgl_mla_bound from, to;
    int32_t index;
    msgl_mla_unit ahead;

    __device__ __forceinline__ msgl_mla_walk(const msgl_mla_params &p, int range) : units(p.units)
    {
        const msgl_mla_kv_range s = p.plan->ranges[range];
        from = s.from;
        to = s.to;
        index = from.unit;
        ahead = s.first;
    }

    __device__ __forceinline__ bool more() const
    {
        return index < to.unit ||
               (index == to.unit && to.tile > 0 && (index > from.unit || to.tile > from.tile));
    }

    // The next item; only if there are more.
    __device__ __forceinline__ msgl_mla_item take()
    {
        msgl_mla_item it;
        it.unit = ahead;
        it.index = index;
        it.begin = index == from.unit ? from.tile : 0;
        it.end = index == to.unit ? to.tile : (ahead.len + MSGL_MLA_TILE - 1) / MSGL_MLA_TILE;
        index++;
        if (more()) ahead = units[index];
        return it;
    }
};

// The parities of what is waited for, a bit each.
struct msgl_mla_phases {
    uint32_t bits = 0;

    __device__ __forceinline__ uint32_t of(int i) const
    {
        return bits >> i & 1;
    }
    __device__ __forceinline__ void flip(int i)
    {
        bits ^= 1u << i;
    }
};

static __device__ __forceinline__ void msgl__mla_wait(const uint64_t *barrier, uint32_t parity)
{
    msgl__mbarrier_wait<MSGL_MLA_WAIT_NS>(msgl__shared_address(barrier), parity);
}

#endif
