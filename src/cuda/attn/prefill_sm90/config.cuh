// SPDX-License-Identifier: Apache-2.0
//
// Tile constants of the prefill kernel, its parameters and its shared memory.
#ifndef MSGL_CUDA_ATTN_PREFILL_SM90_CONFIG_CUH
#define MSGL_CUDA_ATTN_PREFILL_SM90_CONFIG_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/attn/prefill_sm90.h"

// T: __nv_bfloat16 or __half; HD: head_dim rounded up to 64, 128 or 256; GATHER: for pages of fewer
// than 16 rows, whose slots are looked up row by row, as those of E4M3 are: the loading warps make
// f16 of that, which takes one instruction for two values (bf16 takes four).
template <class T_, int HD_, bool GATHER_, bool SOFTCAP_, bool E4M3_ = false>
struct msgl_fa_prefill_config {
    using T = T_;                                          // of q and out
    using Product = std::conditional_t<E4M3_, __half, T_>; // of what is multiplied
    static constexpr int HD = HD_;
    static constexpr bool GATHER = GATHER_ || E4M3_, SOFTCAP = SOFTCAP_, E4M3 = E4M3_;
    static constexpr bool EXPANDED = false;
    static constexpr int M = MSGL_FA_PREFILL_ROWS;
    static constexpr int N = HD == 256 ? 64 : 128; // keys of a tile
    static constexpr int BLOCKS = HD / 64;         // of 64 columns (128 bytes)
    static constexpr int HD_V = HD, V_BLOCKS = BLOCKS;
    static constexpr int Q_BYTES = M * HD * 2, KV_BYTES = N * HD * 2;
    static constexpr int GATHER_ROWS = N / 4; // of a tile, for a loading warp
    static constexpr int Q_BUFFERS = HD == 256 ? 1 : 2;
    static constexpr int STAGES = (HD == 64 ? 8 : HD == 128 ? 5 : 4) - E4M3;
    static constexpr int CODES_BYTES = E4M3 ? N * HD : 0; // of a tile of E4M3
    static constexpr bool Q_REGISTERS = HD <= 128;        // Q as A operand from registers
    static constexpr int CONSUMERS = 2;                   // warpgroups of 64 rows
    static constexpr int THREADS = 128 * (1 + CONSUMERS);
    static constexpr int PRODUCER_REGISTERS = 56;
    static constexpr int CONSUMER_REGISTERS = 224;
};

// Expanded latent attention (kernel/expanded.h): heads of Q and K have 192 columns, the last 64 of
// K a rotary key that all heads share, and those of V 128. Keys lie one behind the other: in place
// of a row of the page table a tile has the row of its request's first key.
struct msgl_fa_expanded_config {
    using T = __nv_bfloat16;
    using Product = T;
    static constexpr int HD = 192, HD_V = 128;
    static constexpr bool GATHER = false, SOFTCAP = false, E4M3 = false, EXPANDED = true;
    static constexpr int M = MSGL_FA_PREFILL_ROWS;
    static constexpr int N = 128;
    static constexpr int BLOCKS = HD / 64, V_BLOCKS = HD_V / 64;
    static constexpr int Q_BYTES = M * HD * 2, KV_BYTES = N * HD * 2;
    static constexpr int GATHER_ROWS = N / 4;
    static constexpr int Q_BUFFERS = 1, STAGES = 3;
    static constexpr int CODES_BYTES = 0;
    static constexpr bool Q_REGISTERS = false;
    static constexpr int CONSUMERS = 2;
    static constexpr int THREADS = 128 * (1 + CONSUMERS);
    static constexpr int PRODUCER_REGISTERS = 56;
    static constexpr int CONSUMER_REGISTERS = 224;
};

struct msgl_fa_prefill_params {
    CUtensorMap q_map, k_map, v_map; // [tokens, heads, head_dim]; of k and v with slots as tokens
    CUtensorMap rotary_map;          // expanded: [keys, 1, 64]
    const void *k, *v;
    void *out;
    float *lse;
    msgl_fa_prefill_plan *plan;
    const int32_t *table;
    msgl_paging paging;
    int64_t table_stride, ld_out;
    int32_t num_q_heads, head_dim, pack, heads_per_kv; // head_dim: of V; head groups per KV head
    int32_t num_slots, kv_row_bytes, box_rows, window;
    int32_t pack_inverse; // floor(2^16 / pack) + 1: r * it >> 16 is r / pack for a row of a tile
    float log2_scale;     // of a raw (or, with a soft cap, squashed) score to the exponent of 2
    float cap_scale;      // of a raw score to tanh's argument times 2 log2(e)
    float ln_scale;       // of a raw or squashed score to the natural exponent
    float out_scale;
    const float *sinks; // [num_q_heads], or NULL
    bool second;        // as in msgl_cuda_attn_call
};

// What the producer tells the consumers about a tile; tokens == 0: no more.
struct msgl_fa_prefill_work {
    msgl_fa_prefill_tile tile;
    int32_t head; // group of heads
};

enum { MSGL_FA_WORK_WORDS = sizeof(msgl_fa_prefill_work) / 4 };

template <int BYTES> struct msgl_fa_prefill_codes {
    alignas(16) unsigned char codes[2][BYTES];
};
template <> struct msgl_fa_prefill_codes<0> {
};

template <class C> struct msgl_fa_prefill_smem : msgl_fa_prefill_codes<C::CODES_BYTES> {
    alignas(1024) unsigned char q[C::Q_BUFFERS][C::Q_BYTES];
    alignas(1024) unsigned char kv[C::STAGES][C::KV_BYTES];
    msgl_fa_prefill_work work[C::Q_BUFFERS];
    // Every thread that writes or reads an item of work arrives itself on the barrier that says so.
    uint64_t work_full[C::Q_BUFFERS], q_full[C::Q_BUFFERS], q_empty[C::Q_BUFFERS];
    uint64_t kv_full[C::STAGES], kv_empty[C::STAGES];
};

// That a thread may sleep at a time until a barrier's phase is over.
enum { MSGL_FA_WAIT_NS = 10000000 };

// A ring's position: index and the parity of its current round.
template <int N> struct msgl_fa_ring {
    int at = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next()
    {
        if (++at == N) {
            at = 0;
            parity ^= 1;
        }
    }
};

#endif
