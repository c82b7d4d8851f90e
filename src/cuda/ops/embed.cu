// SPDX-License-Identifier: Apache-2.0
//
// What a step begins with, as one kernel: in a captured step it also moves the step's inputs to
// their places, and takes what it needs of them from where they arrived.
#include "cuda/copies.cuh"
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/ops.h"
#include "cuda/peer_sum.cuh"

enum {
    ROW_THREADS = 128,
    ANGLE_THREADS = 64,
    THREADS = ROW_THREADS + ANGLE_THREADS,
    WAITS = 8, // 16 bytes each that a thread waits for at once: rows of 16 KiB
};

struct embed_args {
    msgl_inputs inputs;
    msgl_step_tokens tokens;
    const int32_t *positions;
    const uint4 *w;
    int first, rows; // of the whole matrix w has rows [first, first + rows)
    uint4 *out;
    int vectors; // of a row
    const float *inv_freq;
    int half;
    float scale;
    float *cos_sin;
    msgl_peer_sum sum; // its count NULL: rows of another rank are zeros
};

// A row for the other rank as well.
static __device__ __forceinline__ void give_row(const embed_args &a, const uint4 *from, uint4 *to,
                                                uint4 *theirs)
{
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < a.vectors; i += ROW_THREADS) {
        const uint4 v = msgl__peer_sent(from[i]);
        msgl__peer_push((char *)(theirs + i), v);
        to[i] = v;
    }
}

static __device__ __forceinline__ void get_row(const embed_args &a, uint4 *from, uint4 *to)
{
    for (int first = (int)threadIdx.x; first < a.vectors; first += WAITS * ROW_THREADS) {
        uint4 v[WAITS];
#pragma unroll
        for (int j = 0; j < WAITS; j++) {
            const int i = first + j * ROW_THREADS;
            if (i < a.vectors) msgl__peer_look((const char *)(from + i), &v[j]);
        }
#pragma unroll
        for (int j = 0; j < WAITS; j++) {
            const int i = first + j * ROW_THREADS;
            if (i >= a.vectors) continue;
            msgl__peer_take((char *)(from + i), a.sum.over, &v[j]);
            to[i] = v[j];
        }
    }
}

// The token's id, pages and slots, and row. s: a.tokens, with the step's inputs where they are.
static __device__ __forceinline__ void take_row(const embed_args &a, const msgl_step_tokens &s,
                                                size_t t, const msgl_peer_slot &slot)
{
    const int32_t place = s.index[t];
    const int row = s.pool[place + s.shift] - a.first;
    const size_t offset = t * (size_t)a.vectors;
    uint4 *const to = a.out + offset;
    const uint4 *const from = a.w + (size_t)row * (size_t)a.vectors;
    const bool own = (unsigned)row < (unsigned)a.rows;
    if (a.sum.count != NULL) {
        if (own) give_row(a, from, to, (uint4 *)slot.theirs + offset);
        if (!own) get_row(a, (uint4 *)slot.own + offset, to);
    } else if (own) {
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < a.vectors; i += ROW_THREADS) to[i] = from[i];
    } else {
        for (int i = (int)threadIdx.x; i < a.vectors; i += ROW_THREADS) to[i] = uint4();
    }
    if (threadIdx.x == 0) msgl__step_put(&s, (int32_t)t, place);
}

static __device__ __forceinline__ void take_angles(const embed_args &a, size_t t, int32_t position,
                                                   const float *inv_freq)
{
    float *const row = a.cos_sin + t * 2 * (size_t)a.half;
    for (int i = (int)threadIdx.x - ROW_THREADS; i < a.half; i += ANGLE_THREADS) {
        float s, c;
        sincosf((float)position * inv_freq[i], &s, &c);
        row[i] = c * a.scale;
        row[a.half + i] = s * a.scale;
    }
}

// Every block of either rank has to have heard of the other one's before the slots of the call
// before may be written to (peer_sum.cuh), but a row goes one way only: so a word goes both ways.
static __device__ __forceinline__ char *word_of(const embed_args &a, char *slot, size_t t)
{
    return slot + (size_t)a.tokens.count * (size_t)a.vectors * sizeof(uint4) + t * sizeof(uint32_t);
}

