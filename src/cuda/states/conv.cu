// SPDX-License-Identifier: Apache-2.0
//
// Family conv: a thread has a channel, as little is computed and neighbouring threads read
// neighbouring elements. Answers: of one request, its state on the way. Prompts: of a few rows,
// whoever's they are, which find what is in front of them among the call's rows or in a state; a
// second kernel writes states when all have read them.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/owner.cuh"
#include "cuda/states/args.cuh"
#include "cuda/states/states.h"

enum {
    THREADS = 128,
    TILE = 16, // rows that a thread computes
    PAST = MSGL_CONV_MAX_TAPS - 1,
    AT_ONCE = 4, // inputs that a thread keeps at a time
    MAX_GRID_Y = 65535,
};

struct conv_args {
    states_args io;
    const void *in, *before, *behind;
    size_t ld_in;
    const float *weight, *bias;
    bool silu;
    void *out;
    size_t ld_out;
    int channels, taps;
    int step, state_rows; // step: tokens from a tap's input to the next one's
};

// A channel's inputs that a token reads besides its own, the newest in x[PAST - 1]; those that no
// tap reads are 0, as the taps that are not there.
struct conv_window {
    float x[PAST];
    __device__ __forceinline__ void push(float v)
    {
#pragma unroll
        for (int i = 0; i + 1 < PAST; i++) x[i] = x[i + 1];
        x[PAST - 1] = v;
    }
};

struct conv_channel {
    float weight[MSGL_CONV_MAX_TAPS], bias;
};

static __device__ __forceinline__ conv_channel channel_of(const conv_args &p, int channel)
{
    conv_channel w;
#pragma unroll
    for (int i = 0; i < MSGL_CONV_MAX_TAPS; i++) {
        const int tap = i - (MSGL_CONV_MAX_TAPS - p.taps);
        w.weight[i] = tap >= 0 ? p.weight[(size_t)channel * p.taps + tap] : 0;
    }
    w.bias = p.bias != NULL ? p.bias[channel] : 0;
    return w;
}

// Rounded as a state holds it, so that no cut changes a bit.
template <typename T>
static __device__ __forceinline__ float input(const conv_args &p, int row, int channel)
{
    const size_t at = (size_t)row * p.ld_in + channel;
    const float v = to_f32(((const T *)p.in)[at]);
    if (p.before == NULL) return v;
    return to_f32(from_f32<T>(v * to_f32(((const T *)p.before)[at])));
}

template <typename T>
static __device__ __forceinline__ T *kept(const conv_args &p, int state, int pos, int channel)
{
    return p.io.at<T>(state) + (size_t)(pos % p.state_rows) * p.channels + channel;
}

// The input of the request's row `row`, which may be in front of the call's, or of the request.
template <typename T>
static __device__ __forceinline__ float input_at(const conv_args &p, const states_request &q,
                                                 int row, int channel)
{
    const int pos = q.first + (row - q.row);
    if (row >= q.row) return input<T>(p, row, channel);
    return q.from >= 0 && pos >= 0 ? to_f32(*kept<T>(p, q.from, pos, channel)) : 0;
}

// What the request's row `row` reads besides its own input.
template <typename T>
static __device__ __forceinline__ conv_window past_of(const conv_args &p, const states_request &q,
                                                      int row, int channel)
{
    conv_window w;
#pragma unroll
    for (int i = 0; i < PAST; i++) {
        const int back = PAST - i;
        w.x[i] = back < p.taps ? input_at<T>(p, q, row - back * p.step, channel) : 0;
    }
    return w;
}

// The inputs before position `len` into a state. What is in the state that the request goes on from
// is there already.
template <typename T>
static __device__ __forceinline__ void keep(const conv_args &p, const states_request &q, int len,
                                            int channel, int state)
{
    const int end = q.row + (len - q.first), oldest = max(end - p.state_rows + 1, end - len);
    for (int row = state == q.from ? max(oldest, q.row) : oldest; row < end; row += AT_ONCE) {
        float x[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (row + i < end) x[i] = input_at<T>(p, q, row + i, channel);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int pos = len - (end - row) + i;
            if (row + i < end) *kept<T>(p, state, pos, channel) = from_f32<T>(x[i]);
        }
    }
}

// Behind the request's last token, and where else its inputs are to be kept. What is read of the
// state that is written last is read before.
template <typename T>
static __device__ __forceinline__ void keep_all(const conv_args &p, const states_request &q,
                                                int channel)
{
    for (int i = q.save; i < q.save_end; i++) {
        keep<T>(p, q, p.io.saves[i].len, channel, p.io.saves[i].state);
    }
    keep<T>(p, q, q.first + q.tokens, channel, q.to);
}

// The row's result; its input goes into the window.
template <typename T>
static __device__ __forceinline__ void convolve(const conv_args &p, const conv_channel &c,
                                                conv_window &w, int row, int channel)
{
    const float now = input<T>(p, row, channel);
    float y = c.bias;
#pragma unroll
    for (int i = 0; i < PAST; i++) y = fmaf(c.weight[i], w.x[i], y);
    y = fmaf(c.weight[PAST], now, y);
    if (p.silu) y = silu_f32(y);
    if (p.behind != NULL) y *= to_f32(((const T *)p.behind)[(size_t)row * p.ld_in + channel]);
    ((T *)p.out)[(size_t)row * p.ld_out + channel] = from_f32<T>(y);
    w.push(now);
}

