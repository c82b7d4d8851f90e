// SPDX-License-Identifier: Apache-2.0
//
// Families norm, rope, act and sample in portable vector C, compiled once per ISA level: the
// including file defines MSGL_OPS_FILL, the name of the one function that sets the table. See vec.h
// for why all levels agree to the bit.
#include <math.h>

#include "kernel/kernel.h"
#include "kernel/vec.h"

// Below this many elements the threads' wake-up costs more than the work.
#define PARALLEL_MIN 16384
#define ROWS_TASK_ELEMENTS 8192

void MSGL_OPS_FILL(msgl_kernels *k);

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
    msgl__pool_run(x->pool, (rows + block - 1) / block, rows_task, &job);
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

static inline void norm_row(const float *in, const float *weight, float eps, float *out, int dim)
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
    const float *in, *weight, *delta;
    float *residual, *out;
    size_t ld_in, ld_out;
    float eps;
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

static void rms_norm(msgl_exec *x, const float *in, size_t ld_in, const float *weight, float eps,
                     float *out, size_t ld_out, int rows, int dim)
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

static inline void add_span(float *dst, const float *src, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        msgl__vf_store(dst + i, msgl__vf_load(dst + i) + msgl__vf_load(src + i));
    }
    for (; i < n; i++) dst[i] += src[i];
}

static void add_norm_rows(void *arg, int first, int last)
{
    const struct norm_args *a = arg;
    for (int r = first; r < last; r++) {
        const size_t at = (size_t)r * (size_t)a->dim;
        add_span(a->residual + at, a->delta + at, (size_t)a->dim);
        norm_row(a->residual + at, a->weight, a->eps, a->out + at, a->dim);
    }
}

static void add_rms_norm(msgl_exec *x, float *residual, const float *delta, const float *weight,
                         float eps, float *out, int rows, int dim)
{
    struct norm_args a = {
        .residual = residual, .delta = delta, .weight = weight, .eps = eps, .out = out, .dim = dim};
    for_rows(x, rows, (size_t)dim, add_norm_rows, &a);
}

static void add_rows(void *arg, int first, int last)
{
    const struct norm_args *a = arg;
    add_span(a->residual + (size_t)first * 16, a->delta + (size_t)first * 16,
             (size_t)(last - first) * 16);
}

static void add(msgl_exec *x, float *dst, const float *src, size_t n)
{
    struct norm_args a = {.residual = dst, .delta = src};
    for_rows(x, (int)(n / 16), 16, add_rows, &a);
    add_span(dst + n / 16 * 16, src + n / 16 * 16, n % 16);
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

struct rope_args {
    float *qkv;
    const float *q_weight, *k_weight, *cos_sin;
    size_t ld;
    float eps;
    int num_q_heads, num_kv_heads, head_dim, half;
};

static void rope_rows(void *arg, int first, int last)
{
    const struct rope_args *a = arg;
    for (int t = first; t < last; t++) {
        const float *cos_sin = a->cos_sin + (size_t)t * 2 * (size_t)a->half;
        for (int h = 0; h < a->num_q_heads + a->num_kv_heads; h++) {
            float *head = a->qkv + (size_t)t * a->ld + (size_t)h * (size_t)a->head_dim;
            const float *w = h < a->num_q_heads ? a->q_weight : a->k_weight;
            if (w != NULL) norm_row(head, w, a->eps, head, a->head_dim);
            rotate_head(head, cos_sin, a->half);
        }
    }
}

static void qk_norm_rope(msgl_exec *x, float *qkv, size_t ld, int tokens, int num_q_heads,
                         int num_kv_heads, int head_dim, const float *q_weight,
                         const float *k_weight, float eps, const float *cos_sin, int half)
{
    struct rope_args a = {qkv, q_weight,    k_weight,     cos_sin,  ld,
                          eps, num_q_heads, num_kv_heads, head_dim, half};
    for_rows(x, tokens, (size_t)(num_q_heads + num_kv_heads) * (size_t)head_dim, rope_rows, &a);
}

// ---- act ----

struct act_args {
    const float *gate_up;
    float *out;
    int dim;
};

static void silu_rows(void *arg, int first, int last)
{
    const struct act_args *a = arg;
    const msgl_vf one = msgl__vf_set(1);
    const int dim = a->dim;
    for (int r = first; r < last; r++) {
        const float *gate = a->gate_up + (size_t)r * 2 * (size_t)dim, *up = gate + dim;
        float *out = a->out + (size_t)r * (size_t)dim;
        int i = 0;
        for (; i + 16 <= dim; i += 16) {
            const msgl_vf g = msgl__vf_load(gate + i);
            msgl__vf_store(out + i, g / (one + msgl__vf_exp(-g)) * msgl__vf_load(up + i));
        }
        if (i < dim) {
            const size_t n = (size_t)(dim - i);
            const msgl_vf g = msgl__vf_load_part(gate + i, n, 0);
            const msgl_vf u = msgl__vf_load_part(up + i, n, 0);
            msgl__vf_store_part(out + i, g / (one + msgl__vf_exp(-g)) * u, n);
        }
    }
}

static void silu_mul(msgl_exec *x, const float *gate_up, float *out, int rows, int dim)
{
    struct act_args a = {gate_up, out, dim};
    for_rows(x, rows, (size_t)dim * 2, silu_rows, &a);
}

#include "kernel/ref/sample_impl.h"

void MSGL_OPS_FILL(msgl_kernels *k)
{
    k->norm = (msgl_norm_kernels){rms_norm, add_rms_norm, add};
    k->rope = (msgl_rope_kernels){rope_table, qk_norm_rope};
    k->act = (msgl_act_kernels){silu_mul};
    k->sample = (msgl_sample_kernels){sample, logprobs, sample_scratch};
}