// By all threads, before a row is given. The first of those that take no row says it.
static __device__ __forceinline__ msgl_peer_slot open_rows(const embed_args &a, size_t t)
{
    const msgl_peer_slot slot = msgl__peer_open(a.sum);
    __syncthreads();
    if (threadIdx.x == ROW_THREADS) {
        msgl__peer_push(word_of(a, slot.theirs, t), 1u);
        msgl__peer_count(a.sum.count, a.sum.ticket, slot.call, (uint32_t)a.tokens.count);
    }
    return slot;
}

static __device__ __forceinline__ void close_rows(const embed_args &a, const msgl_peer_slot &slot,
                                                  size_t t)
{
    if (threadIdx.x != ROW_THREADS) return;
    char *const word = word_of(a, slot.own, t);
    uint32_t v;
    msgl__peer_look(word, &v);
    msgl__peer_take(word, a.sum.over, &v);
}

// A block per token, and in a graph those that move. Launched without programmatic dependence: the
// layers behind it may read what it writes (lengths, the page table) without waiting for it. They
// start when its blocks have ended, which alone does not make the writes visible: so the fences.
static __global__ void __launch_bounds__(THREADS) embed_kernel(const embed_args a)
{
    __shared__ uint32_t step;
    const size_t t = blockIdx.x;
    msgl_step_tokens s = a.tokens;
    const int32_t *positions = a.positions;
    const float *inv_freq = a.inv_freq;
    if (a.inputs.memory != NULL) {
        const msgl_input_view v = msgl__inputs_open(a.inputs, &step);
        if ((int)blockIdx.x >= a.tokens.count) {
            msgl__inputs_move(v, (int)blockIdx.x - a.tokens.count);
            __threadfence();
            return;
        }
        s.index = msgl__inputs_find(v, s.index);
#pragma unroll
        for (int i = 0; i < MSGL_MAX_TABLES; i++) {
            if (i < s.num_tables) s.pages[i] = msgl__inputs_find(v, s.pages[i]);
        }
        positions = msgl__inputs_find(v, positions);
        inv_freq = msgl__inputs_find(v, inv_freq);
    }
    msgl_peer_slot slot = {};
    if (a.sum.count != NULL) slot = open_rows(a, t);
    if ((int)threadIdx.x < ROW_THREADS) {
        take_row(a, s, t, slot);
    } else {
        take_angles(a, t, positions[t], inv_freq);
    }
    if (a.sum.count != NULL) close_rows(a, slot, t);
    __threadfence();
}

extern "C" bool msgl__cuda_embed(msgl_exec *x, const msgl_embed_call *c)
{
    const size_t bytes = (size_t)c->w->k * msgl__dtype_size(c->w->format->dtype);
    if (!msgl__weight_is(c->w, x->act) || bytes % sizeof(uint4) != 0) return false;
    // With the other rank it is done whatever the status is, as calls of a communicator are.
    if (x->status != 0 && c->sum == NULL) return false;
    if (c->tokens.count <= 0) return true;
    embed_args a = {};
    a.inputs = msgl__cuda_copies_take(msgl__cuda_device(x));
    a.tokens = c->tokens;
    a.positions = c->positions;
    a.w = (const uint4 *)c->w->data;
    a.first = c->w->first, a.rows = c->w->n;
    a.out = (uint4 *)c->out;
    a.vectors = (int)(bytes / sizeof(uint4));
    a.inv_freq = c->inv_freq;
    a.half = c->half;
    a.scale = c->scale;
    a.cos_sin = c->cos_sin;
    if (c->sum != NULL) a.sum = *c->sum;
    // As the products' kernels around it: an SM takes time to divide its memory anew.
    MSGL_CUDA_TRY(x, msgl__allow_shared<embed_kernel>(1, true));
    const int movers = a.inputs.memory != NULL ? MSGL_INPUT_BLOCKS : 0;
    embed_kernel<<<(unsigned)(c->tokens.count + movers), THREADS, 0, msgl__cuda_stream(x)>>>(a);
    MSGL_CUDA_LAUNCHED(x);
    return true;
}
