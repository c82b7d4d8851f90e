// SPDX-License-Identifier: Apache-2.0
//
// Which experts of codes have kernels, and the kernels for a step of a few rows, where hardly two
// of them share an expert (as experts.cu for plain weights): gate and up, then down and the
// combination.
//
// A tile is eight outputs of one token, and a run eight rows of W that they take: of an expert's
// gate, of its up, or of one expert's down. A block has tiles one behind the other, and each of its
// warps an equal part of their runs' steps (few_codes.cuh), which it asks for long before it takes
// them. Nobody waits for another warp but once, in front of the sums of a tile's warps. Both
// kernels' blocks stand on a multiprocessor together, so that the second one's first codes come
// while the first one ends.
#include "cuda/gemm/experts_codes.cuh"

#include <algorithm>

#include "cuda/device.cuh"
#include "cuda/gemm/few_codes.cuh"
#include "cuda/gemm/grouped.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/gate.cuh"

enum {
    UP_SLOTS = 6, // of a warp's ring
    DOWN_SLOTS = 4,
    MAX_TILES = FEW_THREADS / FEW_ROWS, // of a block
    MAX_SHARED = 226 << 10,
};

// A kernel's matrix, and how its work is cut: block b has each + (b < longer) tiles, of `runs` runs
// of `steps` steps. Inverses are few_inverse's.
typedef struct few_side {
    codes_matrix m;
    few_words words;
    float zero; // of all codes, besides zero points
    const float *bias;
    int32_t each, longer, runs, steps;
    uint32_t runs_inverse, steps_inverse, eights_inverse;
} few_side;

typedef struct few_args {
    few_side up, down;
    int32_t rows, top_k, hidden, inter;
    uint32_t assignment_inverse; // of an assignment's tiles
    const int32_t *ids, *source;
    const float *weights;
    const void *in;
    void *act; // [rows * top_k, inter]
    void *out;
    bool accumulate;
    expert_gate gate;
} few_args;

// --- a block's share, and a warp's --------------------------------------------------------------

struct few_share {
    int begin, tiles; // of all tiles
    int run, step;    // this warp's first step: of the block's runs, and of that one
    int num;          // of this warp's steps

    __device__ __forceinline__ few_share(const few_side &g, int b)
    {
        begin = b * g.each + min(b, g.longer);
        tiles = g.each + (b < g.longer);
        const int all = tiles * g.runs * g.steps, most = (all + FEW_WARPS - 1) / FEW_WARPS;
        const int first = (int)threadIdx.x / 32 * most;
        num = max(min(most, all - first), 0);
        run = few_quotient(first, g.steps_inverse);
        step = first - run * g.steps;
    }
};

// Sums of runs' rows by warps: [run][warp][row]. None yet.
static __device__ __forceinline__ void clear_sums(uint32_t sums, int runs)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < runs * FEW_WARPS * FEW_ROWS; i += FEW_THREADS) {
        msgl__write_shared(sums + (uint32_t)i * 4, 0.0f);
    }
}

// A quad's sum, of row lane / 4, of this warp.
static __device__ __forceinline__ void put_sum(uint32_t sums, int run, float v)
{
    v += __shfl_xor_sync(MSGL_FULL_MASK, v, 1);
    v += __shfl_xor_sync(MSGL_FULL_MASK, v, 2);
    const uint32_t warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4;
    const uint32_t at = ((uint32_t)run * FEW_WARPS + warp) * FEW_ROWS + row;
    if (threadIdx.x % 4 == 0) msgl__write_shared(sums + at * 4, v);
}

