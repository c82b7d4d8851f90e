// SPDX-License-Identifier: Apache-2.0
//
// A call of FP8 by its steps. Its input is there as coded rows, from the product in front or from
// attention's values, which one kernel quantises together with a norm; few rows go to the kernel of
// our own, which leaves coded rows for the product behind, more of them to cuBLASLt, whose gate is
// quantised by the kernel that makes it.
#include "cuda/gemm/fp8.h"

#include "cuda/device.cuh"
#include "cuda/gemm/fp8_rows.h"
#include "cuda/gemm/fp8_sm90.h"
#include "cuda/gemm/fused_norm.cuh"
#include "cuda/gemm/table.cuh"
#include "cuda/launch.cuh"

enum { THREADS = 256, BLOCK_ROWS = 128 };

static int parts_of(const msgl_weight *w)
{
    return w->num_parts > 0 ? w->num_parts : 1;
}

static const msgl_weight *part_of(const msgl_weight *w, int i)
{
    return w->num_parts > 0 ? &w->parts[i] : w;
}

bool msgl__fp8_weight(const msgl_weight *w, msgl_codes_row *l)
{
    if (w->format->id != MSGL_W_CODES || w->format->order != NULL || w->n % 16 != 0 ||
        w->k % MSGL_FP8_GROUP != 0 || w->k > MSGL_FP8_MOST_COLUMNS ||
        (uintptr_t)w->data % 16 != 0 || !msgl__codes_row_of(w->format->blocks, w->k, l)) {
        return false;
    }
    const bool number = l->number == MSGL_NUMBER_F32 || l->number == MSGL_NUMBER_F16 ||
                        l->number == MSGL_NUMBER_BF16;
    return l->e4m3 && number && l->scaling == MSGL_SCALING_ONE && l->offset == MSGL_OFFSET_NONE &&
           l->factor == 0 && (l->span == MSGL_FP8_GROUP || l->span == l->k);
}

// What shares a scale in a weight. Parts of several kinds are multiplied as groups are.
typedef enum fp8_kind { NO_FP8, BY_BLOCK, BY_GROUP, BY_ROW } fp8_kind;

static fp8_kind kind_of(const msgl_weight *w)
{
    fp8_kind all = NO_FP8;
    for (int i = 0; i < parts_of(w); i++) {
        msgl_codes_row l;
        if (!msgl__fp8_weight(part_of(w, i), &l)) return NO_FP8;
        const int32_t together = part_of(w, i)->format->blocks->codes->rows;
        const fp8_kind own = l.span == l.k ? BY_ROW : together == BLOCK_ROWS ? BY_BLOCK : BY_GROUP;
        all = i > 0 && own != all ? BY_GROUP : own;
    }
    return all;
}

// Whether m rows of a weight's input have a scale each.
static bool by_row(const msgl_weight *w, int32_t m)
{
    return m > MSGL_FP8_FEW_ROWS && kind_of(w) == BY_ROW;
}

// The library's products of weights by group are hardly faster than bf16's.
static bool can_multiply(const msgl_exec *x, const msgl_weight *w, int32_t m)
{
    const fp8_kind kind = kind_of(w);
    return x->device->capability == 90 && x->act != MSGL_F32 &&
           !msgl__cuda_device(x)->deterministic && kind != NO_FP8 &&
           (kind != BY_GROUP || m <= MSGL_FP8_FEW_ROWS);
}

bool msgl__cuda_fp8_can(const msgl_exec *x, const msgl_linear_call *c)
{
    const uintptr_t bits =
        (uintptr_t)c->in | (uintptr_t)c->out | (uintptr_t)c->norm | (uintptr_t)c->next_norm;
    // The library has no bias of f32 here.
    const bool bias = c->bias == NULL || !c->f32_out || c->m <= MSGL_FP8_FEW_ROWS;
    return c->m > 0 && bits % 16 == 0 && c->ld_in % 8 == 0 && c->ld_out % 8 == 0 && bias &&
           can_multiply(x, c->w, c->m);
}

size_t msgl__cuda_fp8_scratch(const msgl_linear_call *c)
{
    enum { ALIGN = 64, PIECES = 3 };
    // Coded rows, scales of W as the library wants them.
    const size_t groups = (size_t)(c->w->k / MSGL_FP8_GROUP + 4);
    return msgl__fp8_rows_bytes(c->m, c->w->k) + (size_t)c->w->n * groups * sizeof(float) +
           PIECES * ALIGN;
}

// --- its input -----------------------------------------------------------------------------------

static bool is_handed_over(const msgl_linear_call *c)
{
    return c->handover != NULL && c->handover->left && c->handover->reader == c->w;
}

static void *take(msgl_exec *x, size_t bytes)
{
    void *p = msgl__arena_alloc(x->scratch, bytes);
    if (p == NULL) x->status = MSGL_ENOMEM;
    return p;
}

