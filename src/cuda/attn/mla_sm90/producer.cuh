// SPDX-License-Identifier: Apache-2.0
//
// The loading side: four warps, each loads one of the four quarters of a tile of keys. With large
// pages TMA boxes; with small ones the warp looks up each row's slot: where 32 follow one another,
// as a new prompt's do, they are a box, else rows are copied in 16-byte pieces. The query rows, in
// boxes or pieces, by all four.
//
// Of E4M3 codes arrive, swizzled by 64 bytes, and the warp makes f16 of its quarter of them (for
// few query rows see rows16.cuh). Where a block has no more than half of its query rows, codes land
// in the other half's place, so that the next tile is under way once this one is converted. Else
// they land in the stage itself, in the second half of the quarter's place: when a batch of codes
// has been read, what it becomes ends before the codes behind it.
#ifndef MSGL_CUDA_ATTN_MLA_SM90_PRODUCER_CUH
#define MSGL_CUDA_ATTN_MLA_SM90_PRODUCER_CUH

#include "cuda/attn/mla_sm90/config.cuh"
#include "cuda/launch.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/e4m3.cuh"
#include "cuda/ptx/tma.cuh"

template <msgl_mla_mode MODE, bool E4M3> struct msgl_mla_producer {
    static constexpr bool GATHER = MODE == MSGL_MLA_GATHER, PAIRS = MODE == MSGL_MLA_PAIRS;
    static constexpr int ROW = E4M3 ? 64 : 128; // bytes of a chunk's row in memory
    const msgl_mla_params &p;
    msgl_mla_smem &s;
    const int row_tile, lane, quarter;
    const int chunk, chunks; // the quarter's
    msgl_mla_phases phases;  // of the stages; bit 2: of q
    msgl_page_row row;       // of the table
    int32_t len;

    // What a lane knows of a tile: the first slot of box `lane`; GATHER: the slots of rows `lane`
    // and `lane + 32`. -1: no key is there. From look_up it has their pages, of which resolve makes
    // slots when they have arrived.
    struct found {
        int32_t slot[GATHER ? 2 : 1];
    };

    __device__ __forceinline__ msgl_mla_producer(const msgl_mla_params &params, msgl_mla_smem &smem,
                                                 int tile)
        : p(params), s(smem), row_tile(tile), lane(threadIdx.x & 31), quarter(threadIdx.x >> 5),
          chunk(2 * quarter), chunks(quarter == MSGL_MLA_QUARTERS - 1 ? 3 : 2)
    {
    }

    // A unit's query rows. What is behind the last one may be anything: each row computes for
    // itself.
    __device__ __forceinline__ void load_q(const msgl_mla_item &it)
    {
        const uint32_t bar = msgl__shared_address(&s.q_full), to = msgl__shared_address(s.q);
        const int first = it.unit.first_row + row_tile * MSGL_MLA_TILE;
        const int rows = min(it.unit.rows - row_tile * MSGL_MLA_TILE, (int)MSGL_MLA_TILE);
        msgl__mla_wait(&s.q_empty, phases.of(2) ^ 1);
        phases.flip(2);
        if (p.q_box_rows > 0) {
            if (lane != 0) return;
            const int token = first / p.q_box_heads, head = first - token * p.q_box_heads;
            msgl__mbarrier_expect(bar, (uint32_t)(chunks * p.q_box_rows * 128));
            for (int c = chunk; c < chunk + chunks; c++)
                msgl__tensor_load(to + c * MSGL_MLA_CHUNK, &p.q_map, c * 64, head, token, bar);
            return;
        }
        const int piece = threadIdx.x & 7; // of 16 bytes, of each chunk
        for (int r = threadIdx.x >> 3; r < rows; r += 16) {
            const int token = (first + r) / p.heads, head = first + r - token * p.heads;
            const __nv_bfloat16 *from =
                p.q + (size_t)token * p.ld_q + head * MSGL_MLA_ROW + piece * 8;
            const uint32_t at = to + r * 128 + ((piece ^ (r & 7)) << 4);
#pragma unroll
            for (int c = 0; c < MSGL_MLA_CHUNKS; c++)
                msgl__copy_async_16(at + c * MSGL_MLA_CHUNK, from + c * 64, true);
        }
        msgl__copy_async_arrive(bar);
    }

    __device__ __forceinline__ int32_t page_of(int32_t key) const
    {
        return key < len ? row.page(key) : -1;
    }

    __device__ __forceinline__ void resolve(found *f, int tile) const
    {
#pragma unroll
        for (int i = 0; i < (GATHER ? 2 : 1); i++) {
            const int at = GATHER ? lane + i * MSGL_MLA_GATHER_ROWS : lane << p.box_shift;
            if (f->slot[i] >= 0) f->slot[i] = row.slot(f->slot[i], tile * MSGL_MLA_TILE + at);
        }
    }

    __device__ __forceinline__ found look_up(int tile) const
    {
        const int32_t first = tile * MSGL_MLA_TILE;
        found f;
        if constexpr (GATHER) {
            f.slot[0] = page_of(first + lane);
            f.slot[1] = page_of(first + lane + MSGL_MLA_GATHER_ROWS);
        } else {
            const int32_t at = lane << p.box_shift;
            f.slot[0] = at < MSGL_MLA_TILE ? page_of(first + at) : -1;
        }
        return f;
    }

    // Boxes of 64 columns x box_rows; stride: from chunk to chunk. One without a key comes from
    // behind the pool, which TMA reads as zeros. The blocks of a pair take turns.
    __device__ __forceinline__ void load_boxes(uint32_t to, int stride, uint32_t bar, int32_t slots)
    {
        const int per_chunk = MSGL_MLA_TILE >> p.box_shift, count = per_chunk * chunks;
        if (lane == 0) msgl__mbarrier_expect(bar, (uint32_t)(chunks * MSGL_MLA_TILE * ROW));
        for (int i = PAIRS ? (int)msgl__cluster_rank() : 0; i < count; i += PAIRS ? 2 : 1) {
            const int box = i & (per_chunk - 1), c = i / per_chunk;
            const int32_t found = __shfl_sync(0xffffffff, slots, box);
            const int32_t slot = found < 0 ? p.num_slots : found;
            const uint32_t at = to + c * stride + (box << p.box_shift) * ROW;
            if (lane != 0) continue;
            if (PAIRS)
                msgl__tensor_load_multicast(at, &p.kv_map, (chunk + c) * 64, slot, bar, 3);
            else
                msgl__tensor_load(at, &p.kv_map, (chunk + c) * 64, slot, bar);
        }
    }

    // 32 rows, a lane's slot each.
    __device__ __forceinline__ void load_rows(uint32_t to, int stride, uint32_t bar, int32_t slots)
    {
        const int32_t first = __shfl_sync(0xffffffff, slots, 0);
        if (__all_sync(0xffffffff, first >= 0 && slots == first + lane)) {
            if (lane > 0) {
                msgl__mbarrier_arrive(bar);
                return;
            }
            msgl__mbarrier_expect(bar, (uint32_t)(chunks * MSGL_MLA_GATHER_ROWS * ROW));
            for (int c = 0; c < chunks; c++)
                msgl__tensor_load(to + c * stride, &p.kv_map, (chunk + c) * 64, first, bar);
            return;
        }
        const int piece = lane % (ROW / 16), row0 = lane / (ROW / 16);
        const char *from = p.kv + chunk * ROW + piece * 16;
#pragma unroll
        for (int i = 0; i < ROW / 16; i++) {
            const int r = i * (512 / ROW) + row0;
            const int32_t slot = __shfl_sync(0xffffffff, slots, r);
            const char *src = from + (int64_t)max(slot, 0) * (MSGL_MLA_CHUNKS * ROW);
            const int swizzle = E4M3 ? r >> 1 & 3 : r & 7;
            const uint32_t at = to + r * ROW + ((piece ^ swizzle) << 4);
            msgl__copy_async_16(at, src, slot >= 0);
            msgl__copy_async_16(at + stride, src + ROW, slot >= 0);
            if (chunks > 2) msgl__copy_async_16(at + 2 * stride, src + 2 * ROW, slot >= 0);
        }
        msgl__copy_async_arrive(bar);
    }

    __device__ __forceinline__ void load_quarter(uint32_t to, int stride, uint32_t bar,
                                                 const found &f)
    {
        if constexpr (GATHER) {
            load_rows(to, stride, bar, f.slot[0]);
            load_rows(to + MSGL_MLA_GATHER_ROWS * ROW, stride, bar, f.slot[1]);
        } else {
            load_boxes(to, stride, bar, f.slot[0]);
        }
    }

    __device__ __forceinline__ void wait_empty(int stage)
    {
        msgl__mla_wait(&s.empty[stage][quarter], phases.of(stage) ^ 1);
    }

    __device__ __forceinline__ void load_tile(int stage, const found &f)
    {
        wait_empty(stage);
        phases.flip(stage);
        load_quarter(msgl__shared_address(s.kv[stage] + chunk * MSGL_MLA_CHUNK), MSGL_MLA_CHUNK,
                     msgl__shared_address(&s.full[stage][quarter]), f);
    }

    // Where a tile's codes of the quarter land; stride: from chunk to chunk.
    __device__ __forceinline__ uint32_t codes_of(int stage, int *stride) const
    {
        *stride = p.codes_in_q ? MSGL_MLA_CHUNK : MSGL_MLA_CODES;
        if (p.codes_in_q)
            return msgl__shared_address(s.q + chunk * MSGL_MLA_CHUNK) + MSGL_MLA_TILE / 2 * 128;
        return msgl__shared_address(s.kv[stage] + chunk * MSGL_MLA_CHUNK) + chunks * MSGL_MLA_CODES;
    }

    __device__ __forceinline__ void fetch_codes(int stage, const found &f)
    {
        int stride;
        const uint32_t to = codes_of(stage, &stride);
        if (!p.codes_in_q) wait_empty(stage);
        load_quarter(to, stride, msgl__shared_address(&s.codes[stage][quarter]), f);
    }

    // Sixteen codes of a lane at a time: two pieces of a swizzled row.
    __device__ __forceinline__ void convert(int stage)
    {
        enum { BATCH = 4 }; // reads in flight, of 8 rows each
        int stride;
        const uint32_t from = codes_of(stage, &stride) + lane * 16;
        const int row_in_8 = lane >> 2, in_row = (lane & 3) ^ (row_in_8 >> 1);
        const int piece = (in_row * 2) ^ row_in_8;
        const uint32_t to = msgl__shared_address(s.kv[stage] + chunk * MSGL_MLA_CHUNK) +
                            row_in_8 * 128 + piece * 16;
        msgl__mla_wait(&s.codes[stage][quarter], phases.of(stage));
        if (p.codes_in_q) wait_empty(stage);
        phases.flip(stage);
        for (int c = 0; c < chunks; c++) {
#pragma unroll
            for (int i = 0; i < MSGL_MLA_TILE / 8; i += BATCH) {
                uint4 codes[BATCH];
#pragma unroll
                for (int j = 0; j < BATCH; j++)
                    codes[j] = msgl__read_shared<uint4>(from + c * stride + (i + j) * 512);
                __syncwarp(); // what is written next may lie where others have read
#pragma unroll
                for (int j = 0; j < BATCH; j++) {
                    const uint32_t at = to + c * MSGL_MLA_CHUNK + (i + j) * 1024;
                    msgl__write_shared(at, msgl__eight_to_f16(codes[j].x, codes[j].y));
                    msgl__write_shared(at ^ 16, msgl__eight_to_f16(codes[j].z, codes[j].w));
                }
            }
        }
        msgl__fence_async_proxy();
        __syncwarp();
        if (lane == 0) msgl__mbarrier_arrive(msgl__shared_address(&s.full[stage][quarter]));
    }

    // Starts bringing a pair's tile to the L2 before its turn, so that a stage waits for the L2
    // alone: this block's 32 rows of the quarter.
    __device__ __forceinline__ void prefetch(const found &f) const
    {
        const int r = (int)msgl__cluster_rank() * 32 + lane;
        const int32_t first = __shfl_sync(0xffffffff, f.slot[0], r >> p.box_shift);
        if (first < 0) return;
        const int64_t slot = first + (r & (p.box_rows - 1));
        const char *from = p.kv + (slot * MSGL_MLA_CHUNKS + chunk) * ROW;
        for (int c = 0; c < chunks; c++) msgl__prefetch_l2(from + c * ROW);
    }

    // An item; of the range's first one the keys that are older than the step before the kernel
    // before this one has ended.
    __device__ __forceinline__ void load(const msgl_mla_item &it, bool first)
    {
        row = msgl__page_row(p, it.unit.table_row);
        len = it.unit.len;
        found now = look_up(it.begin), next = look_up(it.begin + 1), after = look_up(it.begin + 2);
        resolve(&now, it.begin), resolve(&next, it.begin + 1);
        const int ahead = E4M3 && p.codes_in_q ? 1 : 0; // tiles whose codes are asked for early
        bool wait = first, has_q = false;
        for (int t = it.begin; t < it.end; t++) {
            const bool old = (min(t + ahead, it.end - 1) + 1) * MSGL_MLA_TILE <= it.unit.old;
            if (wait && (!old || t == it.begin + 2)) msgl__pdl_wait(), wait = false;
            if (!wait && !has_q) load_q(it), has_q = true;
            const found further = look_up(t + 3);
            const int stage = (t - it.begin) & 1;
            if constexpr (E4M3) {
                if (ahead == 0 || t == it.begin) fetch_codes(stage, now);
                convert(stage);
                if (ahead > 0 && t + 1 < it.end) fetch_codes(stage ^ 1, next);
            } else {
                load_tile(stage, now);
            }
            resolve(&after, t + 2);
            if (PAIRS && t + 2 < it.end) prefetch(after);
            now = next, next = after, after = further;
        }
        if (wait) msgl__pdl_wait();
        if (!has_q) load_q(it);
    }
};

// A range's items, by a loading warp.
template <typename PRODUCER>
static __device__ __forceinline__ void msgl__mla_load_range(PRODUCER producer, int range)
{
    msgl_mla_walk walk(producer.p, range);
    bool first = true;
    while (walk.more()) {
        const msgl_mla_item it = walk.take();
        if (it.begin == it.end) continue;
        producer.load(it, first);
        first = false;
    }
    if (first) msgl__pdl_wait();
    msgl__copy_async_wait_all();
}

#endif