// All warps' sum, of row threadIdx.x % 8.
static __device__ __forceinline__ float all_sums(uint32_t sums, int run)
{
    const uint32_t at = sums + ((uint32_t)run * FEW_WARPS * FEW_ROWS + threadIdx.x % FEW_ROWS) * 4;
    float sum[4] = {}; // as an addition waits for the one in front
#pragma unroll
    for (int w = 0; w < FEW_WARPS; w++) {
        sum[w % 4] += msgl__read_shared<float>(at + (uint32_t)(w * FEW_ROWS * 4));
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// The slot behind the one at `slot`.
template <int SLOTS, int BYTES>
static __device__ __forceinline__ uint32_t next_slot(uint32_t rings, uint32_t slot)
{
    return slot == rings + (SLOTS - 1) * BYTES ? rings : slot + BYTES;
}

// --- gate and up --------------------------------------------------------------------------------
//
// Tile j of an assignment has rows 8 j to 8 j + 7 of its expert's gate, and then the same of up.

template <typename T, typename FORM>
static __global__ void __launch_bounds__(FEW_THREADS, 2) few_up(const __grid_constant__ few_args g)
{
    extern __shared__ __align__(128) unsigned char few_shared[];
    constexpr int SLOT = FORM::SLOT_BYTES;
    const uint32_t rings = msgl__shared_address(few_shared);
    const codes_matrix &m = g.up.m;
    const int steps = g.up.steps, lane_id = (int)threadIdx.x % 32;
    const int n = g.rows * g.top_k, per = g.inter / FEW_ROWS;
    const few_share share(g.up, (int)blockIdx.x);
    const uint32_t sums = rings + UP_SLOTS * SLOT;
    const few_inputs<FORM> inputs(sums + (uint32_t)(share.tiles * 2 * FEW_WARPS * FEW_ROWS * 4),
                                  g.rows, steps);
    const few_lane lane;
    clear_sums(sums, share.tiles * 2);
    few_rows<FORM> rows;
    int asked = share.run, asked_step = share.step, used = asked, step = asked_step;
    // Returns the assignment.
    const auto begin_run = [&] {
        const int at = share.begin + asked / 2, of = few_quotient(at, g.assignment_inverse);
        const int first = FEW_ROWS * (at - of * per) + (asked % 2 != 0 ? g.inter : 0);
        rows.begin(g.up.words, first, asked_step);
        return of;
    };
    const int first_place = begin_run();
    const T *const all = (const T *)g.in;
    few_pieces<T, FORM> pieces;
    pieces.find(inputs, g.up.eights_inverse, all, g.rows, g.hidden, 0);
    msgl__pdl_wait();
    const int32_t source = lane_id < n ? __ldcg(g.source + lane_id) : 0;
    const int32_t id = lane_id < n ? __ldcg(g.ids + lane_id) : 0;
    pieces.read();
    const int32_t expert = __shfl_sync(MSGL_FULL_MASK, id, source & 31);
    const int32_t row = few_quotient(source, g.down.runs_inverse);
    rows.of(g.up.words, __shfl_sync(MSGL_FULL_MASK, expert, first_place & 31));
    const auto ask_next = [&](bool some, uint32_t slot) {
        if (some) {
            rows.ask(g.up.words, lane, asked_step, slot);
            if (++asked_step == steps) {
                asked_step = 0, asked++;
                const int at = begin_run();
                rows.of(g.up.words, __shfl_sync(MSGL_FULL_MASK, expert, at & 31));
            }
        }
        msgl__copy_async_commit();
    };
#pragma unroll 1
    for (int i = 0; i < UP_SLOTS; i++) ask_next(i < share.num, rings + (uint32_t)(i * SLOT));
    // Not before: the kernel behind knows then what was chosen, and its codes come behind the first
    // ones here.
    msgl__pdl_trigger();
    pieces.keep_all(inputs, g.up.eights_inverse, all, g.rows, g.hidden);
    // Who finishes which output, and where it goes.
    const int tile = (int)threadIdx.x / FEW_ROWS;
    const int place = few_quotient(share.begin + tile, g.assignment_inverse);
    const int output = (share.begin + tile - place * per) * FEW_ROWS + (int)threadIdx.x % FEW_ROWS;
    const int32_t to = __shfl_sync(MSGL_FULL_MASK, source, place & 31);
    const int32_t of = __shfl_sync(MSGL_FULL_MASK, expert, place & 31);
    float gate = 0, up = 0;
    if (g.up.bias != NULL && tile < share.tiles) {
        const float *bias = g.up.bias + (size_t)of * (size_t)m.n + output;
        gate = bias[0], up = bias[g.inter];
    }
    __syncthreads();
    const auto place_of = [&] {
        const int at = few_quotient(share.begin + used / 2, g.assignment_inverse);
        return few_place<FORM>(inputs, __shfl_sync(MSGL_FULL_MASK, row, at & 31), step);
    };
    few_place<FORM> in = place_of();
    uint32_t slot = rings;
    float sum = 0;
#pragma unroll 1
    for (int left = share.num; left > 0; left--) {
        msgl__copy_async_wait<UP_SLOTS - 1>();
        __syncwarp();
        few_add<T, FORM>(m, g.up.zero, lane, slot, in, &sum);
        __syncwarp();
        ask_next(left > UP_SLOTS, slot);
        slot = next_slot<UP_SLOTS, SLOT>(rings, slot);
        in.next();
        if (++step < steps && left > 1) continue;
        put_sum(sums, used, sum);
        sum = 0;
        step = 0, used++;
        in = place_of();
    }
    msgl__copy_async_wait<0>();
    __syncthreads();
    if (tile >= share.tiles) return;
    const float factor = few_factor<T, FORM>(m);
    gate = fmaf(all_sums(sums, 2 * tile), factor, gate);
    up = fmaf(all_sums(sums, 2 * tile + 1), factor, up);
    const float v = gated_expert(g.gate, gate, up);
    ((T *)g.act)[(size_t)to * (size_t)g.inter + output] = from_f32<T>(v);
}

// --- down ---------------------------------------------------------------------------------------
//
// Tile j of a token makes its outputs 8 j to 8 j + 7 of the rows that its experts have for them,
// one expert behind the other. Blocks (b, row) share a token's tiles.

template <typename T, typename FORM>
static __global__ void __launch_bounds__(FEW_THREADS, 2)
    few_down(const __grid_constant__ few_args g)
{
    extern __shared__ __align__(128) unsigned char few_shared[];
    constexpr int SLOT = FORM::SLOT_BYTES;
    const uint32_t rings = msgl__shared_address(few_shared);
    const codes_matrix &m = g.down.m;
    const int steps = g.down.steps, lane_id = (int)threadIdx.x % 32, row = (int)blockIdx.y;
    msgl__pdl_trigger();
    // Lane c's is choice c of the row: its expert and what that one counts.
    int32_t expert = 0;
    float weight = 0;
    if (lane_id < g.top_k) {
        expert = __ldcg(g.ids + row * g.top_k + lane_id);
        weight = __ldcg(g.weights + row * g.top_k + lane_id);
    }
    const few_share share(g.down, (int)blockIdx.x);
    const few_lane lane;
    few_rows<FORM> rows;
    int asked = share.run, asked_step = share.step, used = asked, step = asked_step;
    const auto begin_run = [&] {
        const int at = few_quotient(asked, g.down.runs_inverse), c = asked - at * g.top_k;
        rows.begin(g.down.words, FEW_ROWS * (share.begin + at), asked_step);
        rows.of(g.down.words, __shfl_sync(MSGL_FULL_MASK, expert, c));
    };
    const auto ask_next = [&](bool some, uint32_t slot) {
        if (some) {
            rows.ask(g.down.words, lane, asked_step, slot);
            if (++asked_step == steps) {
                asked_step = 0, asked++;
                begin_run();
            }
        }
        msgl__copy_async_commit();
    };
    begin_run();
#pragma unroll 1
    for (int i = 0; i < DOWN_SLOTS; i++) ask_next(i < share.num, rings + (uint32_t)(i * SLOT));
    const uint32_t sums = rings + DOWN_SLOTS * SLOT;
    const few_inputs<FORM> inputs(sums + (uint32_t)(share.tiles * FEW_WARPS * FEW_ROWS * 4),
                                  g.top_k, steps);
    clear_sums(sums, share.tiles);
    // Who finishes which output, and what is added to it.
    const int tile = (int)threadIdx.x / FEW_ROWS;
    const int output = (share.begin + tile) * FEW_ROWS + (int)threadIdx.x % FEW_ROWS;
    const bool finishes = tile < share.tiles;
    float old = 0;
#pragma unroll 1
    for (int c = 0; g.down.bias != NULL && c < g.top_k; c++) {
        const float by = __shfl_sync(MSGL_FULL_MASK, weight, c);
        const int32_t of = __shfl_sync(MSGL_FULL_MASK, expert, c);
        if (finishes) old += by * g.down.bias[(size_t)of * (size_t)m.n + output];
    }
    const T *const act = (const T *)g.act + (size_t)row * (size_t)g.top_k * (size_t)g.inter;
    T *const out = (T *)g.out + (size_t)row * (size_t)g.hidden;
    few_pieces<T, FORM> pieces;
    pieces.find(inputs, g.down.eights_inverse, act, g.top_k, g.inter, 0);
    msgl__pdl_wait();
    pieces.read();
    if (g.accumulate && finishes) old += to_f32(out[output]);
    pieces.keep_all(inputs, g.down.eights_inverse, act, g.top_k, g.inter);
    __syncthreads();
    int in_tile = few_quotient(used, g.down.runs_inverse), choice = used - in_tile * g.top_k;
    few_place<FORM> in(inputs, choice, step);
    uint32_t slot = rings;
    float sum = 0, weighted = 0;
#pragma unroll 1
    for (int left = share.num; left > 0; left--) {
        msgl__copy_async_wait<DOWN_SLOTS - 1>();
        __syncwarp();
        few_add<T, FORM>(m, g.down.zero, lane, slot, in, &sum);
        __syncwarp();
        ask_next(left > DOWN_SLOTS, slot);
        slot = next_slot<DOWN_SLOTS, SLOT>(rings, slot);
        in.next();
        if (++step < steps && left > 1) continue;
        weighted = fmaf(sum, __shfl_sync(MSGL_FULL_MASK, weight, choice), weighted);
        sum = 0;
        step = 0;
        if (++choice == g.top_k || left == 1) {
            put_sum(sums, in_tile, weighted);
            weighted = 0;
            choice = 0, in_tile++;
        }
        in = few_place<FORM>(inputs, choice, 0);
    }
    msgl__copy_async_wait<0>();
    __syncthreads();
    if (!finishes) return;
    out[output] = from_f32<T>(fmaf(all_sums(sums, tile), few_factor<T, FORM>(m), old));
}

// --- host ---------------------------------------------------------------------------------------

static bool form_of(const msgl_codes_row *l, codes_matrix *m)
{
    const bool plain = l->offset == MSGL_OFFSET_NONE;
    m->bits = l->bits;
    m->values = l->e4m3 ? CODES_E4M3 : msgl__codes_row_is_e2m1(l) ? CODES_E2M1 : CODES_INTEGERS;
    m->factor = msgl__codes_row_factor(l);
    m->zero = l->zero;
    m->has_zeros = l->offset == MSGL_OFFSET_ZERO;
    m->number = l->number;
    m->shift = 31;
    for (int i = 5; i < 31 && l->span != l->k; i++) {
        if (l->span == 1 << i) m->shift = i;
    }
    const bool exponents = l->number == MSGL_NUMBER_E8M0 || l->number == MSGL_NUMBER_E8M0_HALF;
    const bool wide =
        l->number == MSGL_NUMBER_F32; // of which only 8 bits and long spans have kernels
    return l->scaling == MSGL_SCALING_ONE && exponents == (m->values == CODES_E2M1) &&
           l->number != MSGL_NUMBER_E4M3 && (plain || (m->has_zeros && l->bits == 4)) &&
           (l->bits == 4 || l->bits == 8) && (l->span == l->k || m->shift < 31) &&
           (m->values == CODES_E4M3 ? m->shift >= 7 : true) &&
           (!wide || (l->bits == 8 && m->shift >= 7)) &&
           (m->values != CODES_INTEGERS ? plain : !l->looked_up);
}

bool msgl__codes_matrix_of(const msgl_weight *experts, int32_t num, codes_matrix *m)
{
    const msgl_weight *w = &experts[0];
    const char *const base = (const char *)w->data;
    msgl_codes_row l;
    *m = {};
    if (w->num_parts > 0 || w->format->id != MSGL_W_CODES || w->format->order != NULL ||
        !msgl__codes_row_of(w->format->blocks, w->k, &l) || !form_of(&l, m)) {
        return false;
    }
    const ptrdiff_t stride = num > 1 ? (const char *)experts[1].data - base : 0;
    for (int32_t e = 1; e < num; e++) {
        const msgl_weight *one = &experts[e];
        if (one->num_parts > 0 || one->format->id != MSGL_W_CODES || one->format->order != NULL ||
            one->format->blocks->codes != w->format->blocks->codes ||
            (const char *)one->data != base + e * stride) {
            return false;
        }
    }
    m->w = (const uint8_t *)base;
    m->stride = (size_t)stride;
    m->n = w->n;
    m->k = w->k;
    m->row = l.codes;
    m->used = (uint32_t)l.k / 8 * (uint32_t)l.bits;
    m->scales = (size_t)w->n * l.codes;
    m->zeros = m->scales + (size_t)w->n * l.dmin;
    return stride >= 0 && (uintptr_t)base % 16 == 0 && stride % 16 == 0 && w->n % 16 == 0 &&
           w->k % 32 == 0;
}

// Cuts `tiles` tiles of `runs` runs each for `most` blocks, or more if those could not have them
// all; rows: of activations in shared memory. Returns the blocks; *bytes: of shared memory.
template <typename FORM>
static int few_cut(few_side *g, int tiles, int runs, int sums, int most, int slots, int rows,
                   size_t *bytes)
{
    const int blocks = std::max(std::min(tiles, most), (tiles + MAX_TILES - 1) / MAX_TILES);
    g->words = few_words_of<FORM>(g->m);
    g->each = tiles / blocks;
    g->longer = tiles % blocks;
    g->runs = runs;
    g->steps = (int)(g->m.used + FEW_STEP_BYTES - 1) / FEW_STEP_BYTES;
    g->runs_inverse = few_inverse(runs);
    g->steps_inverse = few_inverse(g->steps);
    g->eights_inverse = few_inverse(g->steps * FORM::COLUMNS / 8);
    g->zero = (float)g->m.zero;
    *bytes = (size_t)(slots * FORM::SLOT_BYTES) + few_inputs<FORM>::bytes(rows, g->steps) +
             (size_t)((g->each + 1) * sums * FEW_WARPS * FEW_ROWS * 4);
    return blocks;
}

template <typename T, typename FORM> static bool launch(msgl_exec *x, few_args g)
{
    const msgl_cuda_device *d = msgl__cuda_device(x);
    const int per = g.inter / FEW_ROWS, most = std::max(d->sm_count / g.rows, 1);
    size_t up_bytes, down_bytes;
    const dim3 up_grid((unsigned)few_cut<FORM>(&g.up, g.rows * g.top_k * per, 2, 2, d->sm_count,
                                               UP_SLOTS, g.rows, &up_bytes));
    const dim3 down_grid((unsigned)few_cut<FORM>(&g.down, g.hidden / FEW_ROWS, g.top_k, 1, most,
                                                 DOWN_SLOTS, g.top_k, &down_bytes),
                         (unsigned)g.rows);
    constexpr auto up = few_up<T, FORM>, down = few_down<T, FORM>;
    if (up_bytes > MAX_SHARED || down_bytes > MAX_SHARED) return false;
    g.assignment_inverse = few_inverse(per);
    MSGL_CUDA_TRY(x, msgl__allow_shared<up>(up_bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch(up, up_grid, dim3(FEW_THREADS), up_bytes, d->stream, g));
    MSGL_CUDA_TRY(x, msgl__allow_shared<down>(down_bytes, true));
    MSGL_CUDA_TRY(x, msgl__launch(down, down_grid, dim3(FEW_THREADS), down_bytes, d->stream, g));
    return true;
}

template <typename T, codes_values VALUES> static bool launch_eight(msgl_exec *x, const few_args &g)
{
    return g.up.m.number == MSGL_NUMBER_F32 ? launch<T, few_form<8, VALUES, 4, false>>(x, g)
                                            : launch<T, few_form<8, VALUES, 2, false>>(x, g);
}

template <typename T> static bool launch_form(msgl_exec *x, const few_args &g)
{
    if (g.up.m.values == CODES_E2M1) return launch<T, few_form<4, CODES_E2M1, 1, false>>(x, g);
    if (g.up.m.values == CODES_E4M3) return launch_eight<T, CODES_E4M3>(x, g);
    if (g.up.m.bits == 8) return launch_eight<T, CODES_INTEGERS>(x, g);
    return g.up.m.has_zeros ? launch<T, few_form<4, CODES_INTEGERS, 2, true>>(x, g)
                            : launch<T, few_form<4, CODES_INTEGERS, 2, false>>(x, g);
}

bool msgl__cuda_experts_codes(msgl_exec *x, const msgl_experts_call *c)
{
    few_args g = {};
    if (!msgl__codes_matrix_of(c->gate_up, c->num_experts, &g.up.m) ||
        !msgl__codes_matrix_of(c->down, c->num_experts, &g.down.m) ||
        g.up.m.bits != g.down.m.bits || g.up.m.values != g.down.m.values ||
        g.up.m.has_zeros != g.down.m.has_zeros || g.up.m.number != g.down.m.number) {
        return false;
    }
    // Kernels count words of four bytes from the first expert.
    const size_t words = std::max(g.up.m.stride, g.down.m.stride) / 4 * (size_t)c->num_experts;
    if (words > UINT32_MAX) return false;
    g.rows = c->rows;
    g.top_k = c->top_k;
    g.hidden = g.down.m.n;
    g.inter = g.down.m.k;
    g.ids = c->ids;
    g.source = c->source;
    g.weights = c->weights;
    g.in = c->in;
    g.act = c->act;
    g.out = c->out;
    g.accumulate = c->accumulate;
    g.gate = expert_gate_of(c->activation);
    g.up.bias = c->gate_up_bias;
    g.down.bias = c->down_bias;
    const uintptr_t bits = (uintptr_t)g.in | (uintptr_t)g.act;
    if (c->shared_up != NULL || is_gelu(c->activation) || bits % 16 != 0) return false;
    return x->act == MSGL_F16 ? launch_form<__half>(x, g) : launch_form<__nv_bfloat16>(x, g);
}