// Coded rows of the call's input. *normed: they only want their factors of the norm.
static bool input_of(msgl_exec *x, const msgl_linear_call *c, msgl_fp8_rows *rows, bool *normed)
{
    const bool each = by_row(c->w, c->m);
    *normed = c->norm != NULL && msgl__has_norm_stats(c, true) && c->m <= MSGL_FP8_FEW_ROWS;
    if (is_handed_over(c) || *normed) {
        void *const there = *normed ? c->norm_stats->scaled : (void *)c->in;
        *rows = msgl__fp8_rows_at(there, c->m, c->w->k, each);
        return true;
    }
    void *const memory = take(x, msgl__fp8_rows_bytes(c->m, c->w->k));
    if (memory == NULL) return false;
    *rows = msgl__fp8_rows_at(memory, c->m, c->w->k, each);
    const msgl_fp8_source from = {c->in, c->ld_in, c->norm, c->norm_eps, false, MSGL_SILU};
    msgl__cuda_quantise_rows(x, &from, rows);
    return x->status == 0;
}

// Whether the product behind takes coded rows of the gate's result, and where they go.
static bool hands_over(const msgl_exec *x, const msgl_linear_call *c, msgl_fp8_rows *to)
{
    const msgl_handover *h = c->handover;
    const int columns = c->w->n / 2;
    if (h == NULL || !c->gated || c->f32_out || h->reader->k != columns ||
        c->ld_out != (size_t)columns || !can_multiply(x, h->reader, c->m)) {
        return false;
    }
    *to = msgl__fp8_rows_at(c->out, c->m, columns, by_row(h->reader, c->m));
    return true;
}

// --- few rows ------------------------------------------------------------------------------------

static bool multiply_few(msgl_exec *x, const msgl_linear_call *c, const msgl_fp8_rows *in,
                         bool normed)
{
    const msgl_weight *w = c->w;
    const bool gates =
        c->gated && w->num_parts == 0 && c->activation == MSGL_SILU && w->n % 32 == 0;
    const bool apart = c->gated && !gates; // the gate
    msgl_fp8_rows to;
    msgl_fp8_product p = {.call = c,
                          .w = w,
                          .l = NULL,
                          .first = 0,
                          .in = *in,
                          .squares = normed ? c->norm_stats->sums : NULL,
                          .tiles = normed ? c->norm_stats->num_tiles : 0,
                          .gated = gates,
                          .out = c->out,
                          .ld_out = c->ld_out,
                          .to = NULL,
                          .leaves_stats = false};
    const bool hands = hands_over(x, c, &to);
    if (gates && hands) p.to = &to;
    if (msgl__leaves_norm_stats(c) && w->num_parts == 0 && w->n % MSGL_FP8_GROUP == 0) {
        to = msgl__fp8_rows_at(c->norm_stats->scaled, c->m, w->n, false);
        p.to = &to;
        p.leaves_stats = true;
    }
    if (apart) {
        p.ld_out = (size_t)w->n;
        p.out = take(x, (size_t)c->m * p.ld_out * msgl__dtype_size(x->act));
        if (p.out == NULL) return false;
    }
    for (int i = 0; i < parts_of(w); i++) {
        msgl_codes_row l;
        p.w = part_of(w, i);
        p.l = &l;
        if (!msgl__fp8_weight(p.w, &l) || !msgl__cuda_fp8_sm90(x, &p)) return false;
        p.first += p.w->n;
    }
    if (p.leaves_stats) msgl__note_norm_stats(c, w->n / MSGL_FP8_GROUP, true);
    if (apart && hands) {
        const msgl_fp8_source from = {p.out, p.ld_out, NULL, 0, true, c->activation};
        msgl__cuda_quantise_rows(x, &from, &to);
    } else if (apart) {
        msgl__cuda_gate_product(x, c, p.out);
    }
    if (c->gated && hands) c->handover->left = true;
    return true;
}

// --- the library ---------------------------------------------------------------------------------

// Scales of W in f32, as a library's product wants them: a thread has one.
static __global__ void __launch_bounds__(THREADS)
    spread_scales(const uint8_t *scales, msgl_number number, int n, int groups, int step, int pitch,
                  float *out)
{
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    const int rows = (n + step - 1) / step;
    if (i >= rows * groups) return;
    const int row = i % rows, group = i / rows;
    const uint32_t from = (uint32_t)group * (uint32_t)n + (uint32_t)(row * step);
    const size_t to = step > 1 ? (size_t)row * pitch + group : (size_t)i;
    out[to] = msgl__codes_row_number(number, scales, from);
}

static const float *weight_scales(msgl_exec *x, const msgl_weight *w, const msgl_codes_row *l,
                                  msgl_gemm_scaling scaling)
{
    const uint8_t *const own = (const uint8_t *)w->data + (size_t)w->n * l->codes;
    const bool by_row = scaling == MSGL_GEMM_ROWS;
    const int groups = by_row ? 1 : w->k / MSGL_FP8_GROUP, step = by_row ? 1 : BLOCK_ROWS;
    const int rows = (w->n + step - 1) / step, pitch = (groups + 3) / 4 * 4;
    if (l->number == MSGL_NUMBER_F32 && by_row) return (const float *)own;
    float *out = (float *)take(x, (size_t)rows * (size_t)pitch * sizeof(float));
    if (out == NULL) return NULL;
    const unsigned blocks = (unsigned)((rows * groups + THREADS - 1) / THREADS);
    MSGL_CUDA_TRY(x, msgl__launch_in_order(spread_scales, dim3(blocks), dim3(THREADS), 0,
                                           msgl__cuda_stream(x), own, l->number, w->n, groups, step,
                                           pitch, out));
    return out;
}

