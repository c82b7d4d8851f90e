// SPDX-License-Identifier: Apache-2.0
//
// Families norm, rope, act and sample in portable vector C, compiled once per ISA level: the
// including file defines MSGL_OPS_NAME(base), which appends the level to the names that leave it.
// See vec.h for why all levels agree to the bit.
#include <math.h>

#include "core/round.h"
#include "kernel/kernel.h"
#include "kernel/ref/adjust_impl.h"
#include "kernel/row_ops.h"
#include "kernel/vec.h"
#include "utils/random.h"

// Below this many elements the threads' wake-up costs more than the work.
#define PARALLEL_MIN 16384
#define ROWS_TASK_ELEMENTS 8192

void MSGL_OPS_NAME(msgl__ops_fill_)(msgl_kernels *k);

// Runs fn over [0, rows) in blocks of some thousand elements, on the pool when there is enough to
// do.
typedef void (*rows_fn)(void *arg, int first, int last);
struct rows_job {
    rows_fn fn;
    void *arg;
    int rows, block;
};

static void rows_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct rows_job *j = arg;
    const int first = task * j->block;
    const int last = first + j->block < j->rows ? first + j->block : j->rows;
    j->fn(j->arg, first, last);
}

static void for_rows(msgl_exec *x, int rows, size_t dim, rows_fn fn, void *arg)
{
    if (rows <= 0) return;
    if ((size_t)rows * dim < PARALLEL_MIN || x->pool == NULL) {
        fn(arg, 0, rows);
        return;
    }
    int block = (int)(ROWS_TASK_ELEMENTS / (dim ? dim : 1));
    if (block < 1) block = 1;
    struct rows_job job = {fn, arg, rows, block};
    msgl__pool_run(x->pool, msgl__ceil_div(rows, block), rows_task, &job);
}

// ---- norm ----

static inline float sum_of_squares(const float *p, int dim)
{
    msgl_vf a = msgl__vf_set(0), b = a, c = a, d = a;
    int i = 0;
    for (; i + 64 <= dim; i += 64) {
        const msgl_vf v0 = msgl__vf_load(p + i), v1 = msgl__vf_load(p + i + 16);
        const msgl_vf v2 = msgl__vf_load(p + i + 32), v3 = msgl__vf_load(p + i + 48);
        a += v0 * v0;
        b += v1 * v1;
        c += v2 * v2;
        d += v3 * v3;
    }
    for (; i + 16 <= dim; i += 16) {
        const msgl_vf v = msgl__vf_load(p + i);
        a += v * v;
    }
    if (i < dim) {
        const msgl_vf v = msgl__vf_load_part(p + i, (size_t)(dim - i), 0);
        b += v * v;
    }
    return msgl__vf_sum((a + b) + (c + d));
}

static void norm_row(const float *in, const float *weight, float eps, float *out, int dim)
{
    const float inv = 1.0f / sqrtf(sum_of_squares(in, dim) / (float)dim + eps);
    const msgl_vf scale = msgl__vf_set(inv);
    int i = 0;
    for (; i + 16 <= dim; i += 16) {
        msgl__vf_store(out + i, msgl__vf_load(in + i) * scale * msgl__vf_load(weight + i));
    }
    for (; i < dim; i++) out[i] = in[i] * inv * weight[i];
}

struct norm_args {
    const float *in, *weight;
    float *out;
    size_t ld_in, ld_out;
    float eps, scale;
    int dim;
};

static void norm_rows(void *arg, int first, int last)
{
    const struct norm_args *a = arg;
    for (int r = first; r < last; r++) {
        norm_row(a->in + (size_t)r * a->ld_in, a->weight, a->eps, a->out + (size_t)r * a->ld_out,
                 a->dim);
    }
}

static void rms_norm(msgl_exec *x, const void *in, size_t ld_in, const float *weight, float eps,
                     void *out, size_t ld_out, int rows, int dim)
{
    struct norm_args a = {.in = in,
                          .ld_in = ld_in,
                          .weight = weight,
                          .eps = eps,
                          .out = out,
                          .ld_out = ld_out,
                          .dim = dim};
    for_rows(x, rows, (size_t)dim, norm_rows, &a);
}

static inline void add_span(float *dst, const float *src, float scale, size_t n)
{
    const msgl_vf by = msgl__vf_set(scale);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        msgl__vf_store(dst + i, msgl__vf_load(dst + i) + by * msgl__vf_load(src + i));
    }
    for (; i < n; i++) dst[i] += scale * src[i];
}