// Rows [first, end) of the request. Of a step of 3, rows 5, 8, 11, ... are a chain of their own, as
// are 6, 9, 12, ... and 7, 10, 13, ...: w, which is what `first` reads, is of the first of them.
template <typename T>
static __device__ __forceinline__ void convolve_rows(const conv_args &p, const conv_channel &c,
                                                     const states_request &q, conv_window w,
                                                     int first, int end, int channel)
{
    for (int at = first; at < min(first + p.step, end); at++) {
        if (at > first) w = past_of<T>(p, q, at, channel);
        for (int row = at; row < end; row += p.step) convolve<T>(p, c, w, row, channel);
    }
}

// Rows [first, end) of padding.
template <typename T>
static __device__ __forceinline__ void clear_rows(const conv_args &p, int first, int end,
                                                  int channel)
{
    for (int row = first; row < end; row++) {
        ((T *)p.out)[(size_t)row * p.ld_out + channel] = from_f32<T>(0.f);
    }
}

// A request a grid row.
template <typename T>
static __global__ void __launch_bounds__(THREADS) conv_answers(const __grid_constant__ conv_args p)
{
    msgl__pdl_trigger();
    const int channel = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (channel >= p.channels) {
        msgl__pdl_wait();
        return;
    }
    const states_request q = request_of(p.io, (int)blockIdx.y);
    const conv_channel c = channel_of(p, channel);
    const conv_window w = past_of<T>(p, q, q.row, channel); // of its state, older than the step
    msgl__pdl_wait();
    if (q.to < 0) {
        clear_rows<T>(p, q.row, q.row + q.tokens, channel);
    } else {
        convolve_rows<T>(p, c, q, w, q.row, q.row + q.tokens, channel);
        keep_all<T>(p, q, channel);
    }
}

// Rows [TILE blockIdx.y, TILE blockIdx.y + TILE) of the call's, and those TILE gridDim.y behind.
template <typename T>
static __global__ void __launch_bounds__(THREADS) conv_rows(const __grid_constant__ conv_args p)
{
    msgl__pdl_trigger();
    const int channel = (int)(blockIdx.x * THREADS + threadIdx.x);
    msgl__pdl_wait();
    if (channel >= p.channels) return;
    const conv_channel c = channel_of(p, channel);
    const int all = p.io.cu_seqlens_q[p.io.size], step = TILE * (int)gridDim.y;
    for (int top = p.io.cu_seqlens_q[0] + TILE * (int)blockIdx.y; top < all; top += step) {
        const int end = min(top + TILE, all);
        int r = msgl__owner_of(p.io.cu_seqlens_q, p.io.size, top);
        for (int row = top; row < end; r++) {
            const states_request q = request_of(p.io, r);
            const int behind = min(end, q.row + q.tokens);
            if (q.to < 0)
                clear_rows<T>(p, row, behind, channel);
            else if (row < behind)
                convolve_rows<T>(p, c, q, past_of<T>(p, q, row, channel), row, behind, channel);
            row = behind;
        }
    }
}

// A request a grid row.
template <typename T>
static __global__ void __launch_bounds__(THREADS) conv_keep(const __grid_constant__ conv_args p)
{
    msgl__pdl_trigger();
    const int channel = (int)(blockIdx.x * THREADS + threadIdx.x);
    msgl__pdl_wait();
    if (channel >= p.channels) return;
    const states_request q = request_of(p.io, (int)blockIdx.y);
    if (q.to >= 0 && q.tokens > 0) keep_all<T>(p, q, channel);
}

static conv_args args_of(const msgl_conv_call *c)
{
    conv_args p = {};
    p.io = states_args_of(&c->io);
    p.in = c->in, p.before = c->before, p.behind = c->behind, p.ld_in = c->ld_in;
    p.weight = c->weight, p.bias = c->bias, p.silu = c->silu;
    p.out = c->out, p.ld_out = c->ld_out;
    p.channels = c->channels, p.taps = c->taps;
    p.step = c->skip + 1, p.state_rows = msgl__conv_rows(c->taps, c->skip);
    return p;
}

static unsigned blocks_of(const msgl_conv_call *c)
{
    return (unsigned)((c->channels + THREADS - 1) / THREADS);
}

template <typename T> static void launch_keep(msgl_exec *x, const msgl_conv_call *c)
{
    const dim3 grid(blocks_of(c), (unsigned)c->io.seqs->size);
    MSGL_CUDA_TRY(
        x, msgl__launch(conv_keep<T>, grid, dim3(THREADS), 0, msgl__cuda_stream(x), args_of(c)));
}

template <typename T> static void launch(msgl_exec *x, const msgl_conv_call *c)
{
    const msgl_seqs *s = c->io.seqs;
    const cudaStream_t stream = msgl__cuda_stream(x);
    if (s->phase == MSGL_DECODE) {
        MSGL_CUDA_TRY(x, msgl__launch(conv_answers<T>, dim3(blocks_of(c), (unsigned)s->size),
                                      dim3(THREADS), 0, stream, args_of(c)));
        return;
    }
    const int tiles = (s->num_tokens + TILE - 1) / TILE;
    const dim3 grid(blocks_of(c), (unsigned)(tiles < MAX_GRID_Y ? tiles : MAX_GRID_Y));
    MSGL_CUDA_TRY(x, msgl__launch(conv_rows<T>, grid, dim3(THREADS), 0, stream, args_of(c)));
    launch_keep<T>(x, c);
}

extern "C" void msgl__cuda_conv(msgl_exec *x, const msgl_conv_call *c)
{
    if (c->io.seqs->size == 0 || c->io.seqs->num_tokens == 0) return;
    MSGL_BY_DTYPE(x->act, launch, x, c);
}

extern "C" void msgl__cuda_conv_keep(msgl_exec *x, const msgl_conv_call *c)
{
    if (c->io.seqs->size > 0) MSGL_BY_DTYPE(x->act, launch_keep, x, c);
}