// The library's product of a part, whose place among the outputs is p's.
static bool product_of_part(msgl_exec *x, const msgl_weight *part, const msgl_fp8_rows *in,
                            msgl_gemm_product *p)
{
    msgl_codes_row l;
    if (!msgl__fp8_weight(part, &l)) return false;
    p->w = part;
    p->m = in->by_row ? in->m : in->pitch;
    p->scaling = in->by_row ? MSGL_GEMM_ROWS : MSGL_GEMM_BLOCKS;
    p->in = in->codes;
    p->ld_in = (size_t)in->k;
    p->in_scales = in->scales;
    p->w_scales = weight_scales(x, part, &l, p->scaling);
    return x->status == 0;
}

// The rows that are no four.
static bool multiply_rest(msgl_exec *x, const msgl_linear_call *c, const msgl_gemm_product *p,
                          const msgl_fp8_rows *in, int first, char *out)
{
    msgl_codes_row l;
    if (!msgl__fp8_weight(p->w, &l)) return false;
    msgl_linear_call plain = *c;
    plain.gated = false;
    const msgl_fp8_product rest = {.call = &plain,
                                   .w = p->w,
                                   .l = &l,
                                   .first = first,
                                   .in = msgl__fp8_rows_rest(in),
                                   .squares = NULL,
                                   .tiles = 0,
                                   .gated = false,
                                   .out = out + (size_t)in->pitch * p->ld_out *
                                                    msgl__dtype_size(p->out_type),
                                   .ld_out = p->ld_out,
                                   .to = NULL,
                                   .leaves_stats = false};
    return msgl__cuda_fp8_sm90(x, &rest);
}

static void multiply_many(msgl_exec *x, const msgl_linear_call *c, const msgl_fp8_rows *in)
{
    const msgl_weight *w = c->w;
    msgl_gemm_product p = msgl__cuda_library_product(x, c);
    msgl_fp8_rows to;
    const size_t element = msgl__dtype_size(p.out_type);
    if (c->gated) p.out = take(x, (size_t)c->m * (size_t)w->n * element);
    p.bias = msgl__cuda_bias_as(x, c->bias, w->n, p.out_type);
    if (c->bias != NULL && p.bias == NULL) x->status = MSGL_ENOMEM;
    char *const product = (char *)p.out;
    for (int i = 0, first = 0; i < parts_of(w) && x->status == 0; i++) {
        if (!product_of_part(x, part_of(w, i), in, &p)) return;
        msgl__cuda_gemm_run(x, &p);
        if (in->m > p.m && !multiply_rest(x, c, &p, in, first, product)) {
            x->status = MSGL_EUNSUPPORTED;
        }
        first += p.w->n;
        p.out = (char *)p.out + (size_t)p.w->n * element;
        if (p.bias != NULL) p.bias = (const char *)p.bias + (size_t)p.w->n * element;
    }
    if (!c->gated || x->status != 0) return;
    if (!hands_over(x, c, &to)) {
        msgl__cuda_gate_product(x, c, product);
        return;
    }
    const msgl_fp8_source from = {product, (size_t)w->n, NULL, 0, true, c->activation};
    msgl__cuda_quantise_rows(x, &from, &to);
    c->handover->left = true;
}

bool msgl__cuda_fp8_product(msgl_exec *x, const msgl_linear_call *c, bool describe,
                            msgl_gemm_product *p)
{
    msgl_fp8_rows in;
    bool normed;
    if (c->m <= MSGL_FP8_FEW_ROWS || c->w->num_parts > 0 || !msgl__cuda_fp8_can(x, c)) return false;
    p->scaling = by_row(c->w, c->m) ? MSGL_GEMM_ROWS : MSGL_GEMM_BLOCKS;
    p->ld_in = (size_t)c->w->k;
    return describe || (input_of(x, c, &in, &normed) && product_of_part(x, c->w, &in, p));
}

bool msgl__cuda_fp8(msgl_exec *x, const msgl_linear_call *c)
{
    msgl_fp8_rows in;
    bool normed;
    if (!msgl__cuda_fp8_can(x, c)) {
        // Rows that only a product of FP8 can read.
        if (is_handed_over(c)) x->status = MSGL_EUNSUPPORTED;
        return false;
    }
    if (!input_of(x, c, &in, &normed)) return false;
    if (c->m <= MSGL_FP8_FEW_ROWS) return multiply_few(x, c, &in, normed);
    multiply_many(x, c, &in);
    return true;
}