// As norm_row, into the sum.
static void add_norm_row(const float *in, const float *weight, float eps, float scale, float *out,
                         int dim)
{
    const float inv = scale / sqrtf(sum_of_squares(in, dim) / (float)dim + eps);
    const msgl_vf by = msgl__vf_set(inv);
    int i = 0;
    for (; i + 16 <= dim; i += 16) {
        const msgl_vf v = msgl__vf_load(in + i) * by * msgl__vf_load(weight + i);
        msgl__vf_store(out + i, msgl__vf_load(out + i) + v);
    }
    for (; i < dim; i++) out[i] += in[i] * inv * weight[i];
}

static void add_rows(void *arg, int first, int last)
{
    const struct norm_args *a = arg;
    const size_t dim = (size_t)a->dim;
    if (a->weight == NULL) {
        add_span(a->out + (size_t)first * dim, a->in + (size_t)first * dim, a->scale,
                 (size_t)(last - first) * dim);
        return;
    }
    for (int r = first; r < last; r++) {
        add_norm_row(a->in + (size_t)r * dim, a->weight, a->eps, a->scale, a->out + (size_t)r * dim,
                     a->dim);
    }
}

static void add(msgl_exec *x, void *dst, const void *src, const float *weight, float eps,
                float scale, int rows, int dim)
{
    struct norm_args a = {
        .out = dst, .in = src, .weight = weight, .eps = eps, .scale = scale, .dim = dim};
    for_rows(x, rows, (size_t)dim, add_rows, &a);
}

struct span_args {
    float *p;
    size_t n;
    float scale, cap;
};

enum { SPAN = 1024 }; // elements of a row of scale and cap, the last one may be shorter

static size_t span_end(const struct span_args *a, int last)
{
    const size_t end = (size_t)last * SPAN;
    return end < a->n ? end : a->n;
}

static void scale_spans(void *arg, int first, int last)
{
    const struct span_args *a = arg;
    const size_t end = span_end(a, last);
    for (size_t i = (size_t)first * SPAN; i < end; i++) a->p[i] *= a->scale;
}

static void scale(msgl_exec *x, void *p, float factor, size_t n)
{
    struct span_args a = {.p = p, .n = n, .scale = factor};
    for_rows(x, (int)((n + SPAN - 1) / SPAN), SPAN, scale_spans, &a);
}

// ---- rope ----

static void rope_table(msgl_exec *x, const int32_t *positions, int tokens, const float *inv_freq,
                       int half, float scale, float *cos_sin)
{
    (void)x; // some hundred tokens x 64 sines: far below the cost of the step's first product
    for (int t = 0; t < tokens; t++) {
        float *row = cos_sin + (size_t)t * 2 * (size_t)half;
        for (int i = 0; i < half; i++) {
            const float angle = (float)positions[t] * inv_freq[i];
            row[i] = cosf(angle) * scale;
            row[half + i] = sinf(angle) * scale;
        }
    }
}

