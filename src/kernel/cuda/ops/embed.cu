// SPDX-License-Identifier: Apache-2.0
//
// What a step begins with, as one kernel: in a captured step it also moves the step's inputs to
// their places, and takes what it needs of them from where they arrived.
#include "kernel/cuda/copies.cuh"
#include "kernel/cuda/device.cuh"
#include "kernel/cuda/launch.cuh"
#include "kernel/cuda/ops/ops.h"

enum { ROW_THREADS = 128, ANGLE_THREADS = 64, THREADS = ROW_THREADS + ANGLE_THREADS };

struct embed_args {
    msgl_inputs inputs;
    int tokens;
    const int32_t *pool, *index, *positions;
    int num_tables;
    int32_t *tables[MSGL_EMBED_TABLES];
    const int32_t *slots[MSGL_EMBED_TABLES];
    const uint4 *w;
    int first, rows; // of the whole matrix w has rows [first, first + rows)
    uint4 *out;
    int vectors; // of a row
    const float *inv_freq;
    int half;
    float scale;
    float *cos_sin;
};

// The token's id, slots and row.
static __device__ __forceinline__ void take_row(const embed_args &a, size_t t, int32_t at,
                                                const int32_t *const (&slots)[MSGL_EMBED_TABLES])
{
    const int row = a.pool[at] - a.first;
    uint4 *const to = a.out + t * (size_t)a.vectors;
    if ((unsigned)row < (unsigned)a.rows) {
        const uint4 *const from = a.w + (size_t)row * (size_t)a.vectors;
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < a.vectors; i += ROW_THREADS) to[i] = from[i];
    } else { // another rank's
        for (int i = (int)threadIdx.x; i < a.vectors; i += ROW_THREADS) to[i] = uint4();
    }
    if (threadIdx.x != 0) return;
#pragma unroll
    for (int i = 0; i < MSGL_EMBED_TABLES; i++) {
        if (i < a.num_tables && a.tables[i] != NULL) a.tables[i][at] = slots[i][t];
    }
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

// A block per token, and in a graph those that move. Launched without programmatic dependence: the
// layers behind it may read what it writes (lengths, the page table) without waiting for it. They
// start when its blocks have ended, which alone does not make the writes visible: so the fences.
static __global__ void __launch_bounds__(THREADS) embed_kernel(const embed_args a)
{
    __shared__ uint32_t step;
    const size_t t = blockIdx.x;
    const int32_t *index = a.index, *positions = a.positions, *slots[MSGL_EMBED_TABLES];
    const float *inv_freq = a.inv_freq;
#pragma unroll
    for (int i = 0; i < MSGL_EMBED_TABLES; i++) slots[i] = a.slots[i];
    if (a.inputs.memory != NULL) {
        const msgl_input_view v = msgl__inputs_open(a.inputs, &step);
        if ((int)blockIdx.x >= a.tokens) {
            msgl__inputs_move(v, (int)blockIdx.x - a.tokens);
            __threadfence();
            return;
        }
        index = msgl__inputs_find(v, index);
#pragma unroll
        for (int i = 0; i < MSGL_EMBED_TABLES; i++) {
            if (i < a.num_tables) slots[i] = msgl__inputs_find(v, slots[i]);
        }
        positions = msgl__inputs_find(v, positions);
        inv_freq = msgl__inputs_find(v, inv_freq);
    }
    if ((int)threadIdx.x < ROW_THREADS) {
        take_row(a, t, index[t], slots);
    } else {
        take_angles(a, t, positions[t], inv_freq);
    }
    __threadfence();
}

extern "C" bool msgl__cuda_embed(msgl_exec *x, const msgl_embed_call *c)
{
    const size_t bytes = (size_t)c->w->k * msgl__dtype_size(c->w->format->dtype);
    if (c->w->format->dtype != x->act || bytes % sizeof(uint4) != 0 || x->status != 0) return false;
    if (c->tokens <= 0) return true;
    embed_args a = {};
    a.inputs = msgl__cuda_copies_take(msgl__cuda_device(x));
    a.tokens = c->tokens;
    a.pool = c->pool, a.index = c->index, a.positions = c->positions;
    a.num_tables = c->num_tables;
    for (int i = 0; i < c->num_tables; i++) a.tables[i] = c->tables[i], a.slots[i] = c->slots[i];
    a.w = (const uint4 *)c->w->data;
    a.first = c->w->first, a.rows = c->w->n;
    a.out = (uint4 *)c->out;
    a.vectors = (int)(bytes / sizeof(uint4));
    a.inv_freq = c->inv_freq;
    a.half = c->half;
    a.scale = c->scale;
    a.cos_sin = c->cos_sin;
    // As the products' kernels around it: an SM takes time to divide its memory anew.
    MSGL_CUDA_TRY(x, msgl__allow_shared<embed_kernel>(1, true));
    const int movers = a.inputs.memory != NULL ? MSGL_INPUT_BLOCKS : 0;
    embed_kernel<<<(unsigned)(c->tokens + movers), THREADS, 0, msgl__cuda_stream(x)>>>(a);
    MSGL_CUDA_LAUNCHED(x);
    return true;
}