// Rotates pairs (i, half + i) of one head; dimensions beyond 2 * half pass through.
static inline void rotate_head(float *h, const float *cos_sin, int half)
{
    int i = 0;
    for (; i + 16 <= half; i += 16) {
        const msgl_vf c = msgl__vf_load(cos_sin + i), s = msgl__vf_load(cos_sin + half + i);
        const msgl_vf a = msgl__vf_load(h + i), b = msgl__vf_load(h + half + i);
        msgl__vf_store(h + i, a * c - b * s);
        msgl__vf_store(h + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        const float c = cos_sin[i], s = cos_sin[half + i], a = h[i], b = h[half + i];
        h[i] = a * c - b * s;
        h[half + i] = b * c + a * s;
    }
}

static void rope_rows(void *arg, int first, int last)
{
    const msgl_rope_call *c = arg;
    const msgl_kv_store_fn store = MSGL_OPS_NAME(msgl__kv_store_)[c->kv_dtype];
    const int heads = c->num_q_heads + c->num_kv_heads, kv_row = c->num_kv_heads * c->head_dim;
    const size_t dim = (size_t)c->head_dim, slot = (size_t)kv_row * msgl__dtype_size(c->kv_dtype);
    for (int t = first; t < last; t++) {
        const float *cos_sin = c->cos_sin + (size_t)t * 2 * (size_t)c->half;
        float *row = (float *)c->qkv + (size_t)t * c->ld;
        for (int h = 0; h < heads; h++) {
            float *head = row + (size_t)h * dim;
            const float *w = h < c->num_q_heads ? c->q_weight : c->k_weight;
            if (w != NULL) norm_row(head, w, c->eps, head, c->head_dim);
            rotate_head(head, cos_sin, c->half);
        }
        const size_t to = (size_t)c->slots[t] * slot;
        store(row + (size_t)c->num_q_heads * dim, (char *)c->k_pool + to, kv_row);
        store(row + (size_t)heads * dim, (char *)c->v_pool + to, kv_row);
    }
}

static void qk_norm_rope_store(msgl_exec *x, const msgl_rope_call *c)
{
    msgl_rope_call args = *c;
    const size_t heads = (size_t)c->num_q_heads + 2 * (size_t)c->num_kv_heads;
    for_rows(x, c->tokens, heads * (size_t)c->head_dim, rope_rows, &args);
}

// ---- act ----

struct act_args {
    const float *gate_up;
    float *out;
    int dim;
    msgl_activation f;
};

MSGL_INLINE msgl_vf gated(msgl_activation f, msgl_vf gate, msgl_vf up)
{
    return f == MSGL_SILU ? msgl__vf_silu_mul(gate, up) : msgl__vf_gelu_mul(gate, up);
}

MSGL_INLINE void gate_row(msgl_activation f, const float *gate, float *out, int dim)
{
    const float *up = gate + dim;
    int i = 0;
    for (; i + 16 <= dim; i += 16) {
        msgl__vf_store(out + i, gated(f, msgl__vf_load(gate + i), msgl__vf_load(up + i)));
    }
    if (i < dim) {
        const size_t n = (size_t)(dim - i);
        const msgl_vf g = msgl__vf_load_part(gate + i, n, 0);
        const msgl_vf u = msgl__vf_load_part(up + i, n, 0);
        msgl__vf_store_part(out + i, gated(f, g, u), n);
    }
}

static void silu_row(const float *gate, float *out, int dim)
{
    gate_row(MSGL_SILU, gate, out, dim);
}

static void gelu_row(const float *gate, float *out, int dim)
{
    gate_row(MSGL_GELU_TANH, gate, out, dim);
}

const msgl_row_ops MSGL_OPS_NAME(msgl__row_ops_) = {
    .rms_norm = norm_row,
    .gate = {[MSGL_SILU] = silu_row, [MSGL_GELU_TANH] = gelu_row},
};

static void gate_rows(void *arg, int first, int last)
{
    const struct act_args *a = arg;
    const size_t dim = (size_t)a->dim;
    for (int r = first; r < last; r++) {
        MSGL_OPS_NAME(msgl__row_ops_)
            .gate[a->f](a->gate_up + (size_t)r * 2 * dim, a->out + (size_t)r * dim, a->dim);
    }
}

static void gate(msgl_exec *x, msgl_activation f, const void *gate_up, void *out, int rows, int dim)
{
    struct act_args a = {gate_up, out, dim, f};
    for_rows(x, rows, (size_t)dim * 2, gate_rows, &a);
}

static inline msgl_vf capped(msgl_vf v, float by, float cap)
{
    v = v * msgl__vf_set(by);
    if (cap <= 0) return v;
    const msgl_vf bounded = msgl__vf_set(cap) * msgl__vf_tanh(v * msgl__vf_set(1 / cap));
    const msgl_vi is_nan = (msgl_vi)(v != v); // the sampler has to see it
    return (msgl_vf)((is_nan & (msgl_vi)v) | (~is_nan & (msgl_vi)bounded));
}

static void cap_spans(void *arg, int first, int last)
{
    const struct span_args *a = arg;
    const size_t end = span_end(a, last);
    size_t i = (size_t)first * SPAN;
    for (; i + 16 <= end; i += 16) {
        msgl__vf_store(a->p + i, capped(msgl__vf_load(a->p + i), a->scale, a->cap));
    }
    if (i < end) {
        const size_t n = end - i;
        msgl__vf_store_part(a->p + i, capped(msgl__vf_load_part(a->p + i, n, 0), a->scale, a->cap),
                            n);
    }
}

static void cap(msgl_exec *x, float *logits, size_t n, float by, float most)
{
    struct span_args a = {.p = logits, .n = n, .scale = by, .cap = most};
    for_rows(x, (int)((n + SPAN - 1) / SPAN), SPAN, cap_spans, &a);
}

#include "kernel/ref/sample_impl.h"

void MSGL_OPS_NAME(msgl__ops_fill_)(msgl_kernels *k)
{
    k->norm = (msgl_norm_kernels){rms_norm, add, scale};
    k->rope = (msgl_rope_kernels){rope_table, qk_norm_rope_store};
    k->act = (msgl_act_kernels){gate, cap};
    k->sample = (msgl_sample_kernels){sample, logprobs, sample_scratch};
}
